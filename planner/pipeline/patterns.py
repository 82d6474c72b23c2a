"""Orders written as their authors explain them: phases, each a pattern that a rank repeats.

A rank has two tracks, ``a`` and ``b``: two stages, or two directions through the pipeline. In a pattern ``Fa`` is
the next forward of track a, ``Fb`` of track b; ``B``, ``I`` and ``W`` likewise; a bare ``W`` is the oldest weight
gradient still owed, and ``Fa&Bb`` are two passes that run together.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from planner.pipeline.schedule import Action, Pass, Schedule

Phase = tuple[int, str]
"""How often, and the pattern."""


class Track(NamedTuple):
    """A stage, and the microbatches ``first``, ``first + stride``, ... that it meets on the rank."""

    stage: int
    first: int = 0
    stride: int = 1


class RankWriter:
    """Turns phases into the actions of one rank, numbering the microbatches."""

    def __init__(self, a: Track, b: Track) -> None:
        self.tracks = {"a": a, "b": b}
        self.actions: list[Action] = []
        self.overlapped: list[Action] = []
        self.forwards: dict[str, int] = defaultdict(int)
        self.backwards: dict[str, int] = defaultdict(int)
        self.owed: list[tuple[str, Action]] = []

    def write(self, phases: Sequence[Phase]) -> None:
        """Append the phases."""
        for count, pattern in phases:
            for _ in range(count):
                for token in pattern.split():
                    first, *second = token.split("&")
                    self._append(first)
                    if second:
                        self.overlapped.append(self.actions[-1])
                        self._append(second[0])

    def _append(self, token: str) -> None:
        work, name = Pass[token[0]], token[1:]
        if work is Pass.W:
            oldest = next(debt for debt in self.owed if name in ("", debt[0]))
            self.owed.remove(oldest)
            self.actions.append(oldest[1])
            return
        track = self.tracks[name]
        counter = self.forwards if work is Pass.F else self.backwards
        action = Action(track.stage, work, track.first + track.stride * counter[name])
        counter[name] += 1
        self.actions.append(action)
        if work is Pass.I:
            self.owed.append((name, Action(track.stage, Pass.W, action.microbatch)))


def v_shaped(p: int, m: int, phases: Callable[[int], Sequence[Phase]]) -> Schedule:
    """Rank r holds stages r and 2p-1-r and runs ``phases(r)``, cut to m microbatches."""
    writers = [RankWriter(Track(rank), Track(2 * p - 1 - rank)) for rank in range(p)]
    for rank, writer in enumerate(writers):
        writer.write(phases(rank))
    return Schedule(
        ranks=tuple(
            tuple(action for action in writer.actions if action.microbatch < m) for writer in writers
        ),
        stage_to_rank=(*range(p), *reversed(range(p))),
        num_microbatches=m,
        overlapped=frozenset(action for writer in writers for action in writer.overlapped),
    )

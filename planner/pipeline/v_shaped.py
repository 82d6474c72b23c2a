"""Schedules whose stages run down the ranks and back up, so that rank r holds stages r and 2p-1-r.

Each is written as its authors explain it: phases, each a pattern that a rank repeats. In a pattern ``Fa``
is the next forward of the rank's first stage, ``Fb`` of its second; ``B``, ``I`` and ``W`` likewise; a bare
``W`` is the oldest weight gradient still owed, and ``Fa&Bb`` are two passes that run together.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence

from planner.pipeline.schedule import Action, Pass, Schedule

Phase = tuple[int, str]
"""How often, and the pattern."""


class _RankWriter:
    """Turns phases into the actions of one rank, numbering the microbatches."""

    def __init__(self, first: int, second: int) -> None:
        self.stage = {"a": first, "b": second}
        self.actions: list[Action] = []
        self.overlapped: list[Action] = []
        self.forwards: dict[int, int] = defaultdict(int)
        self.backwards: dict[int, int] = defaultdict(int)
        self.owed: list[Action] = []

    def write(self, phases: Sequence[Phase]) -> None:
        for count, pattern in phases:
            for _ in range(count):
                for token in pattern.split():
                    first, *second = token.split("&")
                    self._append(first)
                    if second:
                        self.overlapped.append(self.actions[-1])
                        self._append(second[0])

    def _append(self, token: str) -> None:
        work = Pass[token[0]]
        if work is Pass.W:
            self._append_weight(token)
            return
        stage = self.stage[token[1]]
        counter = self.forwards if work is Pass.F else self.backwards
        action = Action(stage, work, counter[stage])
        counter[stage] += 1
        self.actions.append(action)
        if work is Pass.I:
            self.owed.append(Action(stage, Pass.W, action.microbatch))

    def _append_weight(self, token: str) -> None:
        stages = (self.stage[token[1]],) if len(token) > 1 else self.stage.values()
        oldest = next(action for action in self.owed if action.stage in stages)
        self.owed.remove(oldest)
        self.actions.append(oldest)


def _v_shaped(p: int, m: int, phases: Callable[[int], Sequence[Phase]]) -> Schedule:
    """The schedule whose rank r runs ``phases(r)``, cut to m microbatches."""
    writers = [_RankWriter(rank, 2 * p - 1 - rank) for rank in range(p)]
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


def zb_v(p: int, v: int, m: int) -> Schedule:
    """ZB-V: no bubble where F = I = W and m >= 2p - 1, with the activation memory of 1F1B.

    Fewer microbatches run the order for 2p - 1 with the surplus left out.
    """
    full = max(m, 2 * p - 1)

    def phases(r: int) -> Sequence[Phase]:
        return (
            (2 * (p - r) - 1, "Fa"),
            (r, "Fb Fa"),
            (p - r, "Fb Ib Wb"),
            (full - 2 * p + r + 1, "Fa Ia Wa Fb Ib Wb"),
            (p - r - 1, "Ia Wa Fb Ib Wb"),
            (r, "Ia Ib"),
            (p - r, "Ia Wa"),
            (r, "Wb"),
            (r, "Wa"),
        )

    return _v_shaped(p, m, phases)


def dualpipev(p: int, v: int, m: int) -> Schedule:
    """DualPipeV, for m >= 2p: forwards overlap with backwards of the rank's other stage."""

    def phases(r: int) -> Sequence[Phase]:
        # The last rank starts its steady state with a pair kept apart, which shortens the bubble.
        apart = 1 if r == p - 1 else 0
        # Of the 2(r+1) backwards that drain both stages, b first, the later half postpones its weights.
        return (
            (2 * (p - r - 1), "Fa"),
            (r + 1, "Fa Fb"),
            (p - r - 1, "Ib W Fb"),
            (apart, "Fa Bb Fb&Ba"),
            (m - 2 * p + r + 1 - apart, "Fa&Bb Fb&Ba"),
            (p - r - 1, "Bb Fb&Ba"),
            ((r + 1) // 2, "Bb Ba"),
            ((r + 1) % 2, "Bb Ia"),
            ((r + 1) // 2, "Ib Ia"),
            (p - r - 1, "W Ia"),
            (r + 1, "W"),
        )

    return _v_shaped(p, m, phases)

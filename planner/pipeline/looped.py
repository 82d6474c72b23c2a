"""Schedules with stage s on rank s mod p: a microbatch goes round the ranks v times.

They differ in the order in which a rank visits its stages: a round of microbatches through each (depth first) or
all of them (breadth first).
"""

from collections.abc import Callable, Sequence

from planner.pipeline.one_way import Visit, alternate
from planner.pipeline.schedule import Action, Schedule


def round_size(p: int, m: int) -> int:
    """Microbatches that a rank runs through one stage before it turns to its next; p where p divides m."""
    return m // max(1, m // p)


def _rounds(stages: Sequence[int], m: int, size: int) -> list[Visit]:
    """Visits of a rank's stages, ``size`` microbatches at a time."""
    return [
        (stage, microbatch)
        for start in range(0, m, size)
        for stage in stages
        for microbatch in range(start, start + size)
    ]


def _looped(p: int, v: int, m: int, rank_actions: Callable[[int, Sequence[int]], list[Action]]) -> Schedule:
    """A schedule with stage s on rank s mod p."""
    ranks = tuple(tuple(rank_actions(rank, range(rank, p * v, p))) for rank in range(p))
    return Schedule(ranks, tuple(stage % p for stage in range(p * v)), m)


def interleaved(p: int, v: int, m: int) -> Schedule:
    """1F1B depth first over v stages per rank; the warm-up is 2(p-r-1) + (v-1) x round."""
    size = round_size(p, m)

    def actions(rank: int, stages: Sequence[int]) -> list[Action]:
        warmup = min(m * v, (v - 1) * size + 2 * (p - rank - 1))
        return alternate(_rounds(stages, m, size), _rounds(stages[::-1], m, size), warmup)

    return _looped(p, v, m, actions)


def interleaved_zb(p: int, v: int, m: int) -> Schedule:
    """Interleaved with the backward split: the warm-up is p-r-1 + (v-1) x round, and r weights wait."""
    size = round_size(p, m)

    def actions(rank: int, stages: Sequence[int]) -> list[Action]:
        warmup = min(m * v, (v - 1) * size + p - rank - 1)
        return alternate(_rounds(stages, m, size), _rounds(stages[::-1], m, size), warmup, rank)

    return _looped(p, v, m, actions)


def breadth_first(p: int, v: int, m: int) -> Schedule:
    """All microbatches through a rank's first stage, then its second, ...; backwards in the reverse order."""

    def actions(_: int, stages: Sequence[int]) -> list[Action]:
        forwards = _rounds(stages, m, m)
        return alternate(forwards, forwards[::-1], len(forwards))

    return _looped(p, v, m, actions)

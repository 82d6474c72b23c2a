"""TeraPipe: a sequence is cut into slices of tokens, which follow each other through the pipeline.

A slice attends to the slices before it, so forwards run first slice first and backwards last slice first. In a
schedule a slice counts as a microbatch; later slices look back further and take longer, so equal slices are not
the best ones.

Source: Li et al., TeraPipe, arXiv:2102.07988, section 3.
"""

from collections.abc import Callable, Sequence

from planner.errors import InputError
from planner.pipeline.one_way import one_stage
from planner.pipeline.schedule import Action, Pass, Schedule

SliceSeconds = Callable[[int, int], float]
"""Time of a slice in one stage [s], from its length and the length of what came before it, in tokens."""


def terapipe(p: int, v: int, m: int) -> Schedule:
    """All slices forward in order, then all back in reverse."""
    ranks = (
        [Action(s, Pass.F, k) for k in range(m)] + [Action(s, Pass.B, k) for k in reversed(range(m))]
        for s in range(p)
    )
    return one_stage(ranks, m)


def slice_latency(seconds: Sequence[float], num_ranks: int) -> float:
    """Time until the last of p equal stages is done with all slices [s]: ``sum t_i + (p - 1) max t_i``.

    Source: arXiv:2102.07988, equation 5.
    """
    return sum(seconds) + (num_ranks - 1) * max(seconds)


def best_slices(
    num_tokens: int, num_ranks: int, seconds: SliceSeconds, granularity: int = 1
) -> tuple[int, ...]:
    """Lengths of the slices with the least `slice_latency`; multiples of ``granularity`` tokens.

    For every bound on the slowest slice, a dynamic program finds the least sum. Source: arXiv:2102.07988, section
    3.3, algorithm 1. Raises: InputError where ``granularity`` does not divide the tokens.
    """
    if granularity < 1 or num_tokens < 1 or num_tokens % granularity:
        raise InputError(f"slices of multiples of {granularity} tokens do not add up to {num_tokens} tokens")
    units = num_tokens // granularity
    table = [
        [seconds(length * granularity, before * granularity) for length in range(1, units - before + 1)]
        for before in range(units)
    ]
    best = float("inf")
    shortest: tuple[int, ...] = (num_tokens,)
    for slowest in sorted({time for row in table for time in row}):
        if num_ranks * slowest >= best:
            break
        lengths = _least_sum(table, slowest)
        if lengths:
            times = _times(table, lengths)
            latency = slice_latency(times, num_ranks)
            if latency < best:
                best, shortest = latency, tuple(length * granularity for length in lengths)
    return shortest


def _least_sum(table: Sequence[Sequence[float]], slowest: float) -> tuple[int, ...]:
    """Lengths that cover all units with the least total time, none above ``slowest``; empty if there are none."""
    units = len(table)
    total = [0.0] + [float("inf")] * units
    last = [0] * (units + 1)
    for before, row in enumerate(table):
        for length, time in enumerate(row, start=1):
            if time <= slowest and total[before] + time < total[before + length]:
                total[before + length], last[before + length] = total[before] + time, length
    if total[units] == float("inf"):
        return ()
    lengths = []
    end = units
    while end:
        lengths.append(last[end])
        end -= last[end]
    return tuple(reversed(lengths))


def _times(table: Sequence[Sequence[float]], lengths: Sequence[int]) -> list[float]:
    before, times = 0, []
    for length in lengths:
        times.append(table[before][length - 1])
        before += length
    return times

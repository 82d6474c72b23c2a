"""Counts of nodes between the sizes of a ladder, so that the answer of ``size`` is no power of two by accident.

Around the best size of a kind the counts up to its neighbours are tried: every one, or evenly spread ones, and then
those around the best again, down to single nodes. Which counts a batch can be divided over is a matter of their
factors, so nothing short of trying them tells.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

from cluster_specs.record import Record
from planner.sweep.ladders import Goal, best, in_time, meets, miss, money
from planner.sweep.records import Point

MOST_BETWEEN = 8
"""Counts of a kind that are tried at once between two others."""

NEAR = 1.15
"""Kinds whose best size costs up to so many times the cheapest are refined; where nothing meets the goal, those that
miss it by up to so many times the least miss."""


class Refined(Record):
    """Counts of one kind that were tried, beside the ladder's."""

    from_devices: int
    to_devices: int
    every_devices: int
    """The widest step in this range; next to the best count it is a single node."""


def near(tried: Sequence[Sequence[Point]], goal: Goal) -> list[int]:
    """Which kinds may still hold the answer, by the points that were ``tried`` of each."""
    if any(meets(point, goal) for points in tried for point in points):
        cost = [min((money(p) for p in points if in_time(p, goal)), default=None) for points in tried]
    else:
        cost = [
            min((miss(p, goal) for p in points if p.economics is not None), default=None) for points in tried
        ]
    least = min((each for each in cost if each is not None), default=math.inf)
    return [i for i, each in enumerate(cost) if each is not None and each <= NEAR * least]


def between(points: Sequence[Point], goal: Goal, least: float, node: int) -> tuple[int, ...]:
    """Counts to try now around the best of ``points``, ascending: none smaller than ``least``, none twice.

    Where nothing meets the goal, around the nearest miss and the cheapest in time. ``node`` is what the kind grows by
    [devices]; empty where nothing is left, or nothing has a plan.
    """
    if node == 0:
        return ()
    wanted = best(points, goal), best(points, goal.model_copy(update={"budget": None}))
    counts = sorted(point.inputs.devices // node for point in points)
    found: set[int] = set()
    for at in {points[i].inputs.devices // node for i in wanted if i is not None}:
        here = counts.index(at)
        first = counts[here - 1] if here else min(at, math.ceil(least / node)) - 1
        last = counts[here + 1] if here + 1 < len(counts) else at
        found |= {*_spread(first, at), *_spread(at, last)}
    return tuple(n * node for n in sorted(found))


def _spread(first: int, last: int) -> range:
    """Numbers strictly between, at most `MOST_BETWEEN`: the multiples of a power of two, as they divide best."""
    step = 1
    while (last - 1) // step - first // step > MOST_BETWEEN:
        step *= 2
    return range((first // step + 1) * step, last, step)


def refined(tried: Sequence[Point], counts: Sequence[int], node: int) -> Refined:
    """What trying ``counts`` of a kind, of which some points were ``tried``, adds up to."""
    known = sorted({0, *(p.inputs.devices for p in tried), *counts})
    inside = [n for n in known if counts[0] <= n <= counts[-1]]
    steps = [b - a for a, b in pairwise(inside)]
    return Refined(from_devices=inside[0], to_devices=inside[-1], every_devices=max(steps, default=node))

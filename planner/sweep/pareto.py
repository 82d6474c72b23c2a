"""Points that no other beats in everything: time, cost, memory headroom, devices; no single score."""

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence

from planner.sweep.records import Point

NEAR_LEAST_COST = 0.1
"""A recommended point costs at most this much more than the cheapest."""


HEADROOM_STEP = 0.05
"""Shares of memory that are closer than this are alike: nobody rents by them."""


def group_of(point: Point) -> Hashable:
    """What may be weighed against each other: the same model, trained the same way, on the same hardware numbers."""
    i = point.inputs
    same = (i.model, i.global_batch, i.seq_len, i.precision)
    return (*same, tuple(sorted(i.job.items(), key=str)), tuple(sorted(i.changes.items())))


def losses(point: Point) -> tuple[float, float, float, float]:
    """(time, cost, headroom in steps and negative, devices), each the less the better; an unknown cost is the worst."""
    assert point.economics is not None
    assert point.memory_headroom is not None
    money = point.economics.cost
    return (
        point.economics.time_to_train_s,
        math.inf if money is None else money,
        -math.floor(point.memory_headroom / HEADROOM_STEP + 1e-9),
        float(point.economics.devices),
    )


def dominates(a: Sequence[float], b: Sequence[float]) -> bool:
    """At least as good in everything, and better in something."""
    return all(x <= y for x, y in zip(a, b, strict=True)) and tuple(a) != tuple(b)


def front(points: Sequence[Point]) -> frozenset[int]:
    """Indices of the points on the front of their group."""
    found = set()
    for members in _groups(points).values():
        values = {i: losses(points[i]) for i in members}
        # Who comes first in the order of losses cannot be beaten by who comes later.
        kept: list[int] = []
        for i in sorted(members, key=lambda i: (values[i], i)):
            if not any(dominates(values[k], values[i]) for k in kept):
                kept.append(i)
        found |= set(kept)
    return frozenset(found)


def recommended(points: Sequence[Point]) -> tuple[int, ...]:
    """In each group the fastest of the points whose cost is near the least; the fastest where no price is known."""
    chosen = []
    for members in _groups(points).values():
        values = {i: losses(points[i]) for i in members}
        limit = min(cost for _, cost, _, _ in values.values()) * (1 + NEAR_LEAST_COST)
        near = [i for i in members if values[i][1] <= limit]
        chosen.append(min(near, key=lambda i: (values[i], i)))
    return tuple(sorted(chosen))


def _groups(points: Sequence[Point]) -> Mapping[Hashable, list[int]]:
    """Indices of the planned points by group."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for i, point in enumerate(points):
        if point.status == "planned":
            groups[group_of(point)].append(i)
    return groups

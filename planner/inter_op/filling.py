"""Ranks filled with layers until all are dealt out: quicker than the programs of `dealing`, and never above them.

Rank r works m times for each of its layers, at least c_r seconds beside that (embedding or head, and the one layer that
every stage before it has, as the first microbatch comes and the last goes), and has memory for some. It takes

    T_r(n) = c_r + min n a_q   over its ways q with   n b_q <= room

seconds for n layers, each a_q seconds and b_q bytes. No makespan is below the T at which the most layers with
``T_r(n) <= T`` are all of them. Where layers are of several kinds, a and b are those of the least kind; what a layer of
each is worth to each rank says more of them (a Lagrangian bound), with prices of seconds and bytes from the corners of
the lower left hull of the points (a_q, b_q).
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from planner.inter_op.partition import Array
from planner.inter_op.ranks import Order, Rank, rank_paths
from planner.pipeline.dependencies import Integers
from planner.pipeline.generators import stage_to_rank

ROUNDING = 1e-9
"""A rank takes a layer if it has room for all but so much of it."""


class RankWays(NamedTuple):
    """What a layer takes on one rank: by way, and kind of layer."""

    seconds: Array
    """Of all microbatches, and after them [s]."""
    taken: Array
    """[bytes]"""
    beside: float
    """c_r [s]."""
    room: Array
    """By way [bytes]."""


class _Corners(NamedTuple):
    """Dual solutions: layers for each second and each byte."""

    by_second: Array
    by_byte: Array


def filled(
    order: Order,
    ranks: Sequence[Rank],
    counts: Sequence[int],
    hops: Sequence[float],
    held: Sequence[Sequence[Integers]],
) -> float:
    """What no makespan with what comes after it can be below [s]; infinite where nothing fits.

    Arguments as for `dealing.Dealer.deal`; ``held[r]`` are moments of rank r as of `moments_in_flight`.
    """
    ways, layers = rank_ways(order, ranks, hops, held), sum(counts)
    least = _all_dealt(np.array([rank_times(one, layers) for one in ways]), order.virtual_stages)
    if len(counts) == 1 or np.isinf(least):
        return least
    return max(least, _kinds_apart(ways, np.asarray(counts, dtype=np.float64), order.virtual_stages))


def rank_ways(
    order: Order, ranks: Sequence[Rank], hops: Sequence[float], held: Sequence[Sequence[Integers]]
) -> list[RankWays]:
    """Of every rank."""
    homes = np.array(stage_to_rank(*order[:3]))
    alike = {id(rank): _Offers.of(rank, order.microbatches) for rank in ranks}
    each = [alike[id(rank)] for rank in ranks]
    empty, one = (np.array([getattr(each[home], name) for home in homes]) for name in ("fixed", "layer"))
    empty[0], empty[-1] = ranks[homes[0]].first, ranks[homes[-1]].last
    found = []
    for r, (rank, mine, (passes, crossings)) in enumerate(zip(ranks, each, _paths(order), strict=True)):
        others = passes * (homes != r)[:, None]
        beside = float((passes * empty).sum() + (others * one).sum() + crossings @ np.asarray(hops))
        room = rank.room - rank.taken(r == homes[0], r == homes[-1])
        kept = np.mean(np.array(held[r])[:, homes == r], axis=0).min()
        found.append(RankWays(mine.seconds, mine.states + kept * mine.kept, beside, room))
    return found


class _Offers(NamedTuple):
    """What ranks that offer the same have in common."""

    fixed: Array
    """[pass]: of a stage without layers, at least [s]."""
    layer: Array
    """[pass]: of a layer, at least [s]."""
    seconds: Array
    """As in `RankWays`, like those that follow."""
    states: Array
    kept: Array

    @classmethod
    def of(cls, rank: Rank, microbatches: int) -> "_Offers":
        """Of one of the ranks."""
        passes = np.array([offer.seconds for offer in rank.offers])
        return cls(
            np.min([offer.fixed for offer in rank.offers], axis=0),
            passes.min(axis=(0, 1)),
            microbatches * passes.sum(axis=2) + np.array([offer.after for offer in rank.offers]),
            np.array([offer.states for offer in rank.offers]),
            np.array([offer.kept for offer in rank.offers]),
        )


def rank_times(ways: RankWays, most: int) -> Array:
    """T_r of 1 to ``most`` layers [s]."""
    number = np.arange(1, most + 1)[:, None]
    fits = number * ways.taken.min(axis=1) <= ways.room * (1 + ROUNDING)
    times: Array = np.where(fits, ways.beside + number * ways.seconds.min(axis=1), np.inf).min(axis=1)
    return times * (1 - ROUNDING)


@lru_cache(maxsize=1024)
def _paths(order: Order) -> tuple[tuple[Array, Array], ...]:
    return tuple((path.passes, path.crossings) for path in rank_paths(order))


def _all_dealt(times: Array, least: int) -> float:
    """T at which all layers have a place, and every rank has ``least`` of them; from [r, n - 1]."""
    most = times.shape[1]
    return float(max(np.partition(times, most - 1, axis=None)[most - 1], times[:, least - 1].max()))


def _kinds_apart(ways: Sequence[RankWays], counts: Array, least: int) -> float:
    """The Lagrangian bound of all kinds, with what seconds and bytes are worth for a mean layer."""
    mean = counts / counts.sum()
    corners = [_Corners(*_corners(one.seconds @ mean, one.taken @ mean)) for one in ways]
    reached = _all_dealt(_times(ways, corners, round(counts.sum())), least)
    if np.isinf(reached):
        return 0.0
    best = [
        int((by_second * max(0.0, reached - one.beside) + by_byte * one.room.max()).argmin())
        for one, (by_second, by_byte) in zip(ways, corners, strict=True)
    ]
    by_second = np.array([corner.by_second[k] for corner, k in zip(corners, best, strict=True)])
    by_byte = np.array([corner.by_byte[k] for corner, k in zip(corners, best, strict=True)])
    if not by_second.sum():
        return 0.0
    y, z = by_second / by_second.sum(), by_byte / by_second.sum()
    worth = [(u * one.seconds + w * one.taken).min(axis=0) for one, u, w in zip(ways, y, z, strict=True)]
    beside = sum(u * one.beside - w * one.room.max() for one, u, w in zip(ways, y, z, strict=True))
    return float(beside + counts @ np.min(worth, axis=0))


def _corners(seconds: Array, taken: Array) -> tuple[Array, Array]:
    """Where ``by_second * seconds + by_byte * taken >= 1`` for all ways, at the corners of what is allowed."""
    hull: list[tuple[float, float]] = []
    for point in sorted(zip(seconds.tolist(), taken.tolist(), strict=True)):
        if hull and point[1] >= hull[-1][1]:
            continue
        while len(hull) > 1 and _above(hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    by_second, by_byte = [1 / hull[0][0]], [0.0]
    for (a, b), (c, d) in zip(hull, hull[1:], strict=False):
        by_second.append((b - d) / (b * c - a * d))
        by_byte.append((c - a) / (b * c - a * d))
    if hull[-1][1] > 0:
        by_second.append(0.0)
        by_byte.append(1 / hull[-1][1])
    return np.array(by_second), np.array(by_byte)


def _above(left: tuple[float, float], middle: tuple[float, float], right: tuple[float, float]) -> bool:
    """Whether ``middle`` is not below the line between the others."""
    (a, b), (c, d), (e, f) = left, middle, right
    return (d - b) * (e - a) >= (f - b) * (c - a)


def _times(ways: Sequence[RankWays], corners: Sequence[_Corners], most: int) -> Array:
    """[r, n - 1]: T at which rank r has n mean layers, in any mixture of its ways [s]."""
    number = np.arange(1, most + 1) * (1 - ROUNDING)
    found = []
    for one, (by_second, by_byte) in zip(ways, corners, strict=True):
        missing = number - by_byte[:, None] * one.room.max()
        with np.errstate(divide="ignore", invalid="ignore"):
            each = np.where(missing > 0, missing / by_second[:, None], 0.0)
        found.append(one.beside + each.max(axis=0))
    return np.array(found)

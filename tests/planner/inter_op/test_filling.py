"""Ranks filled with layers: never above the program, nor any cut; and what it says where that is plain."""

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.inter_op.filling import filled
from planner.inter_op.ranks import Order, Rank, Rates
from planner.pipeline.dependencies import moments_in_flight
from planner.pipeline.generators import stage_to_rank
from planner.pipeline.simulator import StageTimes, makespan

ORDERS = (
    Order("interleaved", 2, 2, 4),
    Order("interleaved", 2, 3, 4),
    Order("zb-v", 2, 2, 4),
    Order("zb-h1", 3, 1, 5),
)


def rank(ways: list[tuple[list[float], list[float]]], room: float = 1e9, head: float = 0.0) -> Rank:
    """Every way takes so many seconds for each pass of a layer, and so many bytes for it in flight, by kind."""
    offers = tuple(
        Rates(
            np.outer(seconds, np.ones(3)),
            np.zeros(3),
            np.zeros(len(seconds)),
            np.zeros(len(seconds)),
            np.array(kept),
            np.zeros(3),
        )
        for seconds, kept in ways
    )
    return Rank(offers, np.zeros(3), np.array([head, head, 0.0]), room)


def least(order: Order, ranks: list[Rank], counts: list[int], hop: float = 0.0) -> float:
    stages = order.ranks * order.virtual_stages
    return filled(order, ranks, counts, [hop] * (stages - 1), moments_in_flight(*order))


def test_two_ranks_without_memory() -> None:
    # 4 microbatches, 3 s for each on a layer of the first rank and 1.5 s on the second: 3 of 8 layers and 5 of them
    # take 36 s and, with 3 s of the layer that the first micro-batch passes before, 33 s.
    order = Order("interleaved", 2, 2, 4)
    ranks = [rank([([1.0], [0.0])]), rank([([0.5], [0.0])])]
    assert least(order, ranks, [8]) == pytest.approx(36.0)


def test_memory_moves_layers() -> None:
    # Two ways on each rank: fast ones keep 1 byte for each of at least 3 microbatches in flight, slow ones nothing.
    order = Order("interleaved", 2, 2, 4)
    ways = [([1.0], [1.0]), ([2.0], [0.0])]
    free, tight = (least(order, [rank(ways, room), rank(ways, room)], [8]) for room in (100.0, 3.0))
    assert free == pytest.approx(4 * 4 * 3.0 + 3.0)
    assert tight > free
    assert least(order, [rank(ways[:1], 1.0), rank(ways[:1], 1.0)], [8]) == float("inf")


SECONDS = st.floats(0.2, 3)


@settings(max_examples=25, deadline=None)
@given(
    order=st.sampled_from(ORDERS),
    ways=st.lists(st.tuples(SECONDS, st.floats(0, 2)), min_size=1, max_size=3),
    rooms=st.lists(st.floats(4, 60), min_size=3, max_size=3),
    head=st.floats(0, 4),
    hop=st.floats(0, 0.5),
)
def test_it_is_no_more_than_any_cut(
    order: Order, ways: list[tuple[float, float]], rooms: list[float], head: float, hop: float
) -> None:
    ranks = [rank([([a], [b]) for a, b in ways], room, head) for room in rooms[: order.ranks]]
    bound = least(order, ranks, [7], hop)
    stages, homes = order.ranks * order.virtual_stages, np.array(stage_to_rank(*order[:3]))
    moments = moments_in_flight(*order)
    for ends in ((0, *inner, 7) for inner in combinations(range(1, 7), stages - 1)):
        layers = np.array([b - a for a, b in pairwise(ends)])
        held = [max(float(moment @ layers) for moment in of_rank) for of_rank in moments]
        fitting = [
            min((a for a, b in ways if b * h <= r.room), default=None)
            for h, r in zip(held, ranks, strict=True)
        ]
        if None in fitting:
            continue
        table = np.outer(layers * np.array(fitting)[homes], np.ones(3))
        table[-1] += ranks[homes[-1]].last
        assert bound <= makespan(*order, StageTimes(*table.T.tolist()), hop).makespan * (1 + 1e-9)


@settings(max_examples=25, deadline=None)
@given(
    order=st.sampled_from(ORDERS),
    seconds=st.lists(st.tuples(SECONDS, SECONDS), min_size=3, max_size=3),
    kept=st.tuples(st.floats(0.01, 2), st.floats(0.01, 2)),
    room=st.floats(8, 60),
)
def test_kinds_of_layers_may_suit_ranks_unlike(
    order: Order, seconds: list[tuple[float, float]], kept: tuple[float, float], room: float
) -> None:
    ranks = [rank([(list(each), list(kept))], room) for each in seconds[: order.ranks]]
    counts, stages = [4, 5], order.ranks * order.virtual_stages
    bound, homes = least(order, ranks, counts), stage_to_rank(*order[:3])
    moments = moments_in_flight(*order)
    for ends in ((0, *inner, 9) for inner in combinations(range(1, 9), stages - 1)):
        kinds = [np.array([max(0, min(b, 4) - a), max(0, b - max(a, 4))]) for a, b in pairwise(ends)]
        bytes_of = np.array([layers @ np.array(kept) for layers in kinds])
        if all(float(moment @ bytes_of) <= room for of_rank in moments for moment in of_rank):
            each = [layers @ np.array(seconds[home]) for layers, home in zip(kinds, homes, strict=True)]
            times = StageTimes(*np.outer(np.ones(3), each).tolist())
            assert bound <= makespan(*order, times).makespan * (1 + 1e-9)

"""Layers dealt out to a known order: as brute force finds, with and without limits of memory."""

from itertools import combinations, islice, pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.inter_op.dealing import Dealer
from planner.inter_op.layer_program import LayerProgram
from planner.inter_op.ranks import Order, Rank, Rates, rank_paths
from planner.pipeline.dependencies import arranged, moments_in_flight, peak_in_flight
from planner.pipeline.generators import stage_to_rank
from planner.pipeline.simulator import StageTimes, longest_path, makespan

ORDERS = (
    Order("interleaved", 2, 2, 4),
    Order("interleaved", 2, 3, 4),
    Order("zb-v", 2, 2, 4),
    Order("zb-h1", 3, 1, 5),
    Order("interleaved-zb", 2, 2, 4),
)


def rank(seconds: tuple[float, float, float], room: float = 1e9, head: float = 0.0) -> Rank:
    """Every layer takes these seconds, and a byte for each micro-batch in flight."""
    rates = Rates(np.array([seconds]), np.zeros(3), np.zeros(1), np.zeros(1), np.ones(1), np.zeros(3))
    return Rank((rates,), np.zeros(3), np.array([head, head, 0.0]), room)


def stage_times(order: Order, ranks: list[Rank], ends: tuple[int, ...]) -> StageTimes:
    homes = stage_to_rank(*order[:3])
    table = [
        (b - a) * ranks[home].offers[0].seconds[0] for home, (a, b) in zip(homes, pairwise(ends), strict=True)
    ]
    table[-1] = table[-1] + ranks[homes[-1]].last
    return StageTimes(*np.array(table).T.tolist())


def cuts(layers: int, stages: int):
    return ((0, *inner, layers) for inner in combinations(range(1, layers), stages - 1))


def most_held(order: Order, ends: tuple[int, ...]) -> list[float]:
    """Layers in flight on each rank, at most."""
    layers = np.diff(ends)
    return [max(float(held @ layers) for held in moments) for moments in moments_in_flight(*order)]


def solved(order: Order, ranks: list[Rank], layers: int, hop: float = 0.0) -> tuple[float, list[float]]:
    """The shortest makespan of all deals that come, and the bounds before it came."""
    found, bounds = [float("inf")], []
    hops = [hop] * (order.ranks * order.virtual_stages - 1)
    for dealt in Dealer().deal(order, ranks, [layers], hops, lambda: min(found)):
        bounds.append((dealt.bound, min(found)))
        if dealt.layers:
            ends = (0, *np.cumsum(dealt.layers).tolist())
            found.append(makespan(*order, stage_times(order, ranks, ends), hop).makespan)
    return min(found), [bound for bound, known in bounds if known > min(found)]


@settings(max_examples=10, deadline=None)
@given(
    order=st.sampled_from(ORDERS),
    seconds=st.lists(st.tuples(*[st.floats(0.2, 3)] * 3), min_size=3, max_size=3),
    head=st.floats(0, 4),
    hop=st.floats(0, 0.5),
)
def test_deals_are_as_good_as_every_cut(
    order: Order, seconds: list[tuple[float, float, float]], head: float, hop: float
) -> None:
    ranks = [rank(each, head=head) for each in seconds[: order.ranks]]
    stages = order.ranks * order.virtual_stages
    found, bounds = solved(order, ranks, 8, hop)
    times = [makespan(*order, stage_times(order, ranks, ends), hop).makespan for ends in cuts(8, stages)]
    assert found == pytest.approx(min(times))
    assert max(bounds) <= min(times) * (1 + 1e-6)


def test_the_bound_is_close_where_there_are_many_layers() -> None:
    order, ranks = Order("interleaved", 2, 2, 8), [rank((1.0, 1.0, 1.0)), rank((0.4, 0.4, 0.4), head=0.5)]
    _, root = islice(Dealer().deal(order, ranks, [40], [0.0] * 3, lambda: float("inf")), 2)
    best = min(makespan(*order, stage_times(order, ranks, ends)).makespan for ends in cuts(40, 4))
    assert 0.98 * best < root.bound <= best


@pytest.mark.parametrize("room", [6.0, 8.0, 11.0])
def test_memory_limits_what_a_rank_holds(room: float) -> None:
    order = Order("interleaved", 2, 2, 4)
    ranks = [rank((1.0, 1.0, 1.0)), rank((0.4, 0.4, 0.4), room)]
    free, _ = solved(order, [ranks[0], rank((0.4, 0.4, 0.4))], 9)
    found, _ = solved(order, ranks, 9)
    fitting = [
        makespan(*order, stage_times(order, ranks, ends)).makespan
        for ends in cuts(9, 4)
        if most_held(order, ends)[1] <= room
    ]
    assert fitting
    assert free <= found * (1 + 1e-9)
    assert found == pytest.approx(min(fitting))
    assert free < found or room > 8


def test_each_rank_has_the_way_that_suits_it() -> None:
    # The fast way keeps a byte for each micro-batch of a layer, the slow one nothing.
    def ways(room: float) -> Rank:
        fast, slow = (
            Rates(np.full((1, 3), each), np.zeros(3), np.zeros(1), np.zeros(1), np.array([kept]), np.zeros(3))
            for each, kept in ((1.0, 1.0), (1.5, 0.0))
        )
        return Rank((fast, slow), np.zeros(3), np.zeros(3), room)

    order = Order("interleaved", 2, 2, 4)
    deals = [
        dealt
        for dealt in Dealer().deal(order, [ways(1.0), ways(99.0)], [8], [0.0] * 3, lambda: 70.0)
        if dealt.layers
    ]
    assert deals
    assert {dealt.ways[0] for dealt in deals} == {1}
    assert {dealt.ways[1] for dealt in deals} >= {0}


def test_nothing_fits() -> None:
    ranks = [rank((1.0, 1.0, 1.0), 1.0), rank((1.0, 1.0, 1.0), 1.0)]
    found, _ = solved(Order("interleaved", 2, 2, 4), ranks, 9)
    assert found == float("inf")


@pytest.mark.parametrize("order", ORDERS)
def test_paths_are_what_the_simulator_takes(order: Order) -> None:
    stages = order.ranks * order.virtual_stages
    columns = np.random.default_rng(1).uniform(0.5, 2, (3, stages))
    times, hops = StageTimes(*columns.tolist()), [0.1 * (s + 1) for s in range(stages - 1)]
    whole = makespan(*order, times, hops).makespan
    path = longest_path(arranged(*order), times, hops)
    along = float((path.passes * columns.T).sum() + path.crossings @ np.array(hops))
    assert path.seconds == pytest.approx(whole)
    assert along == pytest.approx(whole)
    for of_rank in rank_paths(order):
        assert float((of_rank.passes * columns.T).sum() + of_rank.crossings @ np.array(hops)) <= whole + 1e-9


@pytest.mark.parametrize("order", ORDERS)
def test_most_in_flight_is_the_peak(order: Order) -> None:
    homes = np.array(stage_to_rank(*order[:3]))
    peaks = peak_in_flight(arranged(*order))
    for r, moments in enumerate(moments_in_flight(*order)):
        assert all(held[homes != r].sum() == 0 for held in moments)
        # Where backwards are split, some wait for their weight gradients alone, which are counted only there.
        assert max(int(held.sum()) for held in moments) <= peaks[r]
        if order.schedule == "interleaved":
            assert max(int(held.sum()) for held in moments) == peaks[r]


def test_what_a_solver_leaves_below_zero_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simplex solutions keep to bounds within a tolerance; a stage that takes no time must not take less."""
    order, none = Order("interleaved", 2, 2, 4), np.zeros(2)
    seconds = np.array([(1.0, 1.0, 0.0), (1.0, 1.0, 1.0)])  # no layer of the second kind is there
    rates = Rates(seconds, np.zeros(3), none, none, none, np.zeros(3))
    each = Rank((rates,), np.zeros(3), np.zeros(3), 1.0)
    program = LayerProgram(order, [each, each], [6, 0], [0.0] * 3)
    solver = program._solver

    class Tolerant:
        def getSolution(self) -> object:
            found = solver.getSolution()
            return SimpleNamespace(col_value=[value - 1e-12 for value in found.col_value])

        def __getattr__(self, name: str) -> object:
            return getattr(solver, name)

    monkeypatch.setattr(program, "_solver", Tolerant())
    assert np.isfinite(program.solve())
    assert np.min(program.times().table(4)) >= 0

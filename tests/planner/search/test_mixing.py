"""Bounds on plans whose stages recompute unlike one another: below every such plan, and what the lines mean."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_cases import TWO_NODES, Case, cluster_with, small_llama

from planner.errors import Infeasible
from planner.evaluation.evaluator import Evaluator
from planner.plans import Job, Pins
from planner.search import plan
from planner.search.best_first import Search
from planner.search.mixing import (
    Way,
    cheapest,
    least_busiest,
    least_work,
    lines_of,
    mixed_floor,
    spent,
    staged_mixed_floor,
)
from planner.search.space import candidates

WAYS = [Way(1.0, 8.0), Way(1.25, 3.0), Way(1.4, 1.0)]


def by_hand(number: int, held: tuple[int, ...], room: float) -> tuple[float, float]:
    """Least work of all ranks and least seconds of the busiest, over all ways to deal out whole layers."""
    one: list[dict[int, float]] = []
    for flight in held:
        best: dict[int, float] = {}
        for counts in itertools.product(range(number + 1), repeat=len(WAYS)):
            layers = sum(counts)
            memory = sum(n * (2.0 + flight * way.saved) for n, way in zip(counts, WAYS, strict=True))
            if layers <= number and memory <= room:
                seconds = sum(n * way.seconds for n, way in zip(counts, WAYS, strict=True))
                best[layers] = min(best.get(layers, np.inf), seconds)
        one.append(best)
    deals = [deal for deal in itertools.product(*one) if sum(deal) == number]
    taken = [[best[n] for best, n in zip(one, deal, strict=True)] for deal in deals]
    return min(map(sum, taken), default=np.inf), min(map(max, taken), default=np.inf)


@pytest.mark.parametrize("room", [11.0, 20.0, 26.0, 40.0, 90.0])
@pytest.mark.parametrize("held", [(2, 1), (3, 2, 1)])
def test_lines_are_below_every_deal_of_whole_layers(held: tuple[int, ...], room: float) -> None:
    number = 5
    lines = lines_of(cheapest(WAYS), 2.0, np.array(held), np.full(len(held), room))
    work, busiest = by_hand(number, held, room)
    if lines.layers.sum() < number:
        assert work == np.inf
        return
    assert least_work(lines, number) <= work * (1 + 1e-9)
    assert least_busiest(lines, number, (0.0, 0.0)) <= busiest * (1 + 1e-9)
    if room == 90.0:  # all keep everything
        assert least_work(lines, number) == pytest.approx(number * WAYS[0].seconds)


@given(st.lists(st.tuples(st.floats(1, 2), st.floats(0, 9)), min_size=1, max_size=5))
def test_what_is_left_of_policies_is_convex_and_has_the_fastest(
    given_ways: list[tuple[float, float]],
) -> None:
    ways = [Way(*way) for way in given_ways]
    kept = cheapest(ways)
    assert kept[0] == min(ways)
    rates = [(b.seconds - a.seconds) / (a.saved - b.saved) for a, b in itertools.pairwise(kept)]
    assert all(a <= b * (1 + 1e-6) + 1e-9 for a, b in itertools.pairwise(rates))


def test_what_is_spent_goes_first_where_most_is_in_flight() -> None:
    assert spent(WAYS, [2, 2], [3, 1], 0.0) == 0.0
    # Two layers with three micro-batches each in flight spare 30 bytes for 0.25 s each.
    assert spent(WAYS, [2, 2], [3, 1], 30.0) == pytest.approx(0.5)
    assert spent(WAYS, [2, 2], [3, 1], 42.0) == pytest.approx(0.8)
    assert spent(WAYS, [2, 2], [3, 1], 56.0) == pytest.approx(1.6)
    assert spent(WAYS, [2, 2], [3, 1], 57.0) == np.inf


@pytest.mark.parametrize("gib", [3.0, 4.5, 8.0])
@pytest.mark.parametrize("pins", [Pins(pipeline=2), Pins(pipeline=4, virtual_stages=2), Pins(pipeline=4)])
def test_bounds_are_below_what_plans_with_policies_by_stage_take(gib: float, pins: Pins) -> None:
    case = Case(small_llama(), cluster_with(TWO_NODES, gib), Job(global_batch=16, seq_len=1024), pins)
    try:
        answer = plan(case.model, case.cluster, case.job, case.pins)
    except Infeasible:
        assert gib == 3.0
        return
    assert answer.estimate is not None
    search = Search(Evaluator(case.model, case.cluster, case.job), case.pins, "time")
    found = answer.plan
    alike = [
        c
        for c in candidates(search.evaluator, case.pins, "time")
        if (c.data, c.tensor, c.pipeline, c.context)
        == (found.data, found.tensor, found.pipeline, found.context)
        and (c.micro_batch, c.zero_stage, c.sharding) == (found.micro_batch, found.zero_stage, found.sharding)
        and (c.virtual_stages, c.schedule) == (found.virtual_stages, found.schedule)
        and c.recompute != "none"
    ]
    assert alike
    for c in alike:
        assert mixed_floor(search.floors, c) <= answer.estimate.step_time_s * (1 + 1e-9)
        if c.virtual_stages > 1:
            assert staged_mixed_floor(search.floors, c) <= answer.estimate.step_time_s * (1 + 1e-9)

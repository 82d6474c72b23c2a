"""The front against brute force, recommendations, and where scaling stops paying."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small import point

from planner.sweep.efficiency import efficiencies, knees
from planner.sweep.pareto import dominates, front, losses, recommended
from planner.sweep.records import Point

figures = st.builds(
    point,
    time=st.integers(1, 4).map(float),
    cost=st.one_of(st.none(), st.integers(1, 4).map(float)),
    headroom=st.integers(0, 3).map(lambda n: n / 10),
    devices=st.sampled_from([8, 16, 24]),
    seq_len=st.sampled_from([1024, 2048]),
)


@given(st.lists(figures, max_size=25))
def test_front_against_brute_force(points: list[Point]) -> None:
    best = {
        i
        for i, p in enumerate(points)
        if not any(q.inputs.seq_len == p.inputs.seq_len and dominates(losses(q), losses(p)) for q in points)
    }
    assert front(points) == best


@given(st.lists(figures, min_size=1, max_size=25))
def test_every_group_has_a_recommendation_near_the_least_cost(points: list[Point]) -> None:
    chosen = [points[i] for i in recommended(points)]
    assert {p.inputs.seq_len for p in chosen} == {p.inputs.seq_len for p in points}
    for p in chosen:
        group = [losses(q) for q in points if q.inputs.seq_len == p.inputs.seq_len]
        assert losses(p)[1] <= min(cost for _, cost, _, _ in group) * 1.1


def test_a_little_more_memory_is_no_reason() -> None:
    better, worse = point(time=1, cost=1, headroom=0.201), point(time=2, cost=2, headroom=0.204)
    assert front([better, worse]) == {0}
    roomy = point(time=2, cost=2, headroom=0.26)
    assert front([better, roomy]) == {0, 1}


def test_fastest_near_the_least_cost() -> None:
    points = [point(time=9, cost=100), point(time=5, cost=109), point(time=2, cost=130)]
    assert recommended(points) == (1,)
    unpriced = [point(time=9, cost=None), point(time=5, cost=None)]
    assert recommended(unpriced) == (1,)


def test_points_without_a_plan_are_left_out() -> None:
    failed = Point(inputs=point().inputs, key="", status="invalid")
    assert front([failed, point()]) == {1}
    assert efficiencies([failed, point()]) == {1: 1.0}


def test_efficiency_and_knee() -> None:
    rates = {8: 80.0, 16: 158.0, 32: 290.0, 64: 400.0}
    points = [point(devices=n, rate=rate) for n, rate in rates.items()]
    points.reverse()  # the order of the points does not matter
    shares = efficiencies(points)
    assert sorted(shares.values(), reverse=True) == pytest.approx([1, 158 / 160, 290 / 320, 400 / 640])
    weighed = [p.model_copy(update={"scaling_efficiency": shares[i]}) for i, p in enumerate(points)]
    (knee,) = knees(weighed, 0.9)
    assert (knee.smallest_devices, knee.last_devices_above, knee.first_devices_below) == (8, 32, 64)
    (none,) = knees(weighed, 0.5)
    assert (none.last_devices_above, none.first_devices_below) == (64, None)


def test_series_are_told_apart() -> None:
    points = [point(devices=n, cluster=c) for c, n in itertools.product("ab", (8, 16))]
    assert [knee.series["cluster"] for knee in knees(points, 0.9)] == ["a", "b"]

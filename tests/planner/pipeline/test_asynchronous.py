"""Asynchronous pipelines against the update rules and version counts of their papers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import InputError, UnknownName
from planner.pipeline.asynchronous import ASYNCHRONOUS, run_asynchronously
from planner.pipeline.simulator import StageTimes

RANKS = [1, 2, 4, 8]


def equal(p: int) -> StageTimes:
    return StageTimes.uniform(p, 1.0, 1.0, 1.0)


@pytest.mark.parametrize("p", RANKS)
def test_pipedream(p: int) -> None:
    """arXiv:1806.03377: stage s of n (from 1) updates with the gradient at w(t - n + s), and stashes n - s + 1."""
    report = run_asynchronously("pipedream", equal(p), 8 * p)
    assert report.steady_staleness == tuple(p - 1 - s for s in range(p))
    assert report.weight_versions == tuple(p - s for s in range(p))
    assert report.mismatched == (0,) * p


@pytest.mark.parametrize("p", RANKS)
def test_vertical_sync(p: int) -> None:
    """arXiv:1806.03377: w(t+1) = w(t) - lr grad f(w(t-n+1)) in every stage."""
    report = run_asynchronously("pipedream-vertical", equal(p), 8 * p)
    assert report.steady_staleness == (p - 1,) * p
    assert report.weight_versions == (p,) * p


@pytest.mark.parametrize("p", RANKS)
@pytest.mark.parametrize("factor", [1, 2, 3])
def test_2bw(p: int, factor: int) -> None:
    """arXiv:2006.09503: W(t+1) = W(t) - lr grad f(W(t-1)) from the second update on; two versions."""
    m = factor * p
    report = run_asynchronously("pipedream-2bw", equal(p), 6 * m, per_update=m)
    assert report.weight_versions == (2,) * p
    assert report.staleness == ((0, 1, 1, 1, 1, 1),) * p
    assert report.mismatched == (0,) * p


def test_2bw_needs_updates_of_as_many_microbatches_as_ranks() -> None:
    with pytest.raises(InputError, match="pipedream-2bw on 4 ranks needs at least 4 microbatches per update"):
        run_asynchronously("pipedream-2bw", equal(4), 32, per_update=3)


@pytest.mark.parametrize("name", ASYNCHRONOUS)
@given(seconds=st.lists(st.floats(0.2, 2.0), min_size=1, max_size=5))
@settings(max_examples=30)
def test_the_slowest_stage_sets_the_throughput(name: str, seconds: list[float]) -> None:
    """No flush, no bubble: the slowest rank is never idle once the pipeline is full."""
    p = len(seconds)
    times = StageTimes(seconds, [1.2 * t for t in seconds], [0.8 * t for t in seconds])
    report = run_asynchronously(name, times, 40 * p, per_update=p, max_active=2 * p)
    # Backwards of the first stage may come in bursts of as many as are in flight, of 20 p that are looked at.
    assert report.throughput == pytest.approx(1 / (3.0 * max(seconds)), rel=0.1)


@pytest.mark.parametrize("name", ASYNCHRONOUS)
def test_equal_stages_reach_the_ideal(name: str) -> None:
    report = run_asynchronously(name, equal(4), 64, per_update=4)
    assert report.throughput == pytest.approx(1 / 3)
    assert report.timeline.makespan < 3 * (64 + 4)


def test_transfers_cost_throughput_in_the_loop_of_1f1b() -> None:
    """As in synchronous 1F1B: 2 (p-1)/p transfers per microbatch."""
    report = run_asynchronously("pipedream", equal(4), 160, 0.1)
    assert 1 / report.throughput == pytest.approx(3.0 + 2 * 3 / 4 * 0.1)


def test_without_stashing_backwards_see_other_weights() -> None:
    report = run_asynchronously("ampnet", equal(4), 64)
    assert report.weight_versions == (1, 1, 1, 1)
    assert report.mismatched[3] == 0  # the last stage turns round at once
    assert min(report.mismatched[:3]) > 0
    alone = run_asynchronously("ampnet", equal(4), 64, max_active=1)
    assert alone.mismatched == (0, 0, 0, 0)
    assert set(alone.steady_staleness) == {0}


@given(active=st.integers(1, 8))
def test_more_in_flight_is_faster_and_staler(active: int) -> None:
    """AMPNet's max_active_keys."""
    few, more = (run_asynchronously("ampnet", equal(4), 192, max_active=active + k) for k in (0, 1))
    assert more.throughput >= few.throughput * 0.95
    assert max(more.staleness[0]) >= max(few.staleness[0])
    # A microbatch alone takes 4 x 3 seconds there and back; a rank has 3 seconds of work for each.
    assert few.throughput == pytest.approx(min(active / 12, 1 / 3), rel=0.05)


def test_bad_requests() -> None:
    with pytest.raises(UnknownName, match="did you mean pipedream"):
        run_asynchronously("pipedrem", equal(2), 16)
    with pytest.raises(InputError, match="7 microbatches say little of a steady state; give at least 8"):
        run_asynchronously("pipedream", equal(2), 7)
    with pytest.raises(InputError, match="at least one microbatch must be in flight, got a bound of -1"):
        run_asynchronously("ampnet", equal(2), 16, max_active=-1)

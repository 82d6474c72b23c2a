"""Eager 1F1B: what its longer warm-up buys, and what it costs."""

import pytest

from planner.pipeline.dependencies import arrange, peak_in_flight
from planner.pipeline.generators import generate
from planner.pipeline.schedule import Pass
from planner.pipeline.simulator import StageTimes, makespan


@pytest.mark.parametrize(("p", "m"), [(3, 8), (4, 16), (8, 32)])
def test_warm_up_is_alpas(p: int, m: int) -> None:
    """alpa's OverlapFriendlyPipeDreamSchedule: 2(p-s) - 1 forwards, then one backward, one forward."""
    for stage, actions in enumerate(generate("eager-1f1b", p, 1, m).ranks):
        works = [action.work for action in actions]
        assert works.index(Pass.B) == 2 * (p - stage) - 1
        assert works[works.index(Pass.B) :][:4] == [Pass.B, Pass.F, Pass.B, Pass.F]
    held = peak_in_flight(arrange(generate("eager-1f1b", p, 1, m)))
    assert held == tuple(2 * (p - stage) - 1 for stage in range(p))


@pytest.mark.parametrize(("p", "m"), [(2, 8), (4, 16), (8, 32)])
@pytest.mark.parametrize("p2p", [0.0, 0.1, 0.5])
def test_transfers_are_paid_on_the_way_down_and_up_only(p: int, m: int, p2p: float) -> None:
    """arXiv:2211.05322: in the steady state they hide, which 1F1B's do not."""
    times = StageTimes.uniform(p, 1.0, 1.0, 1.0)
    eager = makespan("eager-1f1b", p, 1, m, times, p2p).makespan
    assert eager == pytest.approx((m + p - 1) * 3.0 + 2 * (p - 1) * p2p)
    plain = makespan("1f1b", p, 1, m, times, p2p).makespan
    assert plain > eager if p2p else plain == eager

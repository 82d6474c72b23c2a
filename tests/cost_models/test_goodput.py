"""Goodput: the closed form against an event simulation, published runs, and laws."""

import math

import pytest
from failing_runs import Case, simulate
from hypothesis import given
from hypothesis import strategies as st

from cluster_specs.errors import InputError
from cost_models.goodput import (
    FailureRates,
    Recovery,
    default,
    erlang_loss,
    failure_rates,
    goodput,
    optimal_interval,
)

HOUR, DAY = 3600.0, 86400.0

CASES = {
    "rare": Case(1 / (50 * HOUR), 0.0, 60.0, 4000.0, 600.0),
    "every three hours": Case(1 / (3 * HOUR), 0.0, 30.0, 800.0, 600.0),
    "relentless": Case(1 / 1200.0, 0.0, 60.0, 400.0, 600.0),
    "no spare": Case(1 / (20 * HOUR), 0.5, 60.0, 2000.0, 600.0, 10 * HOUR, 0),
    "one spare": Case(1 / (20 * HOUR), 0.5, 60.0, 2000.0, 600.0, 30 * HOUR, 1),
    "three spares": Case(1 / (5 * HOUR), 0.8, 60.0, 1500.0, 600.0, 24 * HOUR, 3),
}


@pytest.mark.parametrize("random_repairs", [False, True], ids=["fixed repairs", "random repairs"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_simulation_agrees(case: Case, random_repairs: bool) -> None:
    spent = simulate(case, failures=20_000, seed=7, random_repairs=random_repairs)
    predicted = goodput(
        FailureRates(case.rate, case.repair_share * case.rate),
        Recovery(case.checkpoint, case.interval, case.restart),
        case.repair,
        case.spares,
    )
    total = sum(spent.values())
    for name in ("useful", "checkpoints", "rework", "restarts", "repairs"):
        assert getattr(predicted, name) == pytest.approx(spent[name] / total, abs=0.012), name


def daly(interval: float, checkpoint: float, rate: float) -> float:
    return goodput(FailureRates(rate, 0.0), Recovery(checkpoint, interval, 0.0)).useful


@pytest.mark.parametrize("checkpoint", [1.0, 30.0, 300.0])
@pytest.mark.parametrize("mean", [HOUR, 10 * HOUR, 30 * DAY])
def test_the_interval_is_the_best(checkpoint: float, mean: float) -> None:
    """Against a search over intervals, to the precision of Daly's series."""
    grid = [checkpoint * 1.02**k for k in range(900)]
    best = max(daly(interval, checkpoint, 1 / mean) for interval in grid)
    assert daly(optimal_interval(checkpoint, 1 / mean), checkpoint, 1 / mean) >= best * (1 - 1e-4)


def test_worked_interval() -> None:
    """Young's rule of thumb: a minute's checkpoint every 3.5 hours when something fails once a month."""
    assert optimal_interval(30.0, 1 / (30 * DAY)) == pytest.approx(math.sqrt(2 * 30 * 30 * DAY), rel=0.01)


def test_llama_3_kept_over_nine_tenths() -> None:
    """arXiv:2407.21783, section 3.3.4: 16384 devices, more than 90 % effective training time.

    The failure rates come from the same paper; restart time and storage do not.
    """
    rates = failure_rates(16384, 2048, default("device_mtbf"), default("node_mtbf"), 0.0)
    assert rates.interruptions * 54 * DAY == pytest.approx(419, rel=0.001)
    checkpoint = 405e9 * 12 / 2e12
    recovery = Recovery(checkpoint, optimal_interval(checkpoint, rates.interruptions), default("restart"))
    assert 0.90 < goodput(rates, recovery).useful < 0.96


@pytest.mark.parametrize(
    ("devices", "nodes", "least", "most", "per"),
    [
        (8, 1, 2.34e-3, 6.50e-3, DAY),  # arXiv:2410.21680: failures per node-day of two clusters of A100
        (384, 48, 1.0, 2.0, 7 * DAY),  # arXiv:2211.05100: 1 to 2 failing GPUs a week on 384 A100
    ],
)
def test_other_clusters_fail_about_as_often(
    devices: int, nodes: int, least: float, most: float, per: float
) -> None:
    rate = failure_rates(devices, nodes, default("device_mtbf"), default("node_mtbf"), 0.0).interruptions
    assert least < rate * per < most


@given(
    rate=st.floats(1e-8, 1e-3),
    checkpoint=st.floats(0.1, 600),
    interval=st.floats(1, 20000),
    restart=st.floats(0, 3600),
    repair=st.floats(0, 1e6),
    spares=st.integers(0, 8),
    straggling=st.floats(0, 0.5),
)
def test_shares_add_up(
    rate: float,
    checkpoint: float,
    interval: float,
    restart: float,
    repair: float,
    spares: int,
    straggling: float,
) -> None:
    shares = goodput(
        FailureRates(rate, rate / 2), Recovery(checkpoint, interval, restart), repair, spares, straggling
    )
    assert sum(shares) == pytest.approx(1)
    assert all(share >= -1e-12 for share in shares)


@given(rate=st.floats(1e-7, 1e-4), repair=st.floats(1e3, 1e6), spares=st.integers(0, 6))
def test_spares_and_reliability_help(rate: float, repair: float, spares: int) -> None:
    recovery = Recovery(30.0, 1000.0, 600.0)

    def useful(factor: float, spares: int) -> float:
        return goodput(FailureRates(rate * factor, rate * factor), recovery, repair, spares).useful

    assert useful(1, spares + 1) >= useful(1, spares)
    assert useful(0.5, spares) >= useful(1, spares)


def test_nothing_fails() -> None:
    assert goodput(FailureRates(0, 0), Recovery(0, math.inf, 0)).useful == 1
    assert goodput(FailureRates(0, 0), Recovery(100, 900, 0)).useful == pytest.approx(0.9)
    assert optimal_interval(60, 0) == math.inf


def test_checkpoints_longer_than_the_time_between_failures() -> None:
    assert optimal_interval(300.0, 1 / 100.0) == 100.0


def test_erlang_table() -> None:
    """Textbook value: 5 servers, 3 erlangs, 11.0 % lost."""
    assert erlang_loss(5, 3.0) == pytest.approx(0.1101, abs=1e-4)


def test_an_interval_must_be_positive() -> None:
    with pytest.raises(InputError, match="interval"):
        goodput(FailureRates(1e-5, 0), Recovery(10, 0, 0))

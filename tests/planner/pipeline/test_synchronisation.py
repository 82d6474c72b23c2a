"""BSP, SSP and ASP: closed forms, bounds of the paper, and what each buys."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from planner.errors import InputError
from planner.pipeline.synchronisation import ASP, BSP, synchronise

TABLES = arrays.arrays(
    np.float64, st.tuples(st.integers(1, 5), st.integers(1, 12)), elements=st.floats(0.1, 4.0)
)


@given(TABLES, st.floats(0.0, 1.0))
def test_bulk_synchronous_waits_for_the_slowest_every_time(seconds: np.ndarray, exchange: float) -> None:
    report = synchronise(seconds, BSP, exchange)
    iterations = seconds.shape[1]
    assert report.ends.max() == pytest.approx(seconds.max(axis=0).sum() + iterations * exchange)
    assert report.staleness.max() == 0


@given(TABLES, st.floats(0.0, 1.0))
def test_asynchronous_never_waits(seconds: np.ndarray, exchange: float) -> None:
    report = synchronise(seconds, ASP, exchange)
    assert report.ends[:, -1] == pytest.approx(seconds.sum(axis=1) + seconds.shape[1] * exchange)
    assert report.waiting == pytest.approx([0.0] * len(seconds), abs=1e-9)


@given(TABLES, st.integers(0, 6))
def test_the_bound_holds_and_a_larger_one_waits_less(seconds: np.ndarray, bound: int) -> None:
    """Ho et al.: the fastest worker is at most s clocks ahead, and sees all updates but those of the last s."""
    strict, loose = synchronise(seconds, bound), synchronise(seconds, bound + 1)
    assert strict.staleness.max() <= bound
    assert (loose.ends <= strict.ends + 1e-9).all()
    assert sum(loose.waiting) <= sum(strict.waiting) + 1e-6


@given(TABLES)
def test_a_bound_that_is_never_reached_is_none(seconds: np.ndarray) -> None:
    far = synchronise(seconds, seconds.shape[1])
    assert (far.ends == synchronise(seconds, ASP).ends).all()


def test_a_lasting_straggler_holds_up_everyone_but_the_asynchronous() -> None:
    """Speeds 1, 1, 2: any finite bound ends at the pace of the slowest; ASP does not, but drifts."""
    seconds = np.array([[1.0] * 200, [1.0] * 200, [2.0] * 200])
    assert synchronise(seconds, BSP).throughput == pytest.approx(3 / 2, rel=0.01)
    assert synchronise(seconds, 5).throughput == pytest.approx(3 / 2, rel=0.05)
    free = synchronise(seconds, ASP)
    assert free.throughput == pytest.approx(1 + 1 + 1 / 2, rel=0.01)
    assert free.staleness[0, -1] == pytest.approx(100, abs=1)


def test_passing_stragglers_are_what_staleness_is_good_for() -> None:
    """Each iteration another worker is slow: BSP pays every time, a bound of 3 hides most of it."""
    seconds = np.array([[3.0 if k % 4 == worker else 1.0 for k in range(80)] for worker in range(4)])
    bulk, stale = synchronise(seconds, BSP), synchronise(seconds, 3)
    assert bulk.throughput == pytest.approx(4 / 3, rel=0.01)
    assert stale.throughput > 4 / 1.6
    assert stale.staleness.max() <= 3


def test_bad_input() -> None:
    with pytest.raises(InputError, match="a row per worker"):
        synchronise([1.0, 2.0], BSP)
    with pytest.raises(InputError, match="not negative"):
        synchronise([[1.0, -2.0]], BSP)
    with pytest.raises(InputError, match="give 0 or more"):
        synchronise([[1.0, 2.0]], -1)

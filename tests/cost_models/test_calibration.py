"""Fits recover the constants that made the data, noise and interruptions notwithstanding."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster_specs.errors import InputError
from cost_models.calibration import alpha_beta, fit_constants

SIZES = [2.0**exponent for exponent in range(3, 34)]


@settings(max_examples=30, deadline=None)
@given(latency=st.floats(1e-6, 1e-3), bandwidth=st.floats(1e8, 1e12))
def test_latency_and_bandwidth_come_back_exactly(latency: float, bandwidth: float) -> None:
    found = alpha_beta(SIZES, [latency + size / bandwidth for size in SIZES])
    assert found.values == pytest.approx((latency, bandwidth), rel=1e-5)
    assert found.worst_residual < 1e-5


def test_noise_and_interruptions_hardly_move_them() -> None:
    noise = np.random.default_rng(7)
    seconds = [
        (20e-6 + size / 200e9) * float(np.exp(noise.normal(0, 0.03))) for size in SIZES for _ in (1, 2, 3)
    ]
    seconds[5] *= 40  # a sample during which the machine did something else
    seconds[70] *= 15
    found = alpha_beta([size for size in SIZES for _ in (1, 2, 3)], seconds)
    assert found.values == pytest.approx((20e-6, 200e9), rel=0.02)
    assert found.worst_residual > 0.9
    assert found.median_residual < 0.04


def test_residuals_are_predicted_over_measured() -> None:
    found = fit_constants(lambda values: [values[0]] * 3, [1.0, 1.0, 2.0], (5.0,), (np.inf,))
    assert found.values == pytest.approx((1.0,), rel=0.01)
    assert found.residuals[2] == pytest.approx(-0.5, abs=0.01)


def test_a_constant_stays_below_its_limit() -> None:
    found = fit_constants(lambda values: [1 / values[0]], [0.5], (0.3,), (1.0,))
    assert found.values == (1.0,)
    assert found.residuals == (1.0,)


def test_a_floor_does_not_hide_a_constant_far_away() -> None:
    """A launch of 4 us hides the rate at the start; what was measured is a thousand times slower."""
    work = np.array([1e6, 1e7, 1e8])
    found = fit_constants(
        lambda values: [float(x) for x in np.maximum(4e-6, work / (values[0] * 1e15))],
        [float(x) for x in work / 3e10],
        (0.8,),
        (1.0,),
    )
    assert found.values == pytest.approx((3e-5,), rel=1e-4)


@pytest.mark.parametrize(
    ("sizes", "seconds", "said"),
    [
        ([8.0, 8.0], [1.0, 1.0], "at least two sizes"),
        ([8.0, 16.0], [1.0, 0.0], "positive"),
        ([8.0, 16.0], [1.0, float("nan")], "positive"),
    ],
)
def test_what_cannot_be_fitted_is_said(sizes: list[float], seconds: list[float], said: str) -> None:
    with pytest.raises(InputError, match=said):
        alpha_beta(sizes, seconds)


def test_fewer_samples_than_constants_are_refused() -> None:
    with pytest.raises(InputError, match="2 constants need"):
        fit_constants(lambda values: [values[0] + values[1]], [1.0], (1.0, 1.0), (9.0, 9.0))

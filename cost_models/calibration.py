"""Constants from measurements: robust least squares on the logarithm of seconds, by the models that use them.

A constant is fitted through the very function that predicts with it, so that what a calibration says is what an
estimate does. Logarithms make a microsecond of a small message and a second of a large one count alike, and keep
constants positive; Huber weights keep an interrupted sample from pulling the rest.

Source: Huber, "Robust estimation of a location parameter", Annals of Mathematical Statistics 35(1), 1964;
Holland and Welsch, "Robust regression using iteratively reweighted least-squares", Communications in Statistics
6(9), 1977 (the constant 1.345 and the scale from the median deviation).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cluster_specs.errors import InputError

Array = NDArray[np.float64]

HUBER = 1.345
"""Residuals beyond so many standard deviations count linearly: 95 % efficient on normal noise."""
NORMAL_MAD = 0.6745
"""Median absolute deviation of a normal variable of standard deviation 1."""
ITERATIONS = 60
STEP = 1e-5
"""Relative, of numerical derivatives."""
SCAN = tuple(2.0 ** (power / 2) for power in range(-40, 41))
"""Multiples of the start that are tried first: where a launch or another link decides, slopes say nothing."""
LEAST_SCALE = 0.01
"""Timings do not repeat better than to a percent: smaller residuals all count in full."""


class Fit(NamedTuple):
    """Constants and what they leave unexplained."""

    values: tuple[float, ...]
    residuals: tuple[float, ...]
    """``predicted / measured - 1`` of every sample, in order."""

    @property
    def median_residual(self) -> float:
        """Of absolute values."""
        return float(np.median(np.abs(self.residuals)))

    @property
    def worst_residual(self) -> float:
        """Largest absolute value."""
        return float(np.max(np.abs(self.residuals)))


def fit_constants(
    predict: Callable[[Sequence[float]], Sequence[float]],
    seconds: Sequence[float],
    start: Sequence[float],
    most: Sequence[float],
) -> Fit:
    """Positive constants, none above ``most``, with which ``predict`` comes nearest to ``seconds`` [s].

    Minimises Huber's loss of ``log(predicted / measured)`` by damped Gauss-Newton steps in the logarithms of the
    constants, from ``start`` and from the best of its multiples in `SCAN`; a model that changes its algorithm with
    the size has several minima. Raises ``InputError`` for fewer samples than constants and for times that are
    not positive.
    """
    measured = _positive(seconds)
    if len(measured) < len(start):
        raise InputError(f"{len(start)} constants need at least as many measurements, found {len(measured)}")
    limit = np.log(np.asarray(most, dtype=float))

    def errors(point: Array) -> Array:
        predicted = np.asarray(predict([float(value) for value in np.exp(point)]), dtype=float)
        return np.asarray(np.log(predicted / measured))

    near = np.minimum(np.log(np.asarray(start, dtype=float)), limit)
    order = range(len(start))
    starts = [near, _scan(errors, near, limit, order), _scan(errors, near, limit, reversed(order))]
    ends = [_descend(errors, point, limit) for point in starts]
    best = min(ends, key=lambda point: _loss(errors(point), LEAST_SCALE))
    return Fit(
        tuple(float(value) for value in np.exp(best)),
        tuple(float(value) for value in np.expm1(errors(best))),
    )


def alpha_beta(num_bytes: Sequence[float], seconds: Sequence[float]) -> Fit:
    """``(latency [s], bandwidth [bytes/s])`` of ``latency + bytes / bandwidth``.

    Raises ``InputError`` as `fit_constants`, and where all sizes are equal.
    """
    sizes, measured = np.asarray(num_bytes, dtype=float), _positive(seconds)
    if len(set(num_bytes)) < 2:
        raise InputError("latency and bandwidth need messages of at least two sizes")
    largest = int(np.argmax(sizes))
    start = (float(min(measured)), sizes[largest] / measured[largest])
    return fit_constants(
        lambda values: [float(x) for x in values[0] + sizes / values[1]], seconds, start, (np.inf, np.inf)
    )


def _positive(seconds: Sequence[float]) -> Array:
    measured = np.asarray(seconds, dtype=float)
    if not np.all(np.isfinite(measured)) or np.any(measured <= 0):
        raise InputError("measured times must be positive numbers of seconds")
    return measured


def _scan(errors: Callable[[Array], Array], point: Array, limit: Array, order: Iterable[int]) -> Array:
    """The multiples of each constant, one constant after the other, that leave the least."""
    for index in order:
        trials = np.repeat(point[None, :], len(SCAN), axis=0)
        trials[:, index] = np.minimum(trials[:, index] + np.log(SCAN), limit[index])
        point = min(trials, key=lambda trial: float(np.sum(np.abs(errors(trial)))))
    return point


def _descend(errors: Callable[[Array], Array], point: Array, limit: Array) -> Array:
    """Levenberg-Marquardt with Huber weights that follow the spread of the residuals."""
    damping = 1e-3
    current = errors(point)
    for _ in range(ITERATIONS):
        scale = _scale(current)
        weights = _weights(current, scale)
        slope = _slopes(errors, point, current)
        normal = slope.T @ (weights[:, None] * slope)
        gradient = slope.T @ (weights * current)
        diagonal = np.diag(np.maximum(np.diag(normal), 1e-12))
        step = np.linalg.solve(normal + damping * diagonal, -gradient)
        trial = np.minimum(point + np.clip(step, -2.0, 2.0), limit)
        found = errors(trial)
        if _loss(found, scale) <= _loss(current, scale):
            moved = float(np.max(np.abs(trial - point)))
            point, current, damping = trial, found, max(damping / 5, 1e-9)
            if moved < 1e-9:
                break
        else:
            damping *= 5
    return point


def _slopes(errors: Callable[[Array], Array], point: Array, current: Array) -> Array:
    """Derivatives of the errors by each constant; downwards, so that no limit is crossed."""
    columns = []
    for index in range(len(point)):
        below = point.copy()
        below[index] -= STEP
        columns.append((current - errors(below)) / STEP)
    return np.stack(columns, axis=1)


def _scale(errors: Array) -> float:
    return max(LEAST_SCALE, float(np.median(np.abs(errors - np.median(errors)))) / NORMAL_MAD)


def _weights(errors: Array, scale: float) -> Array:
    return np.asarray(HUBER * scale / np.maximum(np.abs(errors), HUBER * scale))


def _loss(errors: Array, scale: float) -> float:
    size = np.abs(errors) / scale
    return float(np.sum(np.where(size <= HUBER, size**2 / 2, HUBER * (size - HUBER / 2))))

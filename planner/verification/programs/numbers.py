"""Numbers of a framework under layouts beside those of one device."""

from typing import Any

import numpy as np

NOISE = 10
"""Roundings of the inputs: what an output moves by as many on one device says nothing about layouts."""


def output_of(name: str, expected: Any, found: Any, moved: Any, further: Any) -> dict[str, Any]:
    """An output, arrays of fp64: its largest number on one device and under layouts, and how far the two are apart.

    That is a share of the largest, less `NOISE` times what it is ``moved`` by one rounding of the inputs: what cancels
    (the gradient of a bias before a softmax), and what an optimizer makes of it, is but rounding. Or less what so many
    roundings move it ``further``: a number as near to where a function bends (a rectifier, a threshold) may lie on
    either side. What is infinite or no number on one device must be the same under layouts, and nothing else may be.
    """
    finite = np.isfinite(expected)
    same = np.array_equal(
        np.where(finite, 0.0, expected), np.where(np.isfinite(found), 0.0, found), equal_nan=True
    )
    noise = max(NOISE * _moves(expected, moved), _moves(expected, further))
    largest, apart = _largest(expected[finite]), _largest(expected[finite] - found[finite])
    return {
        "name": name,
        "scalar": expected.ndim == 0,
        "expected": float(expected) if expected.ndim == 0 else largest,
        "found": float(found) if expected.ndim == 0 else float(np.abs(found).max(initial=0.0)),
        "error": max(0.0, apart - noise) / (largest + 1e-30) if same else np.inf,
    }


def _moves(expected: Any, moved: Any) -> float:
    steady = np.isfinite(expected) & np.isfinite(moved)
    return _largest(expected[steady] - moved[steady])


def _largest(numbers: Any) -> float:
    return float(np.abs(numbers).max(initial=0.0))

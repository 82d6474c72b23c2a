"""Seconds of many kernels at once: `matmul_seconds` and `stream_seconds` in arrays, equal to the last bit.

To lay a program out on a mesh takes hundreds of kernels of their own sizes, which one by one take longer than all that
is decided about them.
"""

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from cluster_specs.cluster import DeviceSpec
from cost_models.matmul import ACCUMULATOR_BYTES, alignment_share, sustained_rate, tile_shapes
from cost_models.roofline import sustained_bandwidth

Counts = npt.NDArray[np.integer[Any]]
Seconds = npt.NDArray[np.float64]

EXPONENTS = 63
"""Powers of two that a count can be."""


def products_seconds(shapes: Counts, device: DeviceSpec, dtype: str, bytes_per_element: float = 2) -> Seconds:
    """Of products with ``shapes`` [product, 4] of rows, columns, depth and batch [s].

    Raises ``InputError`` where the device has no rate for ``dtype``.
    """
    m, n, k, batch = shapes.T
    rate = sustained_rate(device, dtype)
    if device.kind == "tpu":
        arithmetic = _systolic_seconds(shapes, rate, device.tile)
    else:
        shares = _alignment_shares(n, k, bytes_per_element, device.efficiency.unaligned)
        arithmetic = _tiled_seconds(shapes, device, rate, shares)
    memory = batch * (m * k + k * n + m * n) * bytes_per_element / sustained_bandwidth(device)
    longest = np.maximum(np.maximum(arithmetic, memory), device.kernel_launch)
    return np.where(shapes.min(axis=1) <= 0, 0.0, longest)


def _tiled_seconds(shapes: Counts, device: DeviceSpec, rate: float, shares: Seconds) -> Seconds:
    """By the best tile; arrays are [tile, product]."""
    m, n, k, batch = shapes.T
    units, fill = device.compute_units, (device.tile_fill or 0.0) / shares
    rows, columns, reused = (np.array(each)[:, None] for each in zip(*tile_shapes(device.tile), strict=True))
    waves, rest = np.divmod(batch * -(-m // rows) * -(-n // columns), units)
    seconds = 2.0 * rows * columns * k / (rate * shares * reused / units)
    partial_sums = 2 * units * rows * columns * ACCUMULATOR_BYTES / sustained_bandwidth(device)
    last = np.where(rest > 0, fill + np.minimum(seconds, seconds * rest / units + partial_sums), 0.0)
    return np.asarray((waves * (seconds + fill) + last).min(axis=0))


def _systolic_seconds(shapes: Counts, rate: float, tile: tuple[int, int]) -> Seconds:
    m, n, k, batch = shapes.T
    rows, columns = tile

    def padded(streamed: Counts, held: Counts) -> Counts:
        return np.asarray(np.maximum(rows, 8 * -(-streamed // 8)) * columns * -(-held // columns))

    depth = rows * -(-k // rows)
    return np.asarray(2.0 * batch * depth * np.minimum(padded(m, n), padded(n, m)) / rate)


def _alignment_shares(n: Counts, k: Counts, bytes_per_element: float, unaligned: float | None) -> Seconds:
    """Looked up by the largest power of two that divides both."""
    both = np.maximum(n | k, 1)
    return np.asarray(_shares_by_exponent(bytes_per_element, unaligned)[np.frexp(both & -both)[1] - 1])


@cache
def _shares_by_exponent(bytes_per_element: float, unaligned: float | None) -> Seconds:
    return np.array([alignment_share(2**e, 2**e, bytes_per_element, unaligned) for e in range(EXPONENTS)])


def streams_seconds(num_bytes: Seconds, device: DeviceSpec) -> Seconds:
    """Of kernels that only move data, of so many bytes each [s]."""
    longest = np.maximum(num_bytes / sustained_bandwidth(device), device.kernel_launch)
    return np.where(num_bytes <= 0, 0.0, longest)

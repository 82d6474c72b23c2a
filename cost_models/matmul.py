"""Seconds of matrix products: the roofline, with what tiles, waves and alignment waste.

Source: NVIDIA, "Matrix Multiplication Background User's Guide" (docs.nvidia.com/deeplearning/performance,
sections 2 and 3); Osama et al., "Stream-K", arXiv:2301.03598 (the last wave shared by all units).
"""

from functools import cache
from math import ceil, inf, log2

from cluster_specs.cluster import DeviceSpec
from cost_models.constants import constants
from cost_models.costs import ComputeTime, kernel_time
from cost_models.roofline import memory_seconds, peak, stream_seconds

ACCUMULATOR_BYTES = 4.0
"""Partial sums are fp32."""


def matmul_seconds(
    m: float,
    n: float,
    k: float,
    device: DeviceSpec,
    dtype: str,
    batch: float = 1,
    bytes_per_element: float = 2,
) -> ComputeTime:
    """``batch`` products of (m, k) by (k, n) [s]: the longest of arithmetic, memory traffic and one launch.

    Memory is each operand and the result once. Arithmetic is at least ``2 m n k batch`` over the sustained
    rate; `tiled_seconds` (GPU) or `systolic_seconds` (TPU) adds the waste. An empty product takes no time.
    Raises ``InputError`` where the device has no rate for ``dtype``.
    """
    rate = sustained_rate(device, dtype)
    if min(m, n, k, batch) <= 0:
        return ComputeTime()
    if device.kind == "tpu":
        arithmetic = systolic_seconds(m, n, k, batch, rate, device.tile)
    else:
        share = alignment_share(n, k, bytes_per_element, device.efficiency.unaligned)
        arithmetic = tiled_seconds(m, n, k, batch, device, rate, share)
    traffic = batch * (m * k + k * n + m * n) * bytes_per_element
    return kernel_time(arithmetic, memory_seconds(traffic, device), device.kernel_launch)


def sustained_rate(device: DeviceSpec, dtype: str) -> float:
    """Of large products [FLOP/s]; raises ``InputError`` where the device has no rate for ``dtype``."""
    best = device.efficiency
    of_their_own = {"fp8": best.fp8, "fp4": best.fp4, "fp32": best.fp32}
    return peak(device, dtype) * best.matmul * of_their_own.get(dtype, 1.0)


def cast_seconds(elements: float, device: DeviceSpec, dtype: str) -> ComputeTime:
    """Quantising an operand to ``dtype``, fp8 or fp4 [s]: read in 16 bits, written twice, as it is and transposed.

    Both layouts are needed, as matrix units multiply along one of them only and gradients use the other. fp4 is read
    three times: for its largest value, for either layout, of which the transposed one is rotated.
    """
    return stream_seconds(elements * constants("kernels")[dtype]["cast_bytes"], device)


def tiled_seconds(
    m: float, n: float, k: float, batch: float, device: DeviceSpec, rate: float, share: float = 1.0
) -> float:
    """Arithmetic on a GPU, by the best tile [s], of kernels that keep ``share`` of the speed.

    The result is cut in tiles of ``rows x columns``, one per unit at a time; edge tiles are computed in full, and each
    takes the device's ``tile_fill`` beside its products. Full waves take one tile's time each. The tiles of a last,
    part-filled wave take as long, or are shared by all units along ``k``, if that pays for writing and reading partial
    sums.
    """
    units, fill = device.compute_units, (device.tile_fill or 0.0) / share
    best = inf
    for rows, columns, reused in tile_shapes(device.tile):
        tiles = batch * ceil(m / rows) * ceil(n / columns)
        seconds = 2.0 * rows * columns * k / (rate * share * reused / units)
        waves, rest = divmod(tiles, units)
        last = 0.0
        if rest:
            partial_sums = memory_seconds(2 * units * rows * columns * ACCUMULATOR_BYTES, device)
            last = fill + min(seconds, seconds * rest / units + partial_sums)
        best = min(best, waves * (seconds + fill) + last)
    return best


def aligned_rows(rows: float, bytes_per_element: float) -> float:
    """``rows`` with what pads them to whole accesses: grouped products pad each expert's tokens.

    Source: pytorch/torchtitan ``torchtitan/models/moe/utils.py`` (``TOKEN_GROUP_ALIGN_SIZE_M``: 8 in bf16, 16 in fp8).
    """
    access = constants("kernels")["matmul"]["vector_bytes"] / bytes_per_element
    return float(ceil(rows / access) * access)


def visited_rows(rows: float, groups: float, tile: int) -> float:
    """``rows`` of each of ``groups`` that lie one after the other in an array, as a kernel with such tiles computes.

    A tile that two groups share is computed whole for either. As hardly any group but the first starts where a tile
    does, ``rows groups / tile + groups - 1`` tiles are computed.
    Source: jax-ml/jax ``jax/experimental/pallas/ops/tpu/megablox/gmm.py`` (``make_group_metadata``).
    """
    return rows + tile * (groups - 1) / groups if rows > 0 else rows


@cache
def tile_shapes(tile: tuple[int, int]) -> tuple[tuple[int, int, float], ...]:
    """Tiles that a library chooses among, each with its share of the full tile's rate.

    The usual tile either way round, with sides halved down to a quarter. Smaller tiles reuse operands less:
    the rate goes as ``rows columns / (rows + columns)``, as if delivery just kept up with the full tile.
    """
    full = tile[0] * tile[1] / (tile[0] + tile[1])
    sides = {(tile[0] // a, tile[1] // b) for a in (1, 2) for b in (1, 2, 4)}
    shapes = sorted(sides | {(columns, rows) for rows, columns in sides}, reverse=True)
    return tuple((rows, cols, min(1.0, rows * cols / (rows + cols) / full)) for rows, cols in shapes)


def alignment_share(n: float, k: float, bytes_per_element: float, unaligned: float | None = None) -> float:
    """Share of the rate kept where rows of ``k`` or ``n`` elements are not multiples of the widest access.

    From 1 at 16 bytes to the measured share at one 16-bit element, by equal ratios per halving; ``unaligned`` below 16
    bytes on a device whose matrix units are fed by whole accesses only, where libraries fall back to kernels of the
    generation before.
    """
    facts = constants("kernels")["matmul"]
    vector: int = facts["vector_bytes"]
    aligned = min(_alignment(n * bytes_per_element, vector), _alignment(k * bytes_per_element, vector))
    if unaligned is not None:
        return unaligned if aligned < vector else 1.0
    halvings = log2(vector / aligned)
    share: float = facts["unaligned_share"] ** (halvings / log2(vector / 2))
    return share


def systolic_seconds(m: float, n: float, k: float, batch: float, rate: float, tile: tuple[int, int]) -> float:
    """Arithmetic on a TPU [s]: operands padded to the matrix unit, at least one unit's depth streamed.

    One operand stays in the array, padded to its sides; rows of the other stream through, in packed groups of
    8, and not fewer than it takes to load the next weights. The cheaper operand stays.
    Source: jax-ml/scaling-book@0819a7d ``tpus.md`` and ``roofline.md`` (padding to 128 or 256).
    """
    rows, columns = tile

    def padded(streamed: float, held: float) -> float:
        return max(rows, 8 * ceil(streamed / 8)) * columns * ceil(held / columns)

    depth = rows * ceil(k / rows)
    return 2.0 * batch * depth * min(padded(m, n), padded(n, m)) / rate


def _alignment(row_bytes: float, widest: int) -> int:
    """Largest power of two that divides a row, at most ``widest`` and at least 1 [bytes]."""
    whole = int(row_bytes)
    return min(widest, whole & -whole) if whole == row_bytes else 1

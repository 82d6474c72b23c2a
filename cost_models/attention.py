"""Seconds of attention: scores, softmax and their product with the values; projections apart.

Sources: Dao, "FlashAttention-2", arXiv:2307.08691; Shah et al., "FlashAttention-3", arXiv:2407.08608.
"""

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from math import ceil
from typing import Literal

from cluster_specs.cluster import DeviceSpec
from cluster_specs.errors import UnknownName
from cost_models.constants import constants
from cost_models.costs import ComputeTime, kernel_time
from cost_models.matmul import matmul_seconds
from cost_models.roofline import element_bytes, memory_seconds, product_dtype, product_peak, stream_seconds

KERNELS = ("flash", "plain", "fused_softmax", "counted_softmax", "sdpa_math", "wide_softmax", "tiled")

OWN_WIDTH = frozenset({"counted_softmax", "sdpa_math", "tiled"})
"""Those whose scores are as wide as queries; the others' are of fp32 somewhere, whatever queries are."""


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """One attention call on one device: lengths, heads and dimensions that this device holds."""

    batch: float
    heads: float
    q_len: float
    kv_len: float
    qk_dim: float
    v_dim: float
    kv_heads: float
    """Key and value heads; as many as ``heads`` without grouping."""
    causal: bool = True
    """The last query sees the last key, the one before it one key less, and so on."""
    window: float | None = None
    """Most keys that one query sees."""


def attended_pairs(shape: AttentionShape) -> float:
    """Unmasked (query, key) pairs of one head.

    Causal, query ``i`` from the end sees ``min(window, kv - i)`` keys, none where that is negative: a
    triangle, or a band where the window is shorter.
    """
    q, kv = shape.q_len, shape.kv_len
    window = kv if shape.window is None else min(shape.window, kv)
    if not shape.causal:
        return q * window
    seeing = min(q, kv)
    full = min(seeing, kv - window)  # queries that see a whole window; each of the others one key less
    fewer = seeing - full
    return full * window + fewer * (2 * min(window, kv - full) - fewer + 1) / 2


def attention_flops(shape: AttentionShape, backward: bool = False) -> float:
    """FLOPs over unmasked pairs: ``2 (d_qk + d_v)`` each forward, ``2 (3 d_qk + 2 d_v)`` backward.

    Backward makes the scores again, then the gradients of values, scores, queries and keys; with equal
    dimensions that is 2.5 times the forward (arXiv:2307.08691, section 4).
    """
    return shape.batch * shape.heads * attended_pairs(shape) * _flops_per_pair(shape, backward)


def attention_seconds(
    shape: AttentionShape, device: DeviceSpec, dtype: str, kernel: str = "flash", backward: bool = False
) -> ComputeTime:
    """One attention call, forward or backward [s]; ``kernel`` is ``flash`` (fused), ``plain``, or ``tiled`` (a loop).

    Raises ``UnknownName`` for the kernel, ``InputError`` where the device has no rate for ``dtype``.
    """
    if kernel not in KERNELS:
        raise UnknownName("attention kernel", kernel, KERNELS)
    if attended_pairs(shape) * shape.batch * shape.heads <= 0:
        return ComputeTime()
    if kernel == "flash":
        return _flash(shape, device, dtype, backward)
    score_bytes = constants("kernels")[kernel]["backward_bytes" if backward else "forward_bytes"]
    if kernel in OWN_WIDTH:
        score_bytes *= element_bytes(dtype) / element_bytes("bf16")
    if kernel == "tiled":
        return _tiled(shape, device, dtype, score_bytes, backward)
    return _plain(shape, device, dtype, score_bytes, backward)


Version = Literal["first_flash", "second_flash"]
"""FlashAttention until July 2023 (in PyTorch up to 2.1), and since; later ones are of one generation of devices."""


def with_flash(device: DeviceSpec, version: Version) -> DeviceSpec:
    """The device with the rates of a version of FlashAttention, where these are another than those of its best."""
    for pattern, (forward, backward) in constants("kernels")[version].items():
        if fnmatchcase(device.name, pattern):
            update = {"attention_forward": forward, "attention_backward": backward}
            return device.model_copy(update={"efficiency": device.efficiency.model_copy(update=update)})
    return device


def flash_utilisation(shape: AttentionShape, device: DeviceSpec) -> float:
    """Share of the long-sequence rate that a fused kernel keeps on this shape (GPU).

    A unit takes one block of queries through its blocks of keys. Lost are the parts of blocks that are
    masked or past the end, the start and finish of each block of queries, and units that idle: equal blocks
    come in whole waves; causal ones run longest first, and end together once there is a block per unit.
    """
    facts = constants("kernels")["flash"]
    block: int = facts["block"]
    query_blocks = ceil(shape.q_len / block)
    steps = _key_blocks(shape, block) + query_blocks * facts["fill_blocks"]
    calls = shape.batch * shape.heads
    mean = steps / query_blocks
    per_unit = calls * query_blocks / device.compute_units
    waves = max(1.0, per_unit) if shape.causal else ceil(per_unit)
    ideal = attended_pairs(shape) / block**2 / query_blocks
    share: float = ideal * per_unit / (mean * waves)
    return share


def head_utilisation(shape: AttentionShape, device: DeviceSpec) -> float:
    """Share of a TPU's matrix unit that heads fill: their dims, contracted or output, are padded to its sides.

    Heads of 128 fill half of a unit of 256 x 256.
    Source: jax-ml/scaling-book@0819a7d ``tpus.md`` (dims are padded to 128, or 256 on TPU v6e).
    """
    side = device.tile[1]
    dims = (shape.qk_dim, shape.v_dim)
    return sum(dims) / sum(side * ceil(dim / side) for dim in dims)


def window_utilisation(shape: AttentionShape) -> float:
    """Share of its time that a TPU's kernel has pairs of a window to compute, over that of whole causal attention.

    Blocks of keys that a block of queries sees any of are computed whole. What edges of blocks cost without a window
    is in the device's rate.
    Source: jax-ml/jax ``jax/experimental/pallas/ops/tpu/splash_attention/splash_attention_mask_info.py``.
    """
    if not shape.causal or shape.window is None or shape.window >= shape.kv_len:
        return 1.0
    whole, block = replace(shape, window=None), constants("kernels")["splash"]["block"]
    visited = visited_blocks(shape, block) / visited_blocks(whole, block)
    return attended_pairs(shape) / attended_pairs(whole) / visited


def visited_blocks(shape: AttentionShape, block: int) -> int:
    """Blocks of keys that hold any that a causal block of queries sees, over all blocks of queries of a head."""
    before = shape.kv_len - shape.q_len
    found = 0
    for start in range(0, ceil(shape.q_len), block):
        last = min(shape.kv_len, before + start + block) - 1
        first = 0.0 if shape.window is None else max(0.0, before + start - shape.window + 1)
        found += max(0, int(last // block - first // block) + 1)
    return found


def _flash(shape: AttentionShape, device: DeviceSpec, dtype: str, backward: bool) -> ComputeTime:
    sustained = device.efficiency.attention_backward if backward else device.efficiency.attention_forward
    rate = product_peak(device, dtype) * sustained
    queries = shape.batch * shape.heads * shape.q_len * (shape.qk_dim + shape.v_dim)
    keys = shape.batch * shape.kv_heads * shape.kv_len * (shape.qk_dim + shape.v_dim)
    passes = 2 if backward else 1  # backward reads inputs, outputs and one gradient, and writes the others
    traffic = passes * (queries + keys) * element_bytes(dtype)
    seconds = attention_flops(shape, backward) / rate + _exponential_seconds(shape, device, backward)
    if device.kind == "tpu":
        share = head_utilisation(shape, device) * window_utilisation(shape)
    else:
        share = flash_utilisation(shape, device)
    return kernel_time(seconds / share, memory_seconds(traffic, device), device.kernel_launch)


def _exponential_seconds(shape: AttentionShape, device: DeviceSpec, backward: bool) -> float:
    """What heads take longer that are smaller than those with which rates were measured [s].

    The products of a pair shrink with the head, its exponential does not, and little of the one hides the other.
    Source: arXiv:2407.08608, figure 5: 648 TFLOP/s with heads of 128, 497 with heads of 64; FlashAttention-2 370, 324.
    """
    if device.exponentials is None:
        return 0.0
    dims = constants("kernels")["flash"]["head_dim"]
    measured = _flops_per_pair(replace(shape, qk_dim=dims, v_dim=dims), backward)
    missing = max(0.0, 1.0 - _flops_per_pair(shape, backward) / measured)
    return missing * shape.batch * shape.heads * attended_pairs(shape) / device.exponentials


def _plain(
    shape: AttentionShape, device: DeviceSpec, dtype: str, score_bytes: float, backward: bool
) -> ComputeTime:
    """Whole score matrices, masked or not: batched products, and the passes of scale, mask and softmax."""
    scores = shape.batch * shape.heads * shape.q_len * shape.kv_len
    return sum(plain_products(shape, device, dtype, backward), stream_seconds(scores * score_bytes, device))


def _tiled(
    shape: AttentionShape, device: DeviceSpec, dtype: str, score_bytes: float, backward: bool
) -> ComputeTime:
    """A compiler's products, tile by tile of the scores, of tiles that hold any pair that is not masked.

    Backward makes the scores again. Sequences that are shorter than a tile are one.
    """
    side = ceil(min(constants("kernels")["tiled"]["block"], shape.q_len, shape.kv_len))
    whole = ceil(shape.q_len / side) * ceil(shape.kv_len / side)
    tiles = visited_blocks(shape, side) if shape.causal else whole
    tiled = replace(shape, batch=shape.batch * tiles, q_len=side, kv_len=side, causal=False, window=None)
    again = plain_products(tiled, device, dtype)[:1] if backward else ()
    return sum(again, _plain(tiled, device, dtype, score_bytes, backward))


def plain_products(
    shape: AttentionShape, device: DeviceSpec, dtype: str, backward: bool = False
) -> tuple[ComputeTime, ...]:
    """The batched products of attention without a fused kernel [s].

    Forward scores and context; backward the gradients of probabilities, values, queries and keys.
    """
    size = element_bytes(dtype)
    calls = shape.batch * shape.heads
    rate, qk, v = _batched(shape, device, dtype)
    q, kv = shape.q_len, shape.kv_len
    forward = ((q, kv, qk), (q, v, kv))
    gradients = ((q, kv, v), (kv, v, q), (q, qk, kv), (kv, qk, q))
    return tuple(
        matmul_seconds(m, n, k, device, rate, batch=calls, bytes_per_element=size)
        for m, n, k in (gradients if backward else forward)
    )


def _batched(shape: AttentionShape, device: DeviceSpec, dtype: str) -> tuple[str, float, float]:
    """Rate and head dims of batched products of scores: heads whose rows are not multiples of the widest access
    run without matrix units on a GPU, padded, at the rate of fp32.
    """
    width = constants("kernels")["matmul"]["vector_bytes"] / element_bytes(dtype)
    padded = [width * ceil(dim / width) for dim in (shape.qk_dim, shape.v_dim)]
    if device.kind == "tpu" or padded == [shape.qk_dim, shape.v_dim]:
        return product_dtype(device, dtype), shape.qk_dim, shape.v_dim
    return "fp32", padded[0], padded[1]


def _flops_per_pair(shape: AttentionShape, backward: bool) -> float:
    if backward:
        return 2.0 * (3 * shape.qk_dim + 2 * shape.v_dim)
    return 2.0 * (shape.qk_dim + shape.v_dim)


def _key_blocks(shape: AttentionShape, block: int) -> float:
    """Blocks of keys that the blocks of queries of one head visit, masked parts included.

    Pairs in block units, and half a block more for each block of queries at each slanted edge.
    """
    query_blocks = ceil(shape.q_len / block)
    slanted = 0.0
    if shape.causal:
        slanted = 0.5 if shape.window is None or shape.window >= shape.kv_len else 1.0
    exact = attended_pairs(shape) / block**2
    return min(exact + slanted * query_blocks, query_blocks * ceil(shape.kv_len / block))

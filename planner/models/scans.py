"""Linear recurrences in place of attention: projections, a causal convolution, the recurrence, a gated norm."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from planner.graph import BATCH
from planner.models.building import BlockBuilder
from planner.models.config import Scan

VALUES = ("state_groups", "group_heads", "state_values")
KEYS = ("state_groups", "state_keys")
HEADS = ("state_groups", "group_heads")

NORMED: Mapping[str, str] = MappingProxyType(
    {
        "head": "state_values",
        "group": "group_heads state_values",
        "all": "state_groups group_heads state_values",
    }
)
"""What the norm of a recurrence's result goes over -> dims."""


def scan_dims(scan: Scan) -> dict[str, int]:
    """Size of every dim that the blocks of ``scan`` name."""
    return {
        "state_groups": scan.groups,
        "group_heads": scan.heads // scan.groups,
        "state_keys": scan.key_dim,
        "state_values": scan.value_dim,
        "kernel": scan.taps,
        "chunk": scan.chunk,
    }


def gated_delta_rule(b: BlockBuilder, scan: Scan, function: str, x: str) -> str:
    """Append a gated DeltaNet on the normalised ``x``; returns the projected result.

    The kernel keeps normalised queries and keys, sums of decays in fp32, and the inverse of a matrix for each chunk.
    Source: Yang et al., arXiv:2412.06464; fla-core 0.6.0 ``fla/ops/gated_delta_rule/chunk.py`` (what is saved).
    """
    q, k, v, z = _projected(b, scan, x, ("scan_query", "scan_key", "scan_value", "scan_gate"))
    beta, decay = _projected(b, scan, x, ("beta", "decay"), name="scan_scalars")
    rate = b.tensor("decay_log", *b.dims(decay), dtype="fp32")
    strength = b.tensor("strength", *b.dims(beta))
    weights = tuple(b.weight(name, *HEADS, role=name) for name in ("decay_rate", "decay_bias"))
    b.op("decay", "elementwise", (decay, beta), (rate, strength), weights)
    q, k, v = _convolved(b, scan, (q, k, v), function)
    kept = [
        *(b.tensor(f"{name}_normed", *b.dims(name)) for name in (q, k)),
        *(b.tensor(f"{name}_deviation", BATCH, "seq", "state_groups", dtype="fp32") for name in (q, k)),
        b.tensor("decay_sums", *b.dims(rate), dtype="fp32"),
        b.tensor("chunk_inverse", BATCH, "seq", *HEADS, "chunk"),
        strength,
        v,
    ]
    y = b.tensor("scanned", *b.dims(v))
    b.op("scan", "scan", (q, k, v, rate, strength), (y,), rule="delta", kept=" ".join(kept))
    return _out(b, scan, _gated_norm(b, scan, y, z))


def state_space_dual(b: BlockBuilder, scan: Scan, function: str, x: str) -> str:
    """Append a Mamba-2 mixer on the normalised ``x``; returns the projected result.

    Its kernel computes the convolution again in the backward: what it keeps are results of the projection, and its own.
    Source: Dao and Gu, arXiv:2405.21060; state-spaces/mamba ``mamba_ssm/ops/triton/ssd_combined.py``
    (``MambaSplitConv1dScanCombinedFn``, as the mixers of Megatron-LM and transformers call it).
    """
    parts = ("scan_gate", "scan_value", "scan_key", "scan_query", "step")
    z, v, k, q, step = _projected(b, scan, x, parts)
    kept = (v, k, q, step, "scanned")
    v, k, q = _convolved(b, scan, (v, k, q), function)
    weights = tuple(b.weight(name, *HEADS, role=name) for name in ("decay_rate", "skip", "decay_bias"))
    y = b.tensor("scanned", *b.dims(v))
    b.op("scan", "scan", (q, k, v, step), (y,), weights, rule="ssd", kept=" ".join(kept))
    return _out(b, scan, _gated_norm(b, scan, y, z))


SCANS: Mapping[str, Callable[[BlockBuilder, Scan, str, str], str]] = MappingProxyType(
    {"delta": gated_delta_rule, "ssd": state_space_dual}
)
"""Kind of recurrence -> what appends it, of its sizes and the convolution's activation."""

PARTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"scan_query": KEYS, "scan_key": KEYS, "scan_value": VALUES, "scan_gate": VALUES}
)
"""Result of a projection -> its dims beside those of tokens; HEADS of others."""


ROLES: Mapping[str, str] = MappingProxyType({"scan_gate": "scan_z", "beta": "scan_b", "decay": "scan_a"})
"""Result of a projection -> role of its weight; ``scan_in`` of others. Families join them in one, or do not."""


def _projected(
    b: BlockBuilder, scan: Scan, x: str, parts: tuple[str, ...], *, name: str = "scan_in"
) -> tuple[str, ...]:
    """Append one product that makes ``parts``."""
    weights: list[str] = []
    for part in parts:
        dims, role = PARTS.get(part, HEADS), ROLES.get(part, "scan_in")
        weights += b.linear_weights(
            f"w_{part}", *dims, "hidden", role=role, columns=len(dims), bias=scan.bias
        )
    made = tuple(b.tensor(part, *b.dims(x)[:2], *PARTS.get(part, HEADS)) for part in parts)
    b.op(name, "matmul", (x,), made, tuple(weights))
    return made


def _convolved(b: BlockBuilder, scan: Scan, parts: tuple[str, ...], function: str) -> tuple[str, ...]:
    """Append the convolution along the sequence, each channel by itself, with its activation: one kernel."""
    weights: list[str] = []
    for part in parts:
        dims = PARTS[part]
        weights.append(b.weight(f"w_conv_{part}", *dims, "kernel", role="conv", suffix=".weight"))
        if scan.conv_bias:
            weights.append(b.weight(f"w_conv_{part}_bias", *dims, role="conv", suffix=".bias"))
    made = tuple(b.tensor(f"{part}_convolved", *b.dims(part)) for part in parts)
    b.op("conv", "causal_conv", parts, made, tuple(weights), function=function, kept=" ".join(parts))
    return made


def _gated_norm(b: BlockBuilder, scan: Scan, y: str, z: str) -> str:
    """Append the norm of what the recurrence made, and its gate: one kernel, which keeps what it reads."""
    out = b.tensor("scan_gated", *b.dims(y))
    if scan.norm == "none":
        return b.op("gate_scanned", "gated_norm", (y, z), (out,), over="state_values", kept=f"{y} {z}")
    over = NORMED[scan.norm]
    dims = over.split() if scan.norm == "head" else VALUES
    weight = b.weight("scan_norm_weight", *dims, role="scan_norm", suffix=".weight")
    left = (d for d in b.dims(y) if d not in over.split())
    deviation = b.tensor("scan_deviation", *left, dtype="fp32")
    kept = f"{y} {z} {deviation}"
    return b.op("scan_norm", "gated_norm", (y, z), (out,), (weight,), over=over, kept=kept)


def _out(b: BlockBuilder, scan: Scan, y: str) -> str:
    out = b.tensor("scan_projected", *b.dims(y)[:2], "hidden")
    weights = b.linear_weights(
        "w_scan_out", "hidden", *VALUES, role="scan_out", columns=1, bias=scan.out_bias
    )
    return b.op("scan_out", "matmul", (y,), (out,), weights)

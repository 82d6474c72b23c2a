"""Gates of what norms and heads make, and values that heads leave out."""

from planner.models.building import BlockBuilder
from planner.models.config import TransformerConfig


def gated_norm(b: BlockBuilder, config: TransformerConfig, half: str, normed: str) -> str:
    """``normed`` times the sigmoid of what two narrow products make of it, where norms are gated.

    Source: marin-community/marin ``experiments/grug/moe/model.py`` (``GatedNorm``).
    """
    if not config.norm_gate:
        return normed
    low = b.tensor(f"{half}_gate_low", *b.dims(normed)[:-1], "norm_gate")
    down = b.linear_weights(
        f"w_{half}_gate_down", "norm_gate", "hidden", role=f"{half}_gate_down", columns=1, bias=False
    )
    b.op(f"{half}_gate_down", "matmul", (normed,), (low,), down)
    activated = b.tensor(f"{half}_gate_activated", *b.dims(low))
    b.op(f"{half}_gate_activation", "elementwise", (low,), (activated,), function="silu")
    logits = b.tensor(f"{half}_gate_logits", *b.dims(normed))
    up = b.linear_weights(
        f"w_{half}_gate_up", "hidden", "norm_gate", role=f"{half}_gate_up", columns=1, bias=False
    )
    b.op(f"{half}_gate_up", "matmul", (activated,), (logits,), up)
    gated = b.tensor(f"{half}_gated", *b.dims(normed))
    return b.op(f"{half}_gate", "elementwise", (normed, logits), (gated,), function="sigmoid")


def gated_heads(b: BlockBuilder, config: TransformerConfig, x: str, context: str, values: str) -> str:
    """What heads made, less its part along their own ``values``, times a gate for each head of ``x``.

    Source: marin-community/marin ``experiments/grug/moe/model.py`` (``CausalSelfAttention``).
    """
    if config.exclusive_heads:
        exclusive = b.tensor("exclusive_context", *b.dims(context))
        context = b.op("exclusion", "elementwise", (context, values), (exclusive,), function="exclusion")
    if not config.head_gates:
        return context
    logits = b.tensor("head_gate_logits", *b.dims(context)[:-1])
    weights = b.linear_weights(
        "w_head_gate", b.dims(context)[-2], "hidden", role="head_gate", columns=1, bias=False
    )
    b.op("head_gate_logits", "matmul", (x,), (logits,), weights)
    gated = b.tensor("head_gated_context", *b.dims(context))
    return b.op("head_gate", "elementwise", (context, logits), (gated,), function="sigmoid")

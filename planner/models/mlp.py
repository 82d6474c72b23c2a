"""The MLP half of a transformer layer: dense, or a mixture of experts with shared ones beside it."""

from planner.graph import BATCH
from planner.models.building import Attribute, BlockBuilder
from planner.models.config import TransformerConfig


def dense_mlp(
    b: BlockBuilder, config: TransformerConfig, x: str, *, prefix: str = "", width: str = "ffn"
) -> str:
    """Append an MLP of inner dim ``width`` on the normalised ``x``; returns its result."""
    bias = config.mlp_bias and not prefix
    up = b.tensor(f"{prefix}up", *b.dims(x)[:-1], width)
    weights = b.linear_weights(f"w_{prefix}up", width, "hidden", role=f"{prefix}up", columns=1, bias=bias)
    outputs: tuple[str, ...] = (up,)
    if config.gated:
        gate = b.tensor(f"{prefix}gate", *b.dims(up))
        gate_weights = b.linear_weights(
            f"w_{prefix}gate", width, "hidden", role=f"{prefix}gate", columns=1, bias=bias
        )
        weights, outputs = (*gate_weights, *weights), (gate, up)
    b.op(f"{prefix}gate_up", "matmul", (x,), outputs, weights)
    activated = activation(b, config, outputs, prefix)
    if config.sub_norms:
        name, normed = f"{prefix}activated_norm", f"{prefix}activated_normed"
        activated = b.norm(name, activated, normed, style=config.norm, role="activated_norm", over=width)
    out = b.tensor(f"{prefix}mlp_out", *b.dims(x))
    down = b.linear_weights(f"w_{prefix}down", "hidden", width, role=f"{prefix}down", columns=1, bias=bias)
    return b.op(f"{prefix}down", "matmul", (activated,), (out,), down)


def activation(b: BlockBuilder, config: TransformerConfig, inputs: tuple[str, ...], prefix: str = "") -> str:
    """Append the non-linearity, times ``up`` where the MLP is gated.

    The activated gate is auxiliary: separate kernels for the function and the product keep it.
    """
    dims, scale = b.dims(inputs[0]), b.scale(inputs[0])
    activated = b.tensor(f"{prefix}activated", *dims, scale=scale)
    attributes: dict[str, Attribute] = {"function": config.activation}
    if config.gated:
        attributes["activated_gate"] = b.tensor(f"{prefix}activated_gate", *dims, scale=scale)
    return b.op(f"{prefix}activation", "elementwise", inputs, (activated,), (), **attributes)


def mixture_of_experts(b: BlockBuilder, config: TransformerConfig, x: str) -> str:
    """Append router, dispatch, experts, combine, and the shared experts."""
    assert config.experts is not None
    experts = config.experts
    share = experts.topk / experts.count
    logits = b.tensor("router_logits", BATCH, "seq", "experts", dtype="fp32")
    router = b.linear_weights("w_router", "experts", "hidden", role="router", columns=1, bias=experts.bias)
    b.op("router", "matmul", (x,), (logits,), router)
    routing = b.tensor("routing", BATCH, "seq", "experts", dtype="int32", scale=share)
    routed = b.tensor("routed", BATCH, "seq", "experts", "hidden", scale=share)
    b.op("dispatch", "dispatch", (x, logits), (routed,), routing=routing)
    expert_out = _experts(b, config, routed, share)
    moe_out = b.tensor("moe_out", *b.dims(x))
    b.op("combine", "combine", (expert_out, logits), (moe_out,), routing=routing)
    if experts.shared_ffn:
        shared = dense_mlp(b, config, x, prefix="shared_", width="shared_ffn")
        if experts.shared_gate:
            shared = _gate_shared(b, x, shared)
        moe_out = b.add("combine_add", moe_out, shared, "mlp_out")
    if not experts.norm:
        return moe_out
    return b.norm("experts_norm", moe_out, "experts_normed", style=config.norm, role="experts_norm")


def _experts(b: BlockBuilder, config: TransformerConfig, routed: str, share: float) -> str:
    """Every expert's MLP on the tokens routed to it; parameters are stacked along ``experts``."""
    assert config.experts is not None
    bias = config.experts.bias
    dims = (*b.dims(routed)[:-1], "expert_ffn")
    parts = ("gate", "up") if config.gated else ("up",)
    weights: list[str] = []
    for part in parts:
        weights += b.stacked_weights(
            f"w_expert_{part}", "experts", "expert_ffn", "hidden", role=f"expert_{part}", bias=bias
        )
    outputs = tuple(b.tensor(f"expert_{part}", *dims, scale=share) for part in parts)
    b.op("expert_gate_up", "matmul", (routed,), outputs, tuple(weights))
    activated = activation(b, config, outputs, "expert_")
    out = b.tensor("expert_out", *b.dims(routed), scale=share)
    down = b.stacked_weights(
        "w_expert_down", "experts", "hidden", "expert_ffn", role="expert_down", bias=bias
    )
    return b.op("expert_down", "matmul", (activated,), (out,), down)


def _gate_shared(b: BlockBuilder, x: str, shared: str) -> str:
    logit = b.tensor("shared_gate_logit", BATCH, "seq", "shared_gate")
    weights = b.linear_weights(
        "w_shared_gate_logit", "shared_gate", "hidden", role="shared_gate_logit", columns=1, bias=False
    )
    b.op("shared_gate_logit", "matmul", (x,), (logit,), weights)
    gated = b.tensor("shared_gated", *b.dims(shared))
    return b.op("shared_gate", "elementwise", (shared, logit), (gated,), function="sigmoid")

"""A model's sizes as Megatron-LM's arguments, where Megatron has all of its features under one flag each."""

from typing import Any

from planner.models.config import TransformerConfig
from planner.models.dropout import shares_of
from planner.models.families import DECODERS
from planner.models.hybrids import LETTERS
from planner.models.reading import ConfigReader
from planner.plans import Plan

UNSAID = (
    "embedding_dim", "embedding_norm", "gated_attention", "head_bias", "latent", "parallel", "positions",
    "qkv_clip", "scan", "sub_norms", "token_types", "value_dim",
)  # fmt: skip
"""Fields of `TransformerConfig` that have no flag here; a model with one of them is named by its own script."""

NORMS = {"rms": "RMSNorm", "rms_wide": "RMSNorm", "layer": "LayerNorm"}


def transformer_of(plan: Plan) -> TransformerConfig | None:
    """The decoder that the plan's model is, or None for what is no plain decoder."""
    if plan.model.family not in DECODERS:
        return None
    return DECODERS[plan.model.family](ConfigReader(plan.model.config, plan.model.name), plan.model.name)


def prediction_modules(plan: Plan) -> int:
    """Modules of multi-token prediction."""
    config = transformer_of(plan)
    return 0 if config is None else config.mtp_layers


def layer_letters(plan: Plan) -> str:
    """Each layer's letter in the patterns of Megatron's models of unlike layers; nothing for other models."""
    config = transformer_of(plan)
    if config is None or config.scan is None or not set(config.layers) <= set(LETTERS):
        return ""
    return "".join(LETTERS[kind] for kind in config.layers)


def model_arguments(plan: Plan) -> dict[str, Any]:
    """Argument (with underscores) -> value; empty where the model needs more than these."""
    config = transformer_of(plan)
    if config is None or not _sayable(config):
        return {}
    dropped = shares_of(plan.model)
    arguments: dict[str, Any] = {
        "num_layers": len(config.layers),
        "hidden_size": config.hidden,
        "ffn_hidden_size": config.ffn or (config.experts.ffn if config.experts else 0),
        "num_attention_heads": config.heads,
        "kv_channels": config.head_dim,
        "vocab_size": config.vocab,
        "position_embedding_type": "rope",
        "normalization": NORMS[config.norm],
        "disable_bias_linear": True,
        "swiglu": True,
        "untie_embeddings_and_output_weights": not config.tied,
        "add_qkv_bias": config.qkv_bias,
        "qk_layernorm": config.qk_norm == "head",
        "attention_dropout": dropped.scores,  # Megatron drops 0.1 of each unless it is told otherwise
        "hidden_dropout": dropped.sums,
    }
    if config.kv_heads < config.heads:
        arguments |= {"group_query_attention": True, "num_query_groups": config.kv_heads}
    if config.experts is not None:
        arguments |= {
            "num_experts": config.experts.count,
            "moe_router_topk": config.experts.topk,
            "moe_ffn_hidden_size": config.experts.ffn,
        }
    return arguments


def _sayable(config: TransformerConfig) -> bool:
    unsaid = any(getattr(config, name) for name in UNSAID)
    same_layers = (
        len(set(config.layers)) == 1 and config.layers[0].attention == "full" and config.layers[0].rotary
    )
    plain = (
        config.norm in NORMS
        and config.norm_placement == "pre"
        and config.gated
        and config.activation == "silu"
        and config.sinks == "none"
    )
    biases = (
        config.out_bias or config.mlp_bias or (config.experts is not None and config.experts.shared_ffn > 0)
    )
    norms = config.qk_norm in ("none", "head")
    return same_layers and plain and norms and not (unsaid or biases or config.mtp_layers)

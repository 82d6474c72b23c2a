"""Hugging Face configurations of mixtures of experts -> `TransformerConfig`, one function per family."""

from collections.abc import Callable, Sequence
from typing import Any

from planner.models.config import Experts, LatentAttention, LayerKind, TransformerConfig
from planner.models.decoders import (
    AttentionKind,
    alternating_window,
    attention_kinds,
    common,
    num_layers,
    upper_window,
    window_where_set,
)
from planner.models.reading import ConfigReader, expert_groups


def experts_of(
    read: ConfigReader, *count: str, ffn: str, per_token: str = "num_experts_per_tok", **more: Any
) -> Experts:
    """A mixture whose number of experts is under the keys ``count``, their width under ``ffn``."""
    number = read.integer(*count)
    topk = read.integer(per_token)
    if topk > number:
        raise read.fail(per_token, f"must be at most the {number} experts, found {topk}")
    return Experts(count=number, topk=topk, ffn=read.integer(ffn), **more)


def layers_with_experts(
    attention: Sequence[AttentionKind], has_experts: Callable[[int], bool]
) -> tuple[LayerKind, ...]:
    """Layers with that attention, with a mixture where ``has_experts`` says so of their number."""
    return tuple(
        LayerKind(attention=kind, mlp="moe" if has_experts(i) else "dense")
        for i, kind in enumerate(attention)
    )


def dense_width(read: ConfigReader, layers: Sequence[LayerKind], key: str = "intermediate_size") -> int:
    """Width of the dense layers' MLP, needed only where there are any."""
    return read.integer(key) if any(kind.mlp == "dense" for kind in layers) else 0


def mixtral(read: ConfigReader, name: str) -> TransformerConfig:
    """Mixtral: every MLP is a mixture of ``num_local_experts``."""
    return TransformerConfig(
        **common(read, name, kv_default=False),
        layers=layers_with_experts(attention_kinds(read, window_where_set(read)), lambda i: True),
        ffn=0,
        experts=experts_of(read, "num_local_experts", ffn="intermediate_size"),
    )


def granitemoe(read: ConfigReader, name: str) -> TransformerConfig:
    """Granite MoE: as Mixtral."""
    bias = read.flag("attention_bias", default=False)
    return TransformerConfig(
        **common(read, name),
        scheme="granitemoe",
        layers=layers_with_experts(attention_kinds(read, lambda i: "full"), lambda i: True),
        ffn=0,
        qkv_bias=bias,
        out_bias=bias,
        experts=experts_of(read, "num_local_experts", ffn="intermediate_size"),
    )


def olmoe(read: ConfigReader, name: str) -> TransformerConfig:
    """OLMoE: experts everywhere, norms over all heads of queries and keys."""
    bias = read.flag("attention_bias", default=False)
    return TransformerConfig(
        **common(read, name),
        layers=layers_with_experts(attention_kinds(read, lambda i: "full"), lambda i: True),
        ffn=0,
        qk_norm="full",
        qkv_bias=bias,
        out_bias=bias,
        experts=experts_of(read, "num_experts", "num_local_experts", ffn="intermediate_size"),
    )


def minimax_m2(read: ConfigReader, name: str) -> TransformerConfig:
    """MiniMax M2: experts everywhere, norms over all heads of queries and keys; released without linear attention."""
    return TransformerConfig(
        **common(read, name, kv_default=False, head_dim_default=False),
        layers=layers_with_experts(attention_kinds(read, lambda i: "full"), lambda i: True),
        ffn=0,
        qk_norm="full",
        experts=experts_of(read, "num_local_experts", "num_experts", ffn="intermediate_size"),
    )


def _qwen_layers(read: ConfigReader) -> tuple[LayerKind, ...]:
    """Experts in every ``decoder_sparse_step``-th layer that is not in ``mlp_only_layers``."""
    step = read.integer("decoder_sparse_step", default=1)
    dense = set(read.items("mlp_only_layers") or [])
    return layers_with_experts(
        attention_kinds(read, upper_window(read)), lambda i: i not in dense and (i + 1) % step == 0
    )


def qwen2_moe(read: ConfigReader, name: str) -> TransformerConfig:
    """Qwen 1.5 and 2 MoE: a gated shared expert beside the routed ones."""
    layers = _qwen_layers(read)
    shared = read.integer("shared_expert_intermediate_size")
    return TransformerConfig(
        **common(read, name, kv_default=False),
        scheme="qwen2_moe",
        layers=layers,
        ffn=dense_width(read, layers),
        qkv_bias=read.flag("qkv_bias", default=True),
        experts=experts_of(
            read, "num_experts", ffn="moe_intermediate_size", shared_ffn=shared, shared_gate=True
        ),
    )


def qwen3_moe(read: ConfigReader, name: str) -> TransformerConfig:
    """Qwen 3 MoE."""
    layers = _qwen_layers(read)
    bias = read.flag("attention_bias", default=False)
    return TransformerConfig(
        **common(read, name, kv_default=False),
        layers=layers,
        ffn=dense_width(read, layers),
        qk_norm="head",
        qkv_bias=bias,
        out_bias=bias,
        experts=experts_of(read, "num_experts", "num_local_experts", ffn="moe_intermediate_size"),
    )


def gpt_oss(read: ConfigReader, name: str) -> TransformerConfig:
    """GPT-OSS: attention sinks, biases on projections, router and experts, windows in every other layer."""
    bias = read.flag("attention_bias", default=True)
    return TransformerConfig(
        **common(read, name, kv_default=False, head_dim_default=False),
        scheme="gpt_oss",
        layers=layers_with_experts(attention_kinds(read, alternating_window(read)), lambda i: True),
        ffn=0,
        sinks="all",
        qkv_bias=bias,
        out_bias=bias,
        experts=experts_of(read, "num_local_experts", ffn="intermediate_size", bias=True),
    )


def llama4(read: ConfigReader, name: str) -> TransformerConfig:
    """Llama 4, the text tower: chunks with rotary positions, every fourth layer full and without.

    ``intermediate_size`` is the width of an expert and of the shared one, ``intermediate_size_mlp`` that of
    the dense layers.
    """
    interval = read.integer("no_rope_layer_interval", default=4)
    step = read.integer("interleave_moe_layer_step", default=1)
    listed = read.items("moe_layers")
    with_experts = range(step - 1, num_layers(read), step) if listed is None else listed
    local: AttentionKind = "chunk" if read.has("attention_chunk_size") else "full"
    kinds = attention_kinds(read, lambda i: local if (i + 1) % interval else "full")
    layers = tuple(
        LayerKind(
            attention=kind,
            mlp="moe" if i in with_experts else "dense",
            rotary=bool((i + 1) % interval),
        )
        for i, kind in enumerate(kinds)
    )
    bias = read.flag("attention_bias", default=False)
    width = read.integer("intermediate_size")
    return TransformerConfig(
        **common(read, name, kv_default=False, head_dim_default=False),
        scheme="llama4",
        layers=layers,
        ffn=dense_width(read, layers, "intermediate_size_mlp"),
        chunk=read.integer("attention_chunk_size", default=0),
        qk_norm="plain" if read.flag("use_qk_norm", default=True) else "none",
        qkv_bias=bias,
        out_bias=bias,
        experts=experts_of(read, "num_local_experts", ffn="intermediate_size", shared_ffn=width),
    )


def leading_dense(read: ConfigReader, otherwise: int | None = None) -> tuple[LayerKind, ...]:
    """DeepSeek's order: ``first_k_dense_replace`` dense layers, then experts; or as ``mlp_layer_types`` lists them."""
    attention = attention_kinds(read, lambda i: "full")
    return layers_with_experts(attention, has_experts(read, otherwise))


def has_experts(read: ConfigReader, otherwise: int | None = None) -> Callable[[int], bool]:
    """Whether a layer has experts; without ``otherwise`` the number of dense layers must be there."""
    listed = read.items("mlp_layer_types")
    if listed is None:
        first = read.integer("first_k_dense_replace", default=otherwise, least=0)
        return lambda i: i >= first
    if set(listed) - {"dense", "sparse"} or len(listed) != num_layers(read):
        raise read.fail("mlp_layer_types", "must say dense or sparse of each layer")
    return lambda i: bool(listed[i] == "sparse")


def routed_and_shared(
    read: ConfigReader,
    count: str = "n_routed_experts",
    shared: str = "n_shared_experts",
    otherwise: int | None = 0,
) -> Experts:
    """DeepSeek's mixture: routed experts, in groups, and shared ones of the same width.

    Without ``otherwise`` the number of shared experts must be there.
    """
    width = read.integer("moe_intermediate_size")
    groups, chosen = expert_groups(read, count, "n_group", "topk_group")
    return experts_of(
        read,
        count,
        ffn="moe_intermediate_size",
        shared_ffn=read.integer(shared, default=otherwise, least=0) * width,
        groups=groups,
        chosen_groups=chosen,
    )


def deepseek(
    read: ConfigReader,
    name: str,
    layers: tuple[LayerKind, ...] | None = None,
    *,
    tied: bool = False,
    value_dim: int | None = None,
    experts: Callable[[ConfigReader], Experts] = routed_and_shared,
) -> TransformerConfig:
    """DeepSeek V2 and V3, Kimi K2, GLM 4.7 Flash, Mistral 4: latent attention, small experts, shared ones beside them.

    The multi-token-prediction module (``num_nextn_predict_layers``) is no part of the class, nor counted.
    ``tied`` and ``value_dim`` are what absent keys mean to the class.
    """
    layers = layers or leading_dense(read)
    hidden, heads = read.integer("hidden_size"), read.integer("num_attention_heads")
    latent = LatentAttention(
        q_lora=read.integer("q_lora_rank") if read.has("q_lora_rank") else None,
        kv_lora=read.integer("kv_lora_rank"),
        nope_dim=read.integer("qk_nope_head_dim"),
        rope_dim=read.integer("qk_rope_head_dim"),
        value_dim=read.integer("v_head_dim", default=value_dim),
    )
    bias = read.flag("attention_bias", default=False)
    return TransformerConfig(
        name=name,
        scheme="deepseek",
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=latent.value_dim,
        ffn=dense_width(read, layers),
        vocab=read.integer("vocab_size"),
        tied=read.flag("tie_word_embeddings", default=tied),
        activation=read.activation("hidden_act", default="silu"),
        qkv_bias=bias,
        out_bias=bias,
        latent=latent,
        experts=experts(read) if any(kind.mlp == "moe" for kind in layers) else None,
    )


def glm4_moe(read: ConfigReader, name: str) -> TransformerConfig:
    """GLM 4.5: DeepSeek's mixture behind grouped-query attention."""
    layers = leading_dense(read)
    return TransformerConfig(
        **common(read, name, kv_default=False),
        layers=layers,
        ffn=dense_width(read, layers),
        qk_norm="head" if read.flag("use_qk_norm", default=False) else "none",
        qkv_bias=read.flag("attention_bias", default=False),
        experts=routed_and_shared(read),
    )

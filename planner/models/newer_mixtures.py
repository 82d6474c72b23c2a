"""Hugging Face configurations of mixtures of experts of 2026, and DBRX -> `TransformerConfig`, one function per family.

As in `planner.models.recent_mixtures`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from planner.models.config import Experts, LayerKind, TransformerConfig
from planner.models.decoders import attention_kinds, attention_sizes, common, num_layers, periodic_window
from planner.models.mixtures import (
    deepseek,
    dense_width,
    experts_of,
    has_experts,
    layers_with_experts,
    leading_dense,
    routed_and_shared,
)
from planner.models.reading import ConfigReader
from planner.models.recent import attention_bias, rotated_by_base, unrotated_where_full
from planner.models.recent_mixtures import granitemoeshared


def _normed_heads(
    read: ConfigReader, name: str, layers: tuple[LayerKind, ...], experts: Experts, **differences: Any
) -> TransformerConfig:
    """Norms on the heads of queries and keys, and experts, but for the ``differences``."""
    fields: dict[str, Any] = {
        **common(read, name, kv_default=False, head_dim_default=False),
        "layers": layers,
        "ffn": dense_width(read, layers),
        "qk_norm": "head",
        "experts": experts,
        **differences,
    }
    return TransformerConfig(**fields)


def axk1(read: ConfigReader, name: str) -> TransformerConfig:
    """A.X K1: DeepSeek's layers, with a norm on what experts make, in every ``moe_layer_freq``-th layer."""
    read.integer("q_lora_rank")  # its class has no queries that are projected directly
    listed, step = read.has("mlp_layer_types"), read.integer("moe_layer_freq", default=1)
    sparse = has_experts(read, 1)
    kinds = attention_kinds(read, lambda i: "full")
    layers = layers_with_experts(kinds, lambda i: sparse(i) and (listed or i % step == 0))
    return deepseek(read, name, layers, experts=_normed).model_copy(update={"scheme": "axk1"})


def _normed(read: ConfigReader) -> Experts:
    return routed_and_shared(read, otherwise=None).model_copy(update={"norm": True})


def cohere2_moe(read: ConfigReader, name: str) -> TransformerConfig:
    """Command A+: Command A's layers with experts, behind dense ones whose windows have a period of their own."""
    first = read.integer("first_k_dense_replace", default=0, least=0)
    period = read.integer("prefix_dense_sliding_window_pattern", default=1)
    leading, later = (
        periodic_window(period),
        periodic_window(read.integer("sliding_window_pattern", default=4)),
    )
    kinds = attention_kinds(read, lambda i: leading(i) if i < first else later(i - first))
    sparse, width = has_experts(read, 0), read.integer("intermediate_size")
    layers = tuple(
        LayerKind(
            attention=kind,
            mlp="moe" if sparse(i) else "dense",
            rotary=kind == "window" or (period == 1 and not sparse(i)),
        )
        for i, kind in enumerate(kinds)
    )
    shared = read.integer("num_shared_experts", default=0, least=0)
    return TransformerConfig(
        **common(read, name, tied=True, head_dim_default=False),
        layers=layers,
        ffn=read.integer("prefix_dense_intermediate_size", default=width),
        parallel=True,
        norm="rms" if read.has("rms_norm_eps") else "layer_no_bias",
        experts=experts_of(read, "num_experts", ffn="intermediate_size", shared_ffn=shared * width),
        **attention_bias(read),
    )


def dbrx(read: ConfigReader, name: str) -> TransformerConfig:
    """DBRX: experts everywhere, layer norms without biases, queries, keys and values that are clipped."""
    attention, experts = _inner(read, "attn_config"), _inner(read, "ffn_config")
    given = experts.has("ffn_act_fn")
    activation = _inner(experts, "ffn_act_fn").activation("name", default="silu") if given else "silu"
    return TransformerConfig(
        **(attention_sizes(read) | {"kv_heads": attention.integer("kv_n_heads")}),
        name=name,
        scheme="dbrx",
        layers=layers_with_experts(attention_kinds(read, lambda i: "full"), lambda i: True),
        ffn=0,
        vocab=read.integer("vocab_size"),
        tied=read.flag("tie_word_embeddings", default=False),
        activation=activation,
        norm="layer_no_bias",
        qkv_clip=attention.has("clip_qkv"),
        experts=experts_of(experts, "moe_num_experts", ffn="ffn_hidden_size", per_token="moe_top_k"),
    )


def _inner(read: ConfigReader, key: str) -> ConfigReader:
    """The configuration of a part of the model."""
    value = read.get(key)
    if not isinstance(value, Mapping):
        raise read.fail(key, f"must be a table, found {value!r}")
    return ConfigReader(value, f"{read.source} ({key})")


def flint(read: ConfigReader, name: str) -> TransformerConfig:
    """Flint: sinks everywhere, positions where there is a window, a shared expert beside those of Qwen 3."""
    last, step = num_layers(read) - 1, read.integer("decoder_sparse_step", default=1)
    listed = read.items("mlp_only_layers")
    dense = {0, 1} if listed is None else set(listed)
    kinds = attention_kinds(read, lambda i: "full" if i < 2 or i % 4 == 1 or i == last else "window")
    layers = tuple(
        LayerKind(
            attention=kind,
            mlp="dense" if i in dense or (i + 1) % step else "moe",
            rotary=kind == "window",
        )
        for i, kind in enumerate(kinds)
    )
    shared = read.integer("shared_expert_intermediate_size")
    return _normed_heads(
        read,
        name,
        layers,
        experts_of(read, "num_experts", ffn="moe_intermediate_size", shared_ffn=shared),
        scheme="qwen2_moe",
        sinks="all",
        wide_scores=True,
        **attention_bias(read),
    )


def granitemoe_swa(read: ConfigReader, name: str) -> TransformerConfig:
    """Granite MoE with windows: sinks in every layer, three of four with a window."""
    layers = tuple(kind.model_copy(update={"mlp": "moe"}) for kind in rotated_by_base(read))
    window = read.integer("sliding_window", default=0)
    changes = {"layers": layers, "window": window, "sinks": "all"}
    return granitemoeshared(read, name).model_copy(update=changes)


def hy_v3(read: ConfigReader, name: str) -> TransformerConfig:
    """Hunyuan 3: DeepSeek's mixture behind attention with norms on the heads of queries and keys."""
    if read.flag("mlp_bias", default=False):
        raise read.fail("mlp_bias", "is not supported with experts")
    experts = routed_and_shared(read, "num_experts", "num_shared_experts", None)
    return _normed_heads(read, name, leading_dense(read, 1), experts, **attention_bias(read))


def kolibri1(read: ConfigReader, name: str) -> TransformerConfig:
    """Kolibri 1: experts everywhere, norms before and after each half, full layers without positions."""
    layers = tuple(
        kind.model_copy(update={"mlp": "moe"}) for kind in unrotated_where_full(read, periodic_window(5))
    )
    shared = read.integer("shared_expert_intermediate_size")
    experts = experts_of(
        read, "num_experts", "num_local_experts", ffn="moe_intermediate_size", shared_ffn=shared
    )
    return _normed_heads(read, name, layers, experts, scheme="glm4", norm_placement="sandwich")


def laguna(read: ConfigReader, name: str) -> TransformerConfig:
    """Laguna: attention behind a gate for each head or each element, experts and a shared one in all layers but one."""
    gates = True if read.get("gating") is None else read.get("gating")
    if gates not in (True, "per-head", "per-element"):
        raise read.fail("gating", f"must be true, per-head or per-element, found {gates!r}")
    bias = attention_bias(read)
    if bias["qkv_bias"] and gates == "per-element":
        raise read.fail("attention_bias", "is not supported beside a gate without one")
    if read.flag("moe_apply_router_weight_on_input", default=False):
        raise read.fail("moe_apply_router_weight_on_input", "is not supported")
    layers = leading_dense(read, 1)
    shared = read.integer("shared_expert_intermediate_size")
    return _normed_heads(
        read,
        name,
        layers,
        experts_of(read, "num_experts", ffn="moe_intermediate_size", shared_ffn=shared),
        scheme="laguna",
        joined_heads=True,
        gated_attention=gates == "per-element",
        head_gates=gates != "per-element",
        **_heads_by_window(read, layers),
        **bias,
    )


def _heads_by_window(read: ConfigReader, layers: Sequence[LayerKind]) -> dict[str, int]:
    """Numbers of heads where they are listed for each layer: one for those with a window, one for the others."""
    key = "num_attention_heads_per_layer"
    listed = read.items(key)
    if listed is None:
        return {}
    if len(listed) != len(layers) or not all(type(heads) is int and heads > 0 for heads in listed):
        raise read.fail(key, f"must be a number for each of the {len(layers)} layers, found {listed}")
    found: dict[bool, set[int]] = {True: set(), False: set()}
    for kind, number in zip(layers, listed, strict=True):
        found[kind.attention == "window"].add(number)
    if max(map(len, found.values())) > 1:
        raise read.fail(
            key, f"must be one number for layers with a window and one for others, found {listed}"
        )
    (heads,), (window_heads,) = found[False] or found[True], found[True] or found[False]
    if heads == window_heads:
        return {"heads": heads}
    kv_heads = read.integer("num_key_value_heads")
    return {"heads": heads, "window_heads": window_heads, "window_kv_heads": kv_heads}


def mellum(read: ConfigReader, name: str) -> TransformerConfig:
    """Mellum 2: Qwen 3's mixture, with a window in the layers that are listed so.

    The module that predicts a second token (``num_mtp_layers``) is no part of the class, nor counted.
    """
    experts = experts_of(read, "num_experts", "num_local_experts", ffn="moe_intermediate_size")
    return _normed_heads(read, name, leading_dense(read, 0), experts, **attention_bias(read))


def mimo_v2_flash(read: ConfigReader, name: str) -> TransformerConfig:
    """MiMo V2 Flash: values narrower than keys; twice the key heads, and sinks, in layers with a window."""
    if read.integer("n_shared_experts", default=0, least=0):
        raise read.fail("n_shared_experts", "must be 0: its class has no shared experts")
    sizes = common(read, name, kv_default=False, head_dim_default=False)
    key = "sliding_window"
    if read.has("sliding_window_size"):
        key, sizes["window"] = "sliding_window_size", read.integer("sliding_window_size") + 1
    kinds = attention_kinds(read, lambda i: "window" if i and (i + 1) % 6 else "full", window=key)
    layers = layers_with_experts(kinds, has_experts(read, 1))
    return TransformerConfig(
        **sizes,
        layers=layers,
        ffn=dense_width(read, layers),
        value_dim=read.integer("v_head_dim"),
        window_kv_heads=2 * sizes["kv_heads"],
        sinks="window",
        qkv_bias=read.flag("attention_bias", default=False),
        joined_heads=True,
        narrow_softmax=True,
        experts=routed_and_shared(read),
    )


def _sarvam_experts(read: ConfigReader) -> Experts:
    """DeepSeek's mixture under its keys, or under those of the first release."""
    if read.has("num_experts"):
        return routed_and_shared(read, "num_experts", "num_shared_experts", None)
    return routed_and_shared(read, otherwise=None)


def sarvam_mla(read: ConfigReader, name: str) -> TransformerConfig:
    """Sarvam 105B: DeepSeek's layers."""
    return deepseek(read, name, experts=_sarvam_experts)


def sarvam_moe(read: ConfigReader, name: str) -> TransformerConfig:
    """Sarvam 30B: GLM 4.5's layers with norms on the heads of queries and keys."""
    return _normed_heads(
        read,
        name,
        leading_dense(read),
        _sarvam_experts(read),
        qk_norm="head" if read.flag("use_qk_norm", default=True) else "none",
        qkv_bias=read.flag("attention_bias", "use_qkv_bias", default=False),
    )

"""Hugging Face configurations of mixtures of experts of 2024 to 2026 -> `TransformerConfig`, one function per family.

Scores that balance experts without a gradient (``e_score_correction_bias``, ``expert_bias``) are no parameters here.
"""

from planner.models.config import Experts, LayerKind, TransformerConfig
from planner.models.decoders import attention_kinds, common, num_layers, periodic_window, window_where_set
from planner.models.mixtures import (
    deepseek,
    dense_width,
    experts_of,
    granitemoe,
    has_experts,
    layers_with_experts,
    leading_dense,
    olmoe,
    routed_and_shared,
)
from planner.models.reading import ConfigReader
from planner.models.recent import attention_bias, exaone_windows, unrotated_where_full


def afmoe(read: ConfigReader, name: str) -> TransformerConfig:
    """Trinity: gated attention, norms before and after each half, full layers without positions beside windows."""
    if read.flag("attention_bias", default=False):
        raise read.fail("attention_bias", "is not supported beside a gate without one")
    dense = read.integer("num_dense_layers", least=0)
    kinds = attention_kinds(read, periodic_window(read.integer("global_attn_every_n_layers", default=4)))
    layers = tuple(
        LayerKind(attention=kind, mlp="moe" if i >= dense else "dense", rotary=kind == "window")
        for i, kind in enumerate(kinds)
    )
    return TransformerConfig(
        **common(read, name, head_dim_default=False),
        scheme="afmoe",
        layers=layers,
        ffn=dense_width(read, layers),
        norm_placement="sandwich",
        qk_norm="head",
        gated_attention=True,
        experts=routed_and_shared(read, "num_experts", "num_shared_experts"),
    )


def dots1(read: ConfigReader, name: str) -> TransformerConfig:
    """dots.llm1: DeepSeek's mixture behind attention with norms on heads, windows from ``max_window_layers`` on."""
    first = read.integer("max_window_layers", least=0) if read.has("sliding_window") else num_layers(read)
    kinds = attention_kinds(read, lambda i: "window" if i >= first else "full")
    layers = layers_with_experts(kinds, has_experts(read))
    return TransformerConfig(
        **common(read, name),
        layers=layers,
        ffn=dense_width(read, layers),
        qk_norm="head",
        experts=routed_and_shared(read),
        **attention_bias(read),
    )


def ernie_moe(read: ConfigReader, name: str) -> TransformerConfig:
    """ERNIE 4.5 with experts in every ``moe_layer_interval``-th layer from one to another, and shared ones."""
    count, bias = num_layers(read), read.flag("use_bias", default=False)
    first, last = (
        read.integer("moe_layer_start_index", least=0),
        read.integer("moe_layer_end_index", least=-1),
    )
    step = read.integer("moe_layer_interval", default=1)
    end = count if last == -1 else last + 1
    kinds = attention_kinds(read, lambda i: "full")
    layers = layers_with_experts(kinds, lambda i: first <= i < end and (i + 1) % step == 0)
    shared = read.integer("moe_num_shared_experts", default=0, least=0)
    experts = experts_of(
        read,
        "moe_num_experts",
        ffn="moe_intermediate_size",
        per_token="moe_k",
        shared_ffn=shared * read.integer("moe_intermediate_size"),
    )
    if bias:
        raise read.fail("use_bias", "is not supported with experts")
    return TransformerConfig(
        **common(read, name, tied=True, kv_default=False),
        layers=layers,
        ffn=dense_width(read, layers),
        experts=experts,
    )


def exaone_moe(read: ConfigReader, name: str) -> TransformerConfig:
    """K-EXAONE: EXAONE 4's attention behind norms, DeepSeek's mixture."""
    sparse = has_experts(read)
    kinds = unrotated_where_full(read, exaone_windows(read))
    layers = tuple(
        kind.model_copy(update={"mlp": "moe" if sparse(i) else "dense"}) for i, kind in enumerate(kinds)
    )
    return TransformerConfig(
        **common(read, name, kv_default=False),
        layers=layers,
        ffn=dense_width(read, layers),
        qk_norm="head",
        experts=routed_and_shared(read, "num_experts", "num_shared_experts"),
    )


def flex_olmo(read: ConfigReader, name: str) -> TransformerConfig:
    """FlexOlmo: OLMo 2 with experts."""
    return olmoe(read, name).model_copy(update={"norm_placement": "output"})


def glm4_moe_lite(read: ConfigReader, name: str) -> TransformerConfig:
    """GLM 4.7 Flash: DeepSeek's layers, the first one dense."""
    return deepseek(read, name, leading_dense(read, 1))


def granitemoeshared(read: ConfigReader, name: str) -> TransformerConfig:
    """Granite MoE with a shared MLP beside the experts."""
    config = granitemoe(read, name)
    assert config.experts is not None
    shared = read.integer("shared_intermediate_size", default=0, least=0)
    experts = config.experts.model_copy(update={"shared_ffn": shared})
    return config.model_copy(update={"experts": experts})


def hunyuan_moe(read: ConfigReader, name: str) -> TransformerConfig:
    """Hunyuan A13B: experts everywhere, a shared one beside them, norms on the heads of queries and keys."""
    width = read.integer("intermediate_size")
    return TransformerConfig(
        **common(read, name),
        scheme="hunyuan_moe",
        layers=layers_with_experts(attention_kinds(read, lambda i: "full"), lambda i: True),
        ffn=0,
        qk_norm="head",
        experts=Experts(
            count=_alike(read, "num_experts"), topk=_alike(read, "moe_topk"), ffn=width, shared_ffn=width
        ),
        **attention_bias(read),
    )


def _alike(read: ConfigReader, key: str) -> int:
    """A number that the configuration may repeat for each layer."""
    value = read.get(key)
    if not isinstance(value, list):
        return read.integer(key)
    if len(value) != num_layers(read) or set(value) != {value[0]} or not isinstance(value[0], int):
        raise read.fail(key, f"must be one number for all layers, found {value}")
    return value[0]


def mistral4(read: ConfigReader, name: str) -> TransformerConfig:
    """Mistral Small 4, the text tower: DeepSeek's layers, all with experts unless it says otherwise."""
    return deepseek(read, name, leading_dense(read, 0))


def phimoe(read: ConfigReader, name: str) -> TransformerConfig:
    """Phi-3.5 MoE: Mixtral with layer norms."""
    return TransformerConfig(
        **common(read, name, kv_default=False),
        scheme="gpt_oss",
        layers=layers_with_experts(attention_kinds(read, window_where_set(read)), lambda i: True),
        ffn=0,
        norm="layer",
        head_bias=read.flag("lm_head_bias", default=False),
        experts=experts_of(read, "num_local_experts", ffn="intermediate_size"),
        **attention_bias(read),
    )


def solar_open(read: ConfigReader, name: str) -> TransformerConfig:
    """Solar Open: DeepSeek's mixture in every layer, behind grouped-query attention."""
    return TransformerConfig(
        **common(read, name, kv_default=False, head_dim_default=False),
        layers=leading_dense(read, 0),
        ffn=0,
        qkv_bias=read.flag("attention_bias", default=False),
        experts=routed_and_shared(read),
    )

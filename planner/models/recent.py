"""Hugging Face configurations of dense decoders of 2024 to 2026 -> `TransformerConfig`, one function per family.

What an absent key means is the class's behaviour, as in `planner.models.decoders`.
"""

from collections.abc import Callable
from typing import Any

from planner.models.config import LayerKind, TransformerConfig
from planner.models.decoders import (
    AttentionKind,
    alternating_window,
    attention_kinds,
    capped,
    common,
    dense_layers,
    gemma2,
    llama,
    modern,
    num_layers,
    olmo2,
    periodic_window,
    window_where_set,
)
from planner.models.mixtures import deepseek
from planner.models.reading import ConfigReader


def attention_bias(read: ConfigReader, *, default: bool = False) -> dict[str, bool]:
    """Biases on all four projections of attention, or on none."""
    bias = read.flag("attention_bias", default=default)
    return {"qkv_bias": bias, "out_bias": bias}


def biases(read: ConfigReader, *, default: bool = False) -> dict[str, bool]:
    """Biases on all projections of attention, and on those of the MLP."""
    return {**attention_bias(read, default=default), "mlp_bias": read.flag("mlp_bias", default=default)}


def exaone_windows(read: ConfigReader) -> Callable[[int], AttentionKind]:
    """By a period, or by letters for layers in turn, L with a window and G full, of which the last one always is.

    Source: huggingface/transformers configuration_exaone4.py (``sliding_window_pattern``).
    """
    pattern, last = read.get("sliding_window_pattern"), num_layers(read) - 1
    if not isinstance(pattern, str):
        return periodic_window(read.integer("sliding_window_pattern", default=4, least=0))
    if not pattern or set(pattern) - set("LG"):
        raise read.fail("sliding_window_pattern", f"must be a number, or letters L and G, found {pattern!r}")
    return lambda i: "window" if pattern[i % len(pattern)] == "L" and i < last else "full"


def unrotated_where_full(
    read: ConfigReader, windows: Callable[[int], AttentionKind]
) -> tuple[LayerKind, ...]:
    """Windows and rotary positions, full layers without; all are full and rotated where there is no window."""
    windowed = read.has("sliding_window")
    kinds = attention_kinds(read, windows if windowed else periodic_window(0))
    return tuple(LayerKind(attention=kind, rotary=kind == "window" or not windowed) for kind in kinds)


def squared(read: ConfigReader, name: str) -> dict[str, Any]:
    """Sizes of a family whose activation is a squared ReLU unless it says otherwise."""
    return common(read, name) | {"activation": read.activation("hidden_act", default="relu2")}


def arcee(read: ConfigReader, name: str) -> TransformerConfig:
    """AFM: Llama with a plain MLP and squared ReLU."""
    return modern(read, squared(read, name), gated=False, **biases(read))


def bitnet(read: ConfigReader, name: str) -> TransformerConfig:
    """BitNet b1.58: Llama with squared ReLU, and norms before the projections that end attention and MLP."""
    return modern(read, squared(read, name), scheme="bitnet", sub_norms=True, **attention_bias(read))


def cohere2(read: ConfigReader, name: str) -> TransformerConfig:
    """Command R7B and A: Command R with windows, its full layers without positions."""
    return modern(
        read,
        common(read, name, tied=True),
        layers=unrotated_where_full(read, periodic_window(read.integer("sliding_window_pattern", default=4))),
        parallel=True,
        norm="layer_no_bias",
        **attention_bias(read),
    )


def cwm(read: ConfigReader, name: str) -> TransformerConfig:
    """Code World Model: Llama with a window in three of four layers, the first one full."""
    return modern(
        read,
        common(read, name, kv_default=False, head_dim_default=False),
        layers=dense_layers(read, full_first),
        mlp_bias=read.flag("mlp_bias", default=False),
    )


def full_first(i: int) -> AttentionKind:
    """Every fourth layer is full, the first one included, the others have a window."""
    return "window" if i % 4 else "full"


def ernie(read: ConfigReader, name: str) -> TransformerConfig:
    """ERNIE 4.5: Llama with biases everywhere or nowhere."""
    bias = read.flag("use_bias", default=False)
    sizes = common(read, name, tied=True, kv_default=False, head_dim_default=False)
    return modern(read, sizes, qkv_bias=bias, out_bias=bias, mlp_bias=bias)


def exaone(read: ConfigReader, name: str) -> TransformerConfig:
    """EXAONE 3: Llama, whose activation has another key."""
    sizes = common(read, name, kv_default=False)
    sizes["activation"] = read.activation("activation_function", "hidden_act", default="silu")
    return modern(read, sizes, **biases(read))


def exaone4(read: ConfigReader, name: str) -> TransformerConfig:
    """EXAONE 4: norms on the results of each half and on heads, full layers without positions beside windows."""
    return modern(
        read,
        common(read, name, kv_default=False),
        layers=unrotated_where_full(read, exaone_windows(read)),
        norm_placement="output",
        qk_norm="head",
    )


def glm(read: ConfigReader, name: str, **more: Any) -> TransformerConfig:
    """GLM 4, the 9B of 2024: Llama with biases on queries, keys and values, gate and up in one projection."""
    sizes = common(read, name, kv_default=False, head_dim_default=False)
    bias = read.flag("attention_bias", default=True)
    return modern(read, sizes, **{"scheme": "glm", "joined_heads": True, "qkv_bias": bias} | more)


def glm4(read: ConfigReader, name: str) -> TransformerConfig:
    """GLM 4 of 2025 (0414): the same with norms after each half, too."""
    return glm(read, name, scheme="glm4", norm_placement="sandwich")


def granite_swa(read: ConfigReader, name: str) -> TransformerConfig:
    """Granite with windows: sinks in every layer, three of four with a window."""
    sizes = common(read, name, tied=True, kv_default=False)
    return modern(read, sizes, layers=rotated_by_base(read), sinks="all", **biases(read))


def rotated_by_base(read: ConfigReader) -> tuple[LayerKind, ...]:
    """Layers whose rotary positions have a base each (``layer_rope_theta``), of which 0 is none."""
    kinds, bases = attention_kinds(read, full_first), read.items("layer_rope_theta")
    if bases is not None and len(bases) != len(kinds):
        raise read.fail("layer_rope_theta", f"lists {len(bases)} layers, num_hidden_layers says {len(kinds)}")
    return tuple(
        LayerKind(attention=kind, rotary=bases is None or bool(bases[i])) for i, kind in enumerate(kinds)
    )


def hunyuan(read: ConfigReader, name: str) -> TransformerConfig:
    """Hunyuan, dense: Llama with norms on the heads of queries and keys."""
    return modern(read, common(read, name), scheme="hunyuan", qk_norm="head", **attention_bias(read))


def hyperclovax(read: ConfigReader, name: str) -> TransformerConfig:
    """HyperCLOVA X: Granite with norms after each half, too, unless ``use_post_norm`` says otherwise."""
    after = read.flag("use_post_norm", default=True)
    placement = "sandwich" if after else "pre"
    return modern(read, common(read, name), scheme="hyperclovax", norm_placement=placement, **biases(read))


def internlm3(read: ConfigReader, name: str) -> TransformerConfig:
    """InternLM 3: Llama with biases everywhere or nowhere."""
    bias = read.flag("attention_bias", "qkv_bias", default=False)
    if bias != read.flag("mlp_bias", "bias", default=False):
        raise read.fail("qkv_bias", "must be as bias is, as one of them alone is not supported")
    sizes = common(read, name, kv_default=False, head_dim_default=False)
    return modern(read, sizes, qkv_bias=bias, out_bias=bias, mlp_bias=bias)


def iquestcoder(read: ConfigReader, name: str) -> TransformerConfig:
    """IQuest Coder: Llama."""
    if read.flag("use_sliding_window", default=False):
        raise read.fail("use_sliding_window", "is not supported")
    if read.has("clip_qkv"):
        raise read.fail("clip_qkv", "is not supported")
    sizes = common(read, name, kv_default=False, head_dim_default=False)
    return modern(read, sizes, **biases(read))


def jais2(read: ConfigReader, name: str) -> TransformerConfig:
    """Jais 2: Llama with layer norms, biases, a plain MLP and squared ReLU."""
    return modern(read, squared(read, name), norm="layer", gated=False, **biases(read, default=True))


def minicpm3(read: ConfigReader, name: str) -> TransformerConfig:
    """MiniCPM 3: DeepSeek's attention, Llama's MLP."""
    width = read.integer("hidden_size") // read.integer("num_attention_heads")
    config = deepseek(read, name, dense_layers(read, lambda i: "full"), tied=True, value_dim=width)
    return config.model_copy(update={"mlp_bias": read.flag("mlp_bias", default=False)})


def ministral(read: ConfigReader, name: str) -> TransformerConfig:
    """Ministral: Mistral with windows in some layers, or in none."""
    return modern(read, common(read, name), layers=dense_layers(read, window_where_set(read)))


def nanochat(read: ConfigReader, name: str) -> TransformerConfig:
    """nanochat: norms without weights, also of embeddings and heads, a plain MLP with squared ReLU."""
    return modern(
        read,
        squared(read, name),
        scheme="nanochat",
        norm="plain",
        qk_norm="plain",
        embedding_norm=True,
        gated=False,
        logit_cap=capped(read, "final_logit_softcapping", default=True),
        **attention_bias(read),
    )


def olmo(read: ConfigReader, name: str) -> TransformerConfig:
    """OLMo 1: Llama with layer norms that have no parameters; queries, keys and values may have a bound."""
    return llama(read, name).model_copy(update={"norm": "plain", "qkv_clip": read.has("clip_qkv")})


def olmo3(read: ConfigReader, name: str) -> TransformerConfig:
    """OLMo 3: OLMo 2 with a window in three of four layers."""
    layers = dense_layers(read, periodic_window(4))
    return olmo2(read, name).model_copy(update={"layers": layers})


def seed_oss(read: ConfigReader, name: str) -> TransformerConfig:
    """Seed-OSS: Llama with biases on queries, keys and values."""
    return modern(
        read,
        common(read, name, head_dim_default=False),
        qkv_bias=read.flag("attention_bias", default=True),
        out_bias=read.flag("attention_out_bias", default=False),
        mlp_bias=read.flag("mlp_bias", default=False),
    )


def vaultgemma(read: ConfigReader, name: str) -> TransformerConfig:
    """VaultGemma: Gemma 2 without norms after each half."""
    layers = dense_layers(read, alternating_window(read))
    return gemma2(read, name).model_copy(update={"layers": layers, "norm_placement": "pre"})


def youtu(read: ConfigReader, name: str) -> TransformerConfig:
    """Youtu-LLM: DeepSeek's attention without experts."""
    return deepseek(read, name, dense_layers(read, lambda i: "full"), tied=True)

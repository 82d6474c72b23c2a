"""Hugging Face configurations of dense decoders -> `TransformerConfig`, one function per family.

A size is never taken from a class's default: class defaults are not checkpoint values (but of text towers, whose
tables leave out what is equal to it: ``data/towers.toml``). What an absent key means otherwise (untied embeddings, as
many key-value heads as heads) is the class's behaviour in transformers 5.23,
``src/transformers/models/<family>/{configuration,modeling}_<family>.py``.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

from planner.models.config import LayerKind, TransformerConfig
from planner.models.reading import ConfigReader

AttentionKind = Literal["full", "window", "chunk"]

MOST_LAYERS = 10_000
"""Deeper stacks are taken for mistakes."""

LAYER_TYPES: dict[str, AttentionKind] = {
    "full_attention": "full",
    "sliding_attention": "window",
    "chunked_attention": "chunk",
}
"""Words of the key ``layer_types``."""


def num_layers(read: ConfigReader) -> int:
    """Number of layers."""
    return read.integer("num_hidden_layers", "n_layer", "n_layers", "num_layers", most=MOST_LAYERS)


def attention_sizes(
    read: ConfigReader, *, kv_default: bool = True, head_dim_default: bool = True
) -> dict[str, int]:
    """``hidden``, ``heads``, ``kv_heads``, ``head_dim``, checked against one another.

    A false flag marks a class whose default for the key is a number of some checkpoint: it must be there.
    """
    hidden = read.integer("hidden_size", "n_embd", "n_embed", "d_model", "dim")
    heads = read.integer("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads")
    kv_heads = read.integer("num_key_value_heads", default=heads if kv_default else None)
    if heads % kv_heads:
        raise read.fail("num_key_value_heads", f"must divide the {heads} attention heads, found {kv_heads}")
    if head_dim_default and not read.has("head_dim") and hidden % heads:
        raise read.fail("hidden_size", f"{hidden} is not a multiple of {heads} heads, and head_dim is absent")
    head_dim = read.integer("head_dim", default=hidden // heads if head_dim_default else None)
    return {"hidden": hidden, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}


def common(
    read: ConfigReader,
    name: str,
    *,
    tied: bool = False,
    kv_default: bool = True,
    head_dim_default: bool = True,
    activation: str = "silu",
) -> dict[str, Any]:
    """Fields that decoders share; ``tied`` is what an absent ``tie_word_embeddings`` means to the class.

    So is ``activation`` of a function that is not named.
    """
    return {
        "name": name,
        **attention_sizes(read, kv_default=kv_default, head_dim_default=head_dim_default),
        "vocab": read.integer("vocab_size"),
        "tied": read.flag("tie_word_embeddings", default=tied),
        "activation": read.activation("hidden_activation", "hidden_act", default=activation),
        "window": read.integer("sliding_window", default=0, least=0),
    }


def attention_kinds(
    read: ConfigReader, otherwise: Callable[[int], AttentionKind], *, window: str = "sliding_window"
) -> tuple[AttentionKind, ...]:
    """Kind of attention of each layer: as ``layer_types`` lists them, or by the family's rule.

    The key ``window`` must be there where some layers have one.
    """
    count = num_layers(read)
    listed = read.items("layer_types")
    if listed is None:
        kinds = tuple(otherwise(i) for i in range(count))
    else:
        unknown = [word for word in listed if word not in LAYER_TYPES]
        if unknown:
            raise read.fail("layer_types", f"has {unknown[0]!r}; known are {', '.join(LAYER_TYPES)}")
        if len(listed) != count:
            raise read.fail("layer_types", f"lists {len(listed)} layers, num_hidden_layers says {count}")
        kinds = tuple(LAYER_TYPES[word] for word in listed)
    if "window" in kinds:
        read.integer(window)
    return kinds


def dense_layers(read: ConfigReader, otherwise: Callable[[int], AttentionKind]) -> tuple[LayerKind, ...]:
    """Layers without experts."""
    return tuple(LayerKind(attention=kind) for kind in attention_kinds(read, otherwise))


def window_where_set(read: ConfigReader) -> Callable[[int], AttentionKind]:
    """Every layer has the window, where there is one (Mistral, Mixtral, Phi-3)."""
    return lambda i: "window" if read.integer("sliding_window", default=0, least=0) else "full"


def upper_window(read: ConfigReader) -> Callable[[int], AttentionKind]:
    """Qwen: only with ``use_sliding_window``, and only from layer ``max_window_layers`` on."""
    if not read.flag("use_sliding_window", default=False) or not read.has("sliding_window"):
        return lambda i: "full"
    first = read.integer("max_window_layers", least=0)
    return lambda i: "window" if i >= first else "full"


def alternating_window(read: ConfigReader) -> Callable[[int], AttentionKind]:
    """Gemma 2, GPT-OSS: every other layer, the first one included."""
    return lambda i: "window" if (i + 1) % 2 else "full"


def periodic_window(period: int) -> Callable[[int], AttentionKind]:
    """Every ``period``-th layer is full, the others have the window (Gemma 3, OLMo 3); of 0 none has."""
    return lambda i: "window" if period and (i + 1) % period else "full"


def modern(read: ConfigReader, sizes: Mapping[str, Any], **differences: Any) -> TransformerConfig:
    """Pre-norm, RMS, gated, full attention but for the ``differences``: most decoders since Llama."""
    fields: dict[str, Any] = {**sizes, "ffn": read.integer("intermediate_size"), **differences}
    if "layers" not in fields:
        fields["layers"] = dense_layers(read, lambda i: "full")
    return TransformerConfig(**fields)


def llama(read: ConfigReader, name: str) -> TransformerConfig:
    """Llama 1 to 3, Granite: biases where ``attention_bias`` or ``mlp_bias`` ask for them."""
    bias = read.flag("attention_bias", default=False)
    mlp_bias = read.flag("mlp_bias", default=False)
    return modern(read, common(read, name), qkv_bias=bias, out_bias=bias, mlp_bias=mlp_bias)


def mistral(read: ConfigReader, name: str) -> TransformerConfig:
    """Mistral: Llama with a sliding window."""
    sizes = common(read, name, kv_default=False)
    return modern(read, sizes, layers=dense_layers(read, window_where_set(read)))


def qwen2(read: ConfigReader, name: str) -> TransformerConfig:
    """Qwen 2 and 2.5: biases on queries, keys and values."""
    sizes = common(read, name, kv_default=False)
    return modern(read, sizes, layers=dense_layers(read, upper_window(read)), qkv_bias=True)


def qwen3(read: ConfigReader, name: str) -> TransformerConfig:
    """Qwen 3: norms on the heads of queries and keys."""
    bias = read.flag("attention_bias", default=False)
    return modern(
        read,
        common(read, name, kv_default=False, head_dim_default=False),
        layers=dense_layers(read, upper_window(read)),
        qkv_bias=bias,
        out_bias=bias,
        qk_norm="head",
    )


def _of_gemma(read: ConfigReader, name: str) -> dict[str, Any]:
    """Source: huggingface/transformers ``models/gemma2/configuration_gemma2.py``, which Gemma 1 and 3 agree with."""
    tanh = "gelu_pytorch_tanh"
    return common(read, name, tied=True, kv_default=False, head_dim_default=False, activation=tanh)


def gemma(read: ConfigReader, name: str) -> TransformerConfig:
    """Gemma 1."""
    bias = read.flag("attention_bias", default=False)
    sizes = _of_gemma(read, name)
    return modern(read, sizes, norm="rms_wide", qkv_bias=bias, out_bias=bias)


def gemma2(read: ConfigReader, name: str) -> TransformerConfig:
    """Gemma 2: norms before and after each half, every other layer with a window."""
    bias = read.flag("attention_bias", default=False)
    return modern(
        read,
        _of_gemma(read, name),
        scheme="gemma2",
        layers=dense_layers(read, alternating_window(read)),
        norm="rms_wide",
        norm_placement="sandwich",
        qkv_bias=bias,
        out_bias=bias,
        score_cap=capped(read, "attn_logit_softcapping", default=True),
        logit_cap=capped(read, "final_logit_softcapping", default=True),
    )


def capped(read: ConfigReader, key: str, *, default: bool) -> bool:
    """Whether ``key`` has a cap: null is none, and absent what the class has, ``default``."""
    return read.has(key) or (default and key not in read.used())


def gemma3(read: ConfigReader, name: str) -> TransformerConfig:
    """Gemma 3, the text tower: Gemma 2 with normalised heads and five local layers to a global one."""
    period = read.integer("sliding_window_pattern", "_sliding_window_pattern", default=6)
    layers = dense_layers(read, periodic_window(period))
    caps = {
        "score_cap": capped(read, "attn_logit_softcapping", default=False),
        "logit_cap": capped(read, "final_logit_softcapping", default=False),
    }
    return gemma2(read, name).model_copy(update={"layers": layers, "qk_norm": "head", **caps})


def phi3(read: ConfigReader, name: str) -> TransformerConfig:
    """Phi-3 and 4: Llama with fused projections."""
    return modern(
        read,
        common(read, name),
        scheme="phi3",
        layers=dense_layers(read, window_where_set(read)),
        joined_heads=True,
    )


def olmo2(read: ConfigReader, name: str) -> TransformerConfig:
    """OLMo 2: norms on the results of each half, and over all heads of queries and keys."""
    bias = read.flag("attention_bias", default=False)
    return modern(
        read, common(read, name), norm_placement="output", qk_norm="full", qkv_bias=bias, out_bias=bias
    )


def cohere(read: ConfigReader, name: str) -> TransformerConfig:
    """Command R: attention and MLP in parallel behind one norm without bias."""
    if read.flag("use_qk_norm", default=False):
        raise read.fail("use_qk_norm", "is not supported: norms with weights per head")
    bias = read.flag("attention_bias", default=False)
    return modern(
        read,
        common(read, name, tied=True),
        parallel=True,
        norm="layer_no_bias",
        qkv_bias=bias,
        out_bias=bias,
    )


def starcoder2(read: ConfigReader, name: str) -> TransformerConfig:
    """StarCoder 2: a plain MLP, layer norms, biases."""
    bias = read.flag("use_bias", default=True)
    return modern(
        read,
        common(read, name, tied=True, kv_default=False, activation="gelu_pytorch_tanh"),
        scheme="starcoder2",
        layers=dense_layers(read, window_where_set(read)),
        norm="layer",
        gated=False,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
    )


def stablelm(read: ConfigReader, name: str) -> TransformerConfig:
    """StableLM: Llama with layer norms."""
    for key in ("qk_layernorm", "use_parallel_residual"):
        if read.flag(key, default=False):
            raise read.fail(key, "is not supported")
    sizes = common(read, name, kv_default=False)
    return modern(
        read, sizes, norm="layer", joined_heads=True, qkv_bias=read.flag("use_qkv_bias", default=False)
    )


def nemotron(read: ConfigReader, name: str) -> TransformerConfig:
    """Nemotron: a plain MLP with squared ReLU, layer norms."""
    bias = read.flag("attention_bias", default=False)
    mlp_bias = read.flag("mlp_bias", default=False)
    return modern(
        read,
        common(read, name, activation="relu2"),
        norm="layer",
        gated=False,
        joined_heads=True,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=mlp_bias,
    )


def smollm3(read: ConfigReader, name: str) -> TransformerConfig:
    """SmolLM 3: Llama without rotary positions in every fourth layer."""
    interval = read.integer("no_rope_layer_interval", default=4)
    kinds = attention_kinds(read, upper_window(read))
    layers = tuple(LayerKind(attention=k, rotary=bool((i + 1) % interval)) for i, k in enumerate(kinds))
    sizes = common(read, name, tied=True, kv_default=False)
    bias = read.flag("attention_bias", default=False)
    return modern(read, sizes, layers=layers, qkv_bias=bias, out_bias=bias)

"""Hugging Face configurations of decoders with linear recurrences -> `TransformerConfig`, one function per family."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from planner.models.config import Experts, LayerKind, Scan, TransformerConfig
from planner.models.decoders import MOST_LAYERS, common, num_layers
from planner.models.mixtures import dense_width, experts_of, routed_and_shared
from planner.models.reading import ConfigReader

DELTA_CHUNK = 64
"""Tokens of a chunk in kernels of the gated delta rule (fla-core 0.6.0 ``fla/ops/gated_delta_rule/chunk.py``)."""

TOKEN_MIXERS: Mapping[str, str] = MappingProxyType(
    {"linear_attention": "scan", "mamba": "scan", "full_attention": "full", "attention": "full"}
)
"""Words of ``layer_types``, old and new (transformers 5.23.0 ``remap_legacy_layer_types``)."""

PATTERN: Mapping[str, str] = MappingProxyType(
    {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
)
"""Letters of ``hybrid_override_pattern`` (transformers 5.23.0 ``NemotronHConfig._pattern_to_list``)."""

MAMBA_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "groups": "mamba_n_groups",
        "heads": "mamba_n_heads",
        "key_dim": "mamba_d_state",
        "value_dim": "mamba_d_head",
        "taps": "mamba_d_conv",
        "chunk": "mamba_chunk_size",
        "conv_bias": "mamba_conv_bias",
        "bias": "mamba_proj_bias",
        "out_bias": "mamba_proj_bias",
    }
)
"""Field of `Scan` -> key of families whose state-space layers lie beside attention (Bamba, Granite 4, Falcon-H1)."""


def _state_space(read: ConfigReader, keys: Mapping[str, str], norm: str, inner: int | None = None) -> Scan:
    """Sizes under ``keys``; heads that are given as ``auto`` share ``inner`` values."""
    heads = read.integer(keys["heads"])
    if inner is not None and read.get(keys["value_dim"]) in (None, "auto"):
        if inner % heads:
            raise read.fail(
                keys["heads"], f"must divide the {inner} values of a state-space layer, found {heads}"
            )
        value_dim = inner // heads
    else:
        value_dim = read.integer(keys["value_dim"])
    groups = read.integer(keys["groups"])
    if heads % groups:
        raise read.fail(
            keys["groups"], f"must divide the {heads} heads of a state-space layer, found {groups}"
        )
    return Scan(
        groups=groups,
        heads=heads,
        key_dim=read.integer(keys["key_dim"]),
        value_dim=value_dim,
        taps=read.integer(keys["taps"], default=4),
        chunk=read.integer(keys["chunk"]),
        conv_bias=read.flag(keys["conv_bias"], default=True),
        bias=read.flag(keys["bias"], default=False),
        out_bias=read.flag(keys["out_bias"], default=False),
        norm=norm,
    )


def _listed(read: ConfigReader, key: str, words: Sequence[Any], known: Mapping[str, str]) -> list[str]:
    """The words of a list of layers as ``known`` has them."""
    unknown = [word for word in words if word not in known]
    if unknown:
        raise read.fail(key, f"has {unknown[0]!r}; known are {', '.join(known)}")
    if not 0 < len(words) <= MOST_LAYERS:
        raise read.fail(key, f"must list from 1 to {MOST_LAYERS} layers, lists {len(words)}")
    return [known[word] for word in words]


def _mixers(read: ConfigReader, otherwise: Sequence[str]) -> list[str]:
    """``scan`` or ``full`` for each layer: as ``layer_types`` lists them, or by the family's rule."""
    words = read.items("layer_types") or otherwise
    count = num_layers(read)
    if len(words) != count:
        raise read.fail("layer_types", f"lists {len(words)} layers, num_hidden_layers says {count}")
    return _listed(read, "layer_types", words, TOKEN_MIXERS)


def _kind(mixer: str, scan: str, **more: Any) -> LayerKind:
    return LayerKind(attention="none", scan=scan, **more) if mixer == "scan" else LayerKind(**more)


def _qwen(
    read: ConfigReader, name: str, scheme: str, has_experts: Callable[[int], bool]
) -> TransformerConfig:
    """Three layers of gated DeltaNet to one of gated attention, experts with a gated shared one."""
    period = read.integer("full_attention_interval", default=4)
    usual = ["linear_attention" if (i + 1) % period else "full_attention" for i in range(num_layers(read))]
    layers = tuple(
        _kind(mixer, "delta", mlp="moe" if has_experts(i) else "dense")
        for i, mixer in enumerate(_mixers(read, usual))
    )
    bias = read.flag("attention_bias", default=False)
    return TransformerConfig(
        **common(read, name, kv_default=False, head_dim_default=False),
        scheme=scheme,
        layers=layers,
        ffn=dense_width(read, layers),
        norm="rms_wide",
        qk_norm="head",
        gated_attention=True,
        qkv_bias=bias,
        out_bias=bias,
        experts=_gated_mixture(read) if any(kind.mlp == "moe" for kind in layers) else None,
        scan=_delta_net(read),
    )


def _gated_mixture(read: ConfigReader) -> Experts:
    shared = read.integer("shared_expert_intermediate_size")
    return experts_of(read, "num_experts", ffn="moe_intermediate_size", shared_ffn=shared, shared_gate=True)


def _delta_net(read: ConfigReader) -> Scan:
    groups, heads = read.integer("linear_num_key_heads"), read.integer("linear_num_value_heads")
    if heads % groups:
        raise read.fail("linear_num_key_heads", f"must divide the {heads} value heads, found {groups}")
    return Scan(
        groups=groups,
        heads=heads,
        key_dim=read.integer("linear_key_head_dim"),
        value_dim=read.integer("linear_value_head_dim"),
        taps=read.integer("linear_conv_kernel_dim"),
        chunk=DELTA_CHUNK,
    )


def qwen3_next(read: ConfigReader, name: str) -> TransformerConfig:
    """Qwen3-Next: experts in every ``decoder_sparse_step``-th layer that is not in ``mlp_only_layers``."""
    step, dense = read.integer("decoder_sparse_step", default=1), set(read.items("mlp_only_layers") or [])
    return _qwen(read, name, "qwen3_next", lambda i: i not in dense and (i + 1) % step == 0)


def qwen3_5(read: ConfigReader, name: str) -> TransformerConfig:
    """Qwen3.5, the text tower: Qwen3-Next's layers without experts, and with more projections."""
    return _qwen(read, name, "qwen3_5", lambda i: False)


def qwen3_5_moe(read: ConfigReader, name: str) -> TransformerConfig:
    """The same with experts in every layer."""
    return _qwen(read, name, "qwen3_5", lambda i: True)


NEMOTRON_LAYERS: Mapping[str, LayerKind] = MappingProxyType(
    {
        "linear_attention": LayerKind(attention="none", scan="ssd", mlp="none", rotary=False),
        "full_attention": LayerKind(mlp="none", rotary=False),
        "mlp": LayerKind(attention="none", rotary=False),
        "moe": LayerKind(attention="none", mlp="moe", rotary=False),
    }
)
"""Word of ``layers_block_type`` -> layer, each with a norm and a residual of its own."""

LETTERS: Mapping[LayerKind, str] = MappingProxyType(
    {NEMOTRON_LAYERS[word]: letter for letter, word in PATTERN.items()}
)
"""Layer -> its letter in patterns, which Megatron-LM reads too."""

NEMOTRON_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "groups": "n_groups",
        "heads": "mamba_num_heads",
        "key_dim": "ssm_state_size",
        "value_dim": "mamba_head_dim",
        "taps": "conv_kernel",
        "chunk": "chunk_size",
        "conv_bias": "use_conv_bias",
        "bias": "use_bias",
        "out_bias": "use_bias",
    }
)


def nemotron_h(read: ConfigReader, name: str) -> TransformerConfig:
    """Nemotron-H and Nemotron 3: layers of Mamba-2, attention without positions, MLPs and experts, in any order."""
    if read.has("moe_latent_size"):
        raise read.fail("moe_latent_size", "is not supported: experts on a projection of the tokens")
    letters = read.text("hybrid_override_pattern", default="")
    words = read.items("layers_block_type", "layer_types") or [PATTERN.get(c, c) for c in letters]
    known = {word: word for word in NEMOTRON_LAYERS} | {
        "mamba": "linear_attention",
        "attention": "full_attention",
    }
    layers = tuple(NEMOTRON_LAYERS[word] for word in _listed(read, "layers_block_type", words, known))
    experts = any(kind.mlp == "moe" for kind in layers)
    return TransformerConfig(
        **common(read, name, head_dim_default=False)
        | {"activation": read.activation("mlp_hidden_act", default="relu2")},
        scheme="nemotron_h",
        layers=layers,
        ffn=dense_width(read, layers),
        norm="rms_wide",
        gated=False,
        mlp_bias=read.flag("mlp_bias", default=False),
        experts=_nemotron_experts(read) if experts else None,
        scan=_state_space(read, NEMOTRON_KEYS, "group"),
    )


def _nemotron_experts(read: ConfigReader) -> Experts:
    return routed_and_shared(read).model_copy(
        update={"shared_ffn": read.integer("moe_shared_expert_intermediate_size")}
    )


MAMBA2_KEYS: Mapping[str, str] = MappingProxyType(
    {**NEMOTRON_KEYS, "heads": "num_heads", "key_dim": "state_size", "value_dim": "head_dim"}
)


def mamba2(read: ConfigReader, name: str) -> TransformerConfig:
    """Mamba-2: state-space layers alone."""
    hidden, scan = read.integer("hidden_size", "d_model"), _state_space(read, MAMBA2_KEYS, "group")
    return TransformerConfig(
        name=name,
        scheme="mamba2",
        layers=(NEMOTRON_LAYERS["linear_attention"],) * num_layers(read),
        hidden=hidden,
        heads=scan.heads,
        kv_heads=scan.heads,
        head_dim=scan.value_dim,
        ffn=0,
        vocab=read.integer("vocab_size"),
        tied=read.flag("tie_word_embeddings", default=False),
        scan=scan,
    )


def bamba(read: ConfigReader, name: str) -> TransformerConfig:
    """Bamba: layers of Mamba-2, some of attention, each with a gated MLP."""
    full = set(read.items("attn_layer_indices") or [])
    mixers = ["full" if i in full else "scan" for i in range(num_layers(read))]
    bias, sizes = read.flag("attention_bias", default=False), common(read, name)
    inner = read.integer("mamba_expand", default=2) * sizes["hidden"]
    return TransformerConfig(
        **sizes,
        scheme="bamba",
        layers=tuple(_kind(mixer, "ssd") for mixer in mixers),
        ffn=read.integer("intermediate_size"),
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=read.flag("mlp_bias", default=False),
        scan=_state_space(read, MAMBA_KEYS, "all", inner),
    )


def falcon_h1(read: ConfigReader, name: str) -> TransformerConfig:
    """Falcon-H1: attention and Mamba-2 beside one another in every layer."""
    sizes, bias = common(read, name), read.flag("attention_bias", default=False)
    inner = read.integer("mamba_d_ssm", default=read.integer("mamba_expand", default=2) * sizes["hidden"])
    return TransformerConfig(
        **sizes,
        scheme="falcon_h1",
        layers=(LayerKind(scan="ssd"),) * num_layers(read),
        ffn=read.integer("intermediate_size"),
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=read.flag("mlp_bias", default=False),
        scan=_state_space(
            read,
            {**MAMBA_KEYS, "out_bias": "projectors_bias"},
            "group" if read.flag("mamba_rms_norm", default=False) else "none",
            inner,
        ),
    )


def granitemoehybrid(read: ConfigReader, name: str) -> TransformerConfig:
    """Granite 4: layers of Mamba-2, some of attention, each with a shared MLP, beside experts where it has any."""
    sizes, bias = common(read, name), read.flag("attention_bias", default=False)
    mixers = _mixers(read, ["linear_attention"] * num_layers(read))
    width = read.integer("shared_intermediate_size")
    mixture = read.integer("num_local_experts", default=0, least=0) > 0
    rotary = read.text("position_embedding_type", default="nope") == "rope"
    mlp = "moe" if mixture else "dense"
    return TransformerConfig(
        **sizes,
        scheme="granitemoehybrid",
        layers=tuple(_kind(mixer, "ssd", mlp=mlp, rotary=rotary) for mixer in mixers),
        ffn=0 if mixture else width,
        qkv_bias=bias,
        out_bias=bias,
        experts=experts_of(read, "num_local_experts", ffn="intermediate_size", shared_ffn=width)
        if mixture
        else None,
        scan=_state_space(read, MAMBA_KEYS, "all", read.integer("mamba_expand", default=2) * sizes["hidden"]),
    )

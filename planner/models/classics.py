"""Hugging Face configurations of decoders before Llama -> `TransformerConfig`, one function per family."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from planner.models.config import LayerKind, TransformerConfig
from planner.models.decoders import AttentionKind, attention_sizes, common, num_layers
from planner.models.reading import ConfigReader

UNROTATED = LayerKind(rotary=False)

BIASES = {"qkv_bias": True, "out_bias": True, "mlp_bias": True}


def _classic(read: ConfigReader, name: str, **differences: Any) -> TransformerConfig:
    """Layer norms, a plain MLP of four times the width unless it says otherwise; GELU unless ``activation`` is."""
    fields = common(read, name, tied=bool(differences.pop("tied_default", False)))
    usual = str(differences.pop("activation", "gelu"))
    fields |= {"norm": "layer", "gated": False, "window": 0, "ffn": 4 * fields["hidden"]}
    fields["activation"] = read.activation("activation_function", "hidden_act", "activation", default=usual)
    return TransformerConfig(**(fields | differences))


def gpt2(read: ConfigReader, name: str) -> TransformerConfig:
    """GPT-2 and GPT-3: learned positions, biases everywhere; ``n_inner`` null is four times the width."""
    positions = read.integer("n_positions", "max_position_embeddings")
    return _classic(
        read,
        name,
        tied_default=True,
        scheme="gpt2",
        activation="gelu_new",
        layers=(UNROTATED,) * num_layers(read),
        ffn=read.integer("n_inner", default=4 * read.integer("n_embd", "hidden_size")),
        positions=positions,
        max_seq=positions,
        narrow_softmax=True,
        **BIASES,
    )


def gpt_bigcode(read: ConfigReader, name: str) -> TransformerConfig:
    """StarCoder and SantaCoder: GPT-2 whose heads share one head of keys and values."""
    if read.flag("add_cross_attention", default=False):
        raise read.fail("add_cross_attention", "must be false: attention to an encoder is not supported")
    config = gpt2(read, name)
    shared = read.flag("multi_query", default=True)
    changes: dict[str, Any] = {
        "kv_heads": 1 if shared else config.heads,
        "activation": read.activation("activation_function", default="gelu_pytorch_tanh"),
        "narrow_softmax": False,
    }
    return config.model_copy(update=changes)


def gpt_neo(read: ConfigReader, name: str) -> TransformerConfig:
    """GPT-Neo: learned positions, no biases of queries, keys and values, a window in the layers called local."""
    positions = read.integer("max_position_embeddings")
    return _classic(
        read,
        name,
        tied_default=True,
        scheme="gpt_neo",
        activation="gelu_new",
        layers=_neo_layers(read),
        ffn=read.integer("intermediate_size", default=4 * read.integer("hidden_size")),
        window=read.integer("window_size", default=0, least=0),
        positions=positions,
        max_seq=positions,
        wide_scores=True,
        out_bias=True,
        mlp_bias=True,
    )


NEO_ATTENTION: Mapping[str, AttentionKind] = MappingProxyType({"global": "full", "local": "window"})


def _neo_layers(read: ConfigReader) -> tuple[LayerKind, ...]:
    """As ``attention_types`` lists them, kinds that repeat and how often; else every other layer is local."""
    count = num_layers(read)
    listed = read.items("attention_types") or [[["global", "local"], count // 2]]
    try:
        words = [word for kinds, times in listed for _ in range(times) for word in kinds]
        kinds = [NEO_ATTENTION[word] for word in words]
    except (KeyError, TypeError, ValueError):
        raise read.fail(
            "attention_types", f"must list kinds ({', '.join(NEO_ATTENTION)}) and how often they repeat"
        ) from None
    if len(kinds) != count:
        raise read.fail("attention_types", f"lists {len(kinds)} layers, num_layers says {count}")
    if "window" in kinds:
        read.integer("window_size")
    return tuple(LayerKind(rotary=False, attention=kind) for kind in kinds)


def gptj(read: ConfigReader, name: str) -> TransformerConfig:
    """GPT-J: attention and MLP in parallel behind one norm."""
    return _classic(
        read,
        name,
        scheme="gptj",
        activation="gelu_new",
        layers=(LayerKind(),) * num_layers(read),
        ffn=read.integer("n_inner", default=4 * read.integer("n_embd", "hidden_size")),
        parallel=True,
        wide_scores=True,
        mlp_bias=True,
        head_bias=True,
    )


def gpt_neox(read: ConfigReader, name: str) -> TransformerConfig:
    """GPT-NeoX and Pythia: attention and MLP in parallel, each behind its norm."""
    bias = read.flag("attention_bias", default=True)
    return _classic(
        read,
        name,
        scheme="gpt_neox",
        layers=(LayerKind(),) * num_layers(read),
        ffn=read.integer("intermediate_size"),
        parallel=read.flag("use_parallel_residual", default=True),
        parallel_norms=2,
        joined_heads=True,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=True,
    )


def opt(read: ConfigReader, name: str) -> TransformerConfig:
    """OPT: learned positions with two rows to spare; OPT-350m has post-norms and a narrow embedding."""
    before = read.flag("do_layer_norm_before", default=True)
    hidden = read.integer("hidden_size")
    width = read.integer("word_embed_proj_dim", default=hidden)
    positions = read.integer("max_position_embeddings")
    bias = read.flag("enable_bias", default=True)
    return _classic(
        read,
        name,
        tied_default=True,
        scheme="opt",
        activation="relu",
        layers=(UNROTATED,) * num_layers(read),
        ffn=read.integer("ffn_dim"),
        positions=positions + 2,
        max_seq=positions,
        embedding_dim=width if width != hidden else 0,
        norm_placement="pre" if before else "post",
        final_norm=before and not read.flag("_remove_final_layer_norm", default=False),
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
    )


def bloom(read: ConfigReader, name: str) -> TransformerConfig:
    """BLOOM: ALiBi instead of positions, a norm behind the embedding."""
    return _classic(
        read,
        name,
        tied_default=True,
        scheme="bloom",
        layers=(UNROTATED,) * num_layers(read),
        embedding_norm=True,
        **BIASES,
    )


def mpt(read: ConfigReader, name: str) -> TransformerConfig:
    """MPT: ALiBi, no biases; ``expansion_ratio`` is the MLP's width over ``d_model``."""
    hidden = read.integer("d_model", "hidden_size")
    return _classic(
        read,
        name,
        tied_default=True,
        scheme="mpt",
        layers=(UNROTATED,) * num_layers(read),
        ffn=hidden * read.integer("expansion_ratio", default=4),
        norm="layer_no_bias",
    )


def falcon(read: ConfigReader, name: str) -> TransformerConfig:
    """Falcon: one key-value head, or ``num_kv_heads`` in the new architecture; parallel attention.

    The class ignores ``num_kv_heads`` in the old architecture.
    """
    sizes = attention_sizes(read)
    heads = sizes["heads"]
    new = read.flag("new_decoder_architecture", default=False)
    if new:
        sizes["kv_heads"] = read.integer("num_kv_heads", default=heads)
        if heads % sizes["kv_heads"]:
            raise read.fail(
                "num_kv_heads", f"must divide the {heads} attention heads, found {sizes['kv_heads']}"
            )
    elif read.flag("multi_query", default=True):
        sizes["kv_heads"] = 1
    parallel = new or read.flag("parallel_attn", default=True)
    norms = read.integer("num_ln_in_parallel_attn", default=2 if new else 1)
    bias = read.flag("bias", default=False)
    return _classic(
        read,
        name,
        tied_default=True,
        **sizes,
        scheme="falcon_two_norms" if new and norms == 2 else "falcon",
        layers=(LayerKind(rotary=not read.flag("alibi", default=False)),) * num_layers(read),
        ffn=read.integer("ffn_hidden_size", default=4 * sizes["hidden"]),
        parallel=parallel,
        parallel_norms=2 if new and norms == 2 else 1,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        narrow_softmax=True,
    )


def phi(read: ConfigReader, name: str) -> TransformerConfig:
    """Phi 1 and 2: parallel attention behind one norm, biases everywhere, the head's included."""
    return _classic(
        read,
        name,
        scheme="phi",
        activation="gelu_new",
        layers=(LayerKind(),) * num_layers(read),
        ffn=read.integer("intermediate_size"),
        parallel=True,
        qk_norm="head" if read.flag("qk_layernorm", default=False) else "none",
        joined_heads=True,
        head_bias=True,
        **BIASES,
    )


def persimmon(read: ConfigReader, name: str) -> TransformerConfig:
    """Persimmon: biases everywhere, norms on the heads of queries and keys, squared ReLU."""
    return _classic(
        read,
        name,
        scheme="persimmon",
        activation="relu2",
        layers=(LayerKind(),) * num_layers(read),
        ffn=read.integer("intermediate_size"),
        qk_norm="head" if read.flag("qk_layernorm", default=True) else "none",
        joined_heads=True,
        **BIASES,
    )


def codegen(read: ConfigReader, name: str) -> TransformerConfig:
    """CodeGen: GPT-J with one projection of queries, keys and values."""
    return gptj(read, name).model_copy(update={"scheme": "codegen"})


def biogpt(read: ConfigReader, name: str) -> TransformerConfig:
    """BioGPT: learned positions with two rows to spare, biases everywhere."""
    positions = read.integer("max_position_embeddings")
    return _classic(
        read,
        name,
        tied_default=True,
        scheme="biogpt",
        layers=(UNROTATED,) * num_layers(read),
        ffn=read.integer("intermediate_size"),
        positions=positions + 2,
        max_seq=positions,
        narrow_softmax=True,
        **BIASES,
    )


def xglm(read: ConfigReader, name: str) -> TransformerConfig:
    """XGLM: positions without parameters, biases everywhere.

    Its class keeps scores above the least number of their type, for which it keeps them once more, as under a cap.
    """
    if read.flag("add_cross_attention", default=False):
        raise read.fail("add_cross_attention", "must be false: attention to an encoder is not supported")
    return _classic(
        read,
        name,
        tied_default=True,
        scheme="xglm",
        layers=(UNROTATED,) * num_layers(read),
        ffn=read.integer("ffn_dim"),
        narrow_softmax=True,
        score_cap=True,
        **BIASES,
    )


def ctrl(read: ConfigReader, name: str) -> TransformerConfig:
    """CTRL: a fixed table of positions, biases everywhere, the head's included; ReLU."""
    return _classic(
        read,
        name,
        tied_default=True,
        scheme="ctrl",
        activation="relu",
        layers=(UNROTATED,) * num_layers(read),
        ffn=read.integer("dff"),
        max_seq=read.integer("n_positions", "max_position_embeddings"),
        narrow_softmax=True,
        head_bias=True,
        **BIASES,
    )


def openai_gpt(read: ConfigReader, name: str) -> TransformerConfig:
    """GPT-1: GPT-2 with norms after each residual sum, and none before the head."""
    changes: dict[str, Any] = {
        "scheme": "openai_gpt",
        "activation": read.text("afn", default="gelu"),
        "norm_placement": "post",
        "final_norm": False,
    }
    if read.has("n_inner"):
        raise read.fail(
            "n_inner", "is not supported: the MLP of its class is four times as wide as the model"
        )
    return gpt2(read, name).model_copy(update=changes)

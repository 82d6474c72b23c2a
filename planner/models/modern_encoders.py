"""Encoders of 2024 on, which have what decoders have: rotary positions, norms before each half, gated MLPs, windows."""

from planner.graph import BATCH, Block, Graph
from planner.models.building import BlockBuilder, parameter_paths
from planner.models.config import LayerKind, TransformerConfig
from planner.models.decoders import attention_kinds, attention_sizes, llama
from planner.models.encoders import dense_layer, head_of, predicted_tokens, predictions_of
from planner.models.ends import language_model_loss
from planner.models.reading import ConfigReader
from planner.models.transformer import transformer_graph

MODERNBERT_HEADS = {"ModernBertForMaskedLM": (True, False)}
EUROBERT_HEADS = {"EuroBertForMaskedLM": (True, False)}


def modernbert_graph(read: ConfigReader, name: str, seq_len: int) -> Graph:
    """ModernBERT with its head for masked tokens; every third layer is full, the others see half a window either side.

    Source: transformers 5.23.0 ``modeling_modernbert.py``.
    """
    head_of(read, MODERNBERT_HEADS)
    few = predictions_of(read, seq_len)
    if read.flag("sparse_prediction", default=False) and not few:
        raise read.fail(
            "sparse_prediction",
            "needs max_predictions_per_seq, the tokens of each sequence that are predicted",
        )
    config = _modernbert(read, name)
    dense = (
        read.flag("classifier_bias", default=False),
        read.activation("classifier_activation", default="gelu"),
    )
    head_bias = read.flag("decoder_bias", default=True)
    dims = {"transform": config.hidden, **few}
    return transformer_graph(
        config, seq_len, lambda c: _modernbert_head(c, *dense, head_bias, bool(few)), dims
    )


def _modernbert(read: ConfigReader, name: str) -> TransformerConfig:
    period = read.integer("global_attn_every_n_layers", default=3)
    kinds = attention_kinds(read, lambda i: "window" if i % period else "full", window="local_attention")
    layers = tuple(LayerKind(attention=kind, normed=i > 0) for i, kind in enumerate(kinds))
    bias, mlp_bias = read.flag("attention_bias", default=False), read.flag("mlp_bias", default=False)
    return TransformerConfig(
        name=name,
        scheme="modernbert",
        **attention_sizes(read),
        layers=layers,
        ffn=read.integer("intermediate_size"),
        vocab=read.integer("vocab_size"),
        tied=read.flag("tie_word_embeddings", default=True),
        causal=False,
        window=2 * (read.integer("local_attention", default=0, least=0) // 2) + 1,
        activation=read.activation("hidden_activation", default="gelu"),
        norm="layer" if read.flag("norm_bias", default=False) else "layer_no_bias",
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=mlp_bias,
        embedding_norm=True,
    )


def _modernbert_head(
    config: TransformerConfig, dense_bias: bool, activation: str, head_bias: bool, picked: bool
) -> Block:
    b = BlockBuilder("head", parameter_paths(config.scheme))
    x = b.receive("x", BATCH, "seq", "hidden")
    x = b.norm("final_norm", x, "final_normed", style=config.norm, role="final_norm")
    x = predicted_tokens(b, x, picked)
    x = dense_layer(b, "transform", x, bias=dense_bias, function=activation)
    x = b.norm(
        "transform_norm", x, "transform_normed", style=config.norm, role="transform_norm", over="transform"
    )
    return b.build(language_model_loss(b, x, width="transform", bias=head_bias))


def eurobert_graph(read: ConfigReader, name: str, seq_len: int) -> Graph:
    """EuroBERT with its head for masked tokens: Llama whose tokens see one another."""
    head_of(read, EUROBERT_HEADS)
    config = llama(read, name)
    return transformer_graph(
        config.model_copy(update={"causal": False, "head_bias": config.mlp_bias}), seq_len
    )

"""ELECTRA: BERT on narrow embeddings, as a discriminator of replaced tokens or as the generator that replaces them."""

from functools import partial

from planner.graph import BATCH, Block, Graph
from planner.models.building import BlockBuilder, parameter_paths
from planner.models.config import TransformerConfig
from planner.models.encoders import bert_stack, dense_layer, head_of, predicted_tokens, predictions_of
from planner.models.ends import cross_entropy, language_model_loss
from planner.models.reading import ConfigReader
from planner.models.transformer import transformer_graph

HEADS = {"ElectraForPreTraining": (False, False), "ElectraForMaskedLM": (True, False)}


def electra_graph(read: ConfigReader, name: str, seq_len: int) -> Graph:
    """ELECTRA with the head of the class named under ``architectures`` (the discriminator's where it is absent).

    Source: transformers 5.23.0 ``modeling_electra.py``.
    """
    masked, _ = head_of(read, HEADS)
    config = bert_stack(
        read, name, scheme="electra", ffn="intermediate_size", segments="type_vocab_size", masked=masked
    )
    width = read.integer("embedding_size")
    narrow = {"embedding_dim": width, "widened_last": True} if width != config.hidden else {}
    few = predictions_of(read, seq_len) if masked else {}
    dims = {"transform": width if masked else config.hidden, "replaced": 1, **few}
    head = partial(_generator, picked=bool(few)) if masked else _discriminator
    return transformer_graph(config.model_copy(update=narrow), seq_len, head, dims)


def _generator(config: TransformerConfig, picked: bool) -> Block:
    b = BlockBuilder("head", parameter_paths(config.scheme))
    x = predicted_tokens(b, b.receive("x", BATCH, "seq", "hidden"), picked)
    x = dense_layer(b, "transform", x)
    x = b.norm(
        "transform_norm", x, "transform_normed", style="layer", role="transform_norm", over="transform"
    )
    return b.build(language_model_loss(b, x, width="transform", bias=True, narrow=config.narrow_loss))


def _discriminator(config: TransformerConfig) -> Block:
    """One logit per token, whose loss is the binary cross-entropy."""
    b = BlockBuilder("head", parameter_paths(config.scheme))
    x = b.receive("x", BATCH, "seq", "hidden")
    x = dense_layer(b, "replaced_transform", x, function=config.activation)
    logits = b.tensor("logits", BATCH, "seq", "replaced")
    weights = b.linear_weights("w_replaced", "replaced", "transform", role="replaced", columns=1, bias=True)
    b.op("replaced", "matmul", (x,), (logits,), weights)
    return b.build(cross_entropy(b, logits))

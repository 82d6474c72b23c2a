"""BERT, its kin, and ViT: encoders whose head is not a language model's."""

from collections.abc import Mapping

from planner.errors import InputError
from planner.graph import BATCH, Block, Graph
from planner.models.building import BlockBuilder, parameter_paths
from planner.models.config import LayerKind, TransformerConfig
from planner.models.decoders import attention_sizes, num_layers
from planner.models.ends import cross_entropy, language_model_loss
from planner.models.reading import ConfigReader
from planner.models.transformer import FOLLOWS, fold, layer_block, transformer_dims, transformer_graph

BERT_HEADS = {
    "BertForMaskedLM": (True, False),
    "BertModel": (False, True),
    "BertForPreTraining": (True, True),
}
"""Class -> whether it predicts masked tokens, and whether it pools the first token."""

ROBERTA_HEADS = {
    "RobertaForMaskedLM": (True, False),
    "XLMRobertaForMaskedLM": (True, False),
    "CamembertForMaskedLM": (True, False),
}

DISTILBERT_HEADS = {"DistilBertForMaskedLM": (True, False)}

ENCODER_LAYER = LayerKind(rotary=False)

PREDICTIONS = "predictions"
"""Dim of the tokens of a sequence that its head predicts."""


def bert_graph(read: ConfigReader, name: str, seq_len: int) -> Graph:
    """BERT with the head of the class named under ``architectures`` (masked tokens where it is absent)."""
    masked, pooled = head_of(read, BERT_HEADS)
    config = bert_stack(
        read,
        name,
        scheme="bert" if masked else "bert_model",
        ffn="intermediate_size",
        masked=masked,
        segments="type_vocab_size",
    )
    return _with_head(read, config, seq_len, masked, pooled)


def roberta_graph(read: ConfigReader, name: str, seq_len: int) -> Graph:
    """RoBERTa, XLM-RoBERTa and CamemBERT: BERT whose positions are counted from behind that of padding."""
    masked, pooled = head_of(read, ROBERTA_HEADS)
    config = bert_stack(
        read,
        name,
        scheme="roberta",
        ffn="intermediate_size",
        first_position=read.integer("pad_token_id", default=1, least=0) + 1,
        segments="type_vocab_size",
    )
    return _with_head(read, config, seq_len, masked, pooled)


def distilbert_graph(read: ConfigReader, name: str, seq_len: int) -> Graph:
    """DistilBERT: BERT without segments."""
    masked, pooled = head_of(read, DISTILBERT_HEADS)
    config = bert_stack(read, name, scheme="distilbert", ffn="hidden_dim")
    return _with_head(read, config, seq_len, masked, pooled)


def head_of(read: ConfigReader, known: Mapping[str, tuple[bool, bool]]) -> tuple[bool, bool]:
    """Of the class named under ``architectures``; of the first that is known where it is absent."""
    classes = read.items("architectures") or list(known)
    if classes[0] not in known:
        raise read.fail("architectures", f"has {classes[0]!r}; known are {', '.join(known)}")
    return known[classes[0]]


def bert_stack(
    read: ConfigReader,
    name: str,
    *,
    scheme: str,
    ffn: str,
    segments: str = "",
    masked: bool = True,
    first_position: int = 0,
) -> TransformerConfig:
    """Norms after residuals, biases everywhere, learned positions of which ``first_position`` are not counted."""
    positions = read.integer("max_position_embeddings", least=first_position + 1)
    return TransformerConfig(
        name=name,
        scheme=scheme,
        **attention_sizes(read),
        layers=(ENCODER_LAYER,) * num_layers(read),
        ffn=read.integer(ffn),
        vocab=read.integer("vocab_size"),
        tied=masked and read.flag("tie_word_embeddings", default=True),
        causal=False,
        gated=False,
        activation=read.activation("hidden_act", "activation", default="gelu"),
        norm="layer",
        norm_placement="post",
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        positions=positions,
        max_seq=positions - first_position,
        token_types=read.integer(segments) if segments else 0,
        narrow_softmax=True,
        narrow_loss=True,
        embedding_norm=True,
    )


def predictions_of(read: ConfigReader, seq_len: int) -> Mapping[str, int]:
    """The dim of those tokens of each sequence that a head predicts, where a configuration says that they are not all.

    ``max_predictions_per_seq`` is the word of BERT's data, whose sequences have so many masked tokens at most; every
    one is priced with as many. The classes of transformers predict all tokens, and leave out the others' loss.
    Source: arXiv:1810.04805, section 3.1; NVIDIA/DeepLearningExamples@729963d ``PyTorch/LanguageModeling/BERT/
    modeling.py`` (``sequence_output_is_dense``: the head selects the masked tokens first).
    """
    most = read.integer("max_predictions_per_seq", default=0, least=0)
    return {PREDICTIONS: min(most, seq_len)} if most else {}


def predicted_tokens(b: BlockBuilder, x: str, picked: bool) -> str:
    """Append the choice of the tokens that are predicted, where they are not all."""
    if not picked:
        return x
    few = b.tensor("predicted", BATCH, PREDICTIONS, b.dims(x)[-1])
    return b.op("predicted_tokens", "pool", (x,), (few,), linear=True)


def _with_head(
    read: ConfigReader, config: TransformerConfig, seq_len: int, masked: bool, pooled: bool
) -> Graph:
    few = predictions_of(read, seq_len) if masked else {}
    dims = {"transform": config.hidden, "next_sentence": 2, **few}
    return transformer_graph(config, seq_len, lambda c: _bert_head(c, masked, pooled, bool(few)), dims)


def _bert_head(config: TransformerConfig, masked: bool, pooled: bool, picked: bool) -> Block:
    b = BlockBuilder("head", parameter_paths(config.scheme))
    x = b.receive("x", BATCH, "seq", "hidden")
    outputs = []
    if masked:
        transformed = dense_layer(b, "transform", predicted_tokens(b, x, picked))
        normed = b.norm(
            "transform_norm",
            transformed,
            "transform_normed",
            style="layer",
            role="transform_norm",
            over="transform",
        )
        outputs.append(
            language_model_loss(b, normed, width="transform", bias=True, narrow=config.narrow_loss)
        )
    if pooled:
        pooled_state = dense_layer(b, "pooler", first_token(b, x))
        outputs.append(_next_sentence(b, pooled_state) if masked else pooled_state)
    return b.build(*outputs)


def dense_layer(b: BlockBuilder, name: str, x: str, *, bias: bool = True, function: str = "gelu") -> str:
    """Append a square product (its output dim has a name of its own) and its activation."""
    product = b.tensor(f"{name}_product", *b.dims(x)[:-1], "transform")
    weights = b.linear_weights(f"w_{name}", "transform", "hidden", role=name, columns=1, bias=bias)
    b.op(name, "matmul", (x,), (product,), weights)
    activated = b.tensor(f"{name}_activated", *b.dims(product))
    return b.op(f"{name}_activation", "elementwise", (product,), (activated,), function=function)


def _next_sentence(b: BlockBuilder, x: str) -> str:
    b.prefix = "next_sentence_"
    logits = b.tensor("logits", BATCH, "next_sentence")
    weights = b.linear_weights("w", "next_sentence", "transform", role="next_sentence", columns=1, bias=True)
    b.op("classifier", "matmul", (x,), (logits,), weights)
    return cross_entropy(b, logits)


def first_token(b: BlockBuilder, x: str) -> str:
    """Append the choice of a sequence's first position."""
    first = b.tensor("first_token", BATCH, b.dims(x)[-1])
    return b.op("first_token", "pool", (x,), (first,), linear=True)


def image_tokens(read: ConfigReader, *, image: str = "image_size", extra: int = 0) -> int:
    """Patches of a square image, plus ``extra`` tokens."""
    side, patch = read.integer(image), read.integer("patch_size")
    if side % patch:
        raise read.fail("patch_size", f"must divide {image} {side}, found {patch}")
    return (side // patch) ** 2 + extra


def check_fixed_length(name: str, tokens: int, seq_len: int) -> None:
    """Refuse a sequence length that is not the model's own."""
    if seq_len != tokens:
        raise InputError(
            f"{name}: the input has {tokens} tokens whatever the job, found a sequence length of {seq_len}"
        )


def vit_tokens(read: ConfigReader) -> int:
    """Patches and the class token."""
    return image_tokens(read, extra=1)


def vit_labels(read: ConfigReader) -> int:
    """Classes: ``num_labels``, or the entries of ``id2label``, or the two of the base class."""
    names = read.get("id2label")
    return read.integer("num_labels", default=len(names) if isinstance(names, dict) else 2)


def vit_graph(read: ConfigReader, name: str, seq_len: int) -> Graph:
    """Vision transformer with a classifier on the class token. Images are RGB where nothing else is said."""
    tokens = vit_tokens(read)
    check_fixed_length(name, tokens, seq_len)
    config = TransformerConfig(
        name=name,
        scheme="vit",
        **attention_sizes(read),
        layers=(ENCODER_LAYER,) * num_layers(read),
        ffn=read.integer("intermediate_size"),
        vocab=vit_labels(read),
        causal=False,
        gated=False,
        activation=read.activation("hidden_act", default="gelu"),
        norm="layer",
        qkv_bias=read.flag("qkv_bias", default=True),
        out_bias=True,
        mlp_bias=True,
        positions=tokens,
        head_bias=True,
    )
    pixels = read.integer("num_channels", default=3) * read.integer("patch_size") ** 2
    return Graph(
        name=name,
        dims=transformer_dims(config, tokens) | {"patches": tokens - 1, "patch_pixels": pixels},
        follows=FOLLOWS,
        blocks=(_vit_embedding(config), layer_block(config, ENCODER_LAYER, "layer"), _vit_head(config)),
        layers=fold(["layer"] * len(config.layers)),
        first="embedding",
        last="head",
    )


def _vit_embedding(config: TransformerConfig) -> Block:
    b = BlockBuilder("embedding", parameter_paths(config.scheme))
    patches = patch_projection(b, "patches")
    cls = b.weight("cls_token", "hidden", role="cls_token")
    positions = b.weight("position_weight", "positions", "hidden", role="positions")
    x = b.tensor("positioned", BATCH, "seq", "hidden")
    return b.build(b.op("positions", "add", (patches,), (x,), (cls, positions)))


def patch_projection(b: BlockBuilder, seq: str, *, bias: bool = True) -> str:
    """Append the product of every patch's pixels with a filter: a convolution without overlap."""
    pixels = b.data("pixels", BATCH, seq, "patch_pixels", dtype="compute")
    out = b.tensor("patch_vectors", BATCH, seq, "hidden")
    weights = b.linear_weights("w_patch", "hidden", "patch_pixels", role="patch", columns=1, bias=bias)
    return b.op("patch_projection", "matmul", (pixels,), (out,), weights)


def _vit_head(config: TransformerConfig) -> Block:
    b = BlockBuilder("head", parameter_paths(config.scheme))
    x = b.receive("x", BATCH, "seq", "hidden")
    x = b.norm("final_norm", x, "final_normed", style=config.norm, role="final_norm")
    return b.build(language_model_loss(b, first_token(b, x), bias=True))

"""T5, BART and its kin, Whisper: an encoder, a bridge that starts the decoder, a decoder that attends to both."""

from typing import Any, Literal, NamedTuple

from planner.graph import BATCH, Block, Graph
from planner.models.attention import cross_attention, self_attention
from planner.models.building import BlockBuilder, parameter_paths
from planner.models.config import LayerKind, TransformerConfig
from planner.models.decoders import MOST_LAYERS
from planner.models.ends import embedded, embedding_block, language_model_head, token_embedding
from planner.models.mlp import dense_mlp
from planner.models.reading import ConfigReader, known_activation
from planner.models.transformer import (
    FOLLOWS,
    add_residual,
    check_length,
    fold,
    norm_before,
    serial_layer,
    transformer_dims,
)

PLAIN = LayerKind(rotary=False)
FIRST = LayerKind(rotary=False, bias_table=True)


def t5_graph(
    read: ConfigReader,
    name: str,
    seq_len: int,
    *,
    feed_forward: str = "relu",
    later: LayerKind = PLAIN,
) -> Graph:
    """T5: both sequences of ``seq_len`` tokens, one embedding for encoder, decoder and head.

    ``feed_forward`` is what an absent ``feed_forward_proj`` means, ``later`` what the layers behind the first are. That
    first layer of each stack holds the table of relative position biases (32 buckets in the class). The
    class ties the head whatever ``tie_word_embeddings`` says: the key only rescales the decoder's result. Its norms
    keep their input beside a copy in fp32, which is what norms keep that multiply in fp32.
    """
    encoder, decoder = _t5_stacks(read, name, feed_forward, later)
    check_length(decoder, seq_len)
    return Graph(
        name=name,
        dims=transformer_dims(decoder, seq_len)
        | {
            "encoder_seq": seq_len,
            "kv_encoder_seq": seq_len,
            "buckets": read.integer("relative_attention_num_buckets", default=32),
        },
        follows=FOLLOWS,
        blocks=(_t5_embedding(encoder), *_stack_blocks(encoder, decoder), _head(decoder)),
        layers=fold(_stack(encoder, decoder)),
        first="embedding",
        last="head",
        tied=(("embedding.weight", "bridge.weight"), ("embedding.weight", "head.weight")),
    )


def mt5_graph(read: ConfigReader, name: str, seq_len: int) -> Graph:
    """mT5: T5 whose MLP is gated unless it says otherwise."""
    return t5_graph(read, name, seq_len, feed_forward="gated-gelu")


def umt5_graph(read: ConfigReader, name: str, seq_len: int) -> Graph:
    """UMT5: mT5 with a table of relative position biases in every layer."""
    return t5_graph(read, name, seq_len, feed_forward="gated-gelu", later=FIRST)


def _t5_stacks(
    read: ConfigReader, name: str, feed_forward: str, later: LayerKind
) -> tuple[TransformerConfig, TransformerConfig]:
    """Encoder and decoder."""
    mlp = read.text("feed_forward_proj", default=feed_forward)
    gated = mlp.startswith("gated-")
    function = known_activation(mlp.removeprefix("gated-"), f"feed_forward_proj in {read.source}")
    heads = read.integer("num_heads")
    depth = read.integer("num_layers", most=MOST_LAYERS)
    encoder = TransformerConfig(
        name=name,
        scheme="t5_encoder_gated" if gated else "t5_encoder",
        layers=(FIRST, *(later,) * (depth - 1)),
        hidden=read.integer("d_model"),
        heads=heads,
        kv_heads=heads,
        head_dim=read.integer("d_kv"),
        ffn=read.integer("d_ff"),
        vocab=read.integer("vocab_size"),
        tied=True,
        causal=False,
        gated=gated,
        activation="gelu_new" if mlp == "gated-gelu" else function,
        norm="rms_wide",
        narrow_softmax=True,
        narrow_loss=True,
    )
    depth = read.integer("num_decoder_layers", default=depth, most=MOST_LAYERS)
    changes = {
        "scheme": "t5_decoder_gated" if gated else "t5_decoder",
        "layers": (FIRST, *(later,) * (depth - 1)),
        "causal": True,
    }
    return encoder, encoder.model_copy(update=changes)


class BartFamily(NamedTuple):
    """What tells BART's descendants apart."""

    spare_positions: int
    """Rows of the position table that no token uses."""
    placement: Literal["pre", "post"]
    """Of norms; a stack with norms before its halves ends with one."""
    embedding_norm: bool
    table: bool = True
    """Whether positions are parameters, which limit the length."""
    activation: str = "gelu"
    narrow_loss: bool = False


BART = BartFamily(2, "post", embedding_norm=True)
MBART = BartFamily(2, "pre", embedding_norm=True)
MARIAN = BartFamily(0, "post", embedding_norm=False)
PEGASUS = BartFamily(0, "pre", embedding_norm=False)
M2M = BartFamily(0, "pre", embedding_norm=False, table=False, activation="relu", narrow_loss=True)


def bart_graph(read: ConfigReader, name: str, seq_len: int, *, family: BartFamily = BART) -> Graph:
    """BART and its kin: both sequences of ``seq_len`` tokens, one embedding for encoder, decoder and head.

    Marian's and Pegasus' tables of positions are sines that are not trained, but counted as their classes do.
    """
    if not read.flag("tie_word_embeddings", default=True):
        raise read.fail("tie_word_embeddings", "must be true: tables of their own are not supported")
    encoder, decoder = _bart_stacks(read, name, family)
    check_length(decoder, seq_len)
    lengths = {"encoder_seq": seq_len, "kv_encoder_seq": seq_len}
    return Graph(
        name=name,
        dims=transformer_dims(decoder, seq_len) | lengths,
        follows=FOLLOWS,
        blocks=(embedding_block(encoder, "encoder_seq"), *_stack_blocks(encoder, decoder), _head(decoder)),
        layers=fold(_stack(encoder, decoder)),
        first="embedding",
        last="head",
        tied=(("embedding.weight", "bridge.weight"), ("embedding.weight", "head.weight")),
    )


def mbart_graph(read: ConfigReader, name: str, seq_len: int) -> Graph:
    """mBART: BART with norms before each half."""
    return bart_graph(read, name, seq_len, family=MBART)


def marian_graph(read: ConfigReader, name: str, seq_len: int) -> Graph:
    """Marian's translators: BART without norms of embeddings."""
    if not read.flag("share_encoder_decoder_embeddings", default=True):
        raise read.fail("share_encoder_decoder_embeddings", "must be true: two tables are not supported")
    return bart_graph(read, name, seq_len, family=MARIAN)


def pegasus_graph(read: ConfigReader, name: str, seq_len: int) -> Graph:
    """Pegasus: BART with norms before each half, and none of embeddings."""
    return bart_graph(read, name, seq_len, family=PEGASUS)


def m2m_graph(read: ConfigReader, name: str, seq_len: int) -> Graph:
    """M2M-100 and NLLB: BART with norms before each half, and sines that are made for any length."""
    return bart_graph(read, name, seq_len, family=M2M)


def _bart_stacks(
    read: ConfigReader, name: str, family: BartFamily
) -> tuple[TransformerConfig, TransformerConfig]:
    """Encoder and decoder, whose heads and widths must be equal.

    Their logits are fp32 when the loss takes them, but for M2M-100's: a buffer (``final_logits_bias``) is added, which
    stays in that type where weights are gathered in another.
    """
    return _stacks(
        read,
        name,
        "bart",
        "max_position_embeddings" if family.table else "",
        family.spare_positions,
        activation=read.activation("activation_function", default=family.activation),
        narrow_loss=family.narrow_loss,
        norm_placement=family.placement,
        final_norm=family.placement == "pre",
        embedding_norm=family.embedding_norm,
        tied=True,
    )


def whisper_graph(read: ConfigReader, name: str, seq_len: int) -> Graph:
    """Whisper: an encoder of spectrogram frames (a fixed number), a decoder of text."""
    encoder, decoder = _whisper_stacks(read, name)
    check_length(decoder, seq_len)
    frames = read.integer("max_source_positions")
    return Graph(
        name=name,
        dims=transformer_dims(decoder, seq_len)
        | {
            "encoder_seq": frames,
            "kv_encoder_seq": frames,
            "encoder_positions": frames,
            "spectrogram": 2 * frames,
            "mel_bins": read.integer("num_mel_bins"),
            "conv_channels": encoder.hidden,
            "kernel": 3,
        },
        follows=FOLLOWS,
        blocks=(_whisper_embedding(encoder), *_stack_blocks(encoder, decoder), _head(decoder)),
        layers=fold(_stack(encoder, decoder)),
        first="embedding",
        last="head",
        tied=(("bridge.weight", "head.weight"),) if decoder.tied else (),
    )


def _whisper_stacks(read: ConfigReader, name: str) -> tuple[TransformerConfig, TransformerConfig]:
    """Encoder and decoder, whose heads and widths must be equal."""
    return _stacks(
        read,
        name,
        "whisper",
        "max_target_positions",
        activation=read.activation("activation_function", default="gelu"),
        key_bias=False,
        tied=read.flag("tie_word_embeddings", default=True),
    )


def _stacks(
    read: ConfigReader, name: str, scheme: str, positions: str, spare: int = 0, **more: Any
) -> tuple[TransformerConfig, TransformerConfig]:
    """Encoder and decoder with layer norms, plain MLPs, and biases, of equal heads and widths.

    The table of positions has ``spare`` rows more than the key ``positions`` says; without a key there is none.
    """
    for key in ("attention_heads", "ffn_dim"):
        if read.integer(f"encoder_{key}") != read.integer(f"decoder_{key}"):
            raise read.fail(f"decoder_{key}", f"must equal encoder_{key}")
    heads, hidden = read.integer("encoder_attention_heads"), read.integer("d_model")
    if hidden % heads:
        raise read.fail("d_model", f"{hidden} is not a multiple of {heads} heads")
    longest = read.integer(positions) if positions else 0
    fields: dict[str, Any] = {
        "positions": longest + spare,
        "max_seq": longest,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": heads,
        "head_dim": hidden // heads,
        "ffn": read.integer("encoder_ffn_dim"),
        "vocab": read.integer("vocab_size"),
        "gated": False,
        "narrow_softmax": True,
        "norm": "layer",
        **dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias"), True),
    }
    encoder, decoder = (
        TransformerConfig(
            name=name,
            scheme=f"{scheme}_{stack}",
            layers=(PLAIN,) * read.integer(f"{stack}_layers", most=MOST_LAYERS),
            causal=stack == "decoder",
            **fields | more,
        )
        for stack in ("encoder", "decoder")
    )
    return encoder, decoder


def _block_name(stack: str, kind: LayerKind) -> str:
    return f"{stack}_first_layer" if kind.bias_table else f"{stack}_layer"


def _stack(encoder: TransformerConfig, decoder: TransformerConfig) -> list[str]:
    """Block names in order: encoder, bridge, decoder."""
    return [
        *(_block_name("encoder", kind) for kind in encoder.layers),
        "bridge",
        *(_block_name("decoder", kind) for kind in decoder.layers),
    ]


def _stack_blocks(encoder: TransformerConfig, decoder: TransformerConfig) -> tuple[Block, ...]:
    return (
        *(_encoder_layer(encoder, kind) for kind in dict.fromkeys(encoder.layers)),
        _bridge(encoder, decoder),
        *(_decoder_layer(decoder, kind) for kind in dict.fromkeys(decoder.layers)),
    )


def _encoder_layer(config: TransformerConfig, kind: LayerKind) -> Block:
    b = BlockBuilder(_block_name("encoder", kind), parameter_paths(config.scheme))
    return b.build(serial_layer(b, config, kind, b.receive("x", BATCH, "encoder_seq", "hidden")))


def _bridge(encoder: TransformerConfig, decoder: TransformerConfig) -> Block:
    """The encoder's final norm where it has one, and the embedding of the decoder's tokens."""
    b = BlockBuilder("bridge", parameter_paths(decoder.scheme))
    memory = b.receive("x", BATCH, "encoder_seq", "hidden")
    if encoder.final_norm:
        memory = b.norm("encoder_norm", memory, "memory", style=encoder.norm, role="encoder_norm")
    return b.build(embedded(b, decoder), memory)


def _decoder_layer(config: TransformerConfig, kind: LayerKind) -> Block:
    """Self-attention, attention to the encoder, MLP. The encoder's result passes through."""
    b = BlockBuilder(_block_name("decoder", kind), parameter_paths(config.scheme))
    x = b.receive("x", BATCH, "seq", "hidden")
    memory = b.receive("memory", BATCH, "encoder_seq", "hidden")
    attended = self_attention(b, config, kind, norm_before(b, config, "attn", x))
    h = add_residual(b, config, "attn", x, attended, output="attn_residual")
    crossed = cross_attention(b, config, norm_before(b, config, "cross", h), memory)
    h = add_residual(b, config, "cross", h, crossed, output="cross_residual")
    mixed = dense_mlp(b, config, norm_before(b, config, "mlp", h))
    return b.build(add_residual(b, config, "mlp", h, mixed, output="y"), memory)


def _head(config: TransformerConfig) -> Block:
    b = BlockBuilder("head", parameter_paths(config.scheme))
    x = b.receive("x", BATCH, "seq", "hidden")
    b.receive("memory", BATCH, "encoder_seq", "hidden")
    return b.build(language_model_head(b, config, x))


def _t5_embedding(config: TransformerConfig) -> Block:
    b = BlockBuilder("embedding", parameter_paths(config.scheme))
    return b.build(token_embedding(b, config, "encoder_seq"))


def _whisper_embedding(config: TransformerConfig) -> Block:
    """Two convolutions over the spectrogram, the second halving its length, and fixed positions."""
    b = BlockBuilder("embedding", parameter_paths(config.scheme))
    x = b.data("spectrogram", BATCH, "spectrogram", "mel_bins", dtype="compute")
    steps = (
        ("conv1", "spectrogram", "conv_channels", "mel_bins"),
        ("conv2", "encoder_seq", "hidden", "conv_channels"),
    )
    for name, length, columns, channels in steps:
        y = b.tensor(f"{name}_out", BATCH, length, columns)
        weights = b.linear_weights(f"w_{name}", columns, channels, "kernel", role=name, columns=1, bias=True)
        b.op(name, "conv", (x,), (y,), weights)
        x = b.tensor(f"{name}_activated", BATCH, length, columns)
        b.op(f"{name}_activation", "elementwise", (y,), (x,), function=config.activation)
    table = b.weight("position_weight", "encoder_positions", "hidden", role="positions", suffix=".weight")
    out = b.tensor("positioned", *b.dims(x))
    return b.build(b.op("positions", "add", (x,), (out,), (table,)))

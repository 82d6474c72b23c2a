"""DiT: a diffusion transformer over patches of a latent image, conditioned on time step and class.

Source: Peebles and Xie, arXiv:2212.09748, section 3.2 (adaLN-Zero); facebookresearch/DiT, models.py.
"""

from planner.graph import BATCH, Block, Graph
from planner.models.attention import self_attention
from planner.models.building import BlockBuilder, parameter_paths
from planner.models.config import LayerKind, TransformerConfig
from planner.models.decoders import MOST_LAYERS
from planner.models.encoders import check_fixed_length, image_tokens, patch_projection
from planner.models.mlp import dense_mlp
from planner.models.reading import ConfigReader
from planner.models.transformer import FOLLOWS, fold, transformer_dims

FREQUENCIES = 256
"""Width of the sinusoidal embedding of the time step (``frequency_embedding_size`` of TimestepEmbedder)."""

LAYER = LayerKind(rotary=False)


def dit_tokens(read: ConfigReader) -> int:
    """Patches of the latent image."""
    return image_tokens(read, image="input_size")


def dit_graph(read: ConfigReader, name: str, seq_len: int) -> Graph:
    """DiT on a latent image of ``input_size``; ``mlp_ratio`` is the MLP's width over ``hidden_size``."""
    tokens = dit_tokens(read)
    check_fixed_length(name, tokens, seq_len)
    config = _dit_config(read, name, tokens)
    channels, area = read.integer("in_channels"), read.integer("patch_size") ** 2
    predicted = channels * (2 if read.flag("learn_sigma") else 1)
    dims = transformer_dims(config, tokens) | {
        "patch_pixels": area * channels,
        "patch_outputs": area * predicted,
        "frequencies": FREQUENCIES,
        "time_hidden": config.hidden,
        "modulation": 6 * config.hidden,
        "final_modulation": 2 * config.hidden,
    }
    return Graph(
        name=name,
        dims=dims,
        follows=FOLLOWS,
        blocks=(_embedding(config), _layer(config), _head(config)),
        layers=fold(["layer"] * len(config.layers)),
        first="embedding",
        last="head",
    )


def _dit_config(read: ConfigReader, name: str, tokens: int) -> TransformerConfig:
    """Layers without norm parameters; the table of ``vocab`` rows holds the classes and "no class"."""
    hidden, heads = read.integer("hidden_size"), read.integer("num_heads")
    if hidden % heads:
        raise read.fail("hidden_size", f"{hidden} is not a multiple of {heads} heads")
    return TransformerConfig(
        name=name,
        scheme="dit",
        layers=(LAYER,) * read.integer("depth", most=MOST_LAYERS),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=hidden * read.integer("mlp_ratio"),
        vocab=read.integer("num_classes") + 1,
        causal=False,
        gated=False,
        activation="gelu",
        norm="plain",
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        positions=tokens,
    )


def _embedding(config: TransformerConfig) -> Block:
    """Patches with frozen positions; time step and class summed into one vector, the condition."""
    b = BlockBuilder("embedding", parameter_paths(config.scheme))
    patches = patch_projection(b, "seq")
    table = b.weight("position_weight", "positions", "hidden", role="positions")
    x = b.op("positions", "add", (patches,), (b.tensor("positioned", *b.dims(patches)),), (table,))
    steps = b.data("time_step", BATCH, "frequencies", dtype="fp32")
    time = b.tensor("time_product", BATCH, "time_hidden")
    weights = b.linear_weights(
        "w_time_up", "time_hidden", "frequencies", role="time_up", columns=1, bias=True
    )
    b.op("time_up", "matmul", (steps,), (time,), weights)
    activated = _elementwise(b, "time_activation", (time,), "time_activated")
    time = b.tensor("time_vector", BATCH, "hidden")
    weights = b.linear_weights("w_time_down", "hidden", "time_hidden", role="time_down", columns=1, bias=True)
    b.op("time_down", "matmul", (activated,), (time,), weights)
    label = b.tensor("label_vector", BATCH, "hidden")
    classes = b.weight("weight", "vocab", "hidden", role="labels", suffix=".weight")
    b.op("label_embedding", "embedding", (b.data("labels", BATCH),), (label,), (classes,))
    return b.build(x, b.add("condition_sum", time, label, "condition"))


def _elementwise(b: BlockBuilder, name: str, inputs: tuple[str, ...], output: str) -> str:
    return b.op(name, "elementwise", inputs, (b.tensor(output, *b.dims(inputs[0])),), function="silu")


def _modulation(b: BlockBuilder, condition: str, width: str) -> str:
    """Append shift, scale and gate of a block from the condition (adaLN)."""
    activated = _elementwise(b, "condition_activation", (condition,), "condition_activated")
    out = b.tensor("modulation", BATCH, width)
    weights = b.linear_weights("w_modulation", width, "hidden", role="modulation", columns=1, bias=True)
    return b.op("modulation", "matmul", (activated,), (out,), weights)


def _modulated_norm(b: BlockBuilder, half: str, x: str, modulation: str) -> str:
    normed = b.norm(f"{half}_norm", x, f"{half}_normed", style="plain")
    return _elementwise(b, f"{half}_modulate", (normed, modulation), f"{half}_modulated")


def _layer(config: TransformerConfig) -> Block:
    b = BlockBuilder("layer", parameter_paths(config.scheme))
    x = b.receive("x", BATCH, "seq", "hidden")
    condition = b.receive("condition", BATCH, "hidden")
    modulation = _modulation(b, condition, "modulation")
    attended = self_attention(b, config, LAYER, _modulated_norm(b, "attn", x, modulation))
    gated = _elementwise(b, "attn_gate", (attended, modulation), "attn_gated")
    h = b.add("attn_residual", x, gated, "attn_residual")
    mixed = dense_mlp(b, config, _modulated_norm(b, "mlp", h, modulation))
    gated = _elementwise(b, "mlp_gate", (mixed, modulation), "mlp_gated")
    return b.build(b.add("mlp_residual", h, gated, "y"), condition)


def _head(config: TransformerConfig) -> Block:
    """Noise (and variance) of every patch, and the squared error."""
    b = BlockBuilder("head", parameter_paths("dit_head"))
    x = b.receive("x", BATCH, "seq", "hidden")
    modulation = _modulation(b, b.receive("condition", BATCH, "hidden"), "final_modulation")
    modulated = _modulated_norm(b, "final", x, modulation)
    out = b.tensor("predicted", BATCH, "seq", "patch_outputs")
    weights = b.linear_weights("w_out", "patch_outputs", "hidden", role="out", columns=1, bias=True)
    b.op("out", "matmul", (modulated,), (out,), weights)
    target = b.data("target", BATCH, "seq", "patch_outputs", dtype="compute")
    loss = b.tensor("loss", BATCH, "seq", dtype="fp32")
    return b.build(b.op("loss", "elementwise", (out, target), (loss,), function="squared_error"))

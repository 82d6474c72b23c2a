"""Towers that read images, trained or tuned by themselves: DINOv2, and those of CLIP and SigLIP.

Source: transformers 5.23.0 ``modeling_dinov2.py``, ``modeling_clip.py``, ``modeling_siglip.py``.
"""

from typing import Any

from planner.graph import BATCH, Block, Graph
from planner.models.attention import core_attention, output_projection
from planner.models.building import BlockBuilder, parameter_paths
from planner.models.config import TransformerConfig
from planner.models.decoders import attention_sizes, num_layers
from planner.models.encoders import (
    ENCODER_LAYER,
    check_fixed_length,
    first_token,
    head_of,
    patch_projection,
    vit_labels,
    vit_tokens,
)
from planner.models.ends import language_model_loss
from planner.models.mlp import dense_mlp
from planner.models.reading import ConfigReader
from planner.models.transformer import FOLLOWS, fold, layer_block, transformer_dims

DINOV2_HEADS = {"Dinov2ForImageClassification": (True, False), "Dinov2Model": (False, True)}
CLIP_HEADS = {"CLIPVisionModelWithProjection": (True, False), "CLIPVisionModel": (False, True)}


def dinov2_graph(read: ConfigReader, name: str, seq_len: int) -> Graph:
    """DINOv2: a vision transformer that scales what its halves add; without its loss over crops of an image.

    Its classifier reads the class token beside the mean of all patches.
    """
    classified, _ = head_of(read, DINOV2_HEADS)
    width = read.integer("hidden_size") * read.integer("mlp_ratio")
    gated = read.flag("use_swiglu_ffn", default=False)
    config = _stack(
        read,
        name,
        ("dinov2" if classified else "dinov2_model") + ("_gated" if gated else ""),
        vit_tokens(read),
        ffn=(width * 2 // 3 + 7) // 8 * 8 if gated else width,
        gated=gated,
        activation="silu" if gated else read.activation("hidden_act", default="gelu"),
        qkv_bias=read.flag("qkv_bias", default=True),
        layer_scale=True,
        narrow_softmax=True,
    )
    tokens = ("cls_token", *(("mask_token",) if read.flag("use_mask_token", default=True) else ()))
    embedding = _embedding(config, "patches", tokens)
    head = _dinov2_classifier(config) if classified else _normed(config)
    return _tower(read, config, seq_len, embedding, head)


def clip_vision_graph(read: ConfigReader, name: str, seq_len: int) -> Graph:
    """CLIP's tower of images, up to the vector that its loss compares, or that a projection is made from."""
    projected, _ = head_of(read, CLIP_HEADS)
    config = _stack(
        read,
        name,
        "clip_vision" if projected else "clip_vision_model",
        vit_tokens(read),
        ffn=read.integer("intermediate_size"),
        activation=read.activation("hidden_act", default="quick_gelu"),
        embedding_norm=True,
    )
    embedding = _embedding(config, "patches", ("cls_token",), table=".weight", bias=False)
    width = {"projected": read.integer("projection_dim")} if projected else {}
    return _tower(read, config, seq_len, embedding, _clip_head(config, projected), width)


def siglip_tokens(read: ConfigReader) -> int:
    """Patches alone; what is left at the border of an image is dropped (384 pixels make 27 patches of 14)."""
    return (read.integer("image_size") // read.integer("patch_size")) ** 2


def siglip_vision_graph(read: ConfigReader, name: str, seq_len: int) -> Graph:
    """SigLIP's tower of images, whose patches are pooled by the attention of one query that learns."""
    config = _stack(
        read,
        name,
        "siglip_vision_model",
        siglip_tokens(read),
        ffn=read.integer("intermediate_size"),
        activation=read.activation("hidden_act", default="gelu_pytorch_tanh"),
    )
    pooled = read.flag("vision_use_head", default=True)
    head = _siglip_pooling(config) if pooled else _normed(config)
    embedding = _embedding(config, "seq", (), table=".weight")
    return _tower(read, config, seq_len, embedding, head, {"probe": 1, "probes": 1} if pooled else {})


def _stack(read: ConfigReader, name: str, scheme: str, tokens: int, **more: Any) -> TransformerConfig:
    """Layers of a vision transformer, with biases; images are RGB where nothing else is said."""
    fields: dict[str, Any] = {
        "layers": (ENCODER_LAYER,) * num_layers(read),
        "vocab": vit_labels(read),
        "causal": False,
        "gated": False,
        "norm": "layer",
        "positions": tokens,
        **dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias"), True),
    }
    return TransformerConfig(name=name, scheme=scheme, **attention_sizes(read), **fields | more)


def _tower(
    read: ConfigReader,
    config: TransformerConfig,
    seq_len: int,
    embedding: Block,
    head: Block,
    more: dict[str, int] | None = None,
) -> Graph:
    tokens = config.positions
    check_fixed_length(config.name, tokens, seq_len)
    pixels = read.integer("num_channels", default=3) * read.integer("patch_size") ** 2
    dims = {"patches": tokens - 1, "patch_pixels": pixels, "classified": 2 * config.hidden}
    return Graph(
        name=config.name,
        dims=transformer_dims(config, tokens) | dims | (more or {}),
        follows=FOLLOWS,
        blocks=(embedding, layer_block(config, ENCODER_LAYER, "layer"), head),
        layers=fold(["layer"] * len(config.layers)),
        first="embedding",
        last="head",
    )


def _embedding(
    config: TransformerConfig, patches: str, tokens: tuple[str, ...], *, table: str = "", bias: bool = True
) -> Block:
    """Patches behind ``tokens`` that learn, and positions; ``table`` ends the name of their parameter."""
    b = BlockBuilder("embedding", parameter_paths(config.scheme))
    vectors = patch_projection(b, patches, bias=bias)
    weights = [b.weight(token, "hidden", role=token) for token in tokens]
    weights.append(b.weight("position_weight", "positions", "hidden", role="positions", suffix=table))
    x = b.op(
        "positions", "add", (vectors,), (b.tensor("positioned", BATCH, "seq", "hidden"),), tuple(weights)
    )
    if config.embedding_norm:
        x = b.norm("embedding_norm", x, "embedding_normed", style="layer", role="embedding_norm")
    return b.build(x)


def _normed(config: TransformerConfig) -> Block:
    """The last norm alone."""
    b = BlockBuilder("head", parameter_paths(config.scheme))
    x = b.receive("x", BATCH, "seq", "hidden")
    return b.build(b.norm("final_norm", x, "final_normed", style="layer", role="final_norm"))


def _dinov2_classifier(config: TransformerConfig) -> Block:
    b = BlockBuilder("head", parameter_paths(config.scheme))
    x = b.receive("x", BATCH, "seq", "hidden")
    x = b.norm("final_norm", x, "final_normed", style="layer", role="final_norm")
    pooled = b.tensor("pooled", BATCH, "classified")
    b.op("pooled", "pool", (x,), (pooled,), linear=True)
    return b.build(language_model_loss(b, pooled, width="classified", bias=True))


def _clip_head(config: TransformerConfig, projected: bool) -> Block:
    b = BlockBuilder("head", parameter_paths(config.scheme))
    x = first_token(b, b.receive("x", BATCH, "seq", "hidden"))
    x = b.norm("final_norm", x, "final_normed", style="layer", role="final_norm")
    if not projected:
        return b.build(x)
    out = b.tensor("image_vector", BATCH, "projected")
    weights = b.linear_weights("w_projection", "projected", "hidden", role="head", columns=1, bias=False)
    return b.build(b.op("projection", "matmul", (x,), (out,), weights))


def _siglip_pooling(config: TransformerConfig) -> Block:
    """One query attends to all patches; an MLP behind it (``SiglipMultiheadAttentionPoolingHead``)."""
    b = BlockBuilder("head", parameter_paths("siglip_pooling"))
    x = b.receive("x", BATCH, "seq", "hidden")
    x = b.norm("final_norm", x, "final_normed", style="layer", role="final_norm")
    index = b.data("probe_index", BATCH, "probes")
    query = b.tensor("probe_vector", BATCH, "probes", "hidden")
    b.op("probe", "embedding", (index,), (query,), (b.weight("probe", "probe", "hidden", role="probe"),))
    context = core_attention(b, _packed(b, query, x), causal=False, prefix="probe_")
    pooled = output_projection(b, config, context, prefix="")
    normed = b.norm("mlp_norm", pooled, "mlp_normed", style="layer", role="mlp_norm")
    return b.build(b.add("mlp_residual", pooled, dense_mlp(b, config, normed), "y"))


def _packed(b: BlockBuilder, query: str, memory: str) -> tuple[str, str, str]:
    """Queries, keys and values by the one weight that torch's module of attention packs theirs in."""
    made = {}
    for part, source in (("q", query), ("k", memory), ("v", memory)):
        made[part] = b.tensor(f"probe_{part}", BATCH, b.dims(source)[1], "heads", "head_dim")
        weights = (
            b.weight(f"probe_w{part}", "heads", "head_dim", "hidden", role="in_projection", suffix="_weight"),
            b.weight(f"probe_w{part}_bias", "heads", "head_dim", role="in_projection", suffix="_bias"),
        )
        b.op(f"probe_{part}", "matmul", (source,), (made[part],), weights)
    return made["q"], made["k"], made["v"]

"""ResNet with bottlenecks, as a graph of convolutions.

An image is one token: ``seq`` has size 1. Images are 224 pixels wide unless the configuration has
``image_size``, the training crop of the paper.

Source: He et al., arXiv:1512.03385, table 1; the stride is in the 3x3 convolution, as in torchvision and in
transformers' ``ResNetBottleNeckLayer``.
"""

from typing import NamedTuple

from planner.graph import BATCH, Block, Graph, Run
from planner.models.building import BlockBuilder, parameter_paths
from planner.models.encoders import check_fixed_length, vit_labels
from planner.models.ends import language_model_loss
from planner.models.reading import ConfigReader

TRAINING_CROP = 224
STEM_STRIDE, POOL_STRIDE, BOTTLENECK = 2, 2, 4


class _Conv(NamedTuple):
    """A convolution with its batch norm: dims of channels in and out, of pixels out, of the filter."""

    channels_in: str
    channels_out: str
    pixels: str
    kernel: str = ""


def resnet_tokens(read: ConfigReader) -> int:
    """One image."""
    return 1


def resnet_graph(read: ConfigReader, name: str, seq_len: int) -> Graph:
    """ResNet of bottleneck blocks with a classifier."""
    check_fixed_length(name, resnet_tokens(read), seq_len)
    if read.text("layer_type", default="bottleneck") != "bottleneck":
        raise read.fail("layer_type", f"must be 'bottleneck', found {read.get('layer_type')!r}")
    depths, widths = _sizes(read, "depths"), _sizes(read, "hidden_sizes")
    if len(depths) != len(widths):
        raise read.fail("depths", f"has {len(depths)} stages, hidden_sizes has {len(widths)}")
    side = read.integer("image_size", default=TRAINING_CROP) // STEM_STRIDE
    dims = {
        "seq": 1,
        "image": (side * STEM_STRIDE) ** 2,
        "colours": read.integer("num_channels", default=3),
        "kernel_7x7": 49,
        "kernel_3x3": 9,
        "stem_pixels": side**2,
        "stem": read.integer("embedding_size"),
        "vocab": vit_labels(read),
    }
    side //= POOL_STRIDE
    dims["pixels"] = side**2
    blocks, layers = [_stem()], []
    before = ("stem", "pixels")
    for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
        side = side if stage == 0 else side // 2
        pixels = "pixels" if stage == 0 else f"pixels{stage}"
        dims |= {f"channels{stage}": width, pixels: side**2}
        dims |= {f"narrow{stage}": width // BOTTLENECK, f"mid{stage}": width // BOTTLENECK}
        blocks.append(_bottleneck(stage, pixels, before))
        layers.append(Run(block=f"stage{stage}_first", count=1))
        before = (f"channels{stage}", pixels)
        if depth > 1:
            blocks.append(_bottleneck(stage, pixels, before, first=False))
            layers.append(Run(block=f"stage{stage}", count=depth - 1))
    blocks.append(_classifier(*before))
    return Graph(
        name=name, dims=dims, blocks=tuple(blocks), layers=tuple(layers), first="embedding", last="head"
    )


def _sizes(read: ConfigReader, key: str) -> list[int]:
    values = read.items(key)
    if not values:
        raise read.fail(key, "must be a list of sizes")
    if any(isinstance(v, bool) or not isinstance(v, int) or v <= 0 for v in values):
        raise read.fail(key, f"must hold positive whole numbers, found {values!r}")
    return values


def _conv(b: BlockBuilder, name: str, x: str, conv: _Conv, *, role: str, activate: bool = True) -> str:
    """Append convolution, batch norm and, where asked, ReLU."""
    y = b.tensor(f"{name}_out", BATCH, conv.pixels, conv.channels_out)
    kernel = (conv.kernel,) if conv.kernel else ()
    weight = b.weight(
        f"w_{name}", conv.channels_out, conv.channels_in, *kernel, role=role, suffix=".convolution.weight"
    )
    b.op(name, "conv", (x,), (y,), (weight,))
    normed = b.tensor(f"{name}_normed", *b.dims(y))
    norm = tuple(
        b.weight(f"{name}_norm_{part}", conv.channels_out, role=role, suffix=f".normalization.{part}")
        for part in ("weight", "bias")
    )
    b.op(f"{name}_norm", "norm", (y,), (normed,), norm, over=conv.pixels)
    return _relu(b, name, normed) if activate else normed


def _relu(b: BlockBuilder, name: str, x: str) -> str:
    out = b.tensor(f"{name}_activated", *b.dims(x))
    return b.op(f"{name}_activation", "elementwise", (x,), (out,), function="relu")


def _stem() -> Block:
    b = BlockBuilder("embedding", parameter_paths("resnet_stem"))
    image = b.data("image", BATCH, "image", "colours", dtype="compute")
    x = _conv(b, "stem", image, _Conv("colours", "stem", "stem_pixels", "kernel_7x7"), role="stem")
    pooled = b.tensor("pooled", BATCH, "pixels", "stem")
    return b.build(b.op("max_pool", "pool", (x,), (pooled,)))


def _bottleneck(stage: int, pixels: str, before: tuple[str, str], *, first: bool = True) -> Block:
    """1x1 to a quarter of the channels, 3x3, 1x1 back; the first of a stage has a projection around it."""
    channels_in, pixels_in = before
    wide, narrow, mid = f"channels{stage}", f"narrow{stage}", f"mid{stage}"
    prefix = f"resnet.encoder.stages.{stage}.layers.{{layer}}."
    paths = {"shortcut": f"{prefix}shortcut", **{f"conv{i}": f"{prefix}layer.{i}" for i in range(3)}}
    b = BlockBuilder(f"stage{stage}_first" if first else f"stage{stage}", paths)
    x = b.receive("x", BATCH, pixels_in, channels_in)
    around = x
    if first:
        around = _conv(b, "shortcut", x, _Conv(channels_in, wide, pixels), role="shortcut", activate=False)
    y = _conv(b, "conv0", x, _Conv(channels_in, narrow, pixels_in), role="conv0")
    y = _conv(b, "conv1", y, _Conv(narrow, mid, pixels, "kernel_3x3"), role="conv1")
    y = _conv(b, "conv2", y, _Conv(mid, wide, pixels), role="conv2", activate=False)
    return b.build(_relu(b, "residual", b.add("residual", y, around, "residual")))


def _classifier(channels: str, pixels: str) -> Block:
    b = BlockBuilder("head", parameter_paths("resnet_head"))
    x = b.receive("x", BATCH, pixels, channels)
    pooled = b.tensor("pooled", BATCH, channels)
    b.op("average_pool", "pool", (x,), (pooled,), linear=True)
    return b.build(language_model_loss(b, pooled, width=channels, bias=True))

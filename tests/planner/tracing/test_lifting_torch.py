"""Modules of PyTorch as models: their FLOPs are those that PyTorch counts."""

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from planner import from_torch  # noqa: E402
from planner.graph import Graph, count_parameters  # noqa: E402
from planner.operators import Counting, backward_flops, forward_flops  # noqa: E402
from planner.tracing.lifting.model import graph_of  # noqa: E402

nn, functional = torch.nn, torch.nn.functional
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
BATCH = 8


class Mixed(nn.Module):  # type: ignore[misc]
    """A block of ConvNeXt: each channel by itself, then pixel by pixel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.each = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Any) -> Any:
        made = self.norm(self.each(x).permute(0, 2, 3, 1))
        return x + self.down(functional.gelu(self.up(made))).permute(0, 3, 1, 2)


class Classifier(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 4, 4)
        self.blocks = nn.Sequential(*(Mixed(32) for _ in range(3)))
        self.head = nn.Linear(32, 16)

    def forward(self, images: Any, labels: Any) -> Any:
        return functional.cross_entropy(self.head(self.blocks(self.patches(images)).mean((-2, -1))), labels)


class Autoencoder(nn.Module):  # type: ignore[misc]
    """Smaller images, larger ones again, and a loss that reads what came in: it is called as a layer's state is."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(4, 16, 4, 2, 1), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 32, 4, 2, 1), nn.BatchNorm2d(32), nn.ReLU(),
        )  # fmt: skip
        self.narrow, self.wide = nn.Linear(512, 16), nn.Linear(16, 512)
        self.grow, self.back = nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.ConvTranspose2d(16, 4, 4, 2, 1)

    def forward(self, x: Any) -> Any:
        code = self.narrow(self.encoder(x).flatten(1))
        made = self.back(functional.relu(self.grow(self.wide(code).view(-1, 32, 4, 4))))
        return functional.mse_loss(made, x)


def graph_and_truth(module: Any, *inputs: Any) -> tuple[Graph, int]:
    """The model, and what PyTorch counts in the forward pass of a batch."""
    module, inputs = module.to("meta"), tuple(x.to("meta") for x in inputs)
    graph = graph_of(from_torch(module, *inputs))
    assert count_parameters(graph) == sum(math.prod(p.shape) for p in module.parameters())
    with FlopCounterMode(display=False) as counted:
        module(*inputs)
    return graph, counted.get_total_flops()


def test_channels_that_come_before_pixels_are_the_features_of_layers() -> None:
    graph, flops = graph_and_truth(
        Classifier(), torch.empty(BATCH, 3, 32, 32), torch.zeros(BATCH, dtype=torch.long)
    )
    assert (graph.dims["hidden"], graph.dims["ffn"], graph.num_layers) == (32, 128, 3)
    assert BATCH * forward_flops(graph, 1) == flops


class Apart(nn.Module):  # type: ignore[misc]
    """A convolution of each channel by itself, as one convolution per channel."""

    def __init__(self, together: Any) -> None:
        super().__init__()
        self.weight, self.bias = together.weight, together.bias

    def forward(self, x: Any) -> Any:
        each = zip(x.split(1, 1), self.weight.split(1), self.bias.split(1), strict=True)
        return torch.cat([functional.conv2d(channel, w, b, padding=3) for channel, w, b in each], 1)


def test_backward_of_grouped_convolutions_is_that_of_a_convolution_per_group() -> None:
    """PyTorch's counter takes the gradient of a grouped convolution's weight for that of a dense one's."""
    with torch.device("meta"):
        module, images, labels = Classifier(), torch.empty(BATCH, 3, 32, 32), torch.zeros(BATCH).long()
    graph = graph_of(from_torch(module, images, labels))
    for block in module.blocks:
        block.each = Apart(block.each)
    with FlopCounterMode(display=False) as counted:
        module(images, labels).backward()
    assert BATCH * (forward_flops(graph, 1) + backward_flops(graph, 1)) == counted.get_total_flops()


def test_transposed_convolutions_work_on_the_smaller_image() -> None:
    graph, flops = graph_and_truth(Autoencoder(), torch.empty(BATCH, 4, 16, 16))
    assert BATCH * forward_flops(graph, 1) == flops


class Translator(nn.Module):  # type: ignore[misc]
    """PyTorch's own encoder and decoder: queries of cross-attention have a third of one weight, keys and values two."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 32)
        self.layers = nn.Transformer(32, 4, 2, 2, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(32, 100)

    def forward(self, source: Any, target: Any, labels: Any) -> Any:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device)
        made = self.layers(self.embed(source), self.embed(target), tgt_mask=mask, tgt_is_causal=True)
        return functional.cross_entropy(self.head(made).flatten(0, 1), labels.flatten())


class Fourier(nn.Module):  # type: ignore[misc]
    """A layer of FNet: no product lies between its last norm and the first one of the next layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mixed, self.made = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        x = self.mixed(x + torch.fft.fft2(x).real)
        return self.made(x + self.down(functional.gelu(self.up(x))))


class FourierMixer(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(100, 32), nn.Linear(32, 100)
        self.layers = nn.Sequential(*(Fourier(32) for _ in range(3)))

    def forward(self, tokens: Any, labels: Any) -> Any:
        logits = self.head(self.layers(self.embed(tokens)))
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def indices(*lengths: int) -> list[Any]:
    return [torch.zeros(BATCH, n, dtype=torch.long) for n in lengths]


def test_one_weight_serves_several_products() -> None:
    graph, flops = graph_and_truth(Translator(), *indices(24, 16, 16))
    assert BATCH * forward_flops(graph, 1, Counting(causal=False)) == flops
    assert graph.num_layers == 5  # and what begins the decoder


def test_norms_of_two_layers_with_no_product_between_them_stay_apart() -> None:
    graph, flops = graph_and_truth(FourierMixer(), *indices(16, 16))
    assert BATCH * forward_flops(graph, 1) == flops
    assert [op.kind for op in graph.block[graph.layers[0].block].ops].count("norm") == 2

"""Attention along some positions, alike for all others: what is a head of it, and what it costs."""

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from planner import from_torch  # noqa: E402
from planner.errors import Unsupported  # noqa: E402
from planner.graph import count_parameters  # noqa: E402
from planner.operators import Counting, backward_flops, forward_flops  # noqa: E402
from planner.tracing.lifting.model import graph_of  # noqa: E402

nn, functional = torch.nn, torch.nn.functional
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
BATCH, WIDTH, HEADS = 8, 32, 4


class Attention(nn.Module):  # type: ignore[misc]
    """Along the second last dim, plain."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        q, k, v = (
            self.qkv(x).unflatten(-1, (3, HEADS, WIDTH // HEADS)).permute(-3, *range(x.ndim - 2), -2, -4, -1)
        )
        return self.out(((q @ k.transpose(-1, -2)).softmax(-1) @ v).transpose(-2, -3).flatten(-2))


class Divided(nn.Module):  # type: ignore[misc]
    """Attention over frames at each patch, and over the patches of each frame and a token: TimeSformer."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 8, 8)
        self.token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.layers = nn.ModuleList(nn.ModuleList([Attention(), Attention()]) for _ in range(2))

    def forward(self, video: Any, y: Any) -> Any:
        frames = video.shape[1]
        x = self.patches(video.flatten(0, 1)).flatten(2).transpose(1, 2).unflatten(0, (-1, frames))
        token = self.token.expand(x.shape[0], 1, WIDTH)
        for time, space in self.layers:
            x = x + time(x.transpose(1, 2)).transpose(1, 2)
            each = torch.cat([token[:, None].expand(-1, frames, -1, -1), x], 2)
            made = space(each)
            token, x = token + made[:, :, 0].mean(1)[:, None], x + made[:, :, 1:]
        return functional.mse_loss(token[:, 0], y)


class Windowed(nn.Module):  # type: ignore[misc]
    """Attention within windows of 4 by 4 patches, before and after four patches become one: a Swin transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 2, 2)
        self.layers = nn.ModuleList(Attention() for _ in range(2))
        self.merging = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, images: Any, y: Any) -> Any:
        x = self.patches(images).permute(0, 2, 3, 1)
        for i, layer in enumerate(self.layers):
            if i:
                x = torch.cat([x[:, r::2, c::2] for r in (0, 1) for c in (0, 1)], -1)
                x = self.merging(x)
            side = x.shape[1] // 4
            windows = x.unflatten(1, (side, 4)).unflatten(3, (side, 4)).transpose(2, 3).flatten(3, 4)
            made = layer(windows).unflatten(3, (4, 4)).transpose(2, 3)
            x = x + made.flatten(3, 4).flatten(1, 2)
        return functional.mse_loss(x.mean((1, 2)), y)


CASES = {
    "divided": (Divided, ((BATCH, 4, 3, 32, 32), (BATCH, WIDTH))),
    "windowed": (Windowed, ((BATCH, 3, 32, 32), (BATCH, WIDTH))),
}


@pytest.mark.parametrize("name", CASES)
def test_flops_are_those_that_pytorch_counts(name: str) -> None:
    build, shapes = CASES[name]
    with torch.device("meta"):
        module, inputs = build(), [torch.zeros(shape) for shape in shapes]
        graph = graph_of(from_torch(module, *inputs))
        with FlopCounterMode(display=False) as counted:
            module(*inputs).backward()
    assert count_parameters(graph) == sum(math.prod(p.shape) for p in module.parameters())
    counting = Counting(causal=False, attention_kernel="plain")
    assert (
        sum(f(graph, BATCH, counting) for f in (forward_flops, backward_flops)) == counted.get_total_flops()
    )
    attentions = [op for block in graph.blocks for op in block.ops if op.kind == "attention"]
    assert attentions
    assert {graph.dims[d] for block in graph.blocks for op in block.ops if op.kind == "attention"
            for d in block.tensor[op.inputs[0]].dims if d.startswith("heads")} == {HEADS}  # fmt: skip


class InTurns(nn.Module):  # type: ignore[misc]
    """Layers of two lists, one of each after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.times = nn.ModuleList(Attention() for _ in range(2))
        self.spaces = nn.ModuleList(Attention() for _ in range(2))

    def forward(self, x: Any, y: Any) -> Any:
        for time, space in zip(self.times, self.spaces, strict=True):
            x = x + time(x.transpose(1, 2)).transpose(1, 2)
            x = x + space(x)
        return functional.mse_loss(x, y)


def test_layers_in_turns_are_refused() -> None:
    """A stack has one list of layers, which run one after the other."""
    with torch.device("meta"):
        program = from_torch(InTurns(), *[torch.zeros(BATCH, 4, 16, WIDTH)] * 2)
    with pytest.raises(Unsupported, match="is of a layer that began before another did"):
        graph_of(program)

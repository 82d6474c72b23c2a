"""Models with products of activations: their FLOPs are those that PyTorch counts."""

import math
from functools import cache
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from planner import Program, from_torch, plan  # noqa: E402
from planner.graph import Graph, Op, count_parameters  # noqa: E402
from planner.operators import Counting, backward_flops, forward_flops, saved_tensors  # noqa: E402
from planner.tracing.lifting.model import graph_of, model_of  # noqa: E402

nn, functional = torch.nn, torch.nn.functional
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
BATCH = 8


class Ranker(nn.Module):  # type: ignore[misc]
    """Rows of tables, each with each: a DLRM."""

    def __init__(self) -> None:
        super().__init__()
        self.bottom = nn.Linear(13, 32)
        self.tables = nn.ModuleList(nn.Embedding(1000, 32) for _ in range(4))
        self.top = nn.Sequential(nn.Linear(57, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, x: Any, rows: Any, clicked: Any) -> Any:
        x = functional.relu(self.bottom(x))
        each = torch.stack([x, *(table(rows[:, i]) for i, table in enumerate(self.tables))], 1)
        pairs = torch.bmm(each, each.transpose(1, 2)).flatten(1)
        scores = self.top(torch.cat([x, pairs], 1))[:, 0]
        return functional.binary_cross_entropy_with_logits(scores, clicked)


class Retention(nn.Module):  # type: ignore[misc]
    """Scores without a softmax: no attention, but two products."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: Any) -> Any:
        made = self.norm(x)
        q, k, v = (w(made).unflatten(-1, (self.heads, -1)).transpose(1, 2) for w in (self.q, self.k, self.v))
        return x + self.out((q @ k.transpose(-1, -2) @ v).transpose(1, 2).flatten(2))


class Retaining(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 64)
        self.layers = nn.Sequential(*(Retention(64, 4) for _ in range(3)))
        self.head = nn.Linear(64, 100)

    def forward(self, tokens: Any, labels: Any) -> Any:
        logits = self.head(self.layers(self.embed(tokens)))
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


class Square(nn.Module):  # type: ignore[misc]
    """A projection around which its own input goes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(48, 48) for _ in range(3))

    def forward(self, x: Any, y: Any) -> Any:
        for layer in self.layers:
            x = x + functional.relu(layer(x))
        return functional.mse_loss(x, y)


class Window(nn.Module):  # type: ignore[misc]
    """Attention among 4 x 4 pixels, as in Swin."""

    def __init__(self, width: int, heads: int, side: int = 4) -> None:
        super().__init__()
        self.heads, self.side = heads, side
        self.norm, self.qkv, self.out = (
            nn.LayerNorm(width),
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
        )

    def forward(self, x: Any) -> Any:
        b, rows, columns, width = x.shape
        side = self.side
        cut = self.norm(x).view(b, rows // side, side, columns // side, side, width)
        cut = cut.permute(0, 1, 3, 2, 4, 5).reshape(-1, side * side, width)
        q, k, v = (
            self.qkv(cut).view(-1, side * side, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        )
        made = self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        made = made.view(b, rows // side, columns // side, side, side, width).permute(0, 1, 3, 2, 4, 5)
        return x + made.reshape(x.shape)


class Windows(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 4, 4)
        self.blocks = nn.Sequential(Window(32, 4), Window(32, 4))
        self.head = nn.Linear(32, 10)

    def forward(self, images: Any, labels: Any) -> Any:
        made = self.blocks(self.patches(images).permute(0, 2, 3, 1))
        return functional.cross_entropy(self.head(made.mean((1, 2))), labels)


class Strided(nn.Module):  # type: ignore[misc]
    """A filter of one pixel that takes every second one."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(4, 16, 3, 1, 1), nn.ReLU(), nn.Conv2d(16, 32, 1, 2))
        self.head = nn.Linear(32, 10)

    def forward(self, images: Any, labels: Any) -> Any:
        return functional.cross_entropy(self.head(self.layers(images).mean((2, 3))), labels)


class Pair(nn.Module):  # type: ignore[misc]
    """Two towers that are compared with all of the other's in a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = (
            nn.Sequential(nn.Linear(n, 64), nn.ReLU(), nn.Linear(64, 32)) for n in (48, 24)
        )

    def forward(self, images: Any, texts: Any) -> Any:
        near = self.image(images) @ self.text(texts).T
        return functional.cross_entropy(near, torch.arange(BATCH, device=near.device))


class Corrected(Pair):
    """Whose rows are not drawn alike: each has a number that is taken off its column."""

    def forward(self, images: Any, texts: Any, often: Any) -> Any:
        near = self.image(images) @ self.text(texts).T - often[None] + often[:, None] / 2
        return functional.cross_entropy(near, torch.arange(BATCH, device=near.device))


class Filtered(nn.Module):  # type: ignore[misc]
    """What a layer makes is multiplied by a matrix that is not learned."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(24, 32), nn.Linear(16, 8)
        self.register_buffer("bank", torch.zeros(32, 16))

    def forward(self, x: Any, y: Any) -> Any:
        return functional.mse_loss(self.out(functional.relu(self.into(x)) @ self.bank), y)


class Points(nn.Module):  # type: ignore[misc]
    """Messages among points, the less the farther they are apart."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.width = nn.Linear(3, 32), nn.Parameter(torch.zeros(1))
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(2))

    def forward(self, x: Any, y: Any) -> Any:
        apart = (x[:, :, None] - x[:, None]).square().sum(-1)
        near, x = torch.exp(-self.width * apart), self.into(x)
        for layer in self.layers:
            x = x + functional.relu(layer(near @ x))
        return functional.mse_loss(x, y)


class Shrinking(nn.Module):  # type: ignore[misc]
    """Patches of patches, between layers that see channels alone (ConvNeXt, Swin): images are in ever more parts."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (8, 16, 32)
        self.into = nn.Conv2d(3, 8, 4, 4)
        self.layers = nn.ModuleList(nn.Conv2d(n, n, 1) for n in sizes)
        self.halves = nn.ModuleList(nn.Conv2d(n, 2 * n, 2, 2) for n in sizes[:-1])
        self.head = nn.Linear(32, 10)

    def forward(self, images: Any, labels: Any) -> Any:
        x = self.into(images)
        for number, layer in enumerate(self.layers):
            x = x + functional.relu(layer(x))
            x = self.halves[number](x) if number < len(self.halves) else x
        return functional.cross_entropy(self.head(x.mean((2, 3))), labels)


class Latents(nn.Module):  # type: ignore[misc]
    """Rows of a parameter that attend to what a sequence has, in every sequence (a Perceiver)."""

    def __init__(self, norm: bool = True) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.zeros(8, 32))
        self.norm = nn.LayerNorm(32) if norm else nn.Identity()
        self.query, self.key, self.value = (nn.Linear(n, 48) for n in (32, 12, 12))
        self.out = nn.Linear(48, 32)
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(2))

    def forward(self, x: Any, y: Any) -> Any:
        rows = self.latents.expand(BATCH, -1, -1)
        query, key, value = (
            a.unflatten(-1, (4, 12)).transpose(1, 2)
            for a in (self.query(self.norm(rows)), self.key(x), self.value(x))
        )
        odds = torch.softmax(query @ key.transpose(-1, -2), -1)
        rows = rows + self.out((odds @ value).transpose(1, 2).flatten(2))
        for layer in self.layers:
            rows = rows + functional.relu(layer(rows))
        return functional.mse_loss(rows.mean(1), y)


class Queries(Latents):
    """Whose rows are projected as they are (DETR)."""

    def __init__(self) -> None:
        super().__init__(norm=False)


class Placed(nn.Module):  # type: ignore[misc]
    """A table of positions, added to what a product makes: no bias of that."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Linear(12, 32)
        self.positions = nn.Parameter(torch.zeros(1, 16, 32))
        self.blocks = nn.ModuleList(nn.Linear(32, 32) for _ in range(2))

    def forward(self, x: Any, y: Any) -> Any:
        x = self.patches(x) + self.positions
        for block in self.blocks:
            x = x + functional.relu(block(x))
        return functional.mse_loss(x, y)


CASES = {
    "placed": (Placed, ((BATCH, 16, 12), (BATCH, 16, 32))),
    "ranker": (Ranker, ((BATCH, 13), (BATCH, 4, "rows"), (BATCH,))),
    "retention": (Retaining, ((BATCH, 16, "rows"), (BATCH, 16, "rows"))),
    "square": (Square, ((BATCH, 48), (BATCH, 48))),
    "windows": (Windows, ((BATCH, 3, 32, 32), (BATCH, "rows"))),
    "strided": (Strided, ((BATCH, 4, 16, 16), (BATCH, "rows"))),
    "pair": (Pair, ((BATCH, 48), (BATCH, 24))),
    "corrected": (Corrected, ((BATCH, 48), (BATCH, 24), (BATCH,))),
    "points": (Points, ((BATCH, 16, 3), (BATCH, 16, 32))),
    "latents": (Latents, ((BATCH, 16, 12), (BATCH, 32))),
    "queries": (Queries, ((BATCH, 16, 12), (BATCH, 32))),
    "shrinking": (Shrinking, ((BATCH, 3, 64, 64), (BATCH, "rows"))),
    "filtered": (Filtered, ((BATCH, 24), (BATCH, 8))),
}


@cache
def case(name: str) -> tuple[Any, list[Any]]:
    """A module and its inputs, on meta."""
    build, shapes = CASES[name]
    with torch.device("meta"):
        inputs = [
            torch.zeros(*(n for n in shape if n != "rows"), dtype=torch.long if "rows" in shape else None)
            for shape in shapes
        ]
        return build(), inputs


@cache
def traced(name: str) -> Program:
    module, inputs = case(name)
    return from_torch(module, *inputs)


def ops_of(graph: Graph, kind: str) -> list[Op]:
    return [op for block in graph.blocks for op in block.ops if op.kind == kind]


@pytest.mark.parametrize("name", CASES)
def test_flops_are_those_that_pytorch_counts(name: str) -> None:
    module, inputs = case(name)
    graph = graph_of(traced(name))
    assert count_parameters(graph) == sum(math.prod(p.shape) for p in module.parameters())
    with torch.device("meta"), FlopCounterMode(display=False) as counted:
        module(*inputs)
    assert BATCH * forward_flops(graph, 1, Counting(causal=False)) == counted.get_total_flops()


@pytest.mark.parametrize("name", CASES)
def test_backward_flops_are_those_that_pytorch_counts(name: str) -> None:
    """A step of plain attention: a product has the gradients of both operands; data has none."""
    if name == "windows":
        pytest.skip("PyTorch counts the scores of fused attention, which its backward computes again")
    module, inputs = case(name)
    graph = graph_of(traced(name))
    with torch.device("meta"), FlopCounterMode(display=False) as counted:
        module(*inputs).backward()
    counting = Counting(causal=False, attention_kernel="plain")
    forward, backward = (f(graph, BATCH, counting) for f in (forward_flops, backward_flops))
    assert forward + backward == counted.get_total_flops()


def test_a_view_is_kept_as_what_it_shows() -> None:
    module, inputs = case("square")
    block = graph_of(traced("square")).block["layer_1"]
    assert [op.kind for op in block.ops] == ["view", "matmul", "elementwise", "add"]
    assert "view" not in saved_tensors(block, "none")
    assert block.inputs[0] in saved_tensors(block, "none")


def test_a_matrix_that_is_not_learned_keeps_nothing_of_what_it_multiplies() -> None:
    """What PyTorch keeps of 32 features: the activation's argument or result, once; and nothing for the product."""
    module, inputs = case("filtered")
    kept: list[Any] = []
    with (
        torch.device("meta"),
        torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x),
    ):
        module(*inputs)
    wide = {x.untyped_storage()._cdata for x in kept if tuple(x.shape) == (BATCH, 32)}
    (block,) = graph_of(traced("filtered")).blocks
    dims = {block.tensor[op.outputs[0]].dims for op in block.ops if op.kind == "elementwise"}
    ours = [n for n in saved_tensors(block, "none") if block.tensor[n].dims in dims and "loss" not in n]
    assert len(ours) == len(wide) == 1


def test_windows_are_what_a_query_sees() -> None:
    graph = graph_of(traced("windows"))
    (attention, *_) = ops_of(graph, "attention")
    assert attention.attributes["kv_dim"] == "window_16"
    assert (graph.dims["window_16"], graph.dims["seq"]) == (16, 64)


def test_positions_that_are_compared_are_gathered_over_context_ranks() -> None:
    """Keys and values of three layers, of 16 sequences each in bf16: a rank receives the half that it has not."""
    model = model_of(traced("retention"))
    job = {"global_batch": 64, "seq_len": 4096, "top": 1, "pipeline": 1, "tensor": 1, "zero_stage": 0}
    alone, split = (
        plan(model, "dgx-h100:1", data=data, context=context, micro_batch=8, recompute="none", **job).estimate
        for data, context in ((8, 1), (4, 2))
    )
    assert alone is not None
    assert split is not None
    gathered = split.communication["all_gather"] - alone.communication.get("all_gather", 0)
    assert gathered == 2 * 3 * 16 * 4096 * 64 * 2 / 2
    assert split.time["context"] > 0

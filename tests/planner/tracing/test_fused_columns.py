"""Queries, keys and values from one product, gates and what they gate too: cut apart however it is written."""

from collections.abc import Callable
from typing import Any

import pytest

jax = pytest.importorskip("jax")

from jax_layers import (  # noqa: E402
    Sizes,  # noqa: E402
    attend,
    cross_entropy,
    f,
    indices,
    norm,
    stacked,
)

from planner import from_jax  # noqa: E402
from planner.graph import Graph  # noqa: E402
from planner.tracing.lifting.model import graph_of  # noqa: E402

pytestmark = pytest.mark.jax
SIZE = Sizes(width=64, ffn=96, vocab=128, batch=4, length=32)


def in_a_row(x: Any, parts: int) -> list[Any]:
    width = x.shape[-1] // parts
    return [x[..., i * width : (i + 1) * width] for i in range(parts)]


def in_turn(x: Any, parts: int) -> list[Any]:
    return [x[..., i::parts] for i in range(parts)]


def by_number(x: Any, parts: int) -> list[Any]:
    apart = x.reshape(*x.shape[:-1], parts, -1)
    return [apart[..., i, :] for i in range(parts)]


def by_split(x: Any, parts: int) -> list[Any]:
    return list(jax.numpy.split(x, parts, -1))


def traced(cut: Callable[[Any, int], list[Any]] | None) -> Graph:
    """Without ``cut``, weights of their own."""

    def product(x: Any, p: Any, name: str, parts: int) -> list[Any]:
        return cut(x @ p[name], parts) if cut else [x @ p[f"{name}{i}"] for i in range(parts)]

    def layer(x: Any, p: Any) -> tuple[Any, None]:
        q, k, v = (a.reshape(*x.shape[:2], 4, 16) for a in product(norm(x, p["norm"]), p, "qkv", 3))
        x = x + attend(q, k, v, True) @ p["o"]
        gate, up = product(norm(x, p["norm"]), p, "mlp", 2)
        return x + (jax.nn.silu(gate) * up) @ p["down"], None

    def loss(params: Any, tokens: Any, labels: Any) -> Any:
        x, _ = jax.lax.scan(layer, params["embed"][tokens], params["layers"])
        return cross_entropy(x @ params["embed"].T, labels)

    one = {"norm": f(SIZE, 64), "o": f(SIZE, 64, 64), "down": f(SIZE, 96, 64)}
    for name, parts, width in (("qkv", 3, 64), ("mlp", 2, 96)):
        apart = {f"{name}{i}": f(SIZE, 64, width) for i in range(parts)}
        one |= {name: f(SIZE, 64, parts * width)} if cut else apart
    params = {"embed": f(SIZE, 128, 64), "layers": stacked(2, one)}
    return graph_of(from_jax(loss, params, *(indices(4, 32),) * 2))


def shapes(graph: Graph) -> list[tuple[str, list[tuple[str, ...]], list[tuple[str, ...]]]]:
    """Of every operator of a layer: kind, dims of its weights, dims of its results."""
    layer = graph.block["layer"]
    return [
        (op.kind, *([layer.tensor[n].dims for n in names] for names in (op.weights, op.outputs)))
        for op in layer.ops
    ]


@pytest.mark.parametrize("cut", [in_a_row, in_turn, by_number, by_split])
def test_layers_are_those_with_weights_of_their_own(cut: Callable[[Any, int], list[Any]]) -> None:
    fused, apart = traced(cut), traced(None)
    assert shapes(fused) == shapes(apart)
    assert dict(fused.dims) == dict(apart.dims)
    assert (fused.dims["ffn"], fused.dims["heads"]) == (96, 4)

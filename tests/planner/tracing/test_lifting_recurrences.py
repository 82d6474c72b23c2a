"""Loops over time within layers: what is kept is what JAX keeps, and a step takes a launch at least."""

from collections.abc import Callable
from typing import Any

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

from planner import from_jax, plan  # noqa: E402
from planner.graph import Block, Graph, Op, count_parameters  # noqa: E402
from planner.operators import forward_flops, operator_rule, saved_tensors  # noqa: E402
from planner.tracing.lifting.model import graph_of, model_of  # noqa: E402

pytestmark = pytest.mark.jax
BATCH, LENGTH, WIDTH, LAYERS, CLASSES = 8, 16, 64, 3, 100

Case = tuple[Any, ...]


def f(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def tokens() -> Any:
    return jax.ShapeDtypeStruct((BATCH, LENGTH), jnp.int32)


def loss_of(logits: Any, labels: Any) -> Any:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1).mean()


def lstm() -> Case:
    def layer(p: Any, x: Any) -> Any:
        def step(state: Any, row: Any) -> Any:
            hidden, cell = state
            a, b, c, d = jnp.split(row + hidden @ p["again"], 4, -1)
            cell = jax.nn.sigmoid(b) * cell + jax.nn.sigmoid(a) * jnp.tanh(c)
            hidden = jax.nn.sigmoid(d) * jnp.tanh(cell)
            return (hidden, cell), hidden

        start = jnp.zeros((x.shape[0], WIDTH))
        return jax.lax.scan(step, (start, start), (x @ p["in"]).swapaxes(0, 1))[1].swapaxes(0, 1)

    def loss(p: Any, x: Any, y: Any) -> Any:
        x = p["embed"][x]
        for each in p["layers"]:
            x = layer(each, x)
        return loss_of(x @ p["head"], y)

    layers = [{"in": f(WIDTH, 4 * WIDTH), "again": f(WIDTH, 4 * WIDTH)} for _ in range(LAYERS)]
    return loss, {"embed": f(CLASSES, WIDTH), "layers": layers, "head": f(WIDTH, CLASSES)}, tokens(), tokens()


def rwkv() -> Case:
    """Weighted means of all rows before, whose weights fade (RWKV's time mixing)."""

    def layer(p: Any, x: Any) -> Any:
        def step(state: Any, row: Any) -> Any:
            (above, below), (key, value) = state, row
            now, key, fade = jnp.exp(p["bonus"] + key), jnp.exp(key), jnp.exp(-jnp.exp(p["fade"]))
            made = (above + now * value) / (below + now)
            return (fade * above + key * value, fade * below + key), made

        start = jnp.zeros((x.shape[0], WIDTH))
        rows = tuple((x @ p[name]).swapaxes(0, 1) for name in ("key", "value"))
        return x + jax.lax.scan(step, (start, start), rows)[1].swapaxes(0, 1) @ p["out"]

    def loss(p: Any, x: Any, y: Any) -> Any:
        x = p["embed"][x]
        for each in p["layers"]:
            x = layer(each, x)
        return loss_of(x @ p["head"], y)

    shapes = {"bonus": (WIDTH,), "fade": (WIDTH,)} | dict.fromkeys(("key", "value", "out"), (WIDTH, WIDTH))
    layers = [{name: f(*shape) for name, shape in shapes.items()} for _ in range(LAYERS)]
    return loss, {"embed": f(CLASSES, WIDTH), "layers": layers, "head": f(WIDTH, CLASSES)}, tokens(), tokens()


def decay() -> Case:
    """States that fade, channel by channel, in a scan over layers."""

    def layer(x: Any, p: Any) -> Any:
        def step(state: Any, row: Any) -> Any:
            state = state * p["fade"] + row
            return state, jnp.tanh(state)

        _, made = jax.lax.scan(step, jnp.zeros((x.shape[0], WIDTH)), (x @ p["in"]).swapaxes(0, 1))
        return x + made.swapaxes(0, 1) @ p["out"], None

    def loss(p: Any, x: Any, y: Any) -> Any:
        return loss_of(jax.lax.scan(layer, p["embed"][x], p["layers"])[0] @ p["head"], y)

    layers = {
        "in": f(LAYERS, WIDTH, WIDTH),
        "fade": f(LAYERS, WIDTH),
        "out": f(LAYERS, WIDTH, WIDTH),
    }
    return loss, {"embed": f(CLASSES, WIDTH), "layers": layers, "head": f(WIDTH, CLASSES)}, tokens(), tokens()


def recurrences(graph: Graph) -> list[tuple[Block, Op, int]]:
    return [(b, op, n) for b, n in graph.instances() for op in b.ops if op.kind == "recurrence"]


def test_a_loop_over_time_is_one_operator_of_each_layer() -> None:
    loss, params, *data = lstm()
    graph = graph_of(from_jax(loss, params, *data))
    assert count_parameters(graph) == sum(x.size for x in jax.tree.leaves(params))
    assert sum(n for _, _, n in recurrences(graph)) == LAYERS
    products = LAYERS * 2 * WIDTH * 4 * WIDTH + WIDTH * CLASSES
    assert forward_flops(graph, 1) == 2 * LENGTH * products


def test_only_states_without_products_are_split_by_channels() -> None:
    for case, dims in ((lstm, {"batch"}), (decay, {"batch", "ffn"})):
        block, op, _ = recurrences(graph := graph_of(from_jax(*case())))[0]
        assert set(operator_rule(op).splittable(op, block, graph)) == dims


@pytest.mark.parametrize("case", [lstm, rwkv])
def test_what_steps_keep_is_what_jax_keeps(case: Callable[[], Case]) -> None:
    """Arrays of every step among those that `jax.vjp` holds."""
    loss, params, *data = case()
    graph = graph_of(from_jax(loss, params, *data))
    ours = sum(
        n * BATCH * graph.elements(b.tensor[str(op.attributes["kept"])]) for b, op, n in recurrences(graph)
    )
    held = jax.eval_shape(lambda p, x, y: jax.vjp(lambda q: loss(q, x, y), p)[1], params, *data)
    theirs = sum(x.size for x in jax.tree.leaves(held) if x.shape[:2] == (LENGTH, BATCH))
    assert ours == theirs


def test_small_steps_take_a_launch_for_each_kernel() -> None:
    """Forward a product and a kernel of loops, backward two products and a kernel."""
    model = model_of(from_jax(*lstm()))
    job = {"data": 8, "tensor": 1, "pipeline": 1, "global_batch": 8, "seq_len": 4096, "top": 1}
    found = plan(model, "dgx-h100:1", **job)
    assert found.estimate is not None
    launch = found.cluster.device.kernel_launch
    assert found.estimate.time["compute"] > LAYERS * 4096 * 5 * launch


def tree(length: int) -> Case:
    """A gated recurrence as a tree: each level works on half of the one before."""

    def layer(x: Any, p: Any) -> Any:
        into = jax.nn.sigmoid(x @ p["fade"]), x @ p["in"]
        _, made = jax.lax.associative_scan(lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1]), into, axis=1)
        return x + made @ p["out"], None

    def loss(p: Any, x: Any, y: Any) -> Any:
        return ((jax.lax.scan(layer, x @ p["embed"], p["layers"])[0] @ p["head"] - y) ** 2).mean()

    layers = {n: f(LAYERS, WIDTH, WIDTH) for n in ("fade", "in", "out")}
    rows = f(BATCH, length, CLASSES)
    return loss, {"embed": f(CLASSES, WIDTH), "layers": layers, "head": f(WIDTH, CLASSES)}, rows, rows


@pytest.mark.parametrize("length", [64, 96])
def test_a_scan_as_a_tree_keeps_every_level_as_jax_does(length: int) -> None:
    loss, params, *data = tree(length)
    graph = graph_of(from_jax(loss, params, *data))
    block = graph.block["layer"]
    ours = sum(BATCH * graph.elements(block.tensor[t]) for t in saved_tensors(block, "none"))
    held = jax.eval_shape(lambda p, x, y: jax.vjp(lambda q: loss(q, x, y), p)[1], params, *data)
    theirs = sum(x.size for x in jax.tree.leaves(held) if x.shape[:2] == (LAYERS, BATCH))
    assert ours == theirs / LAYERS


STATES = {"LSTM": 2, "GRU": 1, "RNN": 1}
"""Recurrent layer of PyTorch -> arrays that a step hands on."""

FEW = 4
"""Steps, where each is exported by itself."""


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")  # how the export finds weights that these layers list again
@pytest.mark.parametrize("kind", STATES)
@pytest.mark.parametrize("both_ways", [False, True], ids=["one way", "both ways"])
def test_recurrent_layers_of_pytorch_are_loops_over_time(kind: str, both_ways: bool) -> None:
    """As many FLOPs as PyTorch counts in the step by step form that it exports."""
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    from planner import from_torch

    class Net(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.into = torch.nn.Embedding(CLASSES, WIDTH)
            self.layers = getattr(torch.nn, kind)(WIDTH, WIDTH, 2, batch_first=True, bidirectional=both_ways)
            self.out = torch.nn.Linear(WIDTH * (1 + both_ways), CLASSES)

        def forward(self, x: Any, y: Any) -> Any:
            made = self.out(self.layers(self.into(x))[0])
            return torch.nn.functional.cross_entropy(made.flatten(0, 1), y.flatten())

    with torch.device("meta"):
        module, *data = Net(), *(torch.zeros(BATCH, FEW, dtype=torch.int64) for _ in range(2))
    program = from_torch(module, *data)
    graph = graph_of(program)
    assert count_parameters(graph) == sum(p.numel() for p in module.parameters())
    steps = [op for block in graph.blocks for op in block.ops if op.kind == "recurrence"]
    assert len(steps) == 2 * (1 + both_ways)
    assert {op.attributes["state"] for op in steps} == {WIDTH * STATES[kind]}
    whole = torch.export.export(module, tuple(data)).run_decompositions()
    with torch.device("meta"), FlopCounterMode(display=False) as counted:
        whole.module()(*data)
    assert BATCH * forward_flops(graph, 1) == counted.get_total_flops()
    assert plan(model_of(program), "dgx-h100:1", global_batch=64, seq_len=FEW).estimate

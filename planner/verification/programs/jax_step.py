"""A training step of a model's graph under exported shardings: parameters, loss, optimizer, accumulation."""

import importlib.util
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from planner.verification.programs.jax_graph import (
    Attention,
    Columns,
    Part,
    Pin,
    Setting,
    cut,
    run_block,
)

LEARNING_RATE, MOMENTUM, SECOND_MOMENT, EPSILON = 0.1, 0.9, 0.95, 1e-8

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
Task = Mapping[str, Any]
Tree = Any


def load(path: str) -> Any:
    """The exported module."""
    spec = importlib.util.spec_from_file_location("exported", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def shape_of(entry: Mapping[str, Any]) -> tuple[int, ...]:
    """Shape of a parameter: layers that repeat are stacked in front."""
    stacked = (entry["count"],) if entry["count"] > 1 else ()
    return (*stacked, *entry["sizes"])


def shapes(task: Task) -> dict[str, Any]:
    """Every parameter, in fp32 unless it is ``stored`` in another type, by its path."""
    stored = jnp.dtype(task.get("stored", "float32"))
    return {e["path"]: jax.ShapeDtypeStruct(shape_of(e), stored) for e in task["arrays"]}


def weights_of(entries: Any, params: Mapping[str, Any], dtype: Any) -> dict[str, Any]:
    """A block's weights by tensor name, in the graph's order of dims, from its parameters by path.

    Matrices that lie in one array are parts of it, so that one product reads it.
    """
    found: dict[str, Any] = {}
    for entry in entries:
        array, dims = params[entry["path"]].astype(dtype), entry["dims"]
        parts = [array]
        if len(entry["weights"]) > 1:
            sizes = [w["fused"] for w in entry["weights"]]
            starts = [sum(sizes[:i]) for i in range(len(sizes))]
            columns = [
                Columns(start, size, entry["dealt"]) for start, size in zip(starts, sizes, strict=True)
            ]
            if len(dims) == 2 and "experts" not in dims:  # biases of experts have two dims as well
                found |= {
                    w["name"]: Part(array, own) for w, own in zip(entry["weights"], columns, strict=True)
                }
                continue
            parts = [cut(array, own) for own in columns]
        for weight, part in zip(entry["weights"], parts, strict=True):
            own = dims if len(parts) == 1 else [*dims[:-1], *(d for d in weight["dims"] if d not in dims)]
            part = part.reshape([weight["sizes"][weight["dims"].index(d)] for d in own])
            found[weight["name"]] = jnp.transpose(part, [own.index(d) for d in weight["dims"]])
    return found


def make_loss(task: Task, exported: Any, pin: Pin, lay: Pin, wrap: Wrap | None, attention: Attention) -> Any:
    """Mean loss of ``(params, data)``; ``wrap`` recomputes what the plan recomputes."""
    graph, dtype = task["graph"], jnp.dtype(task["dtype"])
    blocks = {b["name"]: b for b in graph["blocks"]}
    if wrap is not None and exported.REMAT_SCOPE == "attention":
        attention = _recomputed(attention, wrap)
    setting = Setting(graph["dims"], attention, lay)

    def apply(run: Mapping[str, Any], states: Any, params: Any, data: Any) -> Any:
        block = blocks[run["block"]]
        given = {**data, **dict(zip(block.get("inputs", ()), states, strict=True))}
        found = weights_of(run["arrays"], params, dtype)
        for name, (path, dims) in run["tied"].items():
            entry = next(e for e in task["arrays"] if e["path"] == path)
            order = [entry["dims"].index(d) for d in dims]
            found[name] = jnp.transpose(params[path].astype(dtype), order)
        return run_block(block, given, found, pin, setting)

    def loss(params: Tree, data: Mapping[str, Any]) -> Any:
        states: Any = ()
        for run in task["runs"]:
            body: Callable[..., Any] = partial(apply, run)
            if wrap is not None and exported.REMAT_SCOPE == "block" and run["layers"]:
                body = wrap(body)
            own = {e["path"]: params[e["path"]] for e in run["arrays"]}
            if run["count"] == 1:
                own |= {path: params[path] for path, _ in run["tied"].values()}
                states = body(states, own, data)
                continue
            states, _ = jax.lax.scan(lambda x, w, body=body: (body(x, w, data), None), states, own)
        return states[0].astype(jnp.float32).mean()

    return loss


def _recomputed(attention: Attention, wrap: Wrap) -> Attention:
    def inner(q: Any, k: Any, v: Any, attributes: Any, name: str) -> Any:
        return wrap(lambda q, k, v: attention(q, k, v, attributes, name))(q, k, v)

    return inner


def start_state(optimizer: str, params: Tree) -> Tree:
    """Optimizer states: two moments for Adam, one for the others."""
    names = ("first", "second") if optimizer.startswith("adam") else ("first",)
    return {name: jax.tree.map(jnp.zeros_like, params) for name in names}


def update(optimizer: str, params: Tree, state: Tree, gradients: Tree) -> tuple[Tree, Tree]:
    """Parameters and states after a step of Adam, or of SGD with momentum."""
    first = jax.tree.map(lambda m, g: MOMENTUM * m + g, state["first"], gradients)
    if "second" not in state:
        return jax.tree.map(lambda p, m: p - LEARNING_RATE * m, params, first), {"first": first}
    second = jax.tree.map(lambda v, g: SECOND_MOMENT * v + g * g, state["second"], gradients)
    step = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + EPSILON), first, second)
    return jax.tree.map(lambda p, d: p - LEARNING_RATE * d, params, step), {"first": first, "second": second}


def make_step(task: Task, loss: Any, place: Callable[[Tree], Tree], fetch: Callable[[Tree], Tree]) -> Any:
    """(params, state, data) -> (params, state, loss); data has a leading dim of micro-batches."""

    def step(params: Tree, state: Tree, data: Tree) -> Any:
        state = fetch(state)
        count = len(next(iter(data.values())))

        def accumulate(sums: Tree, micro: Tree) -> Any:
            value, gradients = jax.value_and_grad(loss)(params, micro)
            return jax.tree.map(lambda a, b: a + b / count, sums, (value, place(gradients))), None

        if count == 1:
            value, gradients = jax.value_and_grad(loss)(params, {k: v[0] for k, v in data.items()})
            gradients = place(gradients)
        else:
            zero = (jnp.zeros(()), place(jax.tree.map(jnp.zeros_like, params)))
            (value, gradients), _ = jax.lax.scan(accumulate, zero, data)
        params, state = update(task["optimizer"], params, state, gradients)
        return params, state, value

    return step


def sharded_step(task: Task, exported: Any, mesh: Any, attention: Attention) -> Any:
    """The jitted step under the exported shardings, and the shardings of its arguments."""
    tree = shapes(task)
    params = exported.param_shardings(mesh, tree)
    states = exported.state_shardings(mesh, jax.eval_shape(partial(start_state, task["optimizer"]), tree))
    data = {name: NamedSharding(mesh, _data_spec(exported, task, name)) for name in task["data"]}

    def pin(x: Any, name: str) -> Any:
        return exported.constrain(x, name, mesh) if name in exported.ACTIVATION_SPECS else x

    def lay(x: Any, name: str) -> Any:
        spec = exported.ACTIVATION_SPECS.get(name)
        return x if spec is None else jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))

    def place(gradients: Tree) -> Tree:
        aims = exported.state_shardings(mesh, tree) if exported.SHARD_GRADIENTS else params
        device = jax.tree.map(lambda s: NamedSharding(mesh, s.spec), aims)
        return jax.lax.with_sharding_constraint(gradients, device)

    loss = make_loss(task, exported, pin, lay, exported.remat, attention)
    step = make_step(task, loss, place, lambda state: exported.state_on_device(mesh, state))
    jitted = jax.jit(
        step,
        in_shardings=(params, states, data),
        out_shardings=(params, states, None),
        donate_argnums=(0, 1),
    )
    return jitted, (params, states, data)


def _data_spec(exported: Any, task: Task, name: str) -> Any:
    """Of an input with a leading dim of micro-batches: split as token ids are, along batch and tokens."""
    dims = task["data"][name]["dims"]
    batch, tokens = (*exported.BATCH_SPEC, None)[:2]
    return P(None, batch, *(tokens if d == task["graph"]["token_dim"] else None for d in dims[1:]))

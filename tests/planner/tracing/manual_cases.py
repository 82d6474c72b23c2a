"""Functions with a ``shard_map`` in them, as `FILE.py:NAME`: (function, *arguments)."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

MESH = AbstractMesh((2, 4), ("data", "model"))
Case = tuple[Any, ...]


def f(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def _tensor_parallel(checked: bool) -> Case:
    def body(x: Any, up: Any, down: Any) -> Any:
        return jax.lax.psum(jax.nn.gelu(x @ up) @ down, "model")

    specs = (P("data", None), P(None, "model"), P("model", None))
    mlp = jax.shard_map(body, mesh=MESH, in_specs=specs, out_specs=P("data", None), check_vma=checked)

    def loss(p: Any, x: Any) -> Any:
        return (mlp(x, p["up"], p["down"]) ** 2).mean()

    return jax.value_and_grad(loss), {"up": f(256, 512), "down": f(512, 256)}, f(128, 256)


def tensor_parallel() -> Case:
    """Megatron's MLP, with its sum written down, and its derivative."""
    return _tensor_parallel(True)


def unchecked() -> Case:
    """The same where types do not say what varies: the sum's derivative is a sum."""
    return _tensor_parallel(False)


def every_collective() -> Case:
    def body(x: Any, w: Any) -> Any:
        rows = jax.lax.all_gather(x, "model", axis=1, tiled=True)
        part = jax.lax.psum_scatter(rows @ w, "model", scatter_dimension=1, tiled=True)
        turned = jax.lax.all_to_all(part, "model", split_axis=0, concat_axis=1, tiled=True)
        passed = jax.lax.ppermute(turned, "model", [(i, (i + 1) % 4) for i in range(4)])
        most = jax.lax.pmax(passed.max(), "model")
        return jax.lax.pmean(passed * most + jax.lax.axis_index("model"), "data")

    of = jax.shard_map(body, mesh=MESH, in_specs=(P("data", "model"), P()), out_specs=P(None, "model"))

    def loss(p: Any, x: Any) -> Any:
        return (of(x, p) ** 2).sum()

    return loss, f(128, 64), f(64, 128)


def groups_along_axes() -> Case:
    """Groups of devices that are rows or columns of the mesh, each device by itself, and all."""
    columns, rows = [[i, i + 4] for i in range(4)], [[0, 1, 2, 3], [4, 5, 6, 7]]
    both, single = ("data", "model"), [[i] for i in range(8)]

    def body(x: Any, w: Any) -> Any:
        made = jax.lax.psum(x @ w, both, axis_index_groups=rows)
        made = made + jax.lax.all_gather(x[:2], both, axis_index_groups=columns, tiled=True).mean() / 4
        made = jax.lax.psum_scatter(made, both, scatter_dimension=1, axis_index_groups=rows, tiled=True)
        made = made * jax.lax.psum(x.sum(), both, axis_index_groups=single)
        return jax.lax.psum(made, "data", axis_index_groups=[[0, 1]])

    of = jax.shard_map(
        body, mesh=MESH, in_specs=(P("data", "model"), P()), out_specs=P(None, "model"), check_vma=False
    )

    def loss(p: Any, x: Any) -> Any:
        return (of(x, p) ** 2).sum()

    return loss, f(16, 64), f(64, 64)


def ring_attention() -> Case:
    """Keys and values go round in a scan, and their gradients back."""
    around = [(i, (i + 1) % 4) for i in range(4)]

    def body(q: Any, k: Any, v: Any) -> Any:
        def step(state: Any, _: None) -> Any:
            k, v, made, most, total = state
            scores = jnp.einsum("bqd,bkd->bqk", q, k) / 8
            now = jnp.maximum(most, scores.max(-1))
            odds, old = jnp.exp(scores - now[..., None]), jnp.exp(most - now)
            made = made * old[..., None] + jnp.einsum("bqk,bkd->bqd", odds, v)
            k, v = (jax.lax.ppermute(x, "model", around) for x in (k, v))
            return (k, v, made, now, total * old + odds.sum(-1)), None

        none = jnp.zeros_like(q)
        start = (k, v, none, none[..., 0] - 1e9, none[..., 0])
        (_, _, made, _, total), _ = jax.lax.scan(step, start, None, length=4)
        return made / total[..., None]

    ring = jax.shard_map(body, mesh=MESH, in_specs=(P("data", "model"),) * 3, out_specs=P("data", "model"))

    def loss(p: Any, x: Any) -> Any:
        return ((ring(*(x @ p[n] for n in "qkv")) @ p["o"] - x) ** 2).mean()

    return jax.value_and_grad(loss), {n: f(64, 64) for n in "qkvo"}, f(8, 64, 64)


def expert_parallel() -> Case:
    """Tokens of all devices go to the experts of each, and back."""

    def body(x: Any, router: Any, up: Any, down: Any) -> Any:
        tokens, experts = x.shape[0], 8
        best, which = jax.lax.top_k(jax.nn.softmax(x @ router), 1)
        picked = jax.nn.one_hot(which[:, 0], experts)
        place = (jnp.cumsum(picked, 0) * picked - 1).astype(jnp.int32)
        slot = jax.nn.one_hot(place, 2 * tokens // experts) * picked[..., None]
        sent = jax.lax.all_to_all(jnp.einsum("tec,td->ecd", slot, x), "model", 0, 1, tiled=True)
        made = jnp.einsum("ecf,efd->ecd", jax.nn.relu(jnp.einsum("ecd,edf->ecf", sent, up)), down)
        back = jax.lax.all_to_all(made, "model", 1, 0, tiled=True)
        return jnp.einsum("tec,ecd,t->td", slot, back, best[:, 0])

    tokens = P(("data", "model"))
    specs = (tokens, P(), P("model"), P("model"))
    experts = jax.shard_map(body, mesh=MESH, in_specs=specs, out_specs=tokens)

    def loss(p: Any, x: Any) -> Any:
        return ((x + experts(x, p["router"], p["up"], p["down"])) ** 2).mean()

    return (
        jax.value_and_grad(loss),
        {"router": f(64, 8), "up": f(8, 64, 128), "down": f(8, 128, 64)},
        f(256, 64),
    )


def _nested(checked: bool) -> Any:
    """Tensor parallel inside data parallel, each with the axis that it is about."""

    def inner(x: Any, up: Any, down: Any) -> Any:
        return jax.lax.psum(jax.nn.gelu(x @ up) @ down, "model")

    def outer(x: Any, up: Any, down: Any) -> Any:
        specs = (P(), P(None, "model"), P("model", None))
        within = jax.shard_map(inner, in_specs=specs, out_specs=P(), axis_names={"model"}, check_vma=checked)
        made = within(x, up, down)
        return made - jax.lax.pmean(made.mean(0), "data")

    specs = (P("data", None), P(), P())
    mlp = jax.shard_map(
        outer, mesh=MESH, in_specs=specs, out_specs=P("data", None), axis_names={"data"}, check_vma=checked
    )

    def loss(p: Any, x: Any) -> Any:
        return (mlp(x, p["up"], p["down"]) ** 2).mean()

    return loss


def nested() -> Case:
    return _nested(True), {"up": f(256, 512), "down": f(512, 256)}, f(128, 256)


def nested_backward() -> Case:
    return jax.value_and_grad(_nested(False)), *nested()[1:]


def nested_derivative_of_checked() -> Case:
    """What JAX makes of it, it cannot compile."""
    return jax.value_and_grad(_nested(True)), *nested()[1:]

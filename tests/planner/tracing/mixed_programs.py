"""Programs of unlike parts, as `FILE.py:NAME`: (function, *arguments)."""

from typing import Any

import jax
import jax.numpy as jnp
from plain_programs import Case, f


def routed(x: Any, router: Any) -> tuple[Any, Any, Any]:
    """Of the two experts of every token: odds, copies of tokens in the order of their experts, copies of each."""
    odds, which = jax.lax.top_k(jax.nn.softmax(x @ router), 2)
    order = jnp.argsort(which.reshape(-1))
    return odds, order, jnp.bincount(which.reshape(-1), length=router.shape[1])


def gated(rows: Any, p: Any, sizes: Any) -> Any:
    """What experts make of rows in the order of experts."""
    hidden = jax.nn.silu(jax.lax.ragged_dot(rows, p["gate"], sizes))
    return jax.lax.ragged_dot(hidden * jax.lax.ragged_dot(rows, p["up"], sizes), p["down"], sizes)


def routed_groups() -> Case:
    """Tokens sorted by expert, a product for each group, in a loop of layers: gradients of two products add up."""
    width, experts = 32, 8

    def layer(x: Any, p: Any) -> tuple[Any, None]:
        odds, order, sizes = routed(x, p["router"])
        made = gated(x[order // 2], p, sizes)
        back = jnp.zeros_like(made).at[order].set(made).reshape(-1, 2, width)
        return x + (back * odds[..., None]).sum(1), None

    def loss(p: Any, x: Any, y: Any) -> Any:
        return ((jax.lax.scan(layer, x, p)[0] - y) ** 2).mean()

    up, down = f(2, experts, width, 64), f(2, experts, 64, width)
    params = {"router": f(2, width, experts), "gate": up, "up": up, "down": down}
    return jax.value_and_grad(loss), params, f(128, width), f(128, width)


def experts_in_order() -> Case:
    """Tokens sorted by expert and sorted back: as many rows as there are, wherever their groups begin."""
    width, experts = 64, 8

    def layer(x: Any, p: Any) -> tuple[Any, None]:
        odds, order, sizes = routed(x, p["router"])
        made = gated(x[order // 2], p, sizes)
        return x + (made[jnp.argsort(order)].reshape(-1, 2, width) * odds[..., None]).sum(1), None

    def loss(p: Any, x: Any, y: Any) -> Any:
        return ((jax.lax.scan(layer, x, p["layers"])[0] @ p["head"] - y) ** 2).mean()

    up, down = f(2, experts, width, 128), f(2, experts, 128, width)
    layers = {"router": f(2, width, experts), "gate": up, "up": up, "down": down}
    return jax.value_and_grad(loss), {"layers": layers, "head": f(width, 256)}, f(256, width), f(256, 256)


def shared_experts() -> Case:
    """The same experts twice, rows added where they came from: gradients over rows by group, summed and added up."""
    experts, width = 4, 32

    def mixture(p: Any, x: Any) -> Any:
        odds, order, sizes = routed(x, p["router"])
        hidden = jax.nn.silu(jax.lax.ragged_dot(x[order // 2], p["up"], sizes))
        rows = jax.lax.ragged_dot(hidden, p["down"], sizes)
        return jnp.zeros_like(x).at[order // 2].add(rows * odds.reshape(-1)[order][:, None])

    def loss(p: Any, x: Any, y: Any) -> Any:
        once = x + mixture(p, x)
        return ((once + mixture(p, once) - y) ** 2).mean()

    params = {"router": f(width, experts), "up": f(experts, width, 64), "down": f(experts, 64, width)}
    return jax.value_and_grad(loss), params, f(128, width), f(128, width)


def switched_flow() -> Case:
    """Steps of a differential equation: one of three fields by number, and a shorter step where it moved far."""

    def loss(p: Any, x: Any, which: Any, y: Any) -> Any:
        def field(time: Any, z: Any) -> Any:
            made = jax.lax.switch(which, [jnp.tanh, jax.nn.relu, jax.nn.gelu], z @ p["a"] + time * p["t"])
            return made @ p["b"]

        def step(z: Any, number: Any) -> tuple[Any, None]:
            time, size = number * 0.1, 0.1
            first = field(time, z)
            second = field(time + size / 2, z + size / 2 * first)
            new = z + size * second
            return jax.lax.cond(jnp.abs(new - z).max() > 10, lambda: (z + new) / 2, lambda: new), None

        z, _ = jax.lax.scan(step, x @ p["in"], jnp.arange(4.0))
        return ((z @ p["out"] - y) ** 2).mean()

    params = {"in": f(16, 32), "a": f(32, 64), "t": f(64), "b": f(64, 32), "out": f(32, 16)}
    return jax.value_and_grad(loss), params, f(16, 16), jax.ShapeDtypeStruct((), jnp.int32), f(16, 16)


def either_product() -> Case:
    """Branches that swap what they make: gradients of a branch's operands are sums that end outside it."""

    def loss(p: Any, x: Any) -> Any:
        h = x @ p["in"]
        pairs = h.T @ h
        first, second = jax.lax.cond(
            jnp.abs(h).max() > 1, lambda: (pairs @ p["a"], pairs), lambda: (pairs, pairs @ p["a"])
        )
        return (first @ second).mean()

    return jax.value_and_grad(loss), {"in": f(64, 128), "a": f(128, 128)}, f(128, 64)


def orthogonal(width: int = 128) -> Case:
    """A layer whose weight is the exponential of a skew matrix: branches by its norm, of which one is planned."""

    def loss(p: Any, x: Any) -> Any:
        turned = jnp.tanh(x @ p["in"]) @ jax.scipy.linalg.expm(p["a"] - p["a"].T)
        return ((turned @ p["out"]) ** 2).mean()

    params = {"in": f(64, width), "a": f(width, width), "out": f(width, 32)}
    return jax.value_and_grad(loss), params, f(128, 64)


def orthogonal_wide() -> Case:
    """So wide that rows split over some devices are then split over more, outer ones."""
    return orthogonal(256)


def denoiser() -> Case:
    """A U-Net whose skips are concatenated, with what time it is added to every block."""

    def normed(x: Any, gain: Any) -> Any:
        groups = x.reshape(x.shape[0], -1, 4, x.shape[-1] // 4)
        mean = groups.mean((1, 3), keepdims=True)
        return ((groups - mean) * jax.lax.rsqrt(groups.var((1, 3), keepdims=True) + 1e-5)).reshape(
            x.shape
        ) * gain

    def convolve(x: Any, w: Any, stride: int = 1) -> Any:
        dims = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=dims)

    def block(p: Any, x: Any, time: Any) -> Any:
        y = (
            convolve(jax.nn.silu(normed(x, p["first"])), p["a"])
            + (jax.nn.silu(time) @ p["time"])[:, None, None]
        )
        y = convolve(jax.nn.silu(normed(y, p["second"])), p["b"])
        return y + (x @ p["skip"] if "skip" in p else x)

    def loss(p: Any, x: Any, time: Any, noise: Any) -> Any:
        turn = time[:, None] * jnp.exp(-jnp.arange(16) / 2)
        time = jnp.concatenate([jnp.sin(turn), jnp.cos(turn)], -1) @ p["time"]
        wide = block(p["down"], convolve(x + noise, p["in"]), time)
        low = block(p["low"], convolve(wide, p["half"], 2), time)
        low = block(p["middle"], jnp.concatenate([block(p["low"], low, time), low], -1), time)
        x = convolve(jax.image.resize(low, wide.shape, "nearest"), p["double"])
        x = block(p["up"], jnp.concatenate([x, wide], -1), time)
        return ((convolve(x, p["out"]) - noise) ** 2).mean()

    def weights(given: int) -> Any:
        skip = {"skip": f(given, 32)} if given > 32 else {}
        square = {"b": f(3, 3, 32, 32), "second": f(32), "time": f(64, 32)}
        return {"a": f(3, 3, given, 32), "first": f(given), **square, **skip}

    params = {"time": f(32, 64), "in": f(3, 3, 4, 32), "half": f(3, 3, 32, 32), "out": f(3, 3, 32, 4)}
    params |= {"double": f(3, 3, 32, 32), "middle": weights(64)}
    params |= {"down": weights(32), "low": weights(32), "up": weights(64)}
    return jax.value_and_grad(loss), params, f(8, 8, 8, 4), f(8), f(8, 8, 8, 4)


def axial() -> Case:
    """Attention along the rows of images, then along their columns: three axes split batches in two dims, and a sum."""

    def attention(x: Any, p: Any) -> Any:
        queries, keys, values = (jnp.einsum("...nd,dhe->...hne", x, p[name]) for name in "qkv")
        odds = jax.nn.softmax(jnp.einsum("...hne,...hme->...hnm", queries, keys) / 4)
        return jnp.einsum("...hne,hed->...nd", jnp.einsum("...hnm,...hme->...hne", odds, values), p["o"])

    def loss(p: Any, x: Any, y: Any) -> Any:
        x = x + attention(x.swapaxes(1, 2), p["rows"]).swapaxes(1, 2)
        x = x + attention(x, p["columns"])
        return ((x @ p["out"] - y) ** 2).mean()

    heads = dict.fromkeys("qkv", f(64, 4, 16)) | {"o": f(4, 16, 64)}
    params = {"rows": heads, "columns": heads, "out": f(64, 32)}
    return jax.value_and_grad(loss), params, f(8, 16, 16, 64), f(8, 16, 16, 32)

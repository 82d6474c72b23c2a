"""Programs that ask before they go on, as `FILE.py:NAME`: (function, *arguments)."""

from typing import Any

import jax
import jax.numpy as jnp
from plain_programs import Case, f, i


def line_search() -> Case:
    """A step that is halved until it lowers the loss: the test of the loop is a whole forward pass."""

    def loss(p: Any, x: Any, y: Any) -> Any:
        return jnp.square(jnp.tanh(x @ p["up"]) @ p["down"] - y).mean()

    def step(p: Any, x: Any, y: Any) -> Any:
        value, slopes = jax.value_and_grad(loss)(p, x, y)
        steepness = sum(jnp.sum(slope**2) for slope in jax.tree.leaves(slopes))

        def moved(rate: Any) -> Any:
            return jax.tree.map(lambda weight, slope: weight - rate * slope, p, slopes)

        rate = jax.lax.while_loop(
            lambda rate: loss(moved(rate), x, y) > value - 1e-4 * rate * steepness,
            lambda rate: rate / 2,
            jnp.float32(1.0),
        )
        return value, moved(rate)

    return step, {"up": f(64, 256), "down": f(256, 64)}, f(512, 64), f(512, 64)


def curvature_now_and_then() -> Case:
    """A branch that computes again what is computed around it, before and after."""

    def step(p: Any, x: Any, y: Any, turn: Any) -> Any:
        hidden = jnp.tanh(x @ p["up"])
        loss = jnp.square(hidden @ p["down"] - y).mean()
        curvature = jax.lax.cond(
            turn % 10 == 0,
            lambda: (jnp.tanh(x @ p["up"]) ** 2).T @ jnp.exp(x @ p["side"]),
            lambda: jnp.zeros((256, 128)),
        )
        return loss, curvature, jnp.exp(x @ p["side"]).sum()

    params = {"up": f(64, 256), "down": f(256, 64), "side": f(64, 128)}
    return step, params, f(512, 64), f(512, 64), i()


def chosen_classes() -> Case:
    """Losses over the classes that a teacher finds likeliest, token by token."""

    def loss(p: Any, x: Any, teacher: Any) -> Any:
        odds, places = jax.lax.top_k(teacher, 8)
        logits = jnp.take_along_axis(jnp.einsum("btd,dv->btv", x, p["head"]), places, 2)
        return -(jax.nn.softmax(odds) * jax.nn.log_softmax(logits)).sum(-1).mean()

    return jax.value_and_grad(loss), {"head": f(64, 1024)}, f(16, 32, 64), f(16, 32, 1024)

"""Programs that ask before they go on, as `FILE.py:NAME`: (function, *arguments)."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec
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


def skipped_if_not_finite() -> Case:
    """A step that is taken if all numbers of all gradients are finite: to ask for that is a pass over them."""

    def loss(p: Any, x: Any, y: Any) -> Any:
        return jnp.square(jnp.tanh(x @ p["up"]) @ p["down"] - y).mean()

    def step(p: Any, x: Any, y: Any) -> Any:
        slopes = jax.grad(loss)(p, x, y)
        finite = jnp.stack([jnp.isfinite(slope).all() for slope in jax.tree.leaves(slopes)]).all()
        moved = lambda: jax.tree.map(lambda weight, slope: weight - 0.1 * slope, p, slopes)  # noqa: E731
        return jax.lax.cond(finite, moved, lambda: p)

    return step, {"up": f(64, 256), "down": f(256, 64)}, f(512, 64), f(512, 64)


def trust_region() -> Case:
    """A step by conjugate gradients: each pass of the solver is a derivative of a gradient over all that was seen."""

    def logits(p: Any, x: Any) -> Any:
        return jax.nn.log_softmax(jnp.tanh(x @ p["up"]) @ p["down"])

    def step(p: Any, x: Any, action: Any, gain: Any) -> Any:
        old = jax.lax.stop_gradient(logits(p, x))

        def loss(p: Any) -> Any:
            return -(jnp.take_along_axis(logits(p, x), action[:, None], 1)[:, 0] * gain).mean()

        def distance(p: Any) -> Any:
            return (jnp.exp(old) * (old - logits(p, x))).sum(-1).mean()

        def curvature(along: Any) -> Any:
            _, turned = jax.jvp(jax.grad(distance), (p,), (along,))
            return jax.tree.map(lambda a, b: a + 0.1 * b, turned, along)

        way, _ = jax.scipy.sparse.linalg.cg(curvature, jax.grad(loss)(p), maxiter=3)
        p, way = jax.lax.optimization_barrier((p, way))
        return jax.tree.map(lambda weight, move: weight - 0.1 * move, p, way)

    return step, {"up": f(32, 256), "down": f(256, 16)}, f(512, 32), i(512), f(512)


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


def whole(x: Any) -> Any:
    """Nothing is split along what is accumulated, so that it is brought to every device."""
    return jnp.cumsum(x.reshape(-1))


def added_again() -> Case:
    """A second run that begins with an addition of the first, of what a policy has kept."""

    def loss(bias: Any, weight: Any, x: Any) -> Any:
        policy = jax.checkpoint_policies.checkpoint_dots
        return (jax.checkpoint(lambda b: jnp.sin(whole(x @ weight + b)), policy=policy)(bias) ** 2).mean()

    return jax.value_and_grad(loss), f(64), f(512, 64), f(4096, 512)


def named_again() -> Case:
    """A second run that reads what a policy has kept as the first run does."""
    policy = jax.checkpoint_policies.save_only_these_names("hidden")

    def loss(weight: Any, x: Any) -> Any:
        def run(w: Any) -> Any:
            return jnp.sin(whole(checkpoint_name(jnp.sin(x @ w), "hidden")))

        return (jax.checkpoint(run, policy=policy)(weight) ** 2).mean()

    return jax.value_and_grad(loss), f(512, 64), f(4096, 512)


def whole_in_a_branch() -> Case:
    """A branch and what follows it read one value alike, each where it runs."""

    def step(weight: Any, x: Any, turn: Any) -> Any:
        hidden = jnp.sin(x @ weight)
        asked = jax.lax.cond(turn % 10 == 0, lambda h: 2 * whole(h), lambda h: jnp.zeros(h.size), hidden)
        return asked, whole(hidden)

    return step, f(512, 64), f(4096, 512), i()


def printed() -> Case:
    """A step whose number of layers is static, and which says where arrays lie, and shows some of them."""

    def loss(weights: Any, x: Any, layers: int) -> Any:
        for _ in range(layers):
            x = jax.lax.with_sharding_constraint(jnp.tanh(x @ weights[0]), PartitionSpec(("pod", "rows")))
        hidden = jnp.cumsum(x @ weights[1], 0)
        jax.debug.print("{} {}", jnp.abs(x).max(), hidden)
        return (hidden**2).mean()

    step = jax.jit(jax.value_and_grad(loss), static_argnames="layers")
    return step, [f(256, 256), f(256, 64)], f(512, 256), 3

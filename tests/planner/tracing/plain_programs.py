"""Programs unlike transformers, as `FILE.py:NAME`: (function, *arguments)."""

from typing import Any

import jax
import jax.numpy as jnp

Case = tuple[Any, ...]


def f(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def i(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def graph_attention() -> Case:
    """A softmax over the edges of each node, by segments."""
    nodes, edges = 64, 256

    def loss(p: Any, x: Any, source: Any, target: Any, y: Any) -> Any:
        h = (x @ p["w"]).reshape(nodes, 4, 16)
        score = jax.nn.leaky_relu((h * p["from"]).sum(-1)[source] + (h * p["to"]).sum(-1)[target])
        most = jax.ops.segment_max(score, target, num_segments=nodes)
        odds = jnp.exp(score - most[target])
        odds /= jax.ops.segment_sum(odds, target, num_segments=nodes)[target] + 1e-6
        made = jax.ops.segment_sum(odds[..., None] * h[source], target, num_segments=nodes)
        logs = jax.nn.log_softmax(made.reshape(nodes, -1) @ p["out"])
        return -jnp.take_along_axis(logs, y[:, None], 1).mean()

    params = {"w": f(32, 64), "from": f(4, 16), "to": f(4, 16), "out": f(64, 16)}
    return jax.value_and_grad(loss), params, f(nodes, 32), i(edges), i(edges), i(nodes)


def state_space() -> Case:
    """Mamba 2's scan in chunks: products within each, states from one to the next."""
    heads, states, chunk = 4, 8, 4

    def loss(p: Any, x: Any, y: Any) -> Any:
        b, length, _ = x.shape
        u = (x @ p["u"]).reshape(b, length // chunk, chunk, heads, 8)
        into, out = ((x @ p[n]).reshape(b, length // chunk, chunk, states) for n in ("into", "out"))
        decay = jnp.cumsum(-jax.nn.softplus(x @ p["decay"]).reshape(b, length // chunk, chunk, heads), 2)
        lower = jnp.tril(jnp.ones((chunk, chunk), bool))[:, :, None]
        within = jnp.exp(jnp.where(lower, decay[:, :, :, None] - decay[:, :, None], -1e9))
        near = jnp.einsum("bcln,bcsn,bclsh,bcshp->bclhp", out, into, within, u)
        left = jnp.einsum("bcsn,bcsh,bcshp->bchpn", into, jnp.exp(decay[:, :, -1:] - decay), u)

        def step(state: Any, given: Any) -> tuple[Any, Any]:
            made, by = given
            return state * jnp.exp(by)[..., None, None] + made, state

        rows = left.swapaxes(0, 1), decay[:, :, -1].swapaxes(0, 1)
        _, before = jax.lax.scan(step, jnp.zeros((b, heads, 8, states)), rows)
        far = jnp.einsum("bcln,cbhpn,bclh->bclhp", out, before, jnp.exp(decay))
        return (((near + far).reshape(b, length, -1) @ p["back"] - y) ** 2).mean()

    params = {"u": f(32, 32), "into": f(32, 8), "out": f(32, 8), "decay": f(32, 4), "back": f(32, 32)}
    return jax.value_and_grad(loss), params, f(8, 16, 32), f(8, 16, 32)


def group_norms() -> Case:
    """Convolutions between norms over groups of channels, which see an image in two shapes."""

    def normed(x: Any, gain: Any) -> Any:
        groups = x.reshape(*x.shape[:-1], 4, -1)
        mean = groups.mean((1, 2, 4))
        spread = jnp.square(groups).mean((1, 2, 4)) - jnp.square(mean)
        mean, scale = (
            jnp.repeat(a, x.shape[-1] // 4, 1)[:, None, None] for a in (mean, jax.lax.rsqrt(spread + 1e-5))
        )
        return (x - mean) * scale * gain

    def convolve(x: Any, w: Any) -> Any:
        return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def loss(p: Any, x: Any, y: Any) -> Any:
        x = convolve(x, p["in"])
        for q in p["blocks"]:
            x = x + convolve(jax.nn.silu(normed(x, q["gain"])), q["w"])
        return ((convolve(x, p["out"]) - y) ** 2).mean()

    block = {"gain": f(16), "w": f(3, 3, 16, 16)}
    params = {"in": f(3, 3, 3, 16), "blocks": [block] * 2, "out": f(3, 3, 16, 3)}
    return jax.value_and_grad(loss), params, f(8, 16, 16, 3), f(8, 16, 16, 3)


def second_order() -> Case:
    """Shampoo: inverse roots of what gradients add up to, by their eigenvectors."""

    def loss(p: Any, x: Any, y: Any) -> Any:
        return ((jnp.tanh(x @ p["a"]) @ p["b"] - y) ** 2).mean()

    def root(matrix: Any) -> Any:
        values, vectors = jnp.linalg.eigh(matrix + 1e-2 * jnp.eye(len(matrix)))
        return (vectors * jnp.maximum(values, 1e-3) ** -0.25) @ vectors.T

    def step(p: Any, state: Any, x: Any, y: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(p, x, y)
        added = {
            n: {"l": s["l"] + g @ g.T, "r": s["r"] + g.T @ g} for n, s in state.items() for g in [gradient[n]]
        }
        new = {n: p[n] - 0.1 * root(s["l"]) @ gradient[n] @ root(s["r"]) for n, s in added.items()}
        return new, added, value

    params = {"a": f(32, 64), "b": f(64, 32)}
    # States that begin as the identity: random ones are no sums of squares, and have roots of what is negative.
    start = {n: {"l": jnp.eye(w.shape[0]), "r": jnp.eye(w.shape[1])} for n, w in params.items()}
    return step, params, start, f(16, 32), f(16, 32)


def actor_critic() -> Case:
    """Values are computed once for the advantages, and once more in the loss: equal, and one operator of a plan."""

    def net(p: Any, x: Any) -> tuple[Any, Any]:
        h = jnp.tanh(jnp.tanh(x @ p["a"]) @ p["b"])
        return h @ p["policy"], (h @ p["value"])[..., 0]

    def step(p: Any, seen: Any, action: Any, reward: Any, old: Any) -> Any:
        _, value = net(p, seen)

        def back(later: Any, now: Any) -> tuple[Any, Any]:
            gain, has, comes = now
            later = gain + 0.99 * comes - has + 0.94 * later
            return later, later

        comes = jnp.concatenate([value[1:], value[-1:]])
        _, advantage = jax.lax.scan(back, jnp.zeros(value.shape[1]), (reward, value, comes), reverse=True)
        advantage = jax.lax.stop_gradient(advantage)
        target = jax.lax.stop_gradient(advantage + value)

        def loss(p: Any) -> Any:
            logits, value = net(p, seen)
            logs = jnp.take_along_axis(jax.nn.log_softmax(logits), action[..., None], -1)[..., 0]
            return ((value - target) ** 2 - jnp.exp(jnp.clip(logs - old, -5, 5)) * advantage).mean()

        value, gradient = jax.value_and_grad(loss)(p)
        return jax.tree.map(lambda w, g: w - 0.01 * g, p, gradient), value

    params = {"a": f(32, 64), "b": f(64, 64), "policy": f(64, 8), "value": f(64, 1)}
    return step, params, f(16, 8, 32), i(16, 8), f(16, 8), f(16, 8)


def gated_recurrence() -> Case:
    """A GRU: its derivative wants 1 - z, which the forward pass has computed."""

    def loss(p: Any, x: Any, y: Any) -> Any:
        def cell(h: Any, row: Any) -> tuple[Any, Any]:
            gate = {n: row @ p[f"i{n}"] for n in "rzn"}
            own = {n: h @ p[f"h{n}"] for n in "rzn"}
            r, z = (jax.nn.sigmoid(gate[n] + own[n] + p["bias"]) for n in "rz")
            h = (1 - z) * jnp.tanh(gate["n"] + r * own["n"]) + z * h
            return h, h

        _, rows = jax.lax.scan(cell, jnp.zeros((x.shape[1], 64)), x)
        return ((rows @ p["out"] - y) ** 2).mean()

    params = {f"{side}{n}": f(64, 64) for side in "ih" for n in "rzn"} | {"bias": f(64), "out": f(64, 64)}
    return jax.value_and_grad(loss), params, f(16, 8, 64), f(16, 8, 64)


def accumulated() -> Case:
    """Gradients of one micro-batch after another: a loop that has all weights from outside."""

    def loss(p: Any, x: Any, y: Any) -> Any:
        heads = {n: jnp.einsum("btd,dhk->bthk", x, p[n]) for n in "qkv"}
        x = x + jnp.einsum("bthk,hkd->btd", jax.nn.dot_product_attention(*heads.values()), p["o"])
        return ((x + jax.nn.gelu(x @ p["up"]) @ p["down"] - y) ** 2).mean()

    def step(p: Any, x: Any, y: Any) -> Any:
        def micro(total: Any, rows: Any) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, total, jax.value_and_grad(loss)(p, *rows)), None

        start = jnp.zeros(()), jax.tree.map(jnp.zeros_like, p)
        (value, gradient), _ = jax.lax.scan(micro, start, (x, y))
        return value / 4, jax.tree.map(lambda w, g: w - 0.1 * g / 4, p, gradient)

    params = {n: f(32, 4, 8) for n in "qkv"} | {"o": f(4, 8, 32), "up": f(32, 64), "down": f(64, 32)}
    return step, params, f(4, 8, 16, 32), f(4, 8, 16, 32)


def scanned_residuals() -> Case:
    """Layers in a loop, whose last state a split product reads."""

    def loss(p: Any, x: Any, y: Any) -> Any:
        def layer(x: Any, w: Any) -> tuple[Any, None]:
            normed = (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-6)
            return x + jax.nn.gelu(normed @ w["up"]) @ w["down"], None

        x, _ = jax.lax.scan(layer, x @ p["in"], p["layers"])
        return ((x @ p["out"] - y) ** 2).mean()

    layers = {"up": f(2, 32, 128), "down": f(2, 128, 32)}
    params = {"in": f(16, 32), "layers": layers, "out": f(32, 16)}
    return jax.value_and_grad(loss), params, f(8, 16, 16), f(8, 16, 16)


def turning_states() -> Case:
    """A recurrence of complex numbers as a tree, and steps of a differential equation at known times."""

    def loss(p: Any, x: Any, y: Any) -> Any:
        turn = jnp.exp(-jnp.exp(p["fade"]) + 1j * jnp.exp(p["turn"]))
        made = x.astype(jnp.complex64) @ (p["into"] + 1j * p["turned"])
        into = jnp.broadcast_to(turn, made.shape), made
        _, states = jax.lax.associative_scan(lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1]), into, axis=1)
        x = (states @ (p["out"] + 0j)).real

        @jax.checkpoint
        def step(x: Any, time: Any) -> tuple[Any, None]:
            return x + 0.1 * jnp.tanh(x @ p["rate"] + time) @ p["back"], None

        x, _ = jax.lax.scan(step, x, jnp.arange(3) * 0.1)
        return ((x - y) ** 2).mean()

    params = {"fade": f(64), "turn": f(64), "into": f(32, 64), "turned": f(32, 64), "out": f(64, 32)}
    params |= {"rate": f(32, 128), "back": f(128, 32)}
    return jax.value_and_grad(loss), params, f(8, 16, 32), f(8, 16, 32)


def laplacian() -> Case:
    """Second derivatives along three directions, which have much in common that begins with a constant."""

    def loss(p: Any, x: Any, y: Any) -> Any:
        def value(x: Any) -> Any:
            return (jnp.tanh(jnp.tanh(x @ p["in"]) @ p["w"]) @ p["out"])[0]

        def each(x: Any) -> Any:
            along = jnp.eye(3)
            return sum(jax.jvp(jax.grad(value), (x,), (along[i],))[1][i] for i in range(3))

        return ((jax.vmap(each)(x) - y) ** 2).mean()

    return jax.value_and_grad(loss), {"in": f(3, 64), "w": f(64, 64), "out": f(64, 1)}, f(64, 3), f(64)


def video() -> Case:
    """Convolutions over time, whose gradient with respect to the last one's output is the same all over."""

    def convolve(x: Any, w: Any) -> Any:
        return jax.lax.conv_general_dilated(
            x, w, (1, 1, 1), "SAME", dimension_numbers=("NDHWC", "DHWIO", "NDHWC")
        )

    def loss(p: Any, x: Any, y: Any) -> Any:
        x = jax.nn.relu(convolve(x, p["space"]))
        return (((x + convolve(x, p["time"])).mean((1, 2, 3)) @ p["out"] - y) ** 2).mean()

    params = {"space": f(1, 3, 3, 4, 32), "time": f(3, 1, 1, 32, 32), "out": f(32, 16)}
    return jax.value_and_grad(loss), params, f(8, 4, 8, 8, 4), f(8, 16)


def number_in_branch() -> Case:
    """A number that is written in the program goes into a branch."""

    def loss(p: Any, x: Any, which: Any, y: Any) -> Any:
        def one(scale: Any, x: Any) -> Any:
            return jnp.tanh(x @ p["a"] * scale) @ p["b"]

        def other(scale: Any, x: Any) -> Any:
            return jax.nn.relu(x @ p["a"] + scale)

        return ((jax.lax.cond(which > 0, one, other, jnp.float32(0.5), x) - y) ** 2).mean()

    return jax.value_and_grad(loss), {"a": f(64, 64), "b": f(64, 64)}, f(128, 64), i(), f(128, 64)


def constants_beside() -> Case:
    """A step that returns an array of zeros, as Adafactor does for states that it does without."""

    def step(weights: Any, x: Any) -> Any:
        loss, gradient = jax.value_and_grad(lambda w: jnp.tanh(x @ w).mean())(weights)
        return weights - 0.1 * gradient, jnp.zeros((1,)), loss

    return step, f(256, 256), f(64, 256)


def settling() -> Case:
    """A layer whose result is where a loop settles, with the gradient of that: two loops that end on conditions."""

    def layer(p: Any, z: Any, x: Any) -> Any:
        return jnp.tanh(z @ p["w"] * 0.3 + x @ p["u"])

    def settled(function: Any, start: Any) -> Any:
        def again(state: Any) -> Any:
            before, _, number = state
            made = function(before)
            return made, jnp.abs(made - before).max(), number + 1

        return jax.lax.while_loop(
            lambda state: (state[1] > 1e-4) & (state[2] < 8), again, (start, jnp.inf, 0)
        )[0]

    @jax.custom_vjp
    def model(p: Any, x: Any) -> Any:
        return settled(lambda z: layer(p, z, x), jnp.zeros((x.shape[0], 64)))

    def forward(p: Any, x: Any) -> Any:
        made = model(p, x)
        return made, (p, x, made)

    def backward(kept: Any, given: Any) -> Any:
        p, x, made = kept
        _, of_state = jax.vjp(lambda z: layer(p, z, x), made)
        sums = settled(lambda w: of_state(w)[0] + given, given)
        return jax.vjp(lambda p, x: layer(p, made, x), p, x)[1](sums)

    model.defvjp(forward, backward)

    def loss(p: Any, x: Any, y: Any) -> Any:
        return ((model(p, x) @ p["o"] - y) ** 2).mean()

    return jax.value_and_grad(loss), {"w": f(64, 64), "u": f(32, 64), "o": f(64, 16)}, f(128, 32), f(128, 16)


def cast_where_read() -> Case:
    """A product in 16 bits that each reader wants whole in 32."""

    def step(weight: Any, x: Any) -> Any:
        wide = (x @ weight).astype(jnp.float32)
        return [jnp.cumsum(a.reshape(-1)) for a in (wide, wide * wide, jnp.sin(wide))]

    return step, *(jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((512, 64), (4096, 512)))


def _stack(weight: Any, x: Any) -> Any:
    return jax.lax.scan(lambda c, i: (c, jnp.tanh(weight @ (x * i))), 0, jnp.arange(4.0))[1]


def stacked() -> Case:
    """What a loop collects, under one dim with the next, of which a part is split."""

    def step(weight: Any, x: Any) -> Any:
        rows = _stack(weight, x).reshape(-1, 64)
        return jnp.cumsum(jnp.cumsum(rows**2, 0), 1), rows / 2

    return step, f(256, 512), f(512, 64)


def reduced_over_two() -> Case:
    """A sum over rows and columns, which axes split both."""
    return lambda x: jnp.sin(jnp.cumsum(x, 2)).sum(), f(2, 4, 200_000)


def stacked_and_parted() -> Case:
    """The same, turned and parted again: the dims in between cannot say what is split."""

    def step(weight: Any, x: Any) -> Any:
        parted = _stack(weight, x).reshape(-1, 64).T.reshape(64, 4, 256)
        return jnp.cumsum(jnp.cumsum(parted**2, 0), 1), parted / 2, (_stack(weight, x) ** 2).sum()

    return step, f(256, 512), f(512, 64)

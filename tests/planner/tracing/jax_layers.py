"""What the models of the tests are made of: shapes, norms, attention, losses."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Shaped = jax.ShapeDtypeStruct


class Case(NamedTuple):
    """A loss of (parameters, *data), and how people shard it by hand on axes ``data`` and ``model``."""

    loss: Callable[..., Any]
    parameters: Any
    data: tuple[Any, ...]
    by_hand: Mapping[str, tuple[Any, ...]]
    trains: bool = False
    """Whether a step updates the parameters, by Adam."""

    @property
    def step(self) -> Callable[..., Any]:
        """Loss and gradients, or loss and what is new."""
        return self.update if self.trains else jax.value_and_grad(self.loss)

    def update(self, parameters: Any, moments: Any, *data: Any) -> Any:
        """One step of Adam, without bias correction."""
        loss, gradients = jax.value_and_grad(self.loss)(parameters, *data)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments["first"], gradients)
        second = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, moments["second"], gradients)
        new = jax.tree.map(
            lambda p, m, v: p - 0.01 * m / (jnp.sqrt(jnp.abs(v)) + 1e-3), parameters, first, second
        )
        return loss, new, {"first": first, "second": second}

    @property
    def arguments(self) -> tuple[Any, ...]:
        states = ({"first": self.parameters, "second": self.parameters},) if self.trains else ()
        return (self.parameters, *states, *self.data)

    def arrays(self, seed: int = 0) -> tuple[Any, ...]:
        """Numbers for the arguments; every index is 0 or 1, which all tables have."""
        rng = np.random.default_rng(seed)

        def numbers(leaf: Any) -> Any:
            if leaf.dtype == np.int32:
                return rng.integers(0, 2, leaf.shape).astype(np.int32)
            return rng.normal(scale=0.3, size=leaf.shape).astype(np.float32).astype(leaf.dtype)

        return jax.tree.map(numbers, self.arguments)


class Sizes(NamedTuple):
    """Of a transformer, or what is like one."""

    layers: int = 2
    width: int = 32
    heads: int = 4
    kv_heads: int = 4
    ffn: int = 64
    vocab: int = 64
    batch: int = 8
    length: int = 16
    dtype: Any = jnp.float32


SMALL, GROUPED = Sizes(), Sizes(kv_heads=2)


def f(size: Sizes, *shape: int) -> Any:
    return Shaped(shape, size.dtype)


def indices(*shape: int) -> Any:
    return Shaped(shape, jnp.int32)


def stacked(layers: int, tree: Any) -> Any:
    return jax.tree.map(lambda leaf: Shaped((layers, *leaf.shape), leaf.dtype), tree)


def norm(x: Any, gain: Any) -> Any:
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-5) * gain).astype(x.dtype)


def layer_norm(x: Any, gain: Any) -> Any:
    wide = x.astype(jnp.float32)
    wide = wide - wide.mean(-1, keepdims=True)
    return (wide * jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-5) * gain).astype(x.dtype)


def attend(q: Any, k: Any, v: Any, causal: bool) -> Any:
    """[batch, length, heads, size] each; fewer key heads are shared."""
    b, s, h, d = q.shape
    groups = h // k.shape[2]
    q = q.reshape(b, s, k.shape[2], groups, d)
    scores = jnp.einsum("bqkgd,bskd->bkgqs", q, k).astype(jnp.float32) / np.sqrt(d)
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones((s, s), bool)), scores, -1e9)
    weights = jax.nn.softmax(scores).astype(v.dtype)
    return jnp.einsum("bkgqs,bskd->bqkgd", weights, v).reshape(b, s, h * d)


def attention_weights(size: Sizes) -> Any:
    d = size.width // size.heads
    return {
        "q": f(size, size.width, size.width),
        "k": f(size, size.width, size.kv_heads * d),
        "v": f(size, size.width, size.kv_heads * d),
        "o": f(size, size.width, size.width),
        "norm": f(size, size.width),
    }


def attention(
    p: Any, x: Any, size: Sizes, *, causal: bool = True, memory: Any = None, rotary: bool = False
) -> Any:
    b, s, _ = x.shape
    y = norm(x, p["norm"])
    source = y if memory is None else memory
    q, k, v = (
        (a @ p[n]).reshape(b, s, -1, size.width // size.heads)
        for n, a in (("q", y), ("k", source), ("v", source))
    )
    if rotary:
        q, k = rotate(q), rotate(k)
    return x + attend(q, k, v, causal) @ p["o"]


def rotate(x: Any) -> Any:
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[1])[:, None] * (10000.0 ** (-jnp.arange(half) / half))
    cos, sin = jnp.cos(angles)[:, None, :].astype(x.dtype), jnp.sin(angles)[:, None, :].astype(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def mlp_weights(size: Sizes, gated: bool = False) -> Any:
    gate = {"gate": f(size, size.width, size.ffn)} if gated else {}
    return {
        "up": f(size, size.width, size.ffn),
        "down": f(size, size.ffn, size.width),
        "norm": f(size, size.width),
        **gate,
    }


def mlp_block(p: Any, x: Any) -> Any:
    y = norm(x, p["norm"])
    up = y @ p["up"]
    return x + (jax.nn.silu(y @ p["gate"]) * up if "gate" in p else jax.nn.gelu(up)) @ p["down"]


def block(size: Sizes) -> Case:
    """A transformer block by itself: attention with rotary positions, a gated MLP, and a sum of squares for a loss."""

    def loss(parameters: Any, x: Any) -> Any:
        y = attention(parameters["attention"], x, size, rotary=True)
        return (mlp_block(parameters["mlp"], y) ** 2).sum()

    weights = {"attention": attention_weights(size), "mlp": mlp_weights(size, gated=True)}
    return Case(loss, weights, (f(size, size.batch, size.length, size.width),), {})


def cross_entropy(logits: Any, labels: Any) -> Any:
    logs = jax.nn.log_softmax(logits.astype(jnp.float32))
    return -jnp.take_along_axis(logs, labels[..., None], -1).mean()


MEGATRON = {
    r"\.(q|k|v|up|gate)$": (None, None, "model"),
    r"\.(o|down)$": (None, "model", None),
    "embed": ("model", None),
    "^(tokens|labels|images|source|numbers|picks)": ("data",),
}

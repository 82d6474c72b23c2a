"""The models of these tests as ``FILE.py:NAME``: a step, and the shapes of its arguments."""

from typing import Any

import jax
import jax_layers
import jax_models

from planner import join_attention


def _example(name: str, kv_heads: int = 4, trains: bool = False, **sizes: int) -> tuple[Any, ...]:
    case = jax_models.MODELS[name](jax_layers.Sizes(layers=1, kv_heads=kv_heads, **sizes))
    case = case._replace(trains=trains)
    return (case.step, *case.arguments)


def _joined(name: str, **sizes: int) -> tuple[Any, ...]:
    """With attentions as one operator each."""
    case = jax_models.MODELS[name](jax_layers.Sizes(layers=1, **sizes))
    return (jax.value_and_grad(join_attention(case.loss)), *case.arguments)


_long = jax_models.gpt(jax_layers.Sizes(batch=1, heads=2, kv_heads=2, width=64, length=512))
mlp = _example("mlp")
wide_mlp = _example("mlp", width=64)
mlp_with_adam = _example("mlp", trains=True)
gpt = _example("gpt")
llama = _example("llama", kv_heads=2)
mixtral = _example("mixtral", kv_heads=2)
t5 = _example("t5")
vit = _example("vit")
resnet = _example("resnet")
unet = _example("unet")
dlrm = _example("dlrm")
wide_gpt = _example("gpt", kv_heads=8, heads=8, width=64, ffn=256, batch=16)
wide_llama = _example("llama", heads=8, kv_heads=8, width=64, ffn=256, batch=16)
joined_heads = _joined("gpt", batch=1, heads=8, kv_heads=8, width=64, length=128)
joined_batch = _joined("llama", batch=16, heads=2, kv_heads=1, length=64)
joined_rows = _joined("vit", batch=1, heads=1, kv_heads=1, length=1024)
ring_gpt = (jax.value_and_grad(join_attention(_long.loss)), *_long.arguments)
gpt_loss = (jax_models.gpt().loss, *jax_models.gpt().arguments)


def half_mlp() -> tuple[Any, ...]:
    """The same arguments, another function."""
    step, *arguments = mlp
    return (lambda *given: (step(*given)[0] / 2, step(*given)[1]), *arguments)


def module() -> tuple[Any, ...]:
    """What has parameters as modules of PyTorch have."""

    def loss(x: Any) -> Any:
        return x.sum()

    loss.named_parameters = dict  # type: ignore[attr-defined]
    return loss, 1.0


def iterating() -> tuple[Any, ...]:
    """A product again and again, at least three times, until its result is small."""
    array = jax.ShapeDtypeStruct((64, 64), "float32")

    def function(w: Any, x: Any) -> Any:
        state = jax.lax.while_loop(
            lambda s: (s[0] < 3) | (s[1].max() > 1),
            lambda s: (s[0] + 1, jax.numpy.tanh(x @ w + s[1])),
            (0, x),
        )
        return (state[1] ** 2).mean()

    return (function, array, array)


def branching() -> tuple[Any, ...]:
    """A step that is only sometimes taken."""
    step, params, *data = mlp

    def every(params: Any, state: Any, *data: Any) -> Any:
        loss, gradients = step(params, *data)

        def update(params: Any) -> Any:
            return jax.tree.map(lambda p, g, s: p - 0.1 * g * s, params, gradients, state)

        return loss, jax.lax.cond(loss > 0, update, lambda params: params, params)

    return (every, params, params, *data)


def mixed_gpt() -> tuple[Any, ...]:
    """Weights in fp32, cast where they are used: they are gathered in bf16."""
    case = jax_models.gpt(jax_layers.Sizes(layers=1))

    def loss(params: Any, *data: Any) -> Any:
        return case.loss(jax.tree.map(lambda w: w.astype("bfloat16"), params), *data)

    return (jax.value_and_grad(loss), *case.arguments)


def blocks() -> tuple[Any, ...]:
    """Two transformer blocks out of line, whose backward pass can recompute what the forward pass made."""
    size = jax_layers.Sizes(layers=2, batch=16, length=32)

    def loss(layers: Any, x: Any, y: Any) -> Any:
        for layer in layers:
            x = jax_layers.mlp_block(layer["mlp"], jax_layers.attention(layer["attention"], x, size))
        return ((x - y) ** 2).mean()

    layer = {
        "attention": jax_layers.attention_weights(size),
        "mlp": jax_layers.mlp_weights(size, gated=True),
    }
    data = jax_layers.f(size, size.batch, size.length, size.width)
    case = jax_layers.Case(loss, [layer] * size.layers, (data, data), {})
    return (case.step, *case.arguments)


def ring() -> tuple[Any, ...]:
    """One long sequence through attention: two query heads to a key head, a causal mask."""
    length, shape = 512, jax.ShapeDtypeStruct

    def loss(q: Any, k: Any, v: Any, y: Any) -> Any:
        found = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        return ((found - y) ** 2).mean()

    queries, keys = shape((2, length, 4, 16), "float32"), shape((2, length, 2, 16), "float32")
    return (jax.value_and_grad(join_attention(loss), (0, 1, 2)), queries, keys, keys, queries)


_deep = jax_models.gpt(jax_layers.Sizes(layers=6, batch=16, length=32))
scanned_gpt = (jax.value_and_grad(join_attention(_deep.loss)), *_deep.arguments)


def deep_mlp() -> tuple[Any, ...]:
    """Layers in a scan whose weights together are larger than what a layer makes."""

    def loss(p: Any, x: Any, y: Any) -> Any:
        def layer(x: Any, w: Any) -> tuple[Any, None]:
            return x + jax.nn.gelu(x @ w["up"]) @ w["down"], None

        return ((jax.lax.scan(layer, x, p)[0] - y) ** 2).mean()

    f = jax.ShapeDtypeStruct
    params = {"up": f((8, 64, 256), "float32"), "down": f((8, 256, 64), "float32")}
    return (jax.value_and_grad(loss), params, f((512, 64), "float32"), f((512, 64), "float32"))


def scanned_norms() -> tuple[Any, ...]:
    """Layers in a scan as flax has them: norms by differences from a mean, and biases.

    The forward pass hands on neither the state of the loop nor a bias, from which a layer could be made again.
    """
    width, hidden, layers = 32, 128, 6

    def dense(x: Any, w: Any) -> Any:
        return x @ w["kernel"] + w["bias"]

    def loss(p: Any, x: Any, y: Any) -> Any:
        def layer(x: Any, w: Any) -> tuple[Any, None]:
            spread = jax.numpy.square(x).mean(-1, keepdims=True) - x.mean(-1, keepdims=True) ** 2
            normed = (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(spread + 1e-6) * w["scale"]
            return x + dense(jax.nn.gelu(dense(normed, w["up"])), w["down"]), None

        return ((jax.lax.scan(layer, x, p)[0] - y) ** 2).mean()

    def f(*shape: int) -> Any:
        return jax.ShapeDtypeStruct((layers, *shape), "float32")

    params = {
        "scale": f(width),
        "up": {"kernel": f(width, hidden), "bias": f(hidden)},
        "down": {"kernel": f(hidden, width), "bias": f(width)},
    }
    data = jax.ShapeDtypeStruct((16, 32, width), "float32")
    return (jax.value_and_grad(loss), params, data, data)

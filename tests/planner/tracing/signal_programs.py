"""Programs on signals, tables and points, as `FILE.py:NAME`: (function, *arguments)."""

from typing import Any

import jax
import jax.numpy as jnp
from plain_programs import Case, f


def normed(x: Any) -> Any:
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-6)


def mixed_by_fourier() -> Case:
    """FNet: what attention would do is a Fourier transform of positions and features (arXiv:2105.03824)."""

    def loss(p: Any, x: Any, y: Any) -> Any:
        for q in p["layers"]:
            x = normed(x + jnp.fft.fft2(x).real)
            x = normed(x + jax.nn.gelu(x @ q["up"]) @ q["down"])
        return ((x @ p["out"] - y) ** 2).mean()

    layers = [{"up": f(32, 128), "down": f(128, 32)} for _ in range(2)]
    return jax.value_and_grad(loss), {"layers": layers, "out": f(32, 16)}, f(64, 16, 32), f(64, 16, 16)


def speech() -> Case:
    """wav2vec 2.0: positions by a convolution in groups of channels (arXiv:2006.11477)."""

    def convolve(x: Any, w: Any, stride: int, groups: int = 1) -> Any:
        numbers = ("NWC", "WIO", "NWC")
        return jax.lax.conv_general_dilated(
            x, w, (stride,), "SAME", dimension_numbers=numbers, feature_group_count=groups
        )

    def loss(p: Any, wave: Any, y: Any) -> Any:
        x = jax.nn.gelu(convolve(wave[..., None], p["frames"], 4))
        x = x + jax.nn.gelu(convolve(x, p["positions"], 1, 4))
        return ((normed(x + jax.nn.gelu(x @ p["up"]) @ p["down"]) @ p["out"] - y) ** 2).mean()

    params = {"frames": f(8, 1, 32), "positions": f(8, 8, 32), "up": f(32, 128), "down": f(128, 32)}
    return jax.value_and_grad(loss), params | {"out": f(32, 16)}, f(64, 128), f(64, 32, 16)


def columns() -> Case:
    """TabTransformer: attention among a row's categories, whose gradients end in a dim that is split already."""

    def loss(p: Any, x: Any, y: Any) -> Any:
        for q in p["layers"]:
            query, key, value = jnp.einsum("bsd,dkhe->kbshe", normed(x), q["heads"])
            odds = jax.nn.softmax(jnp.einsum("bshe,bthe->bhst", query, key))
            x = x + jnp.einsum("bhst,bthe,hed->bsd", odds, value, q["back"])
            x = x + jax.nn.gelu(normed(x) @ q["up"]) @ q["down"]
        return ((x.reshape(x.shape[0], -1) @ p["out"] - y) ** 2).mean()

    layer = {"heads": f(32, 3, 4, 8), "back": f(4, 8, 32), "up": f(32, 128), "down": f(128, 32)}
    return jax.value_and_grad(loss), {"layers": [layer] * 2, "out": f(512, 8)}, f(64, 16, 32), f(64, 8)


def rotations() -> Case:
    """Layers that turn what they are given, by exponentials of skew matrices: all devices solve the same equations."""

    def loss(p: Any, x: Any, y: Any) -> Any:
        turns = jax.vmap(jax.scipy.linalg.expm)(p["skew"] - p["skew"].mT)
        for turn in turns:
            x = jax.nn.gelu(x @ turn)
        return ((x @ p["out"] - y) ** 2).mean()

    return jax.value_and_grad(loss), {"skew": f(8, 64, 64), "out": f(64, 16)}, f(4096, 64), f(4096, 16)


def framed() -> Case:
    """Sound of one channel under a convolution whose windows just fit, as wav2vec 2.0 begins: no axis splits it."""

    def loss(p: Any, wave: Any, y: Any) -> Any:
        windows = jax.lax.conv_general_dilated(
            wave[..., None], p["first"], (4,), "VALID", dimension_numbers=("NWC", "WIO", "NWC")
        )
        return ((jax.nn.gelu(normed(windows)) @ p["out"] - y) ** 2).mean()

    params = {"first": f(8, 1, 16), "out": f(16, 16)}
    return jax.value_and_grad(loss), params, f(3, 256), f(3, 63, 16)


def filter_of_positions() -> Case:
    """A long filter that a small network makes of positions, which are numbers of the function alone."""

    def loss(p: Any, x: Any) -> Any:
        time = jnp.linspace(0, 1, 128)[:, None]
        positions = jnp.concatenate([time, jnp.sin(time * jnp.arange(1, 8))], -1)
        kernel = jnp.sin(p["rate"] * (positions @ p["in"])) @ p["out"]
        return jnp.square(x * kernel).mean()

    params = {"in": f(8, 32), "out": f(32, 64), "rate": f(32)}
    return jax.value_and_grad(loss), params, f(16, 128, 64)


def volume() -> Case:
    """Convolutions of one image of three dims, of which two lie in parts: borders have corners."""
    dims = ("NDHWC", "DHWIO", "NDHWC")

    def loss(p: Any, x: Any) -> Any:
        for window in p:
            x = jnp.tanh(jax.lax.conv_general_dilated(x, window, (1, 1, 1), "SAME", dimension_numbers=dims))
        return (x**2).mean()

    return jax.value_and_grad(loss), [f(3, 3, 3, 4, 5), f(3, 3, 3, 5, 5)], f(1, 8, 8, 8, 4)


def large_image() -> Case:
    """One image, in parts along the only dim that divides, by two, and along the channels that are made."""

    def made(w: Any, x: Any) -> Any:
        dims = ("NHWC", "HWIO", "NHWC")
        return jax.nn.relu(jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=dims))

    return made, f(5, 5, 3, 64), f(1, 142, 113, 3)


def spread_image() -> Case:
    """As a decoder's last layer: zeros between what it reads, as in the gradient of a convolution with a stride."""

    def made(w: Any, x: Any) -> Any:
        return jnp.tanh(jax.lax.conv_transpose(x, w, (2, 2), "SAME"))

    return made, f(4, 4, 31, 31), f(1, 64, 64, 31)

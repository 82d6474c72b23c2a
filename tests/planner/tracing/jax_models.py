"""Nine small models in plain JAX, each as a loss with its parameters and data as shapes."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax_layers import (
    GROUPED,
    MEGATRON,
    SMALL,
    Case,
    Sizes,
    attention,
    attention_weights,
    cross_entropy,
    f,
    indices,
    layer_norm,
    mlp_block,
    mlp_weights,
    norm,
    stacked,
)


def mlp(size: Sizes = SMALL) -> Case:
    def loss(params: Any, images: Any, labels: Any) -> Any:
        x = images
        for p in params["layers"]:
            x = jax.nn.relu(x @ p["up"] + p["bias"]) @ p["down"]
        return cross_entropy(x @ params["head"], labels)

    layer = {
        "up": f(size, size.width, size.ffn),
        "bias": f(size, size.ffn),
        "down": f(size, size.ffn, size.width),
    }
    params = {"layers": [layer] * size.layers, "head": f(size, size.width, size.vocab)}
    by_hand = {
        r"\.up$": (None, "model"),
        r"\.bias$": ("model",),
        r"\.down$": ("model",),
        "^(images|labels)": ("data",),
    }
    batch = size.batch * size.length
    return Case(loss, params, (f(size, batch, size.width), indices(batch)), by_hand)


def gpt(size: Sizes = SMALL) -> Case:
    def loss(params: Any, tokens: Any, labels: Any) -> Any:
        x = params["embed"][tokens] + params["positions"]
        x, _ = jax.lax.scan(
            lambda x, p: (mlp_block(p["mlp"], attention(p["attention"], x, size)), None), x, params["layers"]
        )
        return cross_entropy(norm(x, params["norm"]) @ params["embed"].T, labels)

    params = {
        "embed": f(size, size.vocab, size.width),
        "positions": f(size, size.length, size.width),
        "norm": f(size, size.width),
        "layers": stacked(size.layers, {"attention": attention_weights(size), "mlp": mlp_weights(size)}),
    }
    return Case(loss, params, (indices(size.batch, size.length),) * 2, MEGATRON)


def llama(size: Sizes = GROUPED) -> Case:
    def layer(x: Any, p: Any) -> Any:
        return mlp_block(p["mlp"], attention(p["attention"], x, size, rotary=True)), None

    def loss(params: Any, tokens: Any, labels: Any) -> Any:
        x, _ = jax.lax.scan(jax.checkpoint(layer), params["embed"][tokens], params["layers"])
        return cross_entropy(norm(x, params["norm"]) @ params["head"], labels)

    params = {
        "embed": f(size, size.vocab, size.width),
        "head": f(size, size.width, size.vocab),
        "norm": f(size, size.width),
        "layers": stacked(
            size.layers, {"attention": attention_weights(size), "mlp": mlp_weights(size, gated=True)}
        ),
    }
    return Case(
        loss, params, (indices(size.batch, size.length),) * 2, {"^params.head": (None, "model"), **MEGATRON}
    )


def mixtral(size: Sizes = GROUPED, experts: int = 8, chosen: int = 2) -> Case:
    """Tokens of one sequence go to experts of limited capacity, by products with one-hot arrays."""
    capacity = 2 * chosen * size.length // experts

    def route(p: Any, x: Any) -> Any:
        y = norm(x, p["norm"])
        odds = jax.nn.softmax((y @ p["router"]).astype(jnp.float32))
        best, which = jax.lax.top_k(odds, chosen)
        picked = jax.nn.one_hot(which, experts)
        place = jnp.cumsum(picked.sum(2), 1).astype(jnp.int32) - 1
        slot = jax.nn.one_hot(place, capacity) * (picked.sum(2) > 0)[..., None]
        weight = (picked * best[..., None]).sum(2)
        sent = jnp.einsum("bsec,bsd->ebcd", slot.astype(x.dtype), y)
        hidden = jax.nn.silu(jnp.einsum("ebcd,edf->ebcf", sent, p["gate"])) * jnp.einsum(
            "ebcd,edf->ebcf", sent, p["up"]
        )
        back = jnp.einsum("ebcf,efd->ebcd", hidden, p["down"])
        return x + jnp.einsum("bsec,bse,ebcd->bsd", slot.astype(x.dtype), weight.astype(x.dtype), back)

    def loss(params: Any, tokens: Any, labels: Any) -> Any:
        x = params["embed"][tokens]
        x, _ = jax.lax.scan(
            lambda x, p: (route(p["moe"], attention(p["attention"], x, size)), None), x, params["layers"]
        )
        return cross_entropy(x @ params["embed"].T, labels)

    wide, narrow = (f(size, experts, a, b) for a, b in ((size.width, size.ffn), (size.ffn, size.width)))
    moe = {
        "router": f(size, size.width, experts),
        "gate": wide,
        "up": wide,
        "down": narrow,
        "norm": f(size, size.width),
    }
    params = {
        "embed": f(size, size.vocab, size.width),
        "layers": stacked(size.layers, {"attention": attention_weights(size), "moe": moe}),
    }
    expert_parallel = {r"moe\.(gate|up|down)$": (None, "model"), **MEGATRON}
    return Case(loss, params, (indices(size.batch, size.length),) * 2, expert_parallel)


def t5(size: Sizes = SMALL) -> Case:
    def loss(params: Any, source: Any, tokens: Any, labels: Any) -> Any:
        memory = params["embed"][source]
        for p in params["encoder"]:
            memory = mlp_block(p["mlp"], attention(p["attention"], memory, size, causal=False))
        x = params["embed"][tokens]
        for p in params["decoder"]:
            x = attention(p["attention"], x, size)
            x = attention(p["cross"], x, size, causal=False, memory=memory)
            x = mlp_block(p["mlp"], x)
        return cross_entropy(x @ params["embed"].T, labels)

    encoder = {"attention": attention_weights(size), "mlp": mlp_weights(size)}
    params = {
        "embed": f(size, size.vocab, size.width),
        "encoder": [encoder] * size.layers,
        "decoder": [{**encoder, "cross": attention_weights(size)}] * size.layers,
    }
    by_hand = {k: v[1:] if len(v) == 3 else v for k, v in MEGATRON.items()}
    return Case(loss, params, (indices(size.batch, size.length),) * 3, by_hand)


def vit(size: Sizes = SMALL, patch: int = 4) -> Case:
    side = int(np.sqrt(size.length)) * patch

    def loss(params: Any, images: Any, labels: Any) -> Any:
        b, n = images.shape[0], side // patch
        x = images.reshape(b, n, patch, n, patch, 3).transpose(0, 1, 3, 2, 4, 5).reshape(b, n * n, -1)
        x = x @ params["patches"]
        x, _ = jax.lax.scan(
            lambda x, p: (mlp_block(p["mlp"], attention(p["attention"], x, size, causal=False)), None),
            x,
            params["layers"],
        )
        return cross_entropy(layer_norm(x, params["norm"]).mean(1) @ params["head"], labels)

    params = {
        "patches": f(size, patch * patch * 3, size.width),
        "norm": f(size, size.width),
        "head": f(size, size.width, size.vocab),
        "layers": stacked(size.layers, {"attention": attention_weights(size), "mlp": mlp_weights(size)}),
    }
    return Case(loss, params, (f(size, size.batch, side, side, 3), indices(size.batch)), MEGATRON)


def convolve(x: Any, w: Any, stride: int = 1) -> Any:
    return jax.lax.conv_general_dilated(
        x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def resnet(size: Sizes = SMALL, side: int = 16) -> Case:
    """Bottlenecks with norms over the batch, as in ResNet-50."""

    def normed(x: Any, gain: Any) -> Any:
        x = x - x.mean((0, 1, 2))
        return x * jax.lax.rsqrt((x * x).mean((0, 1, 2)) + 1e-5) * gain

    def bottleneck(x: Any, p: Any, stride: int) -> Any:
        y = jax.nn.relu(normed(convolve(x, p["first"]), p["gain"]))
        y = jax.nn.relu(normed(convolve(y, p["second"], stride), p["gain"]))
        return jax.nn.relu(convolve(y, p["third"]) + convolve(x, p["skip"], stride))

    def loss(params: Any, images: Any, labels: Any) -> Any:
        x = jax.nn.relu(convolve(images, params["stem"]))
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
        for i, p in enumerate(params["blocks"]):
            x = bottleneck(x, p, 1 + i % 2)
        return cross_entropy(x.mean((1, 2)) @ params["head"], labels)

    c = size.width
    block = {
        "first": f(size, 1, 1, 4 * c, c),
        "second": f(size, 3, 3, c, c),
        "third": f(size, 1, 1, c, 4 * c),
    }
    block |= {"skip": f(size, 1, 1, 4 * c, 4 * c), "gain": f(size, c)}
    params = {
        "stem": f(size, 3, 3, 3, 4 * c),
        "blocks": [block] * size.layers,
        "head": f(size, 4 * c, size.vocab),
    }
    by_hand = {
        "^(images|labels)": ("data",),
        r"\.first$": (None, None, None, "model"),
        r"\.third$": (None, None, "model"),
    }
    return Case(loss, params, (f(size, size.batch, side, side, 3), indices(size.batch)), by_hand)


def unet(size: Sizes = SMALL, side: int = 16) -> Case:
    def loss(params: Any, images: Any, labels: Any) -> Any:
        x, kept = jax.nn.silu(convolve(images, params["stem"])), []
        for p in params["down"]:
            x = jax.nn.silu(convolve(x, p))
            kept.append(x)
            x = x.reshape(x.shape[0], x.shape[1] // 2, 2, x.shape[2] // 2, 2, -1).mean((2, 4))
        for p in params["up"]:
            x = jnp.broadcast_to(
                x[:, :, None, :, None], (x.shape[0], x.shape[1], 2, x.shape[2], 2, x.shape[3])
            )
            x = x.reshape(x.shape[0], x.shape[1] * 2, x.shape[3] * 2, -1)
            x = jax.nn.silu(convolve(jnp.concatenate([x, kept.pop()], -1), p))
        return ((convolve(x, params["out"]) - labels) ** 2).mean()

    c = size.width
    params = {
        "stem": f(size, 3, 3, 3, c),
        "down": [f(size, 3, 3, c, c)] * size.layers,
        "up": [f(size, 3, 3, 2 * c, c)] * size.layers,
        "out": f(size, 3, 3, c, 3),
    }
    images = f(size, size.batch, side, side, 3)
    return Case(
        loss, params, (images, images), {"^(images|labels)": ("data",), "up": (None, None, None, "model")}
    )


def dlrm(size: Sizes = SMALL, tables: int = 4) -> Case:
    """Embeddings of categories, a small network over numbers, products of all pairs."""

    def loss(params: Any, numbers: Any, picks: Any, labels: Any) -> Any:
        dense = jax.nn.relu(numbers @ params["bottom"])
        rows = [params["embed"][i][picks[:, i]] for i in range(tables)]
        features = jnp.stack([dense, *rows], 1)
        pairs = jnp.einsum("bid,bjd->bij", features, features).reshape(numbers.shape[0], -1)
        x = jax.nn.relu(jnp.concatenate([dense, pairs], -1) @ params["top"])
        return jnp.mean((x @ params["out"] - labels) ** 2)

    batch, pairs = size.batch * size.length, (tables + 1) ** 2
    params = {
        "bottom": f(size, 16, size.width),
        "embed": [f(size, size.vocab, size.width)] * tables,
        "top": f(size, size.width + pairs, size.ffn),
        "out": f(size, size.ffn, 1),
    }
    data = (f(size, batch, 16), indices(batch, tables), f(size, batch, 1))
    return Case(loss, params, data, {"embed": (None, "model"), "^(numbers|picks|labels)": ("data",)})


MODELS: Mapping[str, Callable[..., Case]] = {
    "mlp": mlp,
    "gpt": gpt,
    "llama": llama,
    "mixtral": mixtral,
    "t5": t5,
    "vit": vit,
    "resnet": resnet,
    "unet": unet,
    "dlrm": dlrm,
}

"""Ways of JAX to write what is a model all the same: random keys, weights first, square layers, patches put back."""

import math
from typing import Any

import pytest

jax = pytest.importorskip("jax")

from jax_layers import SMALL, cross_entropy, f, indices, norm, stacked  # noqa: E402

from planner import Program, from_jax  # noqa: E402
from planner.errors import Unsupported  # noqa: E402
from planner.graph import Graph, count_parameters  # noqa: E402
from planner.operators import forward_flops  # noqa: E402
from planner.tracing.lifting.model import graph_of  # noqa: E402

jnp = jax.numpy
pytestmark = pytest.mark.jax
BATCH, WIDTH = 8, 32


def whole(program: Program) -> Graph:
    """The graph, which has all parameters."""
    graph = graph_of(program)
    weights = (v.shape for v in program.values if v.role == "parameter")
    assert count_parameters(graph) == sum(map(math.prod, weights))
    return graph


@pytest.mark.parametrize("wrapped", [False, True])
def test_random_keys_are_no_data(wrapped: bool) -> None:
    """Dropout in a scan, by a key for each layer."""

    def layer(x: Any, given: Any) -> tuple[Any, None]:
        p, key = given
        hidden = jax.nn.gelu(norm(x, p["norm"]) @ p["up"])
        kept = jax.random.bernoulli(key, 0.9, hidden.shape)
        return x + jnp.where(kept, hidden / 0.9, 0) @ p["down"], None

    def loss(params: Any, tokens: Any, labels: Any, key: Any) -> Any:
        keys = jax.random.split(key if wrapped else jax.random.wrap_key_data(key), 2)
        x, _ = jax.lax.scan(layer, params["embed"][tokens], (params["layers"], keys))
        return cross_entropy(x @ params["embed"].T, labels)

    one = {"norm": f(SMALL, WIDTH), "up": f(SMALL, WIDTH, 64), "down": f(SMALL, 64, WIDTH)}
    params = {"embed": f(SMALL, 64, WIDTH), "layers": stacked(2, one)}
    key = jax.eval_shape(lambda: jax.random.key(0) if wrapped else jax.random.key_data(jax.random.key(0)))
    graph = whole(from_jax(loss, params, *(indices(BATCH, 16),) * 2, key))
    assert [op.kind for op in graph.block["layer"].ops] == ["norm", "matmul", "elementwise", "matmul", "add"]
    assert graph.dims["ffn"] == 64


def test_layers_of_square_weights_that_come_first() -> None:
    """Equinox multiplies one row at a time, weight by row, under ``vmap``; no residual tells widths apart."""

    def loss(params: Any, x: Any, y: Any) -> Any:
        def one(row: Any) -> Any:
            for p in params["layers"]:
                row = jax.nn.relu(p["weight"] @ row + p["bias"])
            return row

        return ((jax.vmap(one)(x) - y) ** 2).mean()

    layer = {"weight": f(SMALL, 64, 64), "bias": f(SMALL, 64)}
    graph = whole(from_jax(loss, {"layers": [layer] * 4}, f(SMALL, BATCH, 64), f(SMALL, BATCH, 64)))
    assert graph.num_layers == 4
    assert forward_flops(graph, 1) == 4 * 2 * 64 * 64


def test_what_is_made_may_be_patches() -> None:
    """Rows and columns of a patch are dims of their own, though they are as long."""

    def loss(params: Any, images: Any) -> Any:
        patches = images.reshape(BATCH, 4, 2, 4, 2, 4).transpose(0, 1, 3, 2, 4, 5)
        x = patches.reshape(BATCH, 16, 16) @ params["in"]
        x, _ = jax.lax.scan(
            lambda x, w: (x + jax.nn.silu(x @ w["up"]) @ w["down"], None), x, params["layers"]
        )
        return (((x @ params["out"]).reshape(patches.shape) - patches) ** 2).mean()

    one = {"up": f(SMALL, WIDTH, 64), "down": f(SMALL, 64, WIDTH)}
    params = {"in": f(SMALL, 16, WIDTH), "layers": stacked(2, one), "out": f(SMALL, WIDTH, 16)}
    graph = whole(from_jax(loss, params, f(SMALL, BATCH, 8, 8, 4)))
    assert forward_flops(graph, 1) == 16 * 2 * (2 * 16 * WIDTH + 2 * 2 * WIDTH * 64)


def test_a_gated_layer_may_be_as_wide_as_what_it_is_added_to() -> None:
    """Halves of one weight (a GLU), each of which makes what it sums over."""

    def layer(x: Any, w: Any) -> tuple[Any, None]:
        value, gate = jnp.split(x @ w, 2, -1)
        return x + value * jax.nn.sigmoid(gate), None

    def loss(params: Any, x: Any, y: Any) -> Any:
        return ((jax.lax.scan(layer, x @ params["in"], params["layers"])[0] - y) ** 2).mean()

    params = {"in": f(SMALL, 8, WIDTH), "layers": f(SMALL, 2, WIDTH, 2 * WIDTH)}
    graph = whole(from_jax(loss, params, f(SMALL, BATCH, 16, 8), f(SMALL, BATCH, 16, WIDTH)))
    assert forward_flops(graph, 1) == 16 * 2 * (8 * WIDTH + 2 * 2 * WIDTH**2)


def test_frames_of_sound_are_the_positions_of_an_encoder() -> None:
    """Behind a convolution; a decoder reads the first rows of a table that is longer, and what the encoder makes."""
    frames, tokens, heads, ffn, vocab = 12, 16, 4, 128, 64

    def attend(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        apart = (x.reshape(*x.shape[:2], heads, -1) for x in (q, k, v))
        return jax.nn.dot_product_attention(*apart, mask=mask).reshape(q.shape)

    def block(x: Any, p: Any, mask: Any = None) -> Any:
        y = norm(x, p["norm"])
        x = x + attend(y @ p["q"], y @ p["k"], y @ p["v"], mask) @ p["o"]
        return x + jax.nn.gelu(norm(x, p["norm2"]) @ p["up"]) @ p["down"]

    def loss(params: Any, sound: Any, given: Any, labels: Any) -> Any:
        dims = ("NWC", "WIO", "NWC")
        heard = jax.lax.conv_general_dilated(sound, params["in"], (2,), "SAME", dimension_numbers=dims)
        heard, _ = jax.lax.scan(lambda x, p: (block(x, p), None), jax.nn.gelu(heard), params["encoder"])
        mask = jnp.tril(jnp.ones((tokens, tokens), bool))

        def layer(x: Any, p: Any) -> tuple[Any, None]:
            x = block(x, p["own"], mask)
            y = norm(x, p["norm"])
            return x + attend(y @ p["q"], heard @ p["k"], heard @ p["v"]) @ p["o"], None

        x, _ = jax.lax.scan(layer, params["embed"][given] + params["rows"][:tokens], params["decoder"])
        return cross_entropy(x @ params["embed"].T, labels)

    square, line = f(SMALL, WIDTH, WIDTH), f(SMALL, WIDTH)
    cross = dict.fromkeys("qkvo", square) | {"norm": line}
    own = cross | {"norm2": line, "up": f(SMALL, WIDTH, ffn), "down": f(SMALL, ffn, WIDTH)}
    params = {
        "in": f(SMALL, 3, 8, WIDTH), "encoder": stacked(2, own), "embed": f(SMALL, vocab, WIDTH),
        "rows": f(SMALL, 448, WIDTH), "decoder": stacked(2, cross | {"own": own}),
    }  # fmt: skip
    sound = f(SMALL, BATCH, 2 * frames, 8)
    graph = whole(from_jax(loss, params, sound, *(indices(BATCH, tokens),) * 2))
    assert (graph.dims["encoder_seq"], graph.dims["seq"], graph.dims["positions"]) == (frames, tokens, 448)
    # Of each of two layers: four of the encoder's own, four of the decoder's, two on either side between them.
    projections = 2 * (4 + 2) * (frames + tokens) * WIDTH * WIDTH
    attention = 2 * WIDTH * 2 * (frames**2 + tokens**2 / 2 + tokens * frames)
    rest = 2 * 2 * (frames + tokens) * WIDTH * ffn + tokens * WIDTH * vocab + frames * 3 * 8 * WIDTH
    assert forward_flops(graph, 1) == 2 * (projections + attention + rest)


def test_an_array_made_of_two_weights_is_refused() -> None:
    """A filter of complex numbers, as Fourier mixing learns it in two parts."""

    def loss(params: Any, x: Any) -> Any:
        for p in params["layers"]:
            mixed = jnp.fft.rfft(x, axis=1) * jax.lax.complex(p["real"], p["imaginary"])
            x = x + jax.nn.gelu(jnp.fft.irfft(mixed, axis=1) @ p["up"]) @ p["down"]
        return (x**2).mean()

    layer = {"real": f(SMALL, 9, WIDTH), "imaginary": f(SMALL, 9, WIDTH)}
    layer |= {"up": f(SMALL, WIDTH, 64), "down": f(SMALL, 64, WIDTH)}
    program = from_jax(loss, {"layers": [layer] * 2}, f(SMALL, BATCH, 16, WIDTH))
    with pytest.raises(Unsupported, match=r"makes an array of weights alone \(params.layers.\d.real, "):
        graph_of(program)


def grouped(more: bool, batch: int = BATCH) -> Program:
    """Three groups of two layers each, with a layer of its own at the end of each group where there is ``more``."""

    def layer(x: Any, p: Any) -> tuple[Any, None]:
        return x + jax.nn.gelu(norm(x, p["norm"]) @ p["up"]) @ p["down"], None

    def group(x: Any, p: Any) -> tuple[Any, None]:
        x, _ = jax.lax.scan(layer, x, p["layers"])
        return (jnp.tanh(x) @ p["own"] if more else x), None

    def loss(p: Any, x: Any, y: Any) -> Any:
        return jnp.square(jax.lax.scan(group, x @ p["in"], p["groups"])[0] - y).mean()

    layers = {"norm": f(SMALL, WIDTH), "up": f(SMALL, WIDTH, 64), "down": f(SMALL, 64, WIDTH)}
    own = {"own": f(SMALL, WIDTH, WIDTH)} if more else {}
    params = {"in": f(SMALL, WIDTH, WIDTH), "groups": stacked(3, {"layers": stacked(2, layers), **own})}
    return from_jax(loss, params, f(SMALL, batch, WIDTH), f(SMALL, batch, WIDTH))


def test_a_loop_of_nothing_but_a_loop_is_as_many_layers() -> None:
    graph = whole(grouped(more=False))
    assert [run.count for run in graph.layers] == [6]
    assert forward_flops(graph, 1) == 2 * (WIDTH * WIDTH + 6 * 2 * WIDTH * 64)


def test_a_loop_with_more_than_a_loop_in_it_is_refused() -> None:
    with pytest.raises(Unsupported, match="is inside another that does more"):
        graph_of(grouped(more=True))


def test_a_batch_of_one_has_the_graph_of_any_other() -> None:
    assert whole(grouped(more=False, batch=1)) == whole(grouped(more=False))


@pytest.mark.parametrize("rows", [(), (10,)])
def test_loops_over_layers_may_begin_with_data(rows: tuple[int, ...]) -> None:
    """What the layers change is a copy of it, as a loop's state is."""

    def layer(x: Any, w: Any) -> tuple[Any, None]:
        return x + jax.nn.gelu(x @ w["up"]) @ w["down"], None

    def loss(p: Any, x: Any) -> Any:
        return (jax.lax.scan(layer, x, p)[0] ** 2).mean()

    params = {"up": f(SMALL, 3, WIDTH, 4 * WIDTH), "down": f(SMALL, 3, 4 * WIDTH, WIDTH)}
    graph = whole(from_jax(loss, params, f(SMALL, BATCH, *rows, WIDTH)))
    assert forward_flops(graph, 1) == math.prod(rows) * 3 * 2 * 2 * WIDTH * 4 * WIDTH
    assert graph.first is not None
    assert [op.kind for op in graph.block[graph.first].ops] == ["elementwise"]
    assert graph.num_layers == 3

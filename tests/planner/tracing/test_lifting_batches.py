"""Programs of one input as models: a batch of one, one graph, one sequence."""

import re
from typing import Any

import pytest

jax = pytest.importorskip("jax")

from jax_layers import SMALL, cross_entropy, f, indices, norm, stacked  # noqa: E402

from planner import Program, evaluate, from_jax, plan  # noqa: E402
from planner.errors import Unsupported  # noqa: E402
from planner.graph import count_parameters  # noqa: E402
from planner.operators import forward_flops  # noqa: E402
from planner.tracing.lifting.model import graph_of, model_of  # noqa: E402

jnp = jax.numpy
pytestmark = pytest.mark.jax
WIDTH, LENGTH, HEADS = 32, 16, 4


def attend(x: Any, p: Any) -> Any:
    q, k, v = (jnp.einsum("btd,dhk->bthk", norm(x, p["norm"]), p[name]) for name in "qkv")
    return x + jnp.einsum("bthk,hkd->btd", jax.nn.dot_product_attention(q, k, v, is_causal=True), p["o"])


def language_model(params: Any, tokens: Any, labels: Any) -> Any:
    x, _ = jax.lax.scan(lambda x, p: (attend(x, p), None), params["embed"][tokens], params["layers"])
    return cross_entropy(x @ params["embed"].T, labels)


def parameters() -> Any:
    sizes = dict.fromkeys("qkv", (WIDTH, HEADS, WIDTH // HEADS)) | {"o": (HEADS, WIDTH // HEADS, WIDTH)}
    one = {"norm": f(SMALL, WIDTH)} | {name: f(SMALL, *size) for name, size in sizes.items()}
    return {"embed": f(SMALL, 64, WIDTH), "layers": stacked(2, one)}


def test_a_language_model_of_one_sequence_is_that_of_more() -> None:
    one, more = (
        graph_of(from_jax(language_model, parameters(), *(indices(batch, LENGTH),) * 2)) for batch in (1, 8)
    )
    assert one == more


def test_a_function_of_one_sequence_is_refused_with_what_would_be_right() -> None:
    def loss(params: Any, tokens: Any, labels: Any) -> Any:
        return language_model(params, tokens[None], labels[None])

    program = from_jax(loss, parameters(), *(indices(LENGTH),) * 2)
    with pytest.raises(Unsupported, match=re.escape("trace a batch of such inputs (jax.vmap")):
        graph_of(program)


NODES, EDGES, CLASSES = 24, 80, 7


def graph_attention(params: Any, x: Any, sources: Any, targets: Any, labels: Any) -> Any:
    """Velickovic et al., arXiv:1710.10903, section 2.1, on a list of edges."""
    for p in params["layers"]:
        heads = (x @ p["w"]).reshape(NODES, HEADS, -1)
        scores = (heads * p["from"]).sum(-1)[sources] + (heads * p["to"]).sum(-1)[targets]
        odds = jnp.exp(jax.nn.leaky_relu(scores, 0.2))
        odds /= jax.ops.segment_sum(odds, targets, NODES)[targets]
        x = jax.ops.segment_sum(odds[..., None] * heads[sources], targets, NODES).reshape(NODES, -1)
    return cross_entropy(x @ params["out"], labels)


def graph_networks(graphs: tuple[int, ...] = ()) -> Program:
    one = {"w": f(SMALL, WIDTH, WIDTH)} | dict.fromkeys(("from", "to"), f(SMALL, HEADS, WIDTH // HEADS))
    params = {"layers": [one, one], "out": f(SMALL, WIDTH, CLASSES)}
    sizes = [*(indices(*graphs, n) for n in (EDGES, EDGES, NODES))]
    data = (f(SMALL, *graphs, NODES, WIDTH), *sizes)
    if not graphs:
        return from_jax(graph_attention, params, *data)
    of_each = jax.vmap(graph_attention, (None, 0, 0, 0, 0))
    return from_jax(lambda params, *data: of_each(params, *data).mean(), params, *data)


def test_one_graph_is_an_input_of_a_batch() -> None:
    """Products of nodes with weights, as those of many graphs under ``vmap``."""
    one, more = graph_of(graph_networks()), graph_of(graph_networks((2,)))
    assert one.dims == more.dims
    assert [run.count for run in one.layers] == [run.count for run in more.layers]
    assert count_parameters(one) == 2 * (WIDTH**2 + 2 * WIDTH) + WIDTH * CLASSES
    assert forward_flops(one, 3) == forward_flops(more, 3) == 3 * 2 * NODES * WIDTH * (2 * WIDTH + CLASSES)


def test_positions_of_another_length_are_no_graph() -> None:
    """Numbers that choose rows of a table say nothing of what a batch is."""

    def loss(params: Any, tokens: Any, positions: Any, labels: Any) -> Any:
        x = params["embed"][tokens] + params["positions"][positions]
        first = {name: weights[0] for name, weights in params["layers"].items()}
        return cross_entropy(attend(x, first) @ params["embed"].T, labels)

    params = {**parameters(), "positions": f(SMALL, 64, WIDTH)}
    program = from_jax(loss, params, indices(8, LENGTH), indices(LENGTH), indices(8, LENGTH))
    with pytest.raises(Unsupported, match="begin with other dims"):
        graph_of(program)


def test_what_runs_again_reads_data_again() -> None:
    """A hidden Markov model's symbols are read by its loop over time; recomputing that needs them once more."""

    def loss(params: Any, symbols: Any) -> Any:
        moves, emits = (jax.nn.log_softmax(params[name]) for name in ("moves", "emits"))

        def step(state: Any, symbol: Any) -> tuple[Any, None]:
            return jax.nn.logsumexp(state[:, :, None] + moves, 1) + emits.T[symbol], None

        state, _ = jax.lax.scan(step, jnp.zeros((symbols.shape[0], 16)), symbols.T)
        return -jax.nn.logsumexp(state, -1).mean()

    model = model_of(from_jax(loss, {"moves": f(SMALL, 16, 16), "emits": f(SMALL, 16, 64)}, indices(8, 12)))
    found = plan(model, "dgx-h100:1", global_batch=64, seq_len=12)
    again, kept = (
        evaluate(found.model_copy(update={"plan": found.plan.model_copy(update={"recompute": policy})}))
        for policy in ("full", "none")
    )
    assert again.step_time_s >= kept.step_time_s

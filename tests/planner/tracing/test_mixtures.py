"""Mixtures of experts in traced programs, as models of `plan`: the same whichever way tokens are routed."""

import math
from typing import Any

import pytest

jax = pytest.importorskip("jax")

from jax_layers import (  # noqa: E402
    Sizes,
    attention,
    attention_weights,
    cross_entropy,
    f,
    indices,
    norm,
    stacked,
)
from jax_models import MODELS  # noqa: E402

from planner import Program, from_jax, plan  # noqa: E402
from planner.errors import Unsupported  # noqa: E402
from planner.graph import Graph, Run, count_parameters  # noqa: E402
from planner.models.catalog import build_graph, load_model  # noqa: E402
from planner.operators import forward_flops  # noqa: E402
from planner.tracing.lifting.model import graph_of, model_of  # noqa: E402

jnp = jax.numpy
pytestmark = pytest.mark.jax

SMALL = Sizes(width=64, kv_heads=2, ffn=96, vocab=128, batch=4, length=32)
EXPERTS, CHOSEN = 8, 2


def gated(x: Any, p: Any, multiply: Any) -> Any:
    return multiply(jax.nn.silu(multiply(x, p["gate"])) * multiply(x, p["up"]), p["down"])


def chosen(p: Any, x: Any) -> tuple[Any, Any, Any]:
    odds = jax.nn.softmax((x @ p["router"] + p["bias"]).astype(jnp.float32))
    best, which = jax.lax.top_k(odds, CHOSEN)
    return odds, (best / best.sum(-1, keepdims=True)).astype(x.dtype), which


def one_hot(p: Any, x: Any) -> tuple[Any, Any]:
    """GShard's (arXiv:2006.16668): room for twice the mean in each sequence, and a loss of balance."""
    odds, best, which = chosen(p, x)
    picked = jax.nn.one_hot(which, EXPERTS)
    place = jnp.cumsum(picked.sum(2), 1).astype(jnp.int32) - 1
    slot = jax.nn.one_hot(place, 2 * CHOSEN * x.shape[1] // EXPERTS, dtype=x.dtype) * picked.sum(2)[..., None]
    sent = jnp.einsum("bsec,bsd->ebcd", slot, x)
    back = gated(sent, p, lambda a, w: jnp.einsum("ebcd,edf->ebcf", a, w))
    weight = (picked * best[..., None]).sum(2)
    balance = (picked.sum(2).mean((0, 1)) * odds.mean((0, 1))).sum()
    return jnp.einsum("bsec,bse,ebcd->bsd", slot, weight, back), balance


def sorted_by_expert(p: Any, x: Any) -> tuple[Any, Any]:
    """Every choice gets its place: rows by expert, and products of unlike lengths."""
    flat = x.reshape(-1, x.shape[-1])
    _, best, which = chosen(p, flat)
    order = jnp.argsort(which.reshape(-1))
    counts = jnp.bincount(which.reshape(-1), length=EXPERTS)
    rows = gated(flat[order // CHOSEN], p, lambda a, w: jax.lax.ragged_dot(a, w, counts))
    back = rows[jnp.argsort(order)].reshape(-1, CHOSEN, x.shape[-1])
    return jnp.einsum("tkd,tk->td", back, best).reshape(x.shape), jnp.zeros(())


def all_by_mask(p: Any, x: Any) -> tuple[Any, Any]:
    """Every expert sees every token; those not chosen count nothing."""
    _, best, which = chosen(p, x)
    weight = (jax.nn.one_hot(which, EXPERTS, dtype=x.dtype) * best[..., None]).sum(2)
    experts = {name: p[name] for name in ("gate", "up", "down")}
    every = jax.vmap(lambda e: gated(x, e, jnp.matmul))(experts)
    return jnp.einsum("ebsd,bse->bsd", every, weight), jnp.zeros(())


FORMS = {"one hot": one_hot, "sorted": sorted_by_expert, "masked": all_by_mask}
"""How tokens are routed."""

SHARE = {"one hot": 2 * CHOSEN / EXPERTS, "sorted": CHOSEN / EXPERTS, "masked": 1.0}
"""Of all tokens, what an expert computes."""


def traced(
    form: str, size: Sizes = SMALL, *, scanned: bool = True, shared: int = 0, bias: bool = True
) -> Program:
    def layer(x: Any, p: Any) -> tuple[Any, Any]:
        x = attention(p["attention"], x, size, rotary=True)
        y = norm(x, p["norm"])
        moe = p["moe"] if bias else {**p["moe"], "bias": 0.0}
        made, balance = FORMS[form](moe, y)
        return x + (made + gated(y, p["shared"], jnp.matmul) if shared else made), balance

    def loss(params: Any, tokens: Any, labels: Any) -> Any:
        x, balance = params["embed"][tokens], jnp.zeros(())
        if scanned:
            x, found = jax.lax.scan(layer, x, params["layers"])
            balance = found.mean()
        else:
            for p in params["layers"]:
                x, found = layer(x, p)
                balance += found
        return cross_entropy(norm(x, params["norm"]) @ params["head"], labels) + 0.01 * balance

    def mlp(width: int, *outer: int) -> Any:
        wide, narrow = f(size, *outer, size.width, width), f(size, *outer, width, size.width)
        return {"gate": wide, "up": wide, "down": narrow}

    one = {
        "attention": attention_weights(size),
        "norm": f(size, size.width),
        "moe": {"router": f(size, size.width, EXPERTS), **mlp(size.ffn, EXPERTS)},
    }
    one["moe"] |= {"bias": f(size, EXPERTS)} if bias else {}
    one |= {"shared": mlp(shared)} if shared else {}
    params = {
        "embed": f(size, size.vocab, size.width),
        "head": f(size, size.width, size.vocab),
        "norm": f(size, size.width),
        "layers": stacked(size.layers, one) if scanned else [one] * size.layers,
    }
    return from_jax(loss, params, *(indices(size.batch, size.length),) * 2, name=form)


def kinds(graph: Graph) -> list[str]:
    return [op.kind for op in graph.block["layer"].ops][-8:]


@pytest.mark.parametrize("scanned", [True, False], ids=["scan", "list"])
@pytest.mark.parametrize("form", FORMS)
def test_experts_are_a_dim_of_the_graph(form: str, scanned: bool) -> None:
    program = traced(form, scanned=scanned)
    graph = graph_of(program)
    assert graph.layers == (Run(block="layer", count=2),)
    assert count_parameters(graph) == sum(math.prod(v.shape) for v in program.values if v.role == "parameter")
    assert (graph.dims["experts"], graph.dims["expert_ffn"]) == (EXPERTS, SMALL.ffn)
    assert kinds(graph) == ["norm", "matmul", "dispatch", "matmul", "elementwise", "matmul", "combine", "add"]
    layer = graph.block["layer"]
    (dispatch,) = (op for op in layer.ops if op.kind == "dispatch")
    sent = layer.tensor[dispatch.outputs[0]]
    assert sent.dims == ("batch", "seq", "experts", "hidden")
    assert sent.scale == SHARE[form]


@pytest.mark.parametrize("form", FORMS)
def test_products_of_experts_are_counted_by_their_share(form: str) -> None:
    """Three products of width by ``ffn`` for each token that an expert takes, forward twice a multiplication."""
    narrow, wide = (forward_flops(graph_of(traced(form, SMALL._replace(ffn=n))), 1) for n in (96, 128))
    taken = SMALL.length * EXPERTS * SHARE[form]
    assert wide - narrow == SMALL.layers * 2 * 3 * taken * SMALL.width * 32


def test_shared_experts_stay_beside_the_routed_ones() -> None:
    graph = graph_of(traced("sorted", shared=80))
    assert graph.dims["ffn"] == 80
    assert [op.kind for op in graph.block["layer"].ops].count("add") == 3


def test_the_model_of_the_tests_is_one() -> None:
    case = MODELS["mixtral"]()
    assert graph_of(from_jax(case.loss, *case.arguments)).dims["experts"] == 8


@pytest.mark.parametrize("form", FORMS)
def test_layers_of_nothing_but_experts_keep_their_own_routers(form: str) -> None:
    """All that the second layer's experts read is made of what the first one's router reads, and of what it makes."""

    def loss(layers: Any, x: Any, y: Any) -> Any:
        for p in layers:
            x = x + FORMS[form](p, x)[0]
        return jnp.square(x - y).mean()

    size = SMALL
    wide, narrow = f(size, EXPERTS, 64, 96), f(size, EXPERTS, 96, 64)
    one = {"router": f(size, 64, EXPERTS), "bias": f(size, EXPERTS), "gate": wide, "up": wide, "down": narrow}
    graph = graph_of(from_jax(loss, [one, one], *(f(size, 4, 32, 64),) * 2))
    assert count_parameters(graph) == 2 * (64 * EXPERTS + EXPERTS + 3 * EXPERTS * 64 * 96)
    expected = 2 * 2 * 32 * 64 * EXPERTS * (1 + SHARE[form] * 3 * 96)
    assert forward_flops(graph, 1) == pytest.approx(expected)


def test_what_is_routed_otherwise_is_refused() -> None:
    """A count of tokens that is handed on as features is neither experts nor a loss."""
    size = SMALL

    def layer(x: Any, p: Any) -> tuple[Any, None]:
        made, balance = one_hot(p, x)
        return x + made * jax.nn.softmax(x @ p["router"]).sum(-1, keepdims=True), None

    def loss(params: Any, tokens: Any, labels: Any) -> Any:
        x, _ = jax.lax.scan(layer, params["embed"][tokens], params["layers"])
        return cross_entropy(x @ params["embed"].T, labels)

    wide, narrow = f(size, EXPERTS, 64, 96), f(size, EXPERTS, 96, 64)
    one = {"router": f(size, 64, EXPERTS), "bias": f(size, EXPERTS), "gate": wide, "up": wide, "down": narrow}
    params = {"embed": f(size, 128, 64), "layers": stacked(2, one)}
    with pytest.raises(Unsupported, match="meshwright shard"):
        graph_of(from_jax(loss, params, *(indices(4, 32),) * 2))


MIXTRAL = Sizes(
    layers=32,
    width=4096,
    heads=32,
    kv_heads=8,
    ffn=14336,
    vocab=32000,
    batch=8,
    length=4096,
    dtype=jnp.bfloat16,
)
DEGREES = (
    {"data": 64, "tensor": 1, "expert": 8, "pipeline": 1},
    {"data": 8, "tensor": 4, "expert": 2, "pipeline": 2},
)


@pytest.mark.parametrize("degrees", DEGREES, ids=str)
def test_a_mixtral_that_sorts_costs_what_the_shipped_one_does(degrees: dict[str, int]) -> None:
    traced_model, shipped = model_of(traced("sorted", MIXTRAL, bias=False)), load_model("mixtral-8x7b")
    assert traced_model.parameters == shipped.parameters
    assert traced_model.graph is not None
    assert forward_flops(traced_model.graph, 1) == pytest.approx(forward_flops(build_graph(shipped, 4096), 1))
    job = {"global_batch": 256, "seq_len": 4096, "micro_batch": 1, "recompute": "full", "zero_stage": 3}
    ours, theirs = (plan(m, "dgx-h100:8", top=1, **job, **degrees).estimate for m in (traced_model, shipped))
    assert ours is not None
    assert theirs is not None
    assert ours.step_time_s == pytest.approx(theirs.step_time_s, rel=0.02)
    assert ours.memory_bytes == pytest.approx(theirs.memory_bytes, rel=0.001)

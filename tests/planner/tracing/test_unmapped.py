"""Programs with a ``shard_map`` as models: blocks of the same function on whole arrays, whatever its layouts were."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
import manual_cases  # noqa: E402
from jax.sharding import AbstractMesh  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

from planner import from_jax, plan  # noqa: E402
from planner.errors import Unsupported  # noqa: E402
from planner.graph import Graph, count_parameters  # noqa: E402
from planner.operators import forward_flops  # noqa: E402
from planner.tracing.lifting.model import graph_of, model_of  # noqa: E402
from planner.tracing.lifting.unmapped import NOTE  # noqa: E402

pytestmark = pytest.mark.jax
MESH = AbstractMesh((2, 4), ("data", "model"))
BATCH, LENGTH, WIDTH, HEADS, CLASSES, LAYERS = 16, 16, 64, 4, 100, 3
Case = tuple[Any, ...]
Reduce = Callable[[Any], Any]
COLUMNS = {
    **dict.fromkeys(("q", "k", "v", "up"), P(None, "model")),
    **dict.fromkeys(("o", "down"), P("model")),
}


def f(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def norm(x: Any) -> Any:
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)


def layer(x: Any, w: Any, before: Reduce, after: Reduce, turned: Reduce, back: Reduce) -> Any:
    """What a device does in it, with what is exchanged before and after products, and around attention."""
    h = before(norm(x))
    q, k, v = (turned(jnp.einsum("bsh,hnd->bsnd", h, w[n])) for n in "qkv")
    odds = jax.nn.softmax(jnp.einsum("bqnd,bknd->bnqk", q, k) / 4, -1)
    x = x + after(jnp.einsum("bsnd,ndh->bsh", back(jnp.einsum("bnqk,bknd->bqnd", odds, v)), w["o"]))
    return x + after(jax.nn.gelu(before(norm(x)) @ w["up"]) @ w["down"])


def same(x: Any) -> Any:
    return x


def whole(x: Any, w: Any) -> Any:
    return layer(x, w, same, same, same, same)


def mapped(body: Any, tokens: Any, weights: Any, checked: bool = True) -> Any:
    specs = {"in_specs": (tokens, weights), "out_specs": tokens}
    return jax.shard_map(body, mesh=MESH, check_vma=checked, **specs)


def megatron(checked: bool) -> Any:
    def body(x: Any, w: Any) -> Any:
        return layer(x, w, same, lambda a: jax.lax.psum(a, "model"), same, same)

    return mapped(body, P("data"), COLUMNS, checked)


def sequence() -> Any:
    def body(x: Any, w: Any) -> Any:
        def gathered(a: Any) -> Any:
            return jax.lax.all_gather(a, "model", axis=1, tiled=True)

        def scattered(a: Any) -> Any:
            return jax.lax.psum_scatter(a, "model", scatter_dimension=1, tiled=True)

        return layer(x, w, gathered, scattered, same, same)

    return mapped(body, P("data", "model"), COLUMNS)


def ulysses() -> Any:
    def body(x: Any, w: Any) -> Any:
        def turned(a: Any) -> Any:
            return jax.lax.all_to_all(a, "model", 2, 1, tiled=True)

        def back(a: Any) -> Any:
            return jax.lax.all_to_all(a, "model", 1, 2, tiled=True)

        return layer(x, w, same, same, turned, back)

    return mapped(body, P("data", "model"), P())


def gathered_weights(tokens: Any) -> Any:
    at = {"q": 0, "k": 0, "v": 0, "o": 2, "up": 0, "down": 1}
    specs = {n: P(*([None] * i), ("data", "model")) for n, i in at.items()}

    def body(x: Any, w: Any) -> Any:
        axes = ("data", "model")
        return whole(x, {n: jax.lax.all_gather(a, axes, axis=at[n], tiled=True) for n, a in w.items()})

    return mapped(body, tokens, specs)


def model(layers: Any, batch: int = BATCH) -> Case:
    def loss(p: Any, x: Any, y: Any) -> Any:
        x, _ = jax.lax.scan(lambda x, w: (layers(x, w), None), p["embed"][x], p["layers"])
        return -jnp.take_along_axis(jax.nn.log_softmax(x @ p["head"]), y[..., None], -1).mean()

    inner, square = (LAYERS, WIDTH, HEADS, WIDTH // HEADS), (LAYERS, WIDTH, 4 * WIDTH)
    weights = {
        **dict.fromkeys("qkv", f(*inner)),
        "o": f(LAYERS, HEADS, WIDTH // HEADS, WIDTH),
        "up": f(*square),
        "down": f(LAYERS, 4 * WIDTH, WIDTH),
    }
    tokens = jax.ShapeDtypeStruct((batch, LENGTH), jnp.int32)
    return loss, {"embed": f(CLASSES, WIDTH), "layers": weights, "head": f(WIDTH, CLASSES)}, tokens, tokens


def all_inside() -> Case:
    """The whole loss of a device's sequences, and their mean."""
    loss, *arguments = model(lambda x, w: layer(x, w, same, lambda a: jax.lax.psum(a, "model"), same, same))
    layers = {n: P(None, *spec) for n, spec in COLUMNS.items()}
    specs = ({"embed": P(), "head": P(), "layers": layers}, P("data"), P("data"))

    def body(p: Any, x: Any, y: Any) -> Any:
        return jax.lax.pmean(loss(p, x, y), "data")

    return jax.shard_map(body, mesh=MESH, in_specs=specs, out_specs=P()), *arguments


LAYOUTS: Mapping[str, Any] = MappingProxyType(
    {
        "tensor": lambda: megatron(True),
        "tensor, unchecked": lambda: megatron(False),
        "sequence": sequence,
        "turned": ulysses,
        "weights in shards": lambda: gathered_weights(P(("data", "model"))),
        "axes in another order": lambda: gathered_weights(P(("model", "data"))),
    }
)


def graph(case: Case) -> Graph:
    return graph_of(from_jax(*case, name="loss"))


@pytest.mark.parametrize("name", LAYOUTS)
def test_blocks_are_those_of_the_function_on_whole_arrays(name: str) -> None:
    assert graph(model(LAYOUTS[name]())) == graph(model(whole))


def test_a_single_sequence_of_each_device_is_a_batch_still() -> None:
    assert graph(model(gathered_weights(P(("data", "model"))), 8)) == graph(model(whole, 8))


def test_a_loss_that_is_mapped_as_a_whole_has_the_flops_of_the_whole() -> None:
    ours, theirs = graph(all_inside()), graph(model(whole))
    assert (ours.dims, count_parameters(ours)) == (theirs.dims, count_parameters(theirs))
    assert forward_flops(ours, 1) == forward_flops(theirs, 1)


def test_the_answer_says_that_degrees_are_its_own() -> None:
    job: dict[str, Any] = {"global_batch": 64, "seq_len": LENGTH, "top": 1}
    ours, theirs = (
        plan(model_of(from_jax(*model(layers), name="loss")), "dgx-h100:1", **job)
        for layers in (megatron(True), whole)
    )
    assert NOTE in ours.warnings
    assert NOTE not in theirs.warnings
    assert (ours.plan, ours.estimate) == (theirs.plan, theirs.estimate)


def test_what_is_handed_round_is_refused() -> None:
    with pytest.raises(Unsupported, match=r"hands arrays round .*: pass the same model on whole arrays"):
        graph(manual_cases.every_collective())


def test_experts_on_devices_take_what_devices_send() -> None:
    """Each of eight devices has 32 tokens and sends eight to each of eight experts, some of them empty."""
    step, *arguments = manual_cases.expert_parallel()
    blocks = graph((step.__wrapped__, *arguments))
    router, experts = 256 * 64 * 8, 8 * 8 * 8 * 2 * 64 * 128
    assert 256 * forward_flops(blocks, 1) == 2 * (router + experts)
    assert [op.kind for op in blocks.blocks[0].ops if op.kind in ("dispatch", "combine")] == [
        "dispatch",
        "combine",
    ]

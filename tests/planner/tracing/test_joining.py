"""Attention as one operator: found however it is written, equal in its numbers, and without scores that are kept."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
import jax_layers  # noqa: E402
import jax_models  # noqa: E402
import numpy as np  # noqa: E402

from cluster_specs.catalog import load_cluster  # noqa: E402
from cost_models.attention import AttentionShape  # noqa: E402
from cost_models.compute import attention_seconds  # noqa: E402
from planner import Program, from_jax, join_attention, shard  # noqa: E402
from planner.tracing.cleaning.passes import clean  # noqa: E402
from planner.tracing.layouts import NamedMesh  # noqa: E402
from planner.tracing.program import Operation  # noqa: E402
from planner.tracing.solving.options import options  # noqa: E402
from planner.tracing.solving.pricing import ProgramPricer  # noqa: E402

pytestmark = pytest.mark.jax
LENGTH = 24
"""Of sequences: no other dim is as long, so arrays that have it twice are scores."""

SIZES = jax_layers.Sizes(kv_heads=2, length=LENGTH)


def joined(name: str, layers: int = 2) -> tuple[Any, Program]:
    """A model, and the program of its gradient with attentions joined."""
    case = jax_models.MODELS[name](SIZES._replace(layers=layers))
    step = jax.value_and_grad(join_attention(case.loss))
    return case, clean(from_jax(step, *case.arguments))


def quickly(function: Callable[..., Any], arrays: Sequence[Any]) -> list[Any]:
    """The leaves of what a function makes, compiled in a tenth of the time."""
    options = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
    made = jax.jit(function).lower(*arrays).compile(options)(*arrays)
    return jax.tree.leaves(made)


def attentions(program: Program) -> list[Operation]:
    return [op for op in program.operations if op.attention is not None]


@pytest.mark.parametrize(("name", "count"), [("gpt", 1), ("llama", 1), ("t5", 6)])
def test_a_joined_model_has_the_same_gradients_and_no_scores(name: str, count: int) -> None:
    """A scan has its layer once; what is recomputed runs forward twice."""
    case, program = joined(name)
    numbers = case.arrays()
    apart, together = (
        quickly(jax.value_and_grad(f), numbers) for f in (case.loss, join_attention(case.loss))
    )
    for a, b in zip(apart, together, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6, rtol=1e-5)
    found = [op.attention.backward for op in attentions(program) if op.attention is not None]
    assert found.count(True) == count
    assert found.count(False) == count * (2 if name == "llama" else 1)
    assert all(v.shape.count(LENGTH) < 2 for v in program.values)


@pytest.mark.parametrize(
    "options_",
    [
        {"is_causal": True},
        {"bias": np.linspace(0, 1, 2 * 4 * 16 * 16, dtype=np.float32).reshape(2, 4, 16, 16)},
        {"mask": np.tril(np.ones((16, 16), bool))[None, None]},
        {"local_window_size": 4},
    ],
    ids=lambda o: next(iter(o)),
)
def test_attention_of_jax_is_one_operator(options_: dict[str, Any]) -> None:
    def loss(q: Any, k: Any, v: Any) -> Any:
        return (jax.nn.dot_product_attention(q, k, v, **options_) ** 2).sum()

    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(2, 16, heads, 8)).astype(np.float32) for heads in (4, 2, 2)]
    steps = [jax.value_and_grad(f, (0, 1, 2)) for f in (loss, join_attention(loss))]
    for a, b in zip(*(quickly(step, arrays) for step in steps), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-5)
    program = clean(from_jax(steps[1], *arrays))
    sizes = [[op.sizes[f] for f in op.attention.queries] for op in attentions(program) if op.attention]
    assert list(map(sorted, sizes)) == [[2, 16]] * 2  # two query heads to a key head


def routed(x: Any, w: Any) -> Any:
    """A softmax whose odds are read twice, as a router's."""
    odds = jax.nn.softmax(x @ w)
    return ((odds @ x) ** 2).sum() + odds.max()


def summed(x: Any, w: Any) -> Any:
    """Two products without a softmax between them."""
    return (jnp.tanh(x @ w) @ x).sum()


@pytest.mark.parametrize("function", [routed, summed])
def test_what_is_no_attention_stays_as_it_is(function: Callable[..., Any]) -> None:
    x = jax.ShapeDtypeStruct((8, 8), "float32")
    program = clean(from_jax(join_attention(function), x, x))
    assert not attentions(program)
    assert program == clean(from_jax(function, x, x)).model_copy(update={"operations": program.operations})


def test_whole_structures_pass_through() -> None:
    """Arguments by name and in trees, results in trees, attention under a batch of its own."""

    def function(tree: Any, *, scale: Any) -> Any:
        q = tree["q"] * scale
        weights = jax.nn.softmax(q @ q.T)
        return {"found": weights @ q, "beside": q.sum()}

    q = jnp.linspace(0, 1, 3 * 8 * 4).reshape(3, 8, 4)
    want = jax.vmap(lambda q: function({"q": q}, scale=2.0))(q)
    have = jax.vmap(lambda q: join_attention(function)({"q": q}, scale=2.0))(q)
    assert jax.tree.structure(want) == jax.tree.structure(have)
    np.testing.assert_allclose(want["found"], have["found"], rtol=1e-6)


def priced(name: str) -> tuple[ProgramPricer, list[Operation]]:
    program = joined(name)[1]
    return ProgramPricer(program, NamedMesh(load_cluster("dgx-h100:1"), {"data": 2, "model": 2})), attentions(
        program
    )


def test_the_price_is_that_of_the_kernel() -> None:
    """Of one device: batch and key heads beside each other, both query heads of each, and the recomputed scores."""
    pricer, (forward, backward) = priced("gpt")
    device = pricer.mesh.cluster.device
    shape = AttentionShape(
        batch=SIZES.batch * 2,
        heads=2,
        q_len=LENGTH,
        kv_len=LENGTH,
        qk_dim=8,
        v_dim=8,
        kv_heads=1,
        causal=False,
    )
    there, back = (attention_seconds(shape, device, "tf32", "plain", b).seconds for b in (False, True))
    for op, seconds in ((forward, there), (backward, there + back)):
        whole = options(op, [pricer.program.value[n].shape for n in op.outputs], pricer.mesh)[-1]
        assert set(whole.split) == {-1}
        cost = pricer.operation(op, whole)
        assert cost.compute == pytest.approx(seconds * op.times)
        assert cost.exchanges == ()


def test_it_is_split_by_batch_heads_and_queries_only() -> None:
    """Where queries are split, gradients of keys and values are sums: two arrays as large as these; or all go round."""
    pricer, (forward, backward) = priced("gpt")
    for op in (forward, backward):
        found = options(op, [pricer.program.value[n].shape for n in op.outputs], pricer.mesh)
        assert op.attention is not None
        inner = {*op.attention.width, *op.attention.depth}
        assert not inner & {f for o in found for f in o.split}
        positions = next(f for f in op.attention.queries if op.sizes[f] == LENGTH)
        by_queries = next(o for o in found if o.split == (-1, positions))
        exchanged = pricer.operation(op, by_queries).exchanges
        assert [e.collective for e in exchanged] == ["all_reduce"] * (2 if op is backward else 0)
        size = SIZES.batch * LENGTH * 2 * 8 * 4
        assert [e.full_bytes for e in exchanged] == [size] * len(exchanged)
        in_a_ring = next(o for o in found if o.split == (-1, *op.attention.keys))
        exchanged = pricer.operation(op, in_a_ring).exchanges
        assert [e.collective for e in exchanged] == ["send"] * (5 if op is backward else 2)
        assert [e.full_bytes for e in exchanged] == [size / 2] * len(exchanged)


def test_layers_that_keep_no_scores_take_less_memory() -> None:
    case, together = joined("gpt", layers=8)
    apart = from_jax(jax.value_and_grad(case.loss), *case.arguments)
    mesh = {"data": 2, "model": 2}
    kept, less = (shard(p, "dgx-h100:1", mesh).memory_bytes for p in (apart, together))
    scores = 8 * SIZES.batch * SIZES.heads * LENGTH * LENGTH * 4 / 4  # of all layers, split four ways
    assert kept - less > scores

"""Splitting an operator as its rule allows gives what JAX computes of the whole.

The inputs are cut along the factor, JAX runs on each part, and the parts of the outputs are put side by side
where they have the factor, or added up where they lack it.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

from planner.tracing.applying.parts import sizes_in_parts  # noqa: E402
from planner.tracing.cleaning.passes import clean  # noqa: E402
from planner.tracing.program import Operation  # noqa: E402
from planner.tracing.reading.from_jax import from_jax  # noqa: E402
from planner.tracing.solving.options import SUMMING, splittable  # noqa: E402

pytestmark = pytest.mark.jax


def conv(x: Any, w: Any, groups: int = 1) -> Any:
    return jax.lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=groups
    )


CASES: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "product": (jnp.matmul, ((4, 6), (6, 8))),
    "product of heads": (lambda q, k: jnp.einsum("bqhd,bkhd->bhqk", q, k), ((2, 4, 2, 6), (2, 6, 2, 6))),
    "product over two dims": (lambda x, w: jnp.einsum("bsh,bsf->hf", x, w), ((2, 4, 6), (2, 4, 8))),
    "product with a transpose": (lambda x, w: x @ w.T, ((4, 6), (8, 6))),
    "convolution 2-D": (conv, ((2, 8, 8, 4), (3, 3, 4, 6))),
    "convolution 1-D": (
        lambda x, w: jax.lax.conv_general_dilated(
            x, w, (1,), "SAME", dimension_numbers=("NHC", "HIO", "NHC")
        ),
        ((2, 8, 4), (3, 4, 6)),
    ),
    "convolution 3-D": (
        lambda x, w: jax.lax.conv_general_dilated(x, w, (1, 1, 1), "SAME"),
        ((2, 4, 6, 6, 6), (2, 4, 3, 3, 3)),
    ),
    "softmax": (lambda x: jax.nn.softmax(x) * 2, ((4, 6),)),
    "sum": (lambda x: x.sum(1), ((4, 6, 2),)),
    "heads cut out": (lambda x: x.reshape(*x.shape[:2], -1, 3).transpose(0, 2, 1, 3) + 1, ((4, 8, 6),)),
    "transposed and reshaped at once": (
        lambda x: jax.lax.reshape(x, (x.shape[2] * x.shape[0], x.shape[1]), (2, 0, 1)) + 1,
        ((4, 6, 2),),
    ),
    "running sum": (lambda x: jnp.cumsum(x, 1), ((4, 6),)),
    "sorted": (lambda x: jnp.sort(x, 1), ((4, 6),)),
    "largest": (lambda x: jax.lax.top_k(x, 2)[0], ((4, 6),)),
    "concatenated": (lambda x, y: jnp.concatenate([x, y], 1), ((4, 6), (4, 2))),
    "padded": (lambda x: jnp.pad(x, ((0, 0), (1, 1))), ((4, 6),)),
    "sliced": (lambda x: x[:, 1:3], ((4, 6),)),
    "pooled": (lambda x: jax.lax.reduce_window(x, 0.0, jax.lax.add, (1, 2), (1, 2), "VALID"), ((4, 6),)),
    "smallest of windows": (
        lambda x: jax.lax.reduce_window(x, jnp.inf, jax.lax.min, (1, 2), (1, 2), "VALID"),
        ((4, 6),),
    ),
    "folded by a function": (
        lambda x: jax.lax.reduce(x, -jnp.inf, lambda a, b: jnp.logaddexp(a, b), (1,)),
        ((4, 6),),
    ),
    "solved": (
        lambda a, b: jax.lax.linalg.triangular_solve(a, b, left_side=True),
        ((4, 3, 3), (4, 3, 2)),
    ),
    "solved along a band": (jax.lax.linalg.tridiagonal_solve, ((4, 3), (4, 3), (4, 3), (4, 3, 2))),
    "in Hessenberg form": (lambda a: jax.lax.linalg.hessenberg(a)[0], ((4, 3, 3),)),
    "product with itself": (jax.lax.linalg.symmetric_product, ((4, 3, 2), (4, 3, 3))),
    "turned by reflections": (jax.lax.linalg.ormqr, ((4, 3, 3), (4, 3), (4, 3, 2))),
    "spectrum": (lambda x: jax.lax.fft(x, "RFFT", (6, 8)), ((4, 6, 8),)),
    "broadcast": (lambda x, g: x * g, ((4, 6), (6,))),
}


def arrays(shapes: tuple[tuple[int, ...], ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape) for shape in shapes]


def only(function: Callable[..., Any], shapes: tuple[tuple[int, ...], ...]) -> Operation:
    """The one operator that a function becomes."""
    program = clean(from_jax(function, *(jax.ShapeDtypeStruct(s, "float32") for s in shapes), parameters=()))
    (op,) = program.operations
    order = [op.inputs.index(name) for name in program.inputs]
    return op.model_copy(update={"reads": tuple(op.reads[i] for i in order)})


def place(dims: tuple[tuple[int, ...], ...], factor: int) -> int | None:
    return next((i for i, dim in enumerate(dims) if dim and dim[0] == factor), None)


@pytest.mark.parametrize("name", [n for n in CASES if n not in ("padded", "sliced")])
def test_parts_make_up_the_whole(name: str) -> None:
    function, shapes = CASES[name]
    op, given = only(function, shapes), arrays(shapes)
    whole = np.asarray(function(*given))
    halos = {h.factor for h in op.halos}
    reduced = {f for r in op.reductions for f in r.over}
    factors = [f for f in splittable(op) if op.sizes[f] % 2 == 0 and f not in halos | reduced]
    assert factors, "nothing can be split"
    for factor in factors:
        parts = []
        for half in (0, 1):
            cut = [
                x if (at := place(dims, factor)) is None else np.split(x, 2, at)[half]
                for x, dims in zip(given, op.reads, strict=True)
            ]
            parts.append(np.asarray(function(*cut)))
        at = place(op.writes[0], factor)
        assert at is not None or op.kind in SUMMING
        combined = parts[0] + parts[1] if at is None else np.concatenate(parts, at)
        np.testing.assert_allclose(combined, whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("running sum", {4}),
        ("sorted", {4}),
        ("padded", {4}),
        ("sliced", {4}),
        ("convolution 2-D", {2, 4, 6, 8}),
    ],
)
def test_only_what_may_be_split_is_offered(name: str, sizes: set[int]) -> None:
    op = only(*CASES[name])
    assert {op.sizes[f] for f in splittable(op)} == sizes


def test_an_image_is_split_with_its_border() -> None:
    op = only(*CASES["convolution 2-D"])
    assert [(op.sizes[h.factor], h.elements) for h in op.halos] == [(8, 2), (8, 2)]


def test_groups_of_a_convolution_are_a_batch() -> None:
    op = only(lambda x, w: conv(x, w, groups=4), ((2, 8, 8, 8), (3, 3, 2, 12)))
    group = next(f for f in splittable(op) if op.sizes[f] == 4)
    assert all(any(group in dim for dim in dims) for dims in (*op.reads, *op.writes))


def test_rows_of_a_table_split_into_sums() -> None:
    """Each part of a vocabulary gives its rows, and nothing for the others."""
    rng = np.random.default_rng(0)
    table, at = rng.normal(size=(8, 4)), rng.integers(0, 8, 6)
    shapes = jax.ShapeDtypeStruct((8, 4), "float32"), jax.ShapeDtypeStruct((6,), "int32")
    (op,) = (
        o
        for o in clean(from_jax(lambda t, i: t.at[i].get(mode="clip"), *shapes)).operations
        if o.kind == "lookup"
    )
    vocabulary = next(f for f in splittable(op) if op.sizes[f] == 8)
    assert place(op.writes[0], vocabulary) is None
    parts = [np.where((at // 4 == half)[:, None], table[half * 4 + at % 4], 0) for half in (0, 1)]
    np.testing.assert_allclose(sum(parts), table[at])


def test_updates_of_a_table_split_into_sums() -> None:
    rng = np.random.default_rng(0)
    at, updates = rng.integers(0, 8, 6), rng.normal(size=(6, 4))
    zeros = jnp.zeros((8, 4))
    shapes = jax.ShapeDtypeStruct((6,), "int32"), jax.ShapeDtypeStruct((6, 4), "float32")
    program = clean(from_jax(lambda i, u: jnp.zeros((8, 4)).at[i].add(u), *shapes, parameters=()))
    (op,) = (o for o in program.operations if o.kind == "accumulate")
    row = next(f for f in splittable(op) if op.sizes[f] == 6)
    assert place(op.writes[0], row) is None
    parts = [zeros.at[at[half::2]].add(updates[half::2]) for half in (0, 1)]
    np.testing.assert_allclose(parts[0] + parts[1], zeros.at[at].add(updates), rtol=1e-6)


def test_rows_by_group_are_split_wherever_groups_end() -> None:
    """As tokens by expert: a half of the rows, with all matrices, gives a half of the result."""
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(16, 6)).astype("f4"), rng.normal(size=(4, 6, 2)).astype("f4")
    sizes = np.array([1, 9, 0, 6], "i4")
    loss = jax.value_and_grad(lambda w, x, n: (jax.lax.ragged_dot(x, w, n) ** 2).sum(), (0, 1))
    products = [op for op in clean(from_jax(loss, w, x, sizes)).operations if op.kind == "product"]
    assert [sorted(op.sizes) for op in products] == [[2, 4, 4, 6]] * 3
    forward = products[0]
    row = forward.reads[0][0][0]
    assert forward.writes[0][0][0] == row
    assert place(forward.reads[1], row) is None
    group = forward.reads[1][0][0]
    assert group not in splittable(forward)
    gradient = next(op for op in products if len(op.writes[0]) == 3)
    assert place(gradient.writes[0], gradient.reads[0][0][0]) is None  # a sum over rows
    in_halves = np.asarray(sizes_in_parts(jnp.broadcast_to(sizes, (2, 4)), 8))
    np.testing.assert_array_equal(in_halves, [[1, 7, 0, 0], [0, 2, 0, 6]])
    halves = [jax.lax.ragged_dot(x[8 * i :][:8], w, in_halves[i]) for i in (0, 1)]
    np.testing.assert_allclose(np.concatenate(halves), jax.lax.ragged_dot(x, w, sizes), rtol=1e-4)

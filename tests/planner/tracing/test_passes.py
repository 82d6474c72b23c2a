"""Clean-up passes: what each removes, and what it must leave."""

from typing import Any

import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

from planner.tracing.cleaning.fusion import fuse  # noqa: E402
from planner.tracing.cleaning.passes import clean  # noqa: E402
from planner.tracing.cleaning.redundant import drop_dead, fold_constants, merge_equal  # noqa: E402
from planner.tracing.cleaning.views import absorb_views  # noqa: E402
from planner.tracing.program import Program  # noqa: E402
from planner.tracing.reading.from_jax import from_jax  # noqa: E402

pytestmark = pytest.mark.jax
X = jax.ShapeDtypeStruct((8, 4, 6), "float32")
W = jax.ShapeDtypeStruct((6, 6), "float32")


def traced(function: Any, *arguments: Any) -> Program:
    return from_jax(function, *(arguments or (X,)), parameters=())


def primitives(program: Program) -> list[str]:
    return [op.primitive for op in program.operations]


def test_what_nobody_reads_goes() -> None:
    program = traced(lambda x: (x.sum(), x + 1)[1])
    assert primitives(drop_dead(program)) == ["add"]


def test_what_a_carry_needs_stays() -> None:
    program = traced(lambda x: jax.lax.scan(lambda c, r: (c + jnp.sin(r), None), x[0], x)[0])
    kept = primitives(drop_dead(program))
    assert {"sin", "add"} <= set(kept)


def test_a_state_that_nobody_reads_goes_with_what_comes_round_to_it() -> None:
    """Though that is wanted for itself: the mean of each pass, and that of the last one, which is dropped."""

    def step(carry: Any, row: Any) -> Any:
        mean = jnp.sin(row).mean()
        return (carry[0] + mean, mean), None

    program = drop_dead(traced(lambda x: jax.lax.scan(step, (0.0, 0.0), x)[0][0])).checked()
    assert len(program.ties) == 1


def test_the_same_expression_is_computed_once() -> None:
    program = traced(lambda x: jnp.sin(x) + jnp.sin(x))
    assert primitives(merge_equal(program)) == ["sin", "add"]


def test_other_numbers_are_another_expression() -> None:
    assert primitives(merge_equal(traced(lambda x: (x * 2) + (x * 3)))) == ["mul", "mul", "add"]


def test_what_is_computed_again_stays_apart() -> None:
    """Recomputation saves memory only if it is not merged with the first time."""

    def loss(x: Any) -> Any:
        return jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)))(x).sum()

    program = merge_equal(drop_dead(traced(jax.value_and_grad(loss))))
    assert primitives(program).count("sin") == 3


def test_constants_are_made_where_they_are_read() -> None:
    program = fold_constants(traced(lambda x: jnp.where(jnp.tril(jnp.ones((6, 6), bool)), x[:, :1], 0.0)))
    assert not {"iota", "ge"} & set(primitives(program))


def test_views_are_read_through() -> None:
    program = absorb_views(drop_dead(traced(lambda x, w: x @ w.T, X, W)))
    (op,) = program.operations
    assert (op.inputs, op.reads[1]) == (("x", "w"), ((3,), (0,)))


def test_heads_are_read_off_the_columns() -> None:
    def scores(x: Any, w: Any) -> Any:
        q = (x @ w).reshape(8, 4, 2, 3)
        return jnp.einsum("bqhd,bkhd->bhqk", q, q)

    product = clean(traced(scores, X, W)).operations[-1]
    heads = next(f for f, n in enumerate(product.sizes) if n == 2)
    assert product.reads[0][2][0] == heads
    assert len(product.reads[0]) == 3


def test_empty_arrays_are_not_read_through() -> None:
    """As tokens of which a configuration has none."""
    none = jax.ShapeDtypeStruct((0, 1, 4), jnp.float32)
    wide = jax.ShapeDtypeStruct((8, 4), jnp.float32)
    made = clean(traced(lambda x, n: jnp.concatenate([x, n.reshape(0, 4)]), wide, none))
    assert made.value[made.operations[-1].inputs[1]].shape == (0, 4)


def test_a_view_that_is_returned_is_made() -> None:
    assert primitives(absorb_views(traced(lambda w: w.T, W))) == ["transpose"]


def test_softmax_is_one_kernel() -> None:
    program = clean(traced(lambda x: jax.nn.softmax(x * 2) + 1))
    (op,) = program.operations
    assert len(op.reductions) == 2
    assert op.inputs == ("x",)


def test_a_square_reads_once() -> None:
    """What is read twice alike is moved once."""
    (op,) = clean(traced(lambda x: x * x)).operations
    assert op.inputs == ("x",)


def test_products_stay_by_themselves() -> None:
    program = clean(traced(lambda x, w: jnp.tanh(jnp.tanh(x @ w) @ w), X, W))
    assert primitives(program) == ["dot_general", "tanh", "dot_general", "tanh"]


def test_a_kernel_does_not_wait_for_itself() -> None:
    """tanh(x) and the sum cannot be one kernel: the product between them waits for the first."""
    program = clean(traced(lambda x, w: (lambda y: y + y @ w)(jnp.tanh(x)), X, W))
    assert primitives(program) == ["tanh", "dot_general", "add"]


def test_kernels_do_not_leave_their_scan() -> None:
    program = clean(traced(lambda x: jax.lax.scan(lambda c, r: (c + r, None), x[0] * 2, x)[0] + 1))
    assert all(len({m.name.startswith("scan") for m in op.members}) == 1 for op in program.operations)


def test_kernels_do_not_enter_a_second_run() -> None:
    """What comes into it is held back, so that nothing of the first run can be one kernel with it."""

    def loss(x: Any, w: Any) -> Any:
        policy = jax.checkpoint_policies.checkpoint_dots
        return jax.checkpoint(lambda w: jnp.sin(jnp.sin(x @ w)), policy=policy)(w).sum()

    program = clean(traced(jax.value_and_grad(loss, argnums=1), X, W))
    runs = {frozenset(m.name.rpartition("/")[0] for m in op.members) for op in program.operations}
    assert sorted(map(len, runs)) == [1, 1]


def test_members_cover_every_operator_that_is_not_a_view_or_constant() -> None:
    program = drop_dead(traced(lambda x: jax.nn.softmax(x * 2) + 1))
    work = {op.name for op in program.operations if op.kind not in ("view",)}
    assert work == {m.name for op in fuse(absorb_views(program)).operations for m in op.members}


def test_the_program_says_what_was_done() -> None:
    assert clean(traced(lambda x, w: jnp.tanh(x @ w.T) * 2, X, W)).applied == (
        "1 views read through",
        "1 fused into the loops that feed them",
    )


def test_what_was_read_before_the_clean_up_does_not_matter() -> None:
    """Readers that the clean-up drops do not count, though somebody has asked for them."""

    def step(x: Any, a: Any, b: Any) -> Any:
        first = x @ a
        return (jnp.sin(first).sum(), first + x @ b)[1]

    program = traced(step, X, W, W)
    assert len(program.readers[program.operations[0].outputs[0]]) == 2
    assert clean(program).operations[-1].addends


def test_a_clean_program_is_as_good_as_read_from_a_file() -> None:
    program = clean(traced(lambda x, w: jax.nn.softmax(x.reshape(32, 6) @ w, axis=-1), X, W))
    assert Program.model_validate_json(program.to_json()) == program

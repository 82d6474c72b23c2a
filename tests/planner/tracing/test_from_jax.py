"""Programs traced from JAX: what they hold, and that nothing is allocated."""

from typing import Any

import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
from jax.extend.core import Primitive  # noqa: E402
from jax.sharding import PartitionSpec  # noqa: E402
from jax_layers import SMALL  # noqa: E402
from jax_models import MODELS, gpt  # noqa: E402

from planner.errors import InputError, Unsupported  # noqa: E402
from planner.tracing.cleaning.passes import clean  # noqa: E402
from planner.tracing.program import Program, elements  # noqa: E402
from planner.tracing.reading.from_jax import IN_ANY_MESH, from_jax  # noqa: E402
from planner.tracing.solving.shard import shard  # noqa: E402

pytestmark = pytest.mark.jax
X = jax.ShapeDtypeStruct((8, 4), "float32")
W = jax.ShapeDtypeStruct((4, 4), "float32")


@pytest.mark.parametrize("name", MODELS)
def test_programs_load_as_they_were_saved(name: str) -> None:
    case = MODELS[name]()
    program = clean(from_jax(case.step, *case.arguments))
    assert Program.model_validate_json(program.to_json()) == program


@pytest.mark.parametrize("name", MODELS)
def test_gradients_lie_as_their_parameters(name: str) -> None:
    case = MODELS[name]()
    program = from_jax(case.step, *case.arguments)
    parameters = [v for v in program.values if v.role == "parameter"]
    assert len(parameters) == len(jax.tree.leaves(case.parameters))
    assert {t.target for t in program.ties if t.target in program.inputs} == {v.name for v in parameters}
    assert all(program.value[t.source].shape == program.value[t.target].shape for t in program.ties)


def test_a_model_far_larger_than_memory_is_only_looked_at() -> None:
    huge = jax.ShapeDtypeStruct((1 << 20, 1 << 20), "bfloat16")
    (op,) = from_jax(lambda w, x: x @ w, huge, jax.ShapeDtypeStruct((8, 1 << 20), "bfloat16")).operations
    assert elements(op.sizes) == 8 << 40


def test_a_scan_stands_in_line_once() -> None:
    deep, flat = (gpt(SMALL._replace(layers=layers)) for layers in (80, 2))
    deep, flat = from_jax(deep.loss, *deep.arguments), from_jax(flat.loss, *flat.arguments)
    assert len(deep.operations) == len(flat.operations)
    assert {op.times for op in deep.operations} == {1, 80}


def test_calls_are_followed() -> None:
    @jax.custom_jvp
    def twice(x):
        return 2 * x

    twice.defjvp(lambda primals, tangents: (twice(primals[0]), 2 * tangents[0]))
    program = from_jax(jax.jit(lambda x: jax.checkpoint(twice)(x) + 1), X)
    assert [op.primitive for op in program.operations] == ["mul", "add"]


def until_small(w: Any, x: Any) -> Any:
    return jax.lax.while_loop(lambda y: jnp.abs(y).max() > 1e-3, lambda y: jnp.tanh(y @ w) / 2, x)


def test_a_loop_without_end_runs_as_often_as_is_said() -> None:
    with pytest.raises(Unsupported, match=r"while\.0 runs until a condition ends it.*--trips N"):
        from_jax(until_small, W, X)
    with pytest.raises(InputError, match="trips=0"):
        from_jax(until_small, W, X, trips=0)
    program = from_jax(until_small, W, X, trips=7)
    assert {op.times for op in program.operations if op.kind == "product"} == {7}
    tests = [op for op in program.operations if op.branch]
    assert {op.primitive for op in tests} == {"abs", "reduce_max", "gt"}
    assert {op.times for op in tests} == {8}
    assert {n for op in tests for n in op.outputs} & {*program.outputs}
    assert program.applied == ("while.0 taken to run 7 times",)
    counted = from_jax(lambda w, x: jax.lax.fori_loop(0, 7, lambda i, y: jnp.tanh(y @ w) / 2, x), W, X)
    untested = program.model_copy(update={"outputs": ("while.0:0",)})
    prices = [shard(p, "dgx-h100:1", {"model": 2}).seconds for p in (program, untested, counted)]
    assert prices[1] == pytest.approx(prices[2], rel=0.05)  # but for the counter
    assert prices[0] > 1.1 * prices[1]


def test_a_training_step_hands_on_weights_and_states() -> None:
    def step(weights, state, x):
        gradient = jax.grad(lambda w: ((x @ w["a"]) ** 2).mean())(weights)
        state = jax.tree.map(lambda m, g: 0.9 * m + g, state, gradient)
        return jax.tree.map(lambda w, m: w - 0.1 * m, weights, state), state

    program = from_jax(step, {"a": W}, {"a": W}, X)
    assert [t.target for t in program.ties] == ["weights.a", "state.a"]
    assert {v.name for v in program.values if v.role == "parameter"} == {"weights.a"}


def test_of_a_train_state_the_params_are_trained() -> None:
    def step(state, x):
        gradient = jax.grad(lambda w: ((x @ w["a"]) ** 2).mean())(state["params"])
        moments = jax.tree.map(lambda m, g: 0.9 * m + g * g, state["moments"], gradient)
        params = jax.tree.map(lambda w, g, m: w - g / jnp.sqrt(m), state["params"], gradient, moments)
        return {"params": params, "moments": moments}

    program = from_jax(step, {"params": {"a": W}, "moments": {"a": W}}, X)
    assert {v.path for v in program.values if v.role == "parameter"} == {"state.params.a"}
    assert {t.target for t in program.ties} == {"state.params.a", "state.moments.a"}


def test_what_a_function_changes_in_place_is_refused() -> None:
    """A plan would leave it out, and of a step in flax's nnx keep the forward pass alone."""

    def step(weights, counts, x):
        weights["a"] = weights["a"] - 0.1 * x.T @ x
        counts["n"] = counts["n"] + 1
        return (x @ weights["a"]).sum()

    n = jax.ShapeDtypeStruct((), "int32")
    with pytest.raises(InputError, match=r"^step changes weights.a in place, .*: return what it changes"):
        from_jax(step, {"a": W}, {"n": n}, X)

    def counting(weights, counts, x):
        counts["n"] = counts["n"] + 1
        return (x @ weights["a"]).sum()

    assert from_jax(counting, {"a": W}, {"n": n}, X).operations
    returning = from_jax(
        lambda weights, counts, x: (step(weights, counts, x), weights), {"a": W}, {"n": n}, X
    )
    assert [t.target for t in returning.ties] == ["weights.a"]


def test_a_number_is_an_array_without_dims() -> None:
    def step(weights, x, how):
        return [w - how["rate"] * (x.T @ x @ w) for w in weights], how

    program = from_jax(step, [W], X, {"rate": 0.1, "count": 3})
    count, rate = (program.value[name] for name in program.inputs[2:])
    assert [(v.path, v.shape, v.dtype) for v in (count, rate)] == [
        ("how.count", (), str(jnp.asarray(3).dtype)),
        ("how.rate", (), str(jnp.asarray(0.1).dtype)),
    ]
    assert [t.target for t in program.ties] == ["weights.0", "how.count", "how.rate"]
    alone = from_jax(lambda w, x, rate: w - rate * x.sum(), W, X, 0.1)
    assert alone.value["rate"].shape == ()


def test_paths_are_those_of_the_arguments() -> None:
    program = from_jax(lambda params, x: x @ params["layers"][0]["kernel"], {"layers": [{"kernel": W}]}, X)
    assert program.inputs == ("params.layers.0.kernel", "x")


def test_an_unknown_operator_is_named() -> None:
    unknown = Primitive("unheard_of")
    unknown.def_abstract_eval(lambda w: w)
    with pytest.raises(Unsupported, match=r"unheard_of.* has no rule .* replicate_unknown=True"):
        from_jax(unknown.bind, W)
    program = from_jax(unknown.bind, W, replicate_unknown=True)
    (name,) = program.replicated
    (op,) = (o for o in program.operations if o.name == name)
    assert set(op.whole) == set(range(len(op.sizes)))


def kernel(x):
    from jax.experimental import pallas

    def double(read, written):
        written[...] = read[...] * 2

    return pallas.pallas_call(double, out_shape=X)(x)


UNKNOWN = {
    "pallas_call": (kernel, "is a kernel of its own"),
    "ffi_call": (lambda x: jax.ffi.ffi_call("made_elsewhere", X)(x), "is a kernel of its own"),
    "pure_callback": (lambda x: jax.pure_callback(lambda a: a, X, x), "runs on the host"),
}


@pytest.mark.parametrize("primitive", UNKNOWN)
def test_what_cannot_be_looked_into_is_refused_or_replicated(primitive: str) -> None:
    function, why = UNKNOWN[primitive]
    with pytest.raises(Unsupported, match=rf"\({primitive}\) {why}.*--replicate-unknown"):
        from_jax(function, X)
    assert len(from_jax(function, X, replicate_unknown=True).replicated) == 1


def test_a_loop_of_known_length_is_a_scan() -> None:
    program = from_jax(lambda x: jax.lax.fori_loop(0, 5, lambda i, s: s * 2, x), X)
    assert {op.times for op in program.operations if op.primitive == "mul"} == {5}


def test_of_two_branches_the_one_with_more_work_is_taken() -> None:
    program = from_jax(lambda w, x: jax.lax.cond(x.sum() > 0, lambda x: x * 2, lambda x: x @ w, x), W, X)
    assert [op.primitive for op in program.operations][-1] == "dot_general"
    assert program.applied == ("cond.3 taken as its branch 0 of 2, the one with the most work",)


def test_parameters_must_be_arguments() -> None:
    with pytest.raises(InputError, match="parameters=2: the function gets 1 arguments"):
        from_jax(lambda x: x, X, parameters=2)


def test_names_must_differ() -> None:
    with pytest.raises(InputError, match="two arrays are called 'params.a.b'"):
        from_jax(lambda params: params["a.b"] + params["a"]["b"], {"a.b": X, "a": {"b": X}})


def test_the_same_function_gives_the_same_program() -> None:
    case = gpt()
    first, second = (from_jax(case.step, *case.arguments).to_json() for _ in range(2))
    assert first == second


def test_slices_in_a_loop_are_not_the_rows_of_it() -> None:
    """Equations of the body have names of their own, whatever comes into it has."""

    def body(x, rows):
        return x + rows[0][1:3].sum() + rows[1][2:4].sum(), x[:2]

    rows = [jax.ShapeDtypeStruct((3, 8), "float32")] * 2
    program = from_jax(lambda x, a, b: jax.lax.scan(body, x, (a, b)), X, *rows)
    names = [op.name for op in program.operations]
    assert len(set(names)) == len(names)
    assert sum(op.primitive == "slice" for op in program.operations) == 3


def test_what_a_solver_does_is_followed() -> None:
    """A decomposition and what it solves, a matrix each; not what derivatives would need."""
    matrices, sides = (jax.ShapeDtypeStruct((16, 8, n), "float32") for n in (8, 2))
    program = from_jax(jnp.linalg.solve, matrices, sides)
    steps = {op.primitive: op for op in program.operations if op.primitive in ("lu", "triangular_solve")}
    assert len(steps) == 2
    for op in steps.values():
        assert op.sizes[0] == 16
        assert 0 not in op.whole


def test_arrays_that_are_handed_on_together_have_nothing_to_do_with_each_other() -> None:
    """Of any shapes, by a barrier or to a device."""
    arrays = {"a": jax.ShapeDtypeStruct((16, 8), "float32"), "b": jax.ShapeDtypeStruct((8, 8), "float32")}
    for hand_on in (jax.lax.optimization_barrier, jax.device_put):
        program = from_jax(lambda given, hand_on=hand_on: hand_on(jax.tree.map(jnp.sin, given)), arrays)
        views = [op for op in program.operations if op.kind == "view"]
        assert [op.sizes for op in views] == [(16, 8), (8, 8)]


def test_narrow_numbers_with_scales_are_a_product() -> None:
    """Blocks of 32 along the depth share a scale: split as the depth is, by whole blocks."""
    narrow, scales = (
        jax.ShapeDtypeStruct((1, 64, 256), "float8_e4m3fn"),
        jax.ShapeDtypeStruct((1, 64, 8), "float8_e8m0fnu"),
    )
    program = from_jax(lambda a, s, b, t: jax.nn.scaled_matmul(a, b, s, t), narrow, scales, narrow, scales)
    (op,) = (op for op in program.operations if op.kind == "product")
    assert op.sizes == (64, 64, 8, 32)
    assert op.reads == (((), (0,), (2, 3)), ((), (1,), (2, 3)), ((), (0,), (2,)), ((), (1,), (2,)))
    assert op.writes == (((), (0,), (1,)),)


def test_what_is_static_is_no_array() -> None:
    """By a wrapper within another, by name or place; weights are counted among arrays."""

    def run(layers: int, weight: Any, x: Any, act: str = "sin") -> Any:
        for _ in range(layers):
            x = getattr(jnp, act)(x @ weight)
        return x.sum()

    inner = jax.jit(run, static_argnames=("layers", "act"))
    assert from_jax(inner, 3, W, X).inputs == ("weight", "x")
    for function in (inner, jax.value_and_grad(inner, argnums=1), jax.jit(run, static_argnums=(0, -1))):
        program = from_jax(function, 3, W, X, "cos")
        assert program.inputs == ("weight", "x")
        assert program.value["weight"].role == "parameter"
        assert [op.primitive for op in program.operations].count("cos") == 3


def test_a_place_in_no_mesh_is_left_to_the_plan() -> None:
    def run(weight: Any, x: Any) -> Any:
        x = jax.lax.with_sharding_constraint(x @ weight, PartitionSpec("rows", ("pod", "columns")))
        return x.sum()

    program = from_jax(run, W, X)
    assert program.applied == (IN_ANY_MESH,)
    assert "dot_general" in {op.primitive for op in program.operations}
    with pytest.raises(ValueError, match="rank at least 3"):
        from_jax(lambda x: jax.lax.with_sharding_constraint(x, PartitionSpec(None, None, "rows")), X)


def test_what_is_printed_is_needed_and_whole() -> None:
    def run(x: Any) -> Any:
        jax.debug.print("{}", jnp.sin(x))
        return x.sum()

    program = clean(from_jax(run, X))
    assert {op.primitive for op in program.operations} == {"debug_print", "sin+reduce_sum"}
    shown = next(op for op in program.operations if op.primitive == "debug_print")
    assert set(shown.whole) == set(range(len(shown.sizes)))

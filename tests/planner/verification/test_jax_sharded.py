"""What `verify` runs a function on, and when two arrays are the same."""

from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from planner import from_jax  # noqa: E402
from planner.errors import InputError  # noqa: E402
from planner.verification.programs.jax_sharded import (  # noqa: E402
    check_finite,
    compared,
    filled,
    nudged,
    rounding,
)
from planner.verification.programs.numbers import NOISE  # noqa: E402
from planner.verification.record import Check, Verification  # noqa: E402

pytestmark = pytest.mark.jax

EPS = 2.0**-23


def test_an_output_may_move_as_by_roundings_of_the_inputs() -> None:
    """A gradient that cancels is rounding; so is what an optimizer makes of it. What does not move must agree."""

    def function(x: Any) -> Any:
        cancels = ((x + 1) - 1 - x).sum(keepdims=True)
        return {
            "cancels": cancels,
            "normalised": cancels / jax.numpy.sqrt(cancels**2 + 1e-30),
            "twice": 2 * x,
        }

    x = jax.numpy.linspace(0.1, 0.9, 64)
    expected, moved = function(x), function(*nudged((x,), EPS))
    other = {k: v + 0.5 * abs(v - moved[k]).max() for k, v in expected.items()}
    assert {o["name"]: o["error"] for o in compared(other, expected, moved, expected)} == {
        f"output['{name}']": 0.0 for name in expected
    }
    wrong = {**expected, "twice": expected["twice"].at[3].add(0.01)}
    found = {o["name"]: o["error"] for o in compared(wrong, expected, moved, expected)}
    assert found["output['twice']"] == pytest.approx(0.01 / 1.8, rel=1e-3)
    assert 0 < abs(nudged((x,), EPS)[0] - x).max() <= EPS


def test_a_number_may_lie_on_either_side_of_a_bend_that_is_near() -> None:
    """As the slope of a rectifier jumps: one rounding may not get there, sums in another order do."""

    def function(x: Any) -> Any:
        return {"slope": jax.numpy.where(x > 1, 1.0, 0.01), "twice": 2 * x}

    x = jax.numpy.full(8, 1 + 4 * 2.0**-23)
    near = [function(*nudged((x,), off * EPS)) for off in (1, NOISE)]
    expected = function(x)
    found = {**expected, "slope": expected["slope"].at[3].set(0.01)}
    assert [o["error"] for o in compared(found, expected, *near)] == [0, 0]
    assert compared(found, expected, near[0], near[0])[0]["error"] == pytest.approx(0.99)


def test_weights_are_moved_by_a_rounding_of_what_is_computed_of_them() -> None:
    """Signs of a gradient in 16 bits, as an optimizer takes them, turn where sums are in another order."""

    def step(weight: Any, x: Any) -> Any:
        return weight - jax.numpy.sign((x @ weight.astype("bfloat16")).astype("float32"))

    weight = jax.ShapeDtypeStruct((8,), "float32")
    mixed = from_jax(step, weight, jax.ShapeDtypeStruct((8, 8), "bfloat16"))
    assert rounding(mixed) == 2.0**-7
    assert rounding(from_jax(jax.numpy.sin, weight)) == EPS
    assert rounding(from_jax(jax.numpy.invert, jax.ShapeDtypeStruct((8,), "int32"))) == 0
    ones = jax.numpy.ones(64)
    assert abs(nudged(ones, rounding(mixed)) - 1).max() == 2.0**-7


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_never_the_same_as_what_is(bad: float) -> None:
    """Neither under layouts nor where inputs are moved by a rounding, which says nothing then."""
    expected = {"a": np.array([1.0, 2.0])}
    wrong, hidden = {"a": np.array([1.0, bad])}, {"a": np.array([5.0, 2.0])}
    assert compared(wrong, expected, expected, expected)[0]["error"] == np.inf
    assert compared(expected, wrong, wrong, wrong)[0]["error"] == np.inf
    assert compared(wrong, wrong, wrong, wrong)[0]["error"] == 0
    assert compared(hidden, expected, {"a": np.array([1.0, bad])}, expected)[0]["error"] == 2.0


def test_what_is_not_finite_is_null_in_the_answer() -> None:
    check = Check(name="loss", expected=1.0, found=np.nan, error=np.inf, limit=1e-4)
    answer = Verification(tool="jax", versions=("jax",), what="a step", checks=(check,)).data()
    assert not answer["passed"]
    assert answer["checks"] == [
        {"name": "loss", "expected": 1.0, "found": None, "error": None, "limit": 1e-4, "passed": False}
    ]


def test_states_of_optimizers_are_not_negative() -> None:
    def step(weights: Any, state: Any, x: Any) -> Any:
        gradient = weights["w"] * x
        moment = 0.9 * state["moment"] + gradient**2
        return {"w": weights["w"] - gradient / jax.numpy.sqrt(moment)}, {"moment": moment}

    shape = jax.ShapeDtypeStruct((64,), "float32")
    arguments = [{"w": shape}, {"moment": shape}, shape]
    program = from_jax(step, *arguments)
    weights, state, x = filled(arguments, program)
    assert float(state["moment"].min()) >= 0
    assert float(weights["w"].min()) < 0 > float(x.min())
    arguments[1] = {"moment": np.full(64, -1.0, "float32")}
    assert (filled(arguments, program)[1]["moment"] == -1).all()  # arrays are used as they are


def test_numbers_that_are_not_finite_are_refused() -> None:
    check_finite({"a": jax.numpy.ones(2)}, "train.py:step")
    with pytest.raises(
        InputError, match=r"train.py:step: on one device, output\['a'\] has numbers that are not"
    ):
        check_finite({"a": jax.numpy.log(-jax.numpy.ones(2))}, "train.py:step")

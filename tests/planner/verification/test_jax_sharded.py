"""What `verify` runs a function on, and when two arrays are the same."""

from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from planner import from_jax  # noqa: E402
from planner.errors import InputError  # noqa: E402
from planner.verification.programs.jax_sharded import check_finite, compared, filled  # noqa: E402

pytestmark = pytest.mark.jax


def errors(found: dict[str, Any], expected: dict[str, Any]) -> dict[str, float]:
    arrays = ({k: jax.numpy.asarray(v, "float32") for k, v in side.items()} for side in (found, expected))
    return {o["name"]: o["error"] for o in compared(*arrays)}


def test_what_cancels_is_held_against_the_largest_array() -> None:
    """1e-9 beside an array of ones is rounding; alone, or in an array of 1e-3, it is what it is."""
    noise = {"gradient": [1.0, 0.5], "bias": [1e-9, -1e-9]}
    found = errors({**noise, "bias": [2e-9, 1e-9]}, noise)
    assert found["output['bias']"] == pytest.approx(2e-9 / 1e-4, rel=1e-3)
    assert errors({"bias": [2e-9, 1e-9]}, {"bias": [1e-9, -1e-9]})["output['bias']"] == pytest.approx(2.0)
    wrong = errors({"gradient": [1.0], "small": [2e-3]}, {"gradient": [1.0], "small": [1e-3]})
    assert wrong["output['small']"] == pytest.approx(1.0)


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

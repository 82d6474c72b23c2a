"""Layouts without second runs, said where second runs may be, and what is found around them."""

import math
import time
from functools import cache
from typing import Any

import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
from jax_layers import Sizes, block  # noqa: E402

from planner.intra_op.answers import NetworkAnswer  # noqa: E402
from planner.intra_op.bettering import bettered  # noqa: E402
from planner.intra_op.narrowing import solve_narrowed  # noqa: E402
from planner.tracing.reading.from_jax import from_jax  # noqa: E402
from planner.tracing.solving.nodes import NodeOption  # noqa: E402
from planner.tracing.solving.own_copies import with_own_copies  # noqa: E402
from planner.tracing.solving.problem import chosen_options  # noqa: E402
from planner.tracing.solving.setting import Setting, may_recompute, set_up, tabulated  # noqa: E402
from planner.tracing.solving.starting import with_all_kept  # noqa: E402

pytestmark = pytest.mark.jax

ROOM = 0.85
"""Of the memory of the fastest layouts."""


@cache
def fastest() -> Setting:
    """A transformer's layer, forward and backward."""
    case = block(Sizes(1, 256, 4, 2, 256, 1000, 32, 256, "bfloat16"))
    return set_up(from_jax(case.step, *case.arguments), "dgx-h100:1", {"data": 2, "model": 4})


def within_limit(setting: Setting) -> Setting:
    most = setting.estimate(chosen(setting, solved(setting, math.inf))).memory_bytes
    return tabulated(setting.pricer, setting.nodes, ROOM * most, setting.optimizer_share, None)


def solved(setting: Setting, limit: float) -> NetworkAnswer:
    answer = solve_narrowed(setting.problem.network(limit), time.monotonic() + 60)
    assert answer.proven
    return answer


def chosen(setting: Setting, answer: NetworkAnswer) -> tuple[NodeOption, ...]:
    return chosen_options(setting.problem, answer.choice)


@pytest.mark.parametrize("own", [False, True])
def test_all_kept_takes_as_much_time_and_memory_as_before(own: bool) -> None:
    plain = within_limit(fastest())
    again = may_recompute(plain)
    if own:
        values = {v.name for v in plain.program.values if v.role == "parameter"}
        plain, again = (
            tabulated(s.pricer, with_own_copies(s.nodes, values), s.memory_limit, s.optimizer_share, None)
            for s in (plain, again)
        )
        assert len(again.nodes.copies) > len(plain.nodes.copies) > 0
    best = chosen(plain, solved(plain, plain.memory_limit))
    start = with_all_kept(plain.nodes, best, again)
    assert start is not None
    there, here = plain.estimate(best), again.estimate(chosen_options(again.problem, start))
    assert here.seconds == pytest.approx(there.seconds)
    assert here.memory_bytes == pytest.approx(there.memory_bytes)


def test_readers_of_one_copy_that_a_second_run_stands_between_have_a_copy_each() -> None:
    """What is made beside it is wanted again long after it was, so that both run again amid readers of one copy."""

    def step(weight: Any, x: Any) -> Any:
        early = jnp.sin(x)
        often = jnp.exp(early)
        state = early @ weight
        for _ in range(8):
            state = jnp.tanh(often @ (often.T @ state))
        late = early.T @ state
        return often @ (late @ often.T @ often)

    arrays = (jax.ShapeDtypeStruct((rows, 64), "float32") for rows in (64, 256))
    fast = set_up(from_jax(step, *arrays), "dgx-h100:1", {"data": 2, "model": 4})
    plain = tabulated(fast.pricer, fast.nodes, math.inf, fast.optimizer_share, None)
    again = may_recompute(plain)
    assert len(again.nodes.copies) == len(plain.nodes.copies) + 1
    best = chosen(plain, solved(plain, math.inf))
    start = with_all_kept(plain.nodes, best, again)
    assert start is not None
    there, here = plain.estimate(best), again.estimate(chosen_options(again.problem, start))
    assert here.seconds == pytest.approx(there.seconds)


def test_what_does_not_fit_is_no_start() -> None:
    setting = fastest()
    best = chosen(setting, solved(setting, math.inf))
    assert with_all_kept(setting.nodes, best, may_recompute(within_limit(setting))) is None


def test_second_runs_are_found_around_layouts_that_have_none() -> None:
    plain = within_limit(fastest())
    again = may_recompute(plain)
    without = solved(plain, plain.memory_limit)
    start = with_all_kept(plain.nodes, chosen(plain, without), again)
    assert start is not None
    found = bettered(again.problem.network(again.memory_limit), start, time.monotonic() + 60)
    best = solved(again, again.memory_limit)
    assert best.cost <= found.cost < without.cost
    assert found.lower_bound <= best.cost
    estimate = again.estimate(chosen(again, found))
    assert estimate.memory_bytes <= again.memory_limit
    assert estimate.seconds == pytest.approx(found.cost * again.problem.tick, rel=1e-4)

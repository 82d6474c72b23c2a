"""Layouts without second runs, said where second runs may be, and what is found around them."""

import math
import time
from functools import cache

import pytest

pytest.importorskip("jax")
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

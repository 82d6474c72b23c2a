import math
from dataclasses import replace

import pytest
from hypothesis import assume, given
from strategy_problems import every_choice, least_cost, problems, random_problem

from planner.errors import Infeasible
from planner.intra_op import elimination
from planner.intra_op.lagrangian import price_memory
from planner.intra_op.problem import StrategyProblem
from planner.intra_op.reductions import apply, drop_forbidden, merge_parallel_edges


@given(problems())
def test_the_optimum_lies_between_bound_and_choice(problem):
    best = least_cost(problem)
    assume(math.isfinite(best))
    found = price_memory(apply(problem, merge_parallel_edges, drop_forbidden).problem)
    assert found.lower_bound <= best * (1 + 1e-9)
    assert found.price >= 0


@given(problems())
def test_strategies_of_optima_stay_alive(problem):
    best = least_cost(problem)
    assume(math.isfinite(best))
    found = price_memory(problem)
    assert problem.fits(found.choice)
    assert problem.cost(found.choice) >= best
    alive = found.alive(problem.cost(found.choice))
    for choice in every_choice(problem):
        if problem.fits(choice) and problem.cost(choice) == best:
            assert all(mask[s] for mask, s in zip(alive, choice, strict=True))
        if problem.fits(choice) and math.isfinite(problem.cost(choice)):
            assert all(b[s] <= problem.cost(choice) + 1e-9 for b, s in zip(found.bounds, choice, strict=True))


def test_worked_price():
    # one second buys two bytes less, and two more seconds one byte less: the hull's slope at 3 bytes is 1/2
    problem = StrategyProblem(("a",), ([1.0, 2.0, 4.0],), ([4.0, 2.0, 1.0],), memory_limit=3.0)
    found = price_memory(problem)
    assert found.choice == (1,)
    assert found.price == 0.5
    assert found.lower_bound == 1.5


def test_no_choice_fits():
    problem = replace(random_problem([(0, 1)], 3, seed=1), memory_limit=0.0)
    least = sum(b.min() for b in problem.bytes_)
    with pytest.raises(Infeasible, match=f"the smallest takes {least:.6g}") as caught:
        price_memory(problem)
    assert caught.value.least_change == f"raise the memory limit to {least:.6g} bytes"


def test_gives_up_where_tables_would_be_too_large(monkeypatch):
    monkeypatch.setattr(elimination, "MAX_ENTRIES", 2)
    with pytest.raises(elimination.TooWide):
        price_memory(random_problem([(0, 1)], 3, seed=1, memory_limit=1.0))

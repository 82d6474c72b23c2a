import math

import pytest
from hypothesis import assume, given
from strategy_problems import least_cost, problems, random_problem

from planner.intra_op import branching
from planner.intra_op.branching import branch_and_bound
from planner.intra_op.lagrangian import price_memory

RING = [(0, 1), (1, 2), (2, 3), (3, 4), (0, 4)]


@given(problems())
def test_equals_brute_force_by_branching_alone(problem):
    best = least_cost(problem)
    assume(math.isfinite(best))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(branching, "WIDTHS", (1,))
        patch.setattr(branching, "MAX_SUBPROBLEMS", 10**6)
        found = branch_and_bound(problem, price_memory(problem), gap=0.0)
    assert problem.fits(found.choice)
    assert problem.cost(found.choice) == pytest.approx(best)
    assert found.lower_bound == pytest.approx(best)


@pytest.mark.parametrize("subproblems", [0, 1, 3, 10, 1000])
def test_the_bound_holds_wherever_it_stops(monkeypatch, subproblems):
    problem = random_problem(RING, 5, seed=3, memory_limit=1.0)
    best = least_cost(problem)
    monkeypatch.setattr(branching, "WIDTHS", (1,))
    monkeypatch.setattr(branching, "MAX_SUBPROBLEMS", subproblems)
    root = price_memory(problem)
    found = branch_and_bound(problem, root, gap=0.0)
    assert root.lower_bound <= found.lower_bound <= best * (1 + 1e-9)
    assert best <= problem.cost(found.choice) <= problem.cost(root.choice)
    assert (found.lower_bound < best * (1 - 1e-9)) == (subproblems < 10)

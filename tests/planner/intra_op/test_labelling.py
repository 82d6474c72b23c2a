import math
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from strategy_problems import least_cost, problems, random_problem

from planner.intra_op.labelling import search

STAR = [(3, 0), (3, 1), (3, 2), (3, 4), (3, 5)]
COMB = [(0, 1), (1, 2), (2, 3), (0, 4), (1, 5), (2, 6)]
RING = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (0, 5)]
LIMITED = problems(limits=st.sampled_from([3.0, 5.0, 6.0, 8.0, 10.0, 13.0]))


@given(LIMITED, st.sampled_from([0.0, 0.1, 1.0, 7.0]))
def test_complete_search_finds_the_optimum_at_any_price(problem, price):
    best = least_cost(problem)
    assume(math.isfinite(best))
    found = search(problem, price, target=best + 3.0, width=10**6)
    assert found.complete
    assert problem.fits(found.choice)
    assert problem.cost(found.choice) == pytest.approx(best)


@pytest.mark.parametrize("edges", [STAR, COMB, RING], ids=["star", "comb", "ring"])
def test_labels_are_compared_only_where_the_rest_is_the_same(edges):
    for seed in range(12):
        problem = random_problem(edges, 3, seed)
        limited = replace(problem, memory_limit=0.4 * len(problem.nodes))
        best = least_cost(limited)
        found = search(limited, 0.5, target=1.2 * best, width=10**6)
        assert problem.cost(found.choice) == pytest.approx(best)


@given(LIMITED)
def test_nothing_is_found_below_the_optimum(problem):
    best = least_cost(problem)
    assume(math.isfinite(best))
    found = search(problem, 0.3, target=best - 0.5, width=10**6)
    assert found.choice is None
    assert found.complete


@given(LIMITED)
def test_a_narrow_search_is_feasible_and_says_whether_it_is_exact(problem):
    best = least_cost(problem)
    assume(math.isfinite(best))
    found = search(problem, 0.3, target=best + 3.0, width=1)
    if found.complete:
        assert problem.cost(found.choice) == pytest.approx(best)
    elif found.choice is not None:
        assert problem.fits(found.choice)
        assert best <= problem.cost(found.choice) <= best + 3.0

"""First choices beside brute force, and what is left of them where there is no time for more."""

import math
import time

import pytest
from contest_problems import best, contest_problems, random_contest_problem, soon
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import Infeasible
from planner.intra_op import anytime
from planner.intra_op.contest import network_of, solve_contest_problem
from planner.intra_op.first_choice import first_choice, frugal
from planner.intra_op.iopddl import ContestProblem
from planner.intra_op.messages import Relaxation
from planner.intra_op.neighbourhood import greedy


@settings(max_examples=200, deadline=None)
@given(contest_problems(), st.sampled_from([math.inf, -math.inf]))
def test_a_first_choice_fits_and_costs_what_it_says(problem: ContestProblem, deadline: float) -> None:
    network, least = network_of(problem), best(problem)
    try:
        found, bound = first_choice(network, deadline)
    except Infeasible:
        assert least is None
        return
    assert bound <= (math.inf if least is None else least)
    if found is not None:
        whole = network.expand(found.choice)
        choice = [whole[v] for v in range(len(problem.costs))]
        assert problem.fits(choice)
        assert problem.cost(choice) == found.cost


@pytest.mark.parametrize("seed", range(4))
def test_prices_that_put_memory_first_leave_more_of_it(seed: int) -> None:
    problem = random_contest_problem(200, 5, seed=seed, share=0.3)
    network = network_of(problem)
    relaxation = Relaxation(network, {})
    relaxation.sweep()
    by_costs, by_memory = greedy(relaxation), frugal(Relaxation(network, {}), math.inf)
    assert by_costs is not None
    assert by_memory is not None
    costly, least = ([s for _, s in sorted(f.choice.items())] for f in (by_costs, by_memory))
    assert problem.peak(least) < 0.9 * problem.peak(costly)


def test_without_time_nothing_but_the_first_choice_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_contest_problem(400, 5, seed=6, share=0.2)
    found, bound = first_choice(network_of(problem), -math.inf)
    assert found is not None
    monkeypatch.setattr(anytime, "shrink", None)
    solution = solve_contest_problem(problem, time.monotonic())
    assert (solution.cost, solution.lower_bound) == (found.cost, math.ceil(bound))


def test_a_first_choice_that_nothing_beats_in_time_is_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_contest_problem(400, 5, seed=6, share=0.2)
    found, _ = first_choice(network_of(problem), math.inf)
    assert found is not None
    monkeypatch.setattr(anytime._Anytime, "run", lambda solver: None)
    assert solve_contest_problem(problem, soon()).cost == found.cost

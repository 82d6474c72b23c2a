"""Branches on memory lead to the optimum, or say that nothing is below what is known."""

import math
import time

import pytest
from contest_problems import best, contest_problems, random_contest_problem
from hypothesis import HealthCheck, given, settings

from planner.errors import Infeasible
from planner.intra_op import memory_branches
from planner.intra_op.answers import NetworkAnswer
from planner.intra_op.anytime import solve_network
from planner.intra_op.contest import network_of
from planner.intra_op.iopddl import ContestProblem
from planner.intra_op.memory_branches import solve_branches
from planner.intra_op.shrinking import shrink


def solved(problem: ContestProblem, below: float = math.inf, seconds: float = 20) -> NetworkAnswer:
    network = network_of(problem)
    try:
        shrink(network)
    except Infeasible:
        return NetworkAnswer({}, math.inf, below)
    return solve_branches(network, time.monotonic() + seconds, below, {}, solve_network)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(contest_problems())
def test_equals_brute_force_where_only_branches_decide(
    monkeypatch: pytest.MonkeyPatch, problem: ContestProblem
) -> None:
    monkeypatch.setattr(memory_branches, "SMALL", 0)
    least = best(problem)
    answer = solved(problem)
    if least is None:
        assert (answer.choice, answer.cost) == ({}, math.inf)
        return
    choice = [answer.choice[v] for v in range(len(problem.costs))]
    assert answer.cost == problem.cost(choice) == answer.lower_bound == least
    assert problem.fits(choice)
    assert solved(problem, least) == NetworkAnswer({}, math.inf, least)


@pytest.mark.parametrize("seed", range(3))
def test_larger_ones_are_parted_and_agree_with_guesses(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    problem = random_contest_problem(40, 6, seed=seed, share=0.4)
    expected = solve_network(network_of(problem), time.monotonic() + 20)
    assert expected.cost == expected.lower_bound
    monkeypatch.setattr(memory_branches, "SMALL", 300)
    answer = solved(problem)
    assert answer.cost == answer.lower_bound == expected.cost


def test_without_time_the_bound_holds() -> None:
    problem = random_contest_problem(40, 6, seed=1, share=0.4)
    expected = solve_network(network_of(problem), time.monotonic() + 20)
    assert solved(problem, seconds=0).lower_bound <= expected.cost

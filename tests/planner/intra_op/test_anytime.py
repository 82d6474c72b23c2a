"""Networks solved with a choice already known: only cheaper ones are looked for."""

import math
import time
from typing import Any

import numpy as np
import pytest
from contest_problems import best, contest_problems, random_contest_problem, soon
from hypothesis import given, settings

from planner.errors import Infeasible
from planner.intra_op import anytime, hubs
from planner.intra_op.answers import NetworkAnswer
from planner.intra_op.anytime import solve_network
from planner.intra_op.contest import network_of, solve_contest_problem
from planner.intra_op.hub_branches import HubTree
from planner.intra_op.hubs import Decided
from planner.intra_op.iopddl import ContestProblem
from planner.intra_op.local_polytope import solve_program
from planner.intra_op.shrinking import shrink


def solved(problem: ContestProblem, below: float) -> NetworkAnswer:
    network = network_of(problem)
    prices = {int(row): 0.5 for row in network.rows}
    try:
        return solve_network(network, soon(), below, prices)
    except Infeasible:
        return NetworkAnswer({}, math.inf, below)


@settings(max_examples=100, deadline=None)
@given(contest_problems())
def test_what_costs_less_is_found_and_what_does_not_is_excluded(problem: ContestProblem) -> None:
    least = best(problem)
    if least is None:
        return
    answer = solved(problem, least + 1)
    assert answer.cost == answer.lower_bound == least
    answer = solved(problem, least)
    assert answer.cost >= least == answer.lower_bound
    if answer.choice:
        assert problem.cost([answer.choice[v] for v in range(len(problem.costs))]) == answer.cost


def test_larger_ones_are_excluded_by_prices_and_guesses_too() -> None:
    """No brute force: the optimum is what the same solver proves without the hint."""
    problem = random_contest_problem(60, 6, seed=5, share=0.5)
    alone = solve_network(network_of(problem), soon())
    assert alone.cost == alone.lower_bound
    assert solved(problem, alone.cost + 1).cost == alone.cost
    assert solved(problem, alone.cost).lower_bound == alone.cost


def test_costs_moved_below_zero_prove_nothing() -> None:
    """Of the first edge, which separates, 100 become the first node's, which is decided, and -100 the second's."""
    problem = ContestProblem(
        name="moved",
        intervals=((0, 0), (0, 1), (0, 1)),
        costs=((0,), (0, 0), (50, 0)),
        usages=((0,), (0, 3), (0, 2)),
        edges=((0, 1), (1, 2)),
        edge_costs=((100, 0), (0, 7, 3, 0)),
        usage_limit=3,
    )
    assert best(problem) == 53
    network = network_of(problem)
    shrink(network)
    assert network.floor <= 53 < network.constant
    assert solve_program(network.fork(), math.inf).lower_bound == pytest.approx(53)
    out_of_time = solve_network(network, time.monotonic())
    assert out_of_time.lower_bound <= 53 <= out_of_time.cost


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_hubs_are_left_alone_where_deciding_them_all_hardly_lifts_the_bound(
    monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    """However far the choice is: it is what has to be bettered then."""
    problem = random_contest_problem(60, 4, seed=7, share=0.1)
    explored: list[Decided] = []
    gaps: list[float] = []

    class Lifting(HubTree):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.best = Decided(self.best.choice, self.bound + share * gaps[-1], self.best.prices)

        def explore(self, *_: Any, **__: Any) -> None:
            explored.append(self.best)

    def part(solver: anytime._Anytime) -> None:
        gaps.append(solver.cutoff - solver.lower_bound)
        before(solver)

    before = anytime._Anytime._part
    monkeypatch.setattr(anytime, "SMALL", -1)
    monkeypatch.setattr(anytime, "FAR_APART", 0.0)
    monkeypatch.setattr(anytime, "CLOSING", np.inf)
    monkeypatch.setattr(anytime._Anytime, "_part", part)
    monkeypatch.setattr(hubs, "MANY", 4)
    monkeypatch.setattr(anytime, "HubTree", Lifting)
    solution = solve_contest_problem(problem, soon(5.0))
    assert problem.fits(solution.choice)
    assert bool(explored) == bool(share)


@pytest.mark.parametrize(("closed", "wait"), [(0.05, False), (0.5, True)])
def test_guesses_wait_only_for_branches_on_memory_that_close_much(closed: float, wait: bool) -> None:
    """Of what is open, in their share of the time."""
    solver = anytime._Anytime(
        network_of(random_contest_problem(60, 6, seed=5, share=0.5)), soon(), math.inf, {}
    )
    solver._start()
    solver.lower_bound = 0.5 * solver.cutoff

    class Branches:
        def explore(self, below: float, deadline: float) -> NetworkAnswer:
            return NetworkAnswer({}, math.inf, solver.lower_bound + closed * (below - solver.lower_bound))

    solver.on_memory = Branches()
    solver._part_on_memory()
    assert solver._far_in_branches()
    assert solver.branches_close == wait

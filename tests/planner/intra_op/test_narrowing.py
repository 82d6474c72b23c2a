"""Ever larger parts of a network's strategies lead to the optimum of the whole."""

import time

import numpy as np
import pytest
from contest_problems import best, contest_problems, random_contest_problem, soon
from hypothesis import given, settings

from planner.errors import Infeasible
from planner.intra_op import anytime, narrowing
from planner.intra_op.contest import network_of, solve_contest_problem
from planner.intra_op.memory_branches import MemoryTree
from planner.intra_op.messages import Relaxation
from planner.intra_op.narrowing import solve_narrowed
from planner.intra_op.network import Network, Piece
from planner.intra_op.shrinking import shrink


@settings(max_examples=150, deadline=None)
@given(contest_problems())
def test_equals_brute_force(problem):
    least = best(problem)
    if least is None:
        with pytest.raises(Infeasible):
            solve_narrowed(network_of(problem), soon())
        return
    answer = solve_narrowed(network_of(problem), soon())
    choice = [answer.choice[v] for v in range(len(problem.costs))]
    assert answer.cost == problem.cost(choice) == answer.lower_bound == least
    assert problem.fits(choice)


@pytest.mark.parametrize("seed", range(4))
def test_branches_decide_where_guesses_come_to_nothing(seed, monkeypatch):
    problem = random_contest_problem(40, 6, seed=seed, share=0.1)
    expected = solve_contest_problem(problem, soon())
    explored, explore = [], MemoryTree._explore
    monkeypatch.setattr(MemoryTree, "_explore", lambda tree: explored.append(tree) or explore(tree))
    for unused in ("_guess", "_search", "_decide"):
        monkeypatch.setattr(anytime._Anytime, unused, lambda *_: None)
    monkeypatch.setattr(anytime, "SMALL", -1)
    monkeypatch.setattr(anytime, "FAR_APART", 0.0)
    answer = solve_narrowed(network_of(problem), soon())
    assert explored
    assert answer.cost == answer.lower_bound == expected.cost == expected.lower_bound


def test_prices_prove_that_nothing_fits(monkeypatch):
    """Of any two neighbours in a ring of eight one is large: reductions do not see that four must be."""

    def ring(capacity):
        costs = {v: np.array([0.0, 1.0]) for v in range(8)}
        pieces = {v: Piece((0, 1), np.array([0.0, 1.0])) for v in range(8)}
        network = Network(costs, pieces, np.array([capacity]))
        for v in range(8):
            network.add_table(v, (v + 1) % 8, np.array([[np.inf, 0.0], [0.0, 0.0]]))
        return network

    assert solve_narrowed(ring(4.0), soon()).cost == 4
    shrink(ring(3.0))
    monkeypatch.setattr(narrowing, "_within", None)
    with pytest.raises(Infeasible, match="fits in memory"):
        solve_narrowed(ring(3.0), soon())


def test_a_first_guess_that_is_too_small_grows(monkeypatch):
    problem = random_contest_problem(12, 4, seed=3, share=0.6)
    parts = []
    within = narrowing._within

    def counted(known, target, deadline):
        parts.append(target)
        return within(known, target, deadline)

    monkeypatch.setattr(narrowing, "_within", counted)
    monkeypatch.setattr(narrowing, "FIRST_SLACK", 1e-9)
    answer = solve_narrowed(network_of(problem), soon())
    assert len(parts) > 1
    assert parts == sorted(parts)
    assert answer.lower_bound == answer.cost


def test_out_of_time_there_is_still_a_choice_and_a_bound():
    problem = random_contest_problem(12, 4, seed=3)
    answer = solve_narrowed(network_of(problem), time.monotonic() - 1)
    assert problem.fits([answer.choice[v] for v in range(12)])
    assert answer.lower_bound <= answer.cost


@pytest.mark.parametrize("seed", [2, 3])
def test_prices_on_memory_lift_the_bound_before_any_part_is_solved(seed):
    problem = random_contest_problem(24, 4, seed=seed, share=0.2)
    network = network_of(problem)
    shrink(network, 0.0)
    free = Relaxation(network, {})
    for _ in range(50):
        free.sweep()
    known = narrowing._Known(network, soon())
    known.tighten()
    answer = solve_narrowed(network_of(problem), soon())
    assert answer.lower_bound == answer.cost
    assert known.least <= answer.cost
    assert known.least - free.value() > 0.4 * (answer.cost - free.value())


def test_a_part_without_an_answer_says_that_everything_costs_more():
    """Of what it leaves out, nothing costs less than the target; of what it has, nothing is allowed."""
    network = network_of(random_contest_problem(12, 4, seed=3, share=0.6))
    known = narrowing._Known(network, soon())
    known.outside(70.0, np.inf)
    known.outside(90.0, 80.0)
    known.outside(95.0, -np.inf)
    assert known.least == 80.0

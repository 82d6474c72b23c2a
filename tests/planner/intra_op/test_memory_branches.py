"""Branches on memory lead to the optimum, or say that nothing is below what is known."""

import math
from dataclasses import replace

import numpy as np
import pytest
from contest_problems import best, contest_problems, random_contest_problem, soon
from hypothesis import HealthCheck, given, settings

from planner.errors import Infeasible
from planner.intra_op import anytime, memory_branches
from planner.intra_op.answers import NetworkAnswer
from planner.intra_op.anytime import solve_network
from planner.intra_op.contest import network_of
from planner.intra_op.guessing import Guess
from planner.intra_op.iopddl import ContestProblem
from planner.intra_op.memory_branches import MemoryTree
from planner.intra_op.messages import Relaxation
from planner.intra_op.network import Network, Piece
from planner.intra_op.shrinking import shrink


def solved(problem: ContestProblem, below: float = math.inf, seconds: float = 20) -> NetworkAnswer:
    network = network_of(problem)
    try:
        shrink(network)
    except Infeasible:
        return NetworkAnswer({}, math.inf, below)
    return MemoryTree(network, {}, solve_network).explore(below, soon(seconds))


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
    nothing = solved(problem, least)
    assert nothing.cost >= least == nothing.lower_bound


@pytest.mark.parametrize("seed", range(3))
def test_larger_ones_are_parted_and_agree_with_guesses(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    problem = random_contest_problem(40, 6, seed=seed, share=0.4)
    expected = solve_network(network_of(problem), soon())
    assert expected.cost == expected.lower_bound
    monkeypatch.setattr(memory_branches, "SMALL", 300)
    answer = solved(problem)
    assert answer.cost == answer.lower_bound == expected.cost


def test_a_choice_that_is_too_dear_is_given_where_no_cheaper_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_contest_problem(40, 6, seed=1, share=0.4)
    monkeypatch.setattr(memory_branches, "SMALL", 300)
    least = solved(problem).cost
    answer = solved(problem, least)
    assert answer.lower_bound == least <= answer.cost < math.inf
    choice = [answer.choice[v] for v in range(40)]
    assert problem.fits(choice)
    assert problem.cost(choice) == answer.cost


def test_nodes_come_first_whose_branches_have_raised_the_bound() -> None:
    """Of two that mix alike; and of one that was never tried, the others' mean is taken."""
    costs = {v: np.array([0.0, 8.0]) for v in range(3)}
    pieces = {v: Piece((0, 1), np.array([8.0, 0.0])) for v in range(3)}
    network = Network(costs, pieces, np.array([12.0]))
    tree = MemoryTree(network, {0: 1.0}, solve_network)
    relaxation = Relaxation(network, {0: 1.0})
    weights = dict.fromkeys(range(3), np.array([0.5, 0.5]))
    tree.gains = {(0, True): [0.0, 0.1], (0, False): [0.1], (1, True): [1.0], (1, False): [3.0]}
    assert tree._most_promising(relaxation, weights) == 1
    tree.gains = {(0, True): [0.1], (0, False): [0.1], (1, True): [9.0], (1, False): [0.0]}
    assert tree._most_promising(relaxation, weights) == 2


def test_what_lifts_the_bound_is_unlikely() -> None:
    network = Network({0: np.array([0.0, 0.0, 500.0])}, {0: Piece((0, 1), np.array([1.0, 0, 0]))}, np.ones(1))
    tree = MemoryTree(network, {}, solve_network)
    tree.cutoff = 1000.0
    assert tree._likely(Relaxation(network, {}))[0] == pytest.approx([0.5, 0.5, 0])


def test_a_branch_has_stalled_that_raises_the_bound_by_little_of_what_is_open() -> None:
    network = Network({0: np.zeros(2)}, {}, np.zeros(0))
    tree = MemoryTree(network, {}, solve_network)
    tree.cutoff = 200.0
    [root] = tree.open
    origin = memory_branches._Halving((0, True), 1.0, 100.0)
    assert tree._stalled(root, 100.0)
    assert tree._stalled(root._replace(origin=origin), 101.0)
    assert not tree._stalled(root._replace(origin=origin), 103.0)


def test_branches_tell_what_they_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_branches, "SMALL", 300)
    network = network_of(random_contest_problem(40, 6, seed=1, share=0.4))
    shrink(network)
    tree = MemoryTree(network, {}, solve_network)
    tree.explore(math.inf, soon())
    gains = [gain for side in tree.gains.values() for gain in side]
    assert gains
    assert min(gains) >= 0
    assert max(gains) > 0


def test_without_time_the_bound_holds() -> None:
    problem = random_contest_problem(40, 6, seed=1, share=0.4)
    expected = solve_network(network_of(problem), soon())
    assert solved(problem, seconds=0).lower_bound <= expected.cost


def test_branches_go_on_where_they_were_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_branches, "SMALL", 300)
    problem = random_contest_problem(40, 6, seed=1, share=0.4)
    network = network_of(problem)
    shrink(network)
    at_once = MemoryTree(network.fork(), {}, solve_network).explore(math.inf, soon())
    tree = MemoryTree(network, {}, solve_network)
    first = tree.explore(math.inf, soon(0.1))
    second = tree.explore(math.inf, soon())
    assert first.lower_bound <= second.lower_bound
    assert second.cost == second.lower_bound == at_once.cost == at_once.lower_bound


def test_what_is_apart_is_parted_on_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_contest_problem(40, 6, seed=2, share=0.1)
    at_once = solve_network(network_of(problem), soon())
    parted, part = [], MemoryTree._part
    monkeypatch.setattr(MemoryTree, "_part", lambda tree, branch: parted.append(branch) or part(tree, branch))
    monkeypatch.setattr(memory_branches, "SMALL", 100)
    monkeypatch.setattr(anytime, "SMALL", -1)
    monkeypatch.setattr(anytime, "FAR_APART", 1e-6)
    in_branches = solve_network(network_of(problem), soon())
    assert parted
    assert in_branches.cost == in_branches.lower_bound == at_once.cost
    parted.clear()
    monkeypatch.setattr(anytime, "PARTED", 0)
    solve_network(network_of(problem), soon())
    assert not parted


def test_what_branches_leave_far_apart_is_left_to_more_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """However little each turn of them does, the integer program has none; guesses have, which decide nothing here."""
    problem = random_contest_problem(40, 6, seed=2, share=0.1)
    at_once = solve_network(network_of(problem), soon())
    turns: list[float] = []

    def one_branch(tree: MemoryTree, below: float, deadline: float) -> NetworkAnswer:
        turns.append(tree.bound)
        tree.cutoff, tree.deadline = min(tree.cutoff, below), deadline
        tree._explore()
        return replace(tree.best, lower_bound=min(tree.bound, tree.cutoff))

    monkeypatch.setattr(MemoryTree, "explore", one_branch)
    monkeypatch.setattr(memory_branches, "SMALL", 100)
    monkeypatch.setattr(anytime, "SMALL", -1)
    monkeypatch.setattr(anytime, "FAR_APART", 0.0)

    def nothing(*_: object) -> Guess:
        assert turns, "branches come first"
        return Guess(None, -np.inf, decided=False)

    monkeypatch.setattr(anytime, "guess", nothing)
    monkeypatch.setattr(anytime, "solve_tree", lambda *_: pytest.fail("branches come first"))
    answer = solve_network(network_of(problem), soon())
    assert answer.cost == answer.lower_bound == at_once.cost
    assert len(turns) > 1

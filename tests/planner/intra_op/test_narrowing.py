"""Ever larger parts of a network's strategies lead to the optimum of the whole."""

import json
import time

import numpy as np
import pytest
from contest_problems import best, contest_problems, random_contest_problem, soon
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import Infeasible
from planner.intra_op import anytime, clock, narrowing, parts
from planner.intra_op.answers import NetworkAnswer, combined
from planner.intra_op.compact import Compact
from planner.intra_op.contest import network_of, solve_contest_problem
from planner.intra_op.liveness import settle
from planner.intra_op.memory_branches import MemoryTree
from planner.intra_op.messages import Relaxation
from planner.intra_op.narrowing import solve_narrowed
from planner.intra_op.network import Network, Piece
from planner.intra_op.parts import ascend, cheapest_within
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


@settings(max_examples=100, deadline=None)
@given(contest_problems(), st.floats(0.5, 1.5))
def test_only_a_choice_that_costs_little_enough_is_looked_for(problem, share):
    """And where there is one, the best of all is found and proven."""
    least = best(problem)
    if least is None:
        return
    most = np.floor(share * least)
    answer = solve_narrowed(network_of(problem), soon(), most)
    if least <= most:
        assert answer.cost == answer.lower_bound == least
    else:
        assert answer.cost > most
        assert most < answer.lower_bound <= least


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
    monkeypatch.setattr(narrowing, "cheapest_within", None)
    with pytest.raises(Infeasible, match="fits in memory"):
        solve_narrowed(ring(3.0), soon())


def test_a_first_guess_that_is_too_small_grows(monkeypatch):
    problem = random_contest_problem(12, 4, seed=3, share=0.6)
    targets = []
    within = narrowing.cheapest_within

    def counted(network, bound, least, most, *args):
        targets.append(most)
        return within(network, bound, least, most, *args)

    monkeypatch.setattr(narrowing, "cheapest_within", counted)
    monkeypatch.setattr(narrowing, "FIRST_SLACK", 1e-9)
    answer = solve_narrowed(network_of(problem), soon())
    assert len(targets) > 1
    assert targets == sorted(targets)
    assert answer.lower_bound == answer.cost


def test_out_of_time_there_is_still_a_choice_and_a_bound():
    problem = random_contest_problem(12, 4, seed=3)
    answer = solve_narrowed(network_of(problem), time.monotonic() - 1)
    assert problem.fits([answer.choice[v] for v in range(12)])
    assert answer.lower_bound <= answer.cost


@pytest.mark.parametrize("seed", [2, 3])
def test_prices_on_memory_lift_the_bound_before_any_part_is_solved(seed):
    problem = random_contest_problem(24, 4, seed=seed, share=0.2)
    network = Compact.of(network_of(problem))
    network.propagate()
    free = Relaxation(network, {})
    for _ in range(50):
        free.sweep()
    known = ascend(network, Relaxation(network, {}), np.inf, soon())
    answer = solve_narrowed(network_of(problem), soon())
    assert answer.lower_bound == answer.cost
    assert known.lower_bound <= answer.cost <= known.cost
    assert known.lower_bound - free.value() > 0.4 * (answer.cost - free.value())


@settings(max_examples=150, deadline=None)
@given(contest_problems(), st.floats(0.0, 1.0), st.integers(0, 60))
def test_a_part_has_the_best_choice_up_to_its_limit(problem, share, sweeps):
    """And says truly how little the others cost, whatever messages know before."""
    network = Compact.of(network_of(problem))
    try:
        settle(network)
        network.propagate()
    except Infeasible:
        assert best(problem) is None
        return
    relaxation = Relaxation(network, {})
    for _ in range(sweeps):
        relaxation.sweep()
        relaxation.reprice(relaxation.value(), 2 * abs(relaxation.value()) + 1)
    relaxation.sweep()
    bound = relaxation.bound()
    most = np.floor(bound.value + share * abs(bound.value) + 1)
    answer = cheapest_within(network, bound, -np.inf, most, relaxation.known_prices, soon())
    least = np.inf if (found := best(problem)) is None else found
    assert answer.lower_bound <= least
    if least <= most:
        assert answer.cost == answer.lower_bound == least
    else:
        assert answer.cost >= least
        assert answer.lower_bound > most
    if answer.cost < np.inf:
        choice = [answer.choice[v] for v in range(len(problem.costs))]
        assert answer.cost == problem.cost(choice)
        assert problem.fits(choice)


@pytest.mark.parametrize(("near", "hurries"), [(np.inf, True), (-np.inf, False)])
def test_a_part_is_not_decided_for_long_where_a_known_choice_will_do(monkeypatch, near, hurries):
    """Then the part below that choice is decided, instead of a smaller one first."""
    network = Compact.of(network_of(random_contest_problem(24, 4, seed=2, share=0.2)))
    settle(network)
    network.propagate()
    relaxation, until = Relaxation(network, {}), []
    first = ascend(network, relaxation, np.inf, soon())
    decide = parts.solve_network

    def noted(network, deadline, *args):
        until.append(deadline)
        return decide(network, deadline, *args)

    monkeypatch.setattr(parts, "solve_network", noted)
    with clock.counted(1000.0) as deadline:
        args = network, relaxation.bound(), first.lower_bound, first.cost, relaxation.known_prices, deadline
        cheapest_within(*args, near=near)
        [last] = until
        assert last < 100 if hurries else last == deadline


@pytest.mark.parametrize(("cost", "bound", "proven"), [(10.0, 8.0, False), (10.0, 9.5, True)])
def test_of_two_answers_the_cheaper_counts_under_the_higher_bound(cost, bound, proven):
    """Costs are whole numbers: a bound within one of the cost is as good as the cost."""
    found = combined(NetworkAnswer({0: 1}, cost, 5.0), NetworkAnswer({0: 2}, 12.0, bound))
    assert found == NetworkAnswer({0: 1}, cost, cost if proven else bound)
    assert found.proven == proven


def test_what_is_proven_can_be_written_as_json():
    answer = NetworkAnswer({0: 1}, np.float64(10), np.float64(9.5))
    assert json.dumps(answer.proven) == "true"

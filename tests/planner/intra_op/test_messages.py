import itertools
import math

import numpy as np
import pytest
from contest_problems import contest_problems, fits, random_contest_problem, unshrunk
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import Infeasible
from planner.intra_op.ascent import STEP, kept_length
from planner.intra_op.contest import network_of
from planner.intra_op.levels import Layout
from planner.intra_op.messages import Relaxation
from planner.intra_op.network import Network

PRICES = st.dictionaries(st.integers(0, 9), st.sampled_from([0.25, 1.0, 7.0]))


def allowed(network: Network, below: float) -> set[tuple[int, ...]]:
    """Original strategies of every choice that fits and costs less than ``below``, by node."""
    nodes = sorted(network.nodes)
    choices = itertools.product(*(range(network.costs[v].size) for v in nodes))
    positions = (dict(zip(nodes, choice, strict=True)) for choice in choices)
    return {
        tuple(int(network.labels[v][s]) for v, s in choice.items())
        for choice in positions
        if network.cost(choice) < below and fits(network, choice)
    }


@given(contest_problems(max_ends=2), PRICES, st.integers(0, 3), st.integers(1, 30))
def test_fixing_keeps_every_choice_that_costs_less(problem, prices, sweeps, cost):
    network = unshrunk(problem)
    if network is None:
        return
    before = allowed(network, cost)
    relaxation = Relaxation(network, prices)
    for _ in range(sweeps):
        relaxation.sweep()
    try:
        bound = relaxation.fix(cost)
    except Infeasible:
        assert not before
        return
    assert allowed(network, cost) == before
    assert not before or bound <= min(network.cost(positions(network, labels)) for labels in before) + 1e-6


def positions(network: Network, labels: tuple[int, ...]) -> dict[int, int]:
    return {
        v: int(np.searchsorted(network.labels[v], s))
        for v, s in zip(sorted(network.nodes), labels, strict=True)
    }


def test_fixing_drops_strategies_and_pairs():
    problem = random_contest_problem(60, 4, seed=3, share=0.6)
    network = network_of(problem)
    relaxation = Relaxation(network, {})
    for _ in range(10):
        relaxation.sweep()
    strategies = sum(c.size for c in network.costs.values())
    relaxation.fix(relaxation.bound().value + 500)
    left = sum(c.size for c in network.costs.values())
    assert left < strategies
    entries = sum(t.size for v in network.nodes for t in network.tables[v].values()) // 2
    assert network.size - left < entries


def test_the_value_after_a_sweep_is_the_bound():
    network = network_of(random_contest_problem(80, 4, seed=5, share=0.3))
    relaxation = Relaxation(network, {3: 2.0, 40: 1.0})
    for _ in range(3):
        relaxation.sweep()
        assert math.isclose(relaxation.value(), relaxation.bound().value, abs_tol=1e-6)


@given(contest_problems(), st.lists(st.floats(0, 3), min_size=1, max_size=4))
def test_no_message_however_far_it_goes_lifts_the_bound_above_a_choice(problem, shares):
    network = unshrunk(problem)
    if network is None:
        return
    relaxation = Relaxation(network, {})
    for share in shares:
        relaxation.go_beyond(share)
        relaxation.sweep()
        value = relaxation.value()
        assert math.isclose(value, relaxation.bound().value, rel_tol=1e-9, abs_tol=1e-6)
        choices = itertools.product(*(range(network.costs[v].size) for v in sorted(network.nodes)))
        named = (dict(zip(sorted(network.nodes), choice, strict=True)) for choice in choices)
        assert value <= min(map(network.cost, named)) + 1e-6


@given(contest_problems())
def test_no_message_of_sweeps_that_press_on_lifts_the_bound_above_a_choice(problem):
    network = unshrunk(problem)
    if network is None:
        return
    relaxation = Relaxation(network, {})
    choices = itertools.product(*(range(network.costs[v].size) for v in sorted(network.nodes)))
    least = min(network.cost(dict(zip(sorted(network.nodes), choice, strict=True))) for choice in choices)
    seen = []
    for _ in range(12):
        relaxation.press_on()
        value = relaxation.value()
        seen.append(value)
        assert math.isclose(value, relaxation.bound().value, rel_tol=1e-9, abs_tol=1e-6)
        assert relaxation.note_best() == max(seen) <= least + 1e-6
    assert math.isclose(relaxation.keep_best(), relaxation.value(), abs_tol=1e-6)


def test_sweeps_that_press_on_reach_a_bound_in_fewer():
    """On a long chain with skips, where a difference at one end takes many sweeps to reach the other."""
    network = network_of(random_contest_problem(800, 6, seed=9, share=1.0))
    plain, pressed = Relaxation(network, {}), Relaxation(network, {})
    for _ in range(100):
        plain.sweep()
    for _ in range(50):
        pressed.press_on()
        pressed.note_best()
    assert pressed.best > plain.value()


def test_steps_of_prices_stay_as_long_as_they_are_where_a_better_choice_is_found():
    step = kept_length(STEP / 10, 100.0, 150.0, 120.0)
    assert step * (120 - 100) == pytest.approx(STEP / 10 * (150 - 100))
    assert kept_length(step, 100.0, 150.0, 100.1) == STEP, "at most as long as the first would be"
    assert kept_length(step, 100.0, 150.0, 150.0) == kept_length(step, 100.0, 150.0, 99.0) == step


def test_an_improved_choice_costs_no_more_and_no_node_alone_can_better_it():
    network = network_of(random_contest_problem(40, 4, seed=2, share=0.3))
    relaxation = Relaxation(network, {})
    first = dict.fromkeys(network.nodes, 0)
    choice = relaxation.improve(first)
    assert network.cost(choice) < network.cost(first)
    for v in network.nodes:
        others = (network.cost({**choice, v: s}) for s in range(network.costs[v].size))
        assert min(others) == network.cost(choice)


def test_messages_can_be_carried_over():
    network = network_of(random_contest_problem(80, 4, seed=5, share=0.3))
    relaxation = Relaxation(network, {3: 2.0})
    for _ in range(3):
        relaxation.sweep()
    again = Relaxation(network, relaxation.known_prices, relaxation.messages)
    assert again.bound().value == relaxation.bound().value


def test_no_neighbours_share_a_level():
    network = network_of(random_contest_problem(80, 4, seed=1))
    layout = Layout(network)
    level_of = {v: k for k, level in enumerate(layout.levels) for v in layout.nodes[level.nodes]}
    assert sorted(level_of) == sorted(network.nodes)
    assert all(level_of[v] != level_of[w] for v in network.nodes for w in network.tables[v])
    edges = [tuple(sorted(edge)) for tables in layout.edges() for edge in tables.edges]
    assert sorted(edges) == sorted((v, w) for v in network.nodes for w in network.tables[v] if v < w)


@given(contest_problems(), st.integers(1, 3))
def test_a_choice_read_off_the_messages_costs_what_is_said(problem, sweeps):
    network = unshrunk(problem)
    if network is None:
        return
    relaxation = Relaxation(network, {0: 2.0})
    for _ in range(sweeps):
        relaxation.sweep()
    choice, cost = relaxation.priced_decode()
    assert (choice, cost) == (relaxation.decode(), network.cost(choice))

"""Choices under a decision of hubs against trying every choice, and what comes first."""

import math

import numpy as np
import pytest
from contest_problems import best_of_network, contest_problems, fits, random_contest_problem, soon, unshrunk
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.intra_op.answers import NOTHING, NetworkAnswer, Stopped
from planner.intra_op.anytime import solve_network
from planner.intra_op.contest import network_of
from planner.intra_op.decided import solve_decided
from planner.intra_op.hubs import Decided
from planner.intra_op.iopddl import ContestProblem
from planner.intra_op.network import Network


def chain() -> Network:
    return network_of(random_contest_problem(30, 4, seed=4))


@settings(max_examples=80, deadline=None)
@given(contest_problems(max_ends=2), st.integers(0, 2), st.booleans())
def test_equals_trying_every_choice_of_the_decision(problem: ContestProblem, hub: int, near: bool) -> None:
    network = unshrunk(problem)
    if network is None or hub not in network.nodes:
        return
    for strategy in range(network.costs[hub].size):
        least, _ = best_of_network(network.narrowed({hub: np.array([strategy])}))
        hubs = Decided({hub: strategy}, 0.0, {0: 0.5})
        answer = solve_decided(network, hubs, soon(), 1e6, solve_network, near=near)
        assert answer.cost == least
        if least < math.inf:
            assert answer.choice[hub] == strategy
            assert network.cost(answer.choice) == least
            assert fits(network, answer.choice)


@pytest.mark.parametrize("near", [False, True])
def test_what_is_near_the_bound_comes_first_and_says_what_the_rest_must_beat(near: bool) -> None:
    sizes, cutoffs = [], []

    def solve(network: Network, deadline: float, below: float, prices: object) -> NetworkAnswer:
        sizes.append(network.size)
        cutoffs.append(below)
        return NetworkAnswer(dict.fromkeys(network.nodes, 0), 90.0, 0.0) if len(sizes) == 1 else NOTHING

    answer = solve_decided(chain(), Decided({0: 1}, 0.0, {}), soon(), 100.0, solve, near=near)
    assert answer.cost == 90
    assert cutoffs == ([100, 90] if near else [100])
    assert not near or sizes[0] < sizes[1]


def test_a_choice_of_what_is_near_outlives_an_interruption() -> None:
    network = chain()

    def solve(network: Network, deadline: float, below: float, prices: dict[int, float]) -> NetworkAnswer:
        if below < math.inf:
            raise Stopped(NOTHING)
        return solve_network(network, deadline, below, prices)

    with pytest.raises(Stopped) as stopped:
        solve_decided(network, Decided({0: 0}, 0.0, {}), soon(), math.inf, solve, near=True)
    found = stopped.value.answer
    assert found.choice[0] == 0
    assert network.cost(found.choice) == found.cost
    assert fits(network, found.choice)

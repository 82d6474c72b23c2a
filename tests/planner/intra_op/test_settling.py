import math
import random
import time

import numpy as np
import pytest
from contest_problems import best_of_network, contest_problems, random_contest_problem, unshrunk
from hypothesis import assume, given
from hypothesis import strategies as st

from planner.intra_op.contest import network_of
from planner.intra_op.liveness import demand, one_hot, violated
from planner.intra_op.messages import Relaxation
from planner.intra_op.neighbourhood import Found, greedy
from planner.intra_op.network import Network
from planner.intra_op.settling import Settling, better, read_off


def relaxed(network: Network, steps: int) -> Relaxation:
    relaxation = Relaxation(network, {})
    relaxation.sweep()
    for _ in range(steps):
        value = relaxation.value()
        relaxation.reprice(value, 1.3 * value)
        relaxation.sweep()
    return relaxation


def fits(network: Network, found: Found) -> bool:
    return not violated(network, demand(network, one_hot(network, found.choice)))


@given(contest_problems(), st.randoms(use_true_random=False), st.integers(0, 5))
def test_scores_and_room_follow_every_move(problem, rng: random.Random, price):
    network = unshrunk(problem)
    assume(network is not None)
    choice = {v: rng.randrange(costs.size) for v, costs in network.costs.items()}
    settling = Settling(network, choice, np.full(network.capacity.size, float(price)))
    for v in sorted(network.nodes):
        settling._take(v, rng.randrange(network.costs[v].size))
        settling._move(v)
    anew = Settling(network, settling.choice, settling.prices)
    assert settling.room == pytest.approx(anew.room)
    for v, scores in settling.scores.items():
        assert scores == pytest.approx(anew.scores[v])


@given(contest_problems())
def test_what_is_read_off_fits_and_no_move_helps_it(problem):
    network = unshrunk(problem)
    assume(network is not None)
    found = read_off(relaxed(network, 1), math.inf)
    assume(found is not None)
    assert fits(network, found)
    assert found.cost == network.cost(found.choice) >= best_of_network(network)[0]
    if not network.capacity.size:
        moves = (found.choice | {v: s} for v, costs in network.costs.items() for s in range(costs.size))
        assert all(network.cost(move) >= found.cost for move in moves)


def test_prices_rise_until_everything_fits():
    network = network_of(random_contest_problem(150, 5, seed=2, share=0.05))
    relaxation = relaxed(network, 50)
    settling = Settling(network, relaxation.decode(), relaxation.prices)
    assert settling.room.min() < 0
    assert settling.make_fit(math.inf)
    assert settling.room.min() >= 0
    assert settling.prices is relaxation.prices


def test_choices_are_better_than_greedy_ones():
    network = network_of(random_contest_problem(150, 5, seed=2, share=0.05))
    relaxation = relaxed(network, 50)
    start, found = greedy(relaxation), read_off(relaxation, math.inf)
    assert start is not None
    assert found is not None
    assert fits(network, found)
    assert relaxation.best < found.cost < start.cost


def test_a_choice_is_bettered_or_kept():
    network = network_of(random_contest_problem(150, 5, seed=3, share=0.05))
    relaxation = relaxed(network, 20)
    start = greedy(relaxation)
    assert start is not None

    def regrets(found: Found) -> dict[int, float]:
        return relaxation.regrets(found.choice)

    found = better(network, start, relaxation.known_prices, regrets, math.inf)
    assert fits(network, found)
    assert network.cost(found.choice) == found.cost < start.cost
    assert better(network, start, relaxation.known_prices, regrets, time.monotonic()).cost <= start.cost

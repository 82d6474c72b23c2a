"""Prices moved one at a time: bounds rise, hold, and leave steps behind that go wrong."""

import math

import numpy as np
import pytest
from contest_problems import best_of_network, contest_problems, unshrunk
from hypothesis import given
from hypothesis import strategies as st

from planner.intra_op.hubs import climb
from planner.intra_op.iopddl import ContestProblem
from planner.intra_op.messages import Relaxation
from planner.intra_op.network import Network, Piece
from planner.intra_op.price_search import search_prices


def knapsack(count: int, capacity: float, rows: int = 1) -> Network:
    """Nodes of two bytes at every row, each of which pays two where it takes none."""
    costs = {v: np.array([0.0, 2.0]) for v in range(count)}
    pieces = {v: Piece((v % rows, v % rows + 1), np.array([2.0, 0.0])) for v in range(count)}
    return Network(costs, pieces, np.full(rows, capacity))


@pytest.mark.parametrize("price", [0.5, 1.9])
@pytest.mark.parametrize("rows", [1, 2])
def test_a_price_far_off_comes_near_the_best(price: float, rows: int) -> None:
    """At one per byte either strategy costs the same: of twelve bytes five, at each row, need not be paid."""
    relaxation = Relaxation(knapsack(6 * rows, 5, rows), dict.fromkeys(range(rows), price))
    search_prices(relaxation)
    assert relaxation.prices == pytest.approx(1, rel=0.12)
    assert relaxation.value() == pytest.approx(7 * rows, rel=0.1)


def frustrated() -> Network:
    """Three nodes that all differ from one another, which two strategies do not allow; the first takes memory.

    Messages see no cost in it, and mix both strategies.
    """
    network = Network(
        {v: np.zeros(2) for v in range(3)},
        {v: Piece((0, 1), np.array([8.0, 0.0])) for v in range(3)},
        np.array([4.0]),
    )
    for u, v in ((0, 1), (1, 2), (0, 2)):
        network.add_table(u, v, np.array([[9.0, 0.0], [0.0, 9.0]]))
    return network


def test_no_bound_is_lost_where_messages_contradict_each_other() -> None:
    relaxation = Relaxation(frustrated(), {0: 0.3})
    climb(relaxation, 20)
    before = relaxation.value()
    search_prices(relaxation)
    least, _ = best_of_network(frustrated())
    assert before - 1e-6 <= relaxation.value() <= least


def test_it_ends_once_the_bound_is_enough_and_where_nothing_has_a_price() -> None:
    relaxation = Relaxation(knapsack(6, 5), {0: 0.5})
    search_prices(relaxation, enough=1.0)
    assert relaxation.prices == pytest.approx(0.5)
    free = Relaxation(knapsack(6, 5), {})
    search_prices(free)
    assert free.prices == pytest.approx(0)


@given(contest_problems(max_ends=2), st.floats(0, 2))
def test_bounds_hold_whatever_the_prices_were(problem: ContestProblem, price: float) -> None:
    network = unshrunk(problem)
    if network is None:
        return
    relaxation = Relaxation(network, dict.fromkeys(network.rows.tolist(), price))
    relaxation.sweep()
    before = relaxation.value()
    search_prices(relaxation)
    least, _ = best_of_network(network)
    assert relaxation.value() >= before - 1e-6
    assert relaxation.bound().value <= least + 1e-6 or least == math.inf

"""What prices mix, and the halves of it, beside hand counts and any weights."""

import numpy as np
import pytest
from contest_problems import contest_problems, unshrunk
from hypothesis import assume, given
from hypothesis import strategies as st

from planner.intra_op.iopddl import ContestProblem
from planner.intra_op.messages import Relaxation
from planner.intra_op.mixing import cheaper_half, mixture, most_mixed, spread
from planner.intra_op.network import Network, Piece


def knapsack(*bytes_: float, capacity: float) -> Network:
    """Nodes that pay as much as their bytes where they take none."""
    costs = {v: np.array([0.0, size]) for v, size in enumerate(bytes_)}
    pieces = {v: Piece((0, 1), np.array([size, 0.0])) for v, size in enumerate(bytes_)}
    return Network(costs, pieces, np.array([capacity]))


def test_prices_mix_what_fits_only_on_average() -> None:
    """Of three equal nodes five thirds fit: at the price where either strategy costs the same, that is the mixture."""
    relaxation = Relaxation(knapsack(3, 3, 3, capacity=5), {0: 0.9})
    weights = mixture(relaxation, 400, lambda value: value + 1)
    assert sum(weights[v][0] for v in range(3)) == pytest.approx(5 / 3, abs=0.1)
    assert relaxation.value() == pytest.approx(4, abs=0.01)  # 9 are to be paid for, of which 5 fit


def test_the_largest_of_what_is_undecided_comes_first() -> None:
    relaxation = Relaxation(knapsack(1, 7, 4, capacity=6), {0: 1.0})
    undecided = np.array([0.5, 0.5])
    assert most_mixed(relaxation, dict.fromkeys(range(3), undecided)) == 1
    assert most_mixed(relaxation, {0: undecided, 1: np.array([1.0, 0.0]), 2: undecided}) == 2


@given(contest_problems(max_ends=2), st.integers(1, 5))
def test_weights_sum_to_one_and_the_best_prices_are_kept(problem: ContestProblem, steps: int) -> None:
    network = unshrunk(problem)
    if network is None:
        return
    relaxation = Relaxation(network, {0: 0.25})
    relaxation.sweep()
    before = relaxation.value()
    weights = mixture(relaxation, steps, lambda value: value + 1)
    assert all(w.sum() == pytest.approx(1) for w in weights.values())
    assert relaxation.value() >= before - 1e-6


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=6))
def test_both_halves_leave_out_a_part_of_the_mixture(pairs: list[tuple[int, int]]) -> None:
    costs, weights = np.array(pairs, dtype=float).T
    assume(weights.sum())
    weights /= weights.sum()
    half = cheaper_half(costs, weights)
    if spread(costs, weights)[0]:
        assert min(weights[half].sum(), weights[~half].sum()) > 0
        assert costs[half].max() < costs[~half].min()

"""Branches on hubs against trying every choice: bounds hold however few there were, and in the end are exact."""

import itertools
import math
import random

import numpy as np
import pytest
from contest_problems import best_of_network, contest_problems, soon, unshrunk
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.intra_op import hub_branches
from planner.intra_op.hub_branches import HubTree, disagreement
from planner.intra_op.hubs import climb
from planner.intra_op.iopddl import ContestProblem
from planner.intra_op.messages import Relaxation
from planner.intra_op.network import Network, Piece


def tied(readers: int, seed: int) -> Network:
    """Nodes that all read the same three hubs and agree with them in different ways: messages see little of it."""
    rng = random.Random(seed)
    network = Network({v: np.zeros(3) for v in range(readers + 3)}, {}, np.zeros(0))
    for v, hub in itertools.product(range(3, readers + 3), range(3)):
        table = [[rng.choice([0, 0, 5, 9]) for _ in range(3)] for _ in range(3)]
        network.add_table(hub, v, np.array(table, float))
    return network


def least_by_trying(network: Network) -> float:
    """With its three hubs decided nothing ties nodes together: messages are exact there."""
    least = math.inf
    for choice in itertools.product(range(3), repeat=3):
        held = Relaxation(network, {})
        held.hold({v: [s] for v, s in enumerate(choice)})
        for _ in range(5):
            held.sweep()
        least = min(least, held.value())
    return least


@pytest.mark.parametrize("seed", range(5))
def test_branches_find_the_best_strategies_of_hubs(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_branches, "DIVE_EVERY", 1)
    network = tied(20, seed)
    least = least_by_trying(network)
    relaxation = Relaxation(network, {})
    for _ in range(20):
        relaxation.sweep()
    free, state = relaxation.value(), relaxation.snapshot()
    assert free < 0.9 * least
    tree = HubTree(relaxation, [0, 1, 2])
    tree.explore(math.inf, soon())
    assert tree.bound == pytest.approx(least)
    assert tree.best.value == pytest.approx(least)
    assert relaxation.value() == free
    assert (relaxation.snapshot().messages == state.messages).all()


def test_nothing_is_left_below_the_best() -> None:
    network = tied(20, seed=2)
    least = least_by_trying(network)
    tree = HubTree(Relaxation(network, {}), [0, 1, 2])
    tree.explore(least, soon())
    assert tree.bound == math.inf
    tree = HubTree(Relaxation(network, {}), [0, 1, 2])
    tree.explore(least + 1, soon())
    assert tree.bound == pytest.approx(least)


def test_time_ends_it_and_more_time_goes_on() -> None:
    network = tied(20, seed=2)
    tree = HubTree(Relaxation(network, {}), [0, 1, 2])
    before = tree.bound
    tree.explore(math.inf, -math.inf)
    assert tree.bound == before
    tree.explore(math.inf, soon())
    assert tree.bound == pytest.approx(least_by_trying(network))


@settings(max_examples=100, deadline=None)
@given(contest_problems(max_ends=2), st.integers(0, 6), st.integers(0, 30))
def test_no_choice_below_the_cutoff_is_below_the_bound(
    problem: ContestProblem, parted: int, cutoff: int
) -> None:
    network = unshrunk(problem)
    if network is None:
        return
    least, _ = best_of_network(network)
    tree = HubTree(Relaxation(network, {0: 0.25}), sorted(network.nodes)[:3])
    for _ in range(parted):
        if tree.bound <= cutoff - 1:
            tree.part(cutoff)
    assert min(tree.bound, cutoff) <= least + 1e-6


def test_memory_is_parted_where_hubs_say_nothing() -> None:
    """Of three that cost 10, 11 and 12 one fits; prices let five thirds of them: 13 2/3 are left to be paid, not 21."""
    costs = {v: np.array([0.0, 10.0 + v]) for v in range(3)}
    pieces = {v: Piece((0, 1), np.array([3.0, 0.0])) for v in range(3)}
    relaxation = Relaxation(Network(costs, pieces, np.array([5.0])), {0: 3.0})
    for _ in range(200):
        relaxation.sweep()
        relaxation.reprice(relaxation.value(), relaxation.value() + 1)
    relaxation.return_to_best()
    assert relaxation.value() == pytest.approx(13 + 2 / 3, abs=0.01)
    tree = HubTree(relaxation, [])
    tree.explore(25, soon())
    assert tree.bound == pytest.approx(21)


def parted_first(known: dict[int, list[float]]) -> set[int]:
    """Nodes of which the first two branches say something, where such gains are known of branches on memory."""
    sizes = {v: 3.0 + v % 3 for v in range(12)}
    costs = {v: np.array([0.0, 4 * size]) for v, size in sizes.items()}
    pieces = {v: Piece((0, 1), np.array([size, 0.0])) for v, size in sizes.items()}
    relaxation = Relaxation(Network(costs, pieces, np.array([25.0])), {0: 3.0})
    climb(relaxation, 200)
    tree = HubTree(relaxation, [])
    tree.memory_gains |= known
    tree.part(math.inf)
    return {v for branch in tree.open for v in branch.kept}


def test_memory_that_gained_nothing_is_parted_on_last() -> None:
    (first,) = parted_first({})
    (second,) = parted_first({first: [0.0]})
    assert second != first
    assert parted_first({v: [0.0] for v in range(12)}) == {first}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=2, max_size=6), st.integers(1, 10))
def test_branches_on_memory_leave_out_no_choice(items: list[tuple[int, int]], parted: int) -> None:
    """Nodes that pay a price each to take none of half of the memory that all want, by trying every choice."""
    room = sum(size for _, size in items) // 2
    costs = {v: np.array([0.0, price]) for v, (price, _) in enumerate(items)}
    pieces = {v: Piece((0, 1), np.array([size, 0.0])) for v, (_, size) in enumerate(items)}
    tree = HubTree(Relaxation(Network(costs, pieces, np.array([float(room)])), {0: 1.0}), [])
    for _ in range(parted):
        tree.part(math.inf)
    least = min(
        sum(price for left, (price, _) in zip(choice, items, strict=True) if left)
        for choice in itertools.product((0, 1), repeat=len(items))
        if sum(size for left, (_, size) in zip(choice, items, strict=True) if not left) <= room
    )
    assert tree.bound <= least + 1e-6


def test_what_neighbours_pay_for_disagreeing() -> None:
    network = Network({v: np.zeros(2) for v in range(3)}, {}, np.zeros(0))
    network.add_table(0, 1, np.array([[0.0, 3.0], [5.0, 7.0]]))
    network.add_table(0, 2, np.array([[np.inf, 2.0], [2.0, 2.0]]))
    assert disagreement(network, 0) == 4.0 + 2.0

"""What a frontier can take, held to all choices."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.intra_op import frontier
from planner.intra_op.frontier import cheapest, order
from planner.intra_op.messages import Relaxation
from planner.intra_op.network import Network


def dense(seed, nodes=8, strategies=3, share=0.7):
    """Nodes of which most are neighbours, and some pairs forbidden; the choices, and what they cost."""
    rng = np.random.default_rng(seed)
    network = Network(
        {v: rng.integers(0, 100, strategies).astype(float) for v in range(nodes)}, {}, np.zeros(0)
    )
    for u, v in itertools.combinations(range(nodes), 2):
        if rng.random() < share:
            table = rng.integers(0, 100, (strategies, strategies)).astype(float)
            table[tuple(rng.integers(0, strategies, 2))] = np.inf
            network.add_table(u, v, table)
    costs = [network.cost(dict(enumerate(c))) for c in itertools.product(range(strategies), repeat=nodes)]
    return network, sorted(costs)


@pytest.mark.parametrize("limits", [{}, {"LARGEST_KEY": 20, "LARGEST_BATCH": 7}])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), rank=st.integers(0, 300), absorbed=st.booleans())
def test_equals_brute_force(limits, seed, rank, absorbed):
    network, costs = dense(seed)
    if absorbed:
        relaxation = Relaxation(network, {})
        relaxation.sweep()
        relaxation.absorb()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in limits.items():
            patch.setattr(frontier, name, value)
        found, proven = cheapest(network, costs[rank], 10**5, math.inf)
        none, known = cheapest(network, costs[0] - 1, 10**5, math.inf)
    assert proven
    assert known
    assert none is None
    assert found is not None
    assert network.cost(found) == costs[0]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_of_too_many_states_the_cheapest_make_a_choice_and_no_proof(seed):
    network, costs = dense(seed)
    found, proven = cheapest(network, costs[-1], 20, math.inf)
    assert not proven or (found is not None and network.cost(found) == costs[0])
    assert found is None or costs[0] <= network.cost(found) < np.inf


def test_out_of_time_nothing_is_proven():
    network, costs = dense(1)
    assert cheapest(network, costs[-1], 10**5, -math.inf) == (None, False)


@pytest.mark.parametrize("seed", range(4))
def test_nodes_in_a_row_are_taken_one_beside_the_other(seed):
    names = np.random.default_rng(seed).permutation(40).tolist()
    network = Network({v: np.zeros(30) for v in range(40)}, {}, np.zeros(0))
    for u, v in itertools.pairwise(names):
        network.add_table(u, v, np.zeros((30, 30)))
    found = order(network)
    assert sorted(found) == list(range(40))
    ahead = [{w for v in found[: k + 1] for w in network.tables[v]} - {*found[: k + 1]} for k in range(40)]
    assert max(map(len, ahead)) <= 2


def test_a_network_of_nothing():
    network = Network({}, {}, np.zeros(0))
    assert order(network) == []
    assert cheapest(network, 0.0, 1, math.inf) == ({}, True)

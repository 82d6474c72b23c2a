import math

import numpy as np
import pytest
from contest_problems import best, best_of_network, contest_problems, random_contest_problem, unshrunk
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import Infeasible
from planner.intra_op import shrinking
from planner.intra_op.contest import network_of
from planner.intra_op.liveness import settle
from planner.intra_op.shrinking import shrink

REDUCTIONS = ("_drop_forbidden", "_separate", "_merge", "_drop_dominated", "_eliminate")


def check_optimum(problem, network):
    """The best choice of the network, expanded, is a best choice of the problem."""
    least, chosen = best_of_network(network)
    if chosen is None:
        assert best(problem) is None
        return
    full = network.expand(chosen)
    choice = [full[v] for v in range(len(problem.costs))]
    assert problem.cost(choice) == least == best(problem)
    assert problem.fits(choice)


@settings(max_examples=300)
@given(contest_problems())
def test_shrinking_keeps_an_optimum(problem):
    network = network_of(problem)
    try:
        shrink(network)
    except Infeasible:
        assert best(problem) is None
        return
    check_optimum(problem, network)


@pytest.mark.parametrize("name", REDUCTIONS)
@given(problem=contest_problems(max_ends=2))
def test_each_reduction_keeps_an_optimum(name, problem):
    network = network_of(problem)
    try:
        shrinking._propagate(network, network.nodes, shrinking._drop_forbidden)
        for v in list(network.nodes):
            if v in network.nodes:
                getattr(shrinking, name)(network, v)
    except Infeasible:
        assert best(problem) is None
        return
    check_optimum(problem, network)


@given(contest_problems())
def test_merging_partners_keeps_an_optimum(problem):
    network = network_of(problem)
    shrinking.merge_partners(network)
    check_optimum(problem, network)


@given(st.integers(1, 60), st.integers(1, 12), st.randoms(use_true_random=False))
def test_rows_and_columns_that_recur_lose_what_they_lose_one_by_one(rows, columns, rng):
    kinds = [
        [rng.choice([0.0, 1.0, 2.0, 5.0, math.inf]) for _ in range(columns)] for _ in range(rng.randint(1, 5))
    ]
    table = np.array([rng.choice(kinds) for _ in range(rows)])[:, rng.choices(range(columns), k=2 * columns)]
    table = table[np.isfinite(table).any(axis=1)]
    s, t = (part.ravel() for part in np.indices((len(table), len(table))))
    loss = shrinking._least_loss(table, s, t)
    for at, (mine, other) in enumerate(zip(table[s], table[t], strict=True)):
        allowed = np.isfinite(mine)
        if np.isfinite(other[allowed]).all():
            assert loss[at] == (mine[allowed] - other[allowed]).min()
        else:
            assert loss[at] < -shrinking.UNREACHABLE / 2


@given(contest_problems())
def test_the_floor_is_below_every_choice_however_costs_were_moved(problem):
    network = network_of(problem)
    try:
        shrink(network)
    except Infeasible:
        return
    assert network.floor <= best(problem)


@given(contest_problems(max_ends=2))
def test_settling_memory_keeps_an_optimum(problem):
    network = network_of(problem)
    try:
        settle(network)
    except Infeasible:
        assert best(problem) is None
        return
    check_optimum(problem, network)


@given(contest_problems())
def test_out_of_time_is_still_a_network(problem):
    network = unshrunk(problem)
    if network is None:
        assert best(problem) is None
        return
    check_optimum(problem, network)
    assert all(t.min(axis=1).max() < math.inf for v in network.nodes for t in network.tables[v].values())


def test_without_a_limit_a_chain_with_skips_vanishes():
    problem = random_contest_problem(300, 4, seed=1, share=1.0)
    network = network_of(problem)
    shrink(network)
    assert len(network.nodes) < 100
    assert network.capacity.size == 0


def test_rows_are_the_maximal_cliques():
    problem = random_contest_problem(40, 4, seed=2, share=0.3)
    network = network_of(problem)
    before = network.capacity.size
    settle(network)
    assert 0 < network.capacity.size < before
    assert list(network.rows) == sorted(set(network.rows.tolist()))

import math

import networkx
import numpy as np
import pytest
from hypothesis import given
from strategy_problems import every_choice, least_cost, problems, random_problem

from planner.intra_op.elimination import eliminate, min_marginals, minimise, tables_of

CHAIN = [(k, k + 1) for k in range(9)]
TREE = [((k - 1) // 2, k) for k in range(1, 15)]
TRANSFORMER = [
    (0, 1),
    (1, 2),
    (1, 3),
    (1, 4),
    (2, 5),
    (3, 5),
    (4, 5),
    (5, 6),
    (6, 7),
    (0, 7),
    (7, 8),
    (8, 9),
    (7, 9),
]
K4 = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]


@given(problems())
def test_minimum_and_choice_equal_brute_force(problem):
    unlimited = problem.without_limit()
    elimination = minimise(unlimited)
    best = least_cost(unlimited)
    assert elimination.constant == pytest.approx(best)
    if math.isfinite(best):
        assert unlimited.cost(elimination.complete([0] * len(problem.nodes))) == pytest.approx(best)


@given(problems())
def test_min_marginals_equal_brute_force(problem):
    unlimited = problem.without_limit()
    marginals = min_marginals(minimise(unlimited))
    for v, size in enumerate(problem.sizes):
        for s in range(size):
            best = min(unlimited.cost(c) for c in every_choice(problem) if c[v] == s)
            assert marginals[v][s] == pytest.approx(best)


@given(problems())
def test_bytes_count_at_their_price(problem):
    unlimited = problem.without_limit()
    best = min(unlimited.cost(c) + 0.5 * unlimited.memory(c) for c in every_choice(problem))
    assert minimise(unlimited, seconds_per_byte=0.5).constant == pytest.approx(best)


def test_a_chain_is_a_shortest_path():
    problem = random_problem(CHAIN, 7, seed=1)
    graph = networkx.DiGraph()
    for s in range(7):
        graph.add_edge("from", (0, s), weight=problem.seconds[0][s])
        graph.add_edge((9, s), "to", weight=0)
    for (u, v), table in zip(problem.edges, problem.edge_seconds, strict=True):
        for i, j in np.ndindex(table.shape):
            graph.add_edge((u, i), (v, j), weight=table[i, j] + problem.seconds[v][j])
    shortest = networkx.dijkstra_path_length(graph, "from", "to")
    assert minimise(problem).constant == pytest.approx(shortest)


@pytest.mark.parametrize("edges", [CHAIN, TREE, TRANSFORMER], ids=["chain", "tree", "transformer"])
def test_series_parallel_graphs_vanish_by_degree_two(edges):
    problem = random_problem(edges, 4, seed=2)
    done = eliminate(problem.sizes, tables_of(problem), range(len(problem.nodes)), max_degree=2)
    assert len(done.buckets) == len(problem.nodes)
    assert set(done.tables) == {()}


def test_a_clique_of_four_needs_degree_three():
    problem = random_problem(K4, 4, seed=3)
    assert not eliminate(problem.sizes, tables_of(problem), range(4), max_degree=2).buckets
    assert minimise(problem).constant == pytest.approx(least_cost(problem))


def test_tables_beyond_the_bound_are_not_built():
    problem = random_problem(K4, 4, seed=3)
    assert len(eliminate(problem.sizes, tables_of(problem), range(4), max_entries=4**4).buckets) == 4
    assert not eliminate(problem.sizes, tables_of(problem), range(4), max_entries=4**4 - 1).buckets


def test_equals_are_decided_by_the_lower_index():
    problem = random_problem(CHAIN, 3, seed=4)
    flat = {scope: np.zeros_like(table) for scope, table in tables_of(problem).items()}
    assert eliminate(problem.sizes, flat, range(10)).complete([0] * 10) == (0,) * 10

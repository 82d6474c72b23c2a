import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from strategy_problems import every_choice, least_cost, problems, random_problem

from planner.errors import Infeasible
from planner.intra_op.problem import StrategyProblem
from planner.intra_op.reductions import (
    apply,
    drop_dominated,
    drop_forbidden,
    eliminate_nodes,
    keep,
    merge_parallel_edges,
)

STEPS = {
    "merge": (merge_parallel_edges,),
    "forbidden": (merge_parallel_edges, drop_forbidden),
    "dominated": (merge_parallel_edges, drop_dominated),
    "eliminate": (merge_parallel_edges, eliminate_nodes),
    "all": (merge_parallel_edges, drop_forbidden, drop_dominated, eliminate_nodes),
}


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS.keys())
@given(problem=problems())
def test_an_optimum_of_the_smaller_problem_is_one_of_the_larger(steps, problem):
    best = least_cost(problem)
    assume(math.isfinite(best))
    small, undo = apply(problem, *steps)
    allowed = [c for c in every_choice(small) if small.fits(c) and math.isfinite(small.cost(c))]
    choice = undo(min(allowed, key=small.cost))
    assert problem.fits(choice)
    assert problem.cost(choice) == pytest.approx(best)


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS.keys())
@given(problem=problems())
def test_costs_agree_up_to_a_constant_and_limits_exactly(steps, problem):
    assume(math.isfinite(least_cost(problem)))
    small, undo = apply(problem, *steps)
    constants = set()
    for choice in every_choice(small):
        assert small.fits(choice) == problem.fits(undo(choice))
        if math.isfinite(small.cost(choice)):
            constants.add(round(problem.cost(undo(choice)) - small.cost(choice), 9))
    assert len(constants) <= 1


@given(problems())
def test_merging_leaves_one_ascending_edge_per_pair(problem):
    edges = merge_parallel_edges(problem).problem.edges
    assert len(set(edges)) == len(edges)
    assert all(u < v for u, v in edges)


@given(problems())
def test_what_remains_of_the_forbidden_has_partners(problem):
    assume(math.isfinite(least_cost(problem.without_limit())))
    small = apply(problem, merge_parallel_edges, drop_forbidden).problem
    assert all(np.isfinite(a).all() for a in small.seconds)
    for table in small.edge_seconds:
        assert np.isfinite(table).any(axis=0).all()
        assert np.isfinite(table).any(axis=1).all()


def test_a_node_without_strategies_is_named():
    edge = np.full((1, 1), math.inf)
    problem = StrategyProblem(("a", "b"), ([1.0], [1.0]), ([0.0], [0.0]), ((0, 1),), (edge,))
    with pytest.raises(Infeasible, match="every strategy of a is forbidden"):
        drop_forbidden(problem)


TWO = StrategyProblem(
    nodes=("a", "b"),
    seconds=([1.0, 2.0, 3.0], [0.0, 0.0]),
    bytes_=([9.0, 9.0, 5.0], [1.0, 1.0]),
    edges=((0, 1),),
    edge_seconds=([[0.0, 5.0], [5.0, 3.0], [0.0, 5.0]],),
)


def test_domination_weighs_time_edges_and_bytes():
    # a1 is slower by itself but faster by more where b takes 1; a2 is a0, only slower and smaller
    without_limit = keep_of("a", drop_dominated(TWO).problem)
    with_limit = keep_of("a", drop_dominated(replace(TWO, memory_limit=10.0)).problem)
    assert without_limit == ("0", "1")
    assert with_limit == ("0", "1", "2")


def test_of_equal_strategies_the_first_stays():
    problem = random_problem([(0, 1)], 3, seed=1)
    twice = np.array([0, 0, 1, 2, 2])
    doubled = replace(
        problem,
        seconds=(problem.seconds[0][twice], problem.seconds[1]),
        bytes_=(problem.bytes_[0][twice], problem.bytes_[1]),
        edge_seconds=(problem.edge_seconds[0][twice],),
        edge_bytes=(),
        labels=(),
        memory_limit=1.0,
    )
    kept = keep_of("op0", drop_dominated(doubled).problem)
    assert not {"1", "4"} & set(kept)


def keep_of(node: str, problem: StrategyProblem) -> tuple[str, ...]:
    return problem.labels[problem.nodes.index(node)]


def test_keep_maps_back_to_the_old_numbers():
    small, undo = keep(TWO, [np.array([False, True, True]), np.array([False, True])])
    assert small.sizes == (2, 1)
    assert undo((1, 0)) == (2, 1)
    assert small.cost((1, 0)) == TWO.cost((2, 1))


def test_only_nodes_without_memory_go_where_the_limit_counts():
    chain = random_problem([(0, 1), (1, 2), (2, 3)], 3, seed=2, memory_limit=5.0)
    flat = tuple(np.full(3, 0.5) if v in (1, 2) else b for v, b in enumerate(chain.bytes_))
    small = eliminate_nodes(replace(chain, bytes_=flat)).problem
    assert small.nodes == ("op0", "op3")
    assert small.memory_limit == 4.0
    assert eliminate_nodes(chain).problem.nodes == chain.nodes
    assert eliminate_nodes(chain.without_limit()).problem.nodes == ()

"""Choices with a look ahead, beside brute force and where choices without one contradict each other."""

import random

import pytest
from contest_problems import best, contest_problems
from hypothesis import given, settings

from planner.errors import Infeasible
from planner.intra_op.contest import network_of
from planner.intra_op.forward_checking import look_ahead
from planner.intra_op.iopddl import NEVER, ContestProblem
from planner.intra_op.messages import Relaxation
from planner.intra_op.neighbourhood import greedy
from planner.intra_op.shrinking import drop_forbidden


@settings(max_examples=300, deadline=None)
@given(contest_problems())
def test_a_choice_fits_and_costs_what_it_says(problem: ContestProblem) -> None:
    network = network_of(problem)
    try:
        drop_forbidden(network)
    except Infeasible:
        return
    found = look_ahead(Relaxation(network, {}))
    if found is None:
        return
    whole = network.expand(found.choice)
    choice = [whole[v] for v in range(len(problem.costs))]
    assert problem.fits(choice)
    assert problem.cost(choice) == found.cost >= (best(problem) or 0)
    assert best(problem) is not None


def of_one_kind(nodes: int, kinds: int, seed: int) -> ContestProblem:
    """Neighbours must take strategies of one kind, of which each node has two, and of which memory allows one."""
    rng = random.Random(seed)
    kind = [rng.sample([k for k in range(kinds) for _ in "ab"], 2 * kinds) for _ in range(nodes)]
    edges = [(rng.randrange(v), v) for v in range(1, nodes)]
    edges += [tuple(rng.sample(range(nodes), 2)) for _ in range(2 * nodes)]
    return ContestProblem(
        "",
        ((0, 1),) * nodes,
        tuple(tuple(rng.randrange(100) for _ in row) for row in kind),
        tuple(tuple(int(k != 1) for k in row) for row in kind),
        tuple(edges),
        tuple(tuple(0 if a == b else NEVER for a in kind[u] for b in kind[v]) for u, v in edges),
        nodes // 2,
    )


@pytest.mark.parametrize("seed", [0, 1, 3, 4])
def test_nodes_that_must_agree_do(seed: int) -> None:
    problem = of_one_kind(150, 5, seed)
    relaxation = Relaxation(network_of(problem), {})
    relaxation.sweep()
    assert greedy(relaxation) is None  # seeds are those for which that is so
    found = look_ahead(relaxation)
    assert found is not None
    assert problem.fits([s for _, s in sorted(found.choice.items())])
    assert found.cost < NEVER

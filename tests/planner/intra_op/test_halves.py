"""Networks that nearly fall apart in time: the halves' bounds hold, and their choices together fit."""

import math
import random
import time

import pytest
from contest_problems import best, best_of_network, fits, random_contest_problem, soon
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import Infeasible
from planner.intra_op import anytime, halves
from planner.intra_op.anytime import solve_network
from planner.intra_op.contest import network_of
from planner.intra_op.halves import halves_of
from planner.intra_op.iopddl import NEVER, ContestProblem
from planner.intra_op.messages import Relaxation
from planner.intra_op.shrinking import drop_forbidden, shrink


def joined(nodes: int, strategies: int, ties: int, seed: int) -> ContestProblem:
    """Two chains, one after the other has ended, and tables between nodes of the one and of the other."""
    rng = random.Random(seed)
    first, second = (random_contest_problem(nodes, strategies, 2 * seed + k, share=0.3) for k in range(2))
    assert first.usage_limit is not None
    assert second.usage_limit is not None
    end = max(stop for _, stop in first.intervals)
    pairs = [(rng.randrange(nodes), nodes + rng.randrange(nodes)) for _ in range(ties)]
    costs = first.costs + second.costs
    tables = tuple(
        tuple(rng.choice([0, 100, 500, NEVER]) for _ in range(len(costs[v]) * len(costs[w])))
        for v, w in pairs
    )
    return ContestProblem(
        name="joined",
        intervals=first.intervals + tuple((a + end, b + end) for a, b in second.intervals),
        costs=costs,
        usages=first.usages + second.usages,
        edges=first.edges + tuple((v + nodes, w + nodes) for v, w in second.edges) + tuple(pairs),
        edge_costs=first.edge_costs + second.edge_costs + tables,
        usage_limit=max(first.usage_limit, second.usage_limit),
    )


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 2), st.integers(0, 3))
def test_the_halves_of_small_ones_bound_the_whole(seed: int, ties: int, sweeps: int) -> None:
    """By trying every choice of either half and of the whole."""
    problem = joined(4, 3, ties, seed)
    least = best(problem)
    network = network_of(problem)
    try:
        drop_forbidden(network)
    except Infeasible:
        assert least is None
        return
    relaxation = Relaxation(network, {})
    for _ in range(sweeps):
        relaxation.sweep()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(halves, "FEW", 1.0)
        found = halves_of(relaxation)
    assert found is not None
    assert found.early.nodes == set(range(4))
    assert found.late.nodes == set(range(4, 8))
    (early, first), (late, second) = best_of_network(found.early), best_of_network(found.late)
    assert least is None or early + late + found.apart <= least
    if first is not None and second is not None:
        assert fits(network, first | second)
        assert network.cost(first | second) >= early + late + found.apart


def test_nothing_is_lost_without_ties() -> None:
    problem = joined(4, 3, 0, seed=1)
    network = network_of(problem)
    drop_forbidden(network)
    found = halves_of(Relaxation(network, {}))
    assert found is not None
    assert best_of_network(found.early)[0] + best_of_network(found.late)[0] + found.apart == best(problem)


def test_what_holds_together_is_not_halved() -> None:
    chain = network_of(random_contest_problem(40, 4, seed=3))
    assert halves_of(Relaxation(chain, {})) is None
    tied = network_of(joined(6, 3, 30, seed=3))
    drop_forbidden(tied)
    assert halves_of(Relaxation(tied, {})) is None


@pytest.mark.parametrize("seed", range(3))
def test_larger_ones_are_halved_and_agree_with_those_that_are_not(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = joined(30, 5, 2, seed)
    monkeypatch.setattr(anytime, "halves_of", lambda _: None)
    whole = solve_network(network_of(problem), soon())
    assert whole.cost == whole.lower_bound
    found = []
    monkeypatch.setattr(anytime, "LARGE", 0)
    monkeypatch.setattr(
        anytime, "halves_of", lambda relaxation: found.append(halves_of(relaxation)) or found[-1]
    )
    network = network_of(problem)
    shrink(network)
    answer = solve_network(network, soon())
    assert found[0] is not None
    assert found[1] is not None, "by the messages, after the look that there are halves"
    assert answer.cost == answer.lower_bound == whole.cost
    assert problem.fits([answer.choice[v] for v in range(len(problem.costs))])


def test_without_time_the_bound_holds() -> None:
    problem = joined(30, 5, 2, seed=0)
    answer = solve_network(network_of(problem), time.monotonic())
    assert -math.inf < answer.lower_bound <= answer.cost

"""Small contest problems, what a choice is worth by the rules' own words, and the answer by trying every choice."""

import itertools
import math
import random
import time

import hypothesis.strategies as st

from planner.errors import Infeasible
from planner.intra_op.contest import network_of
from planner.intra_op.iopddl import NEVER, ContestProblem
from planner.intra_op.network import Network
from planner.intra_op.shrinking import shrink

COSTS = st.sampled_from([0, 0, 1, 2, 3, 5, 8, 100, NEVER])
USAGES = st.sampled_from([0, 1, 2, 3, 5])
LIMITS = st.sampled_from([None, 0, 2, 3, 4, 5, 6, 8, 10, 13])


def soon(seconds: float = 300.0) -> float:
    """A deadline; what is proven in seconds is proven by it on a busy machine, too."""
    return time.monotonic() + seconds


@st.composite
def contest_problems(draw: st.DrawFn, max_nodes: int = 5, max_ends: int = 3) -> ContestProblem:
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=max_nodes))
    node = st.integers(0, len(sizes) - 1)
    edges = draw(st.lists(st.lists(node, min_size=1, max_size=max_ends), max_size=7))

    def rows(elements: st.SearchStrategy[int], lengths: list[int]) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(draw(st.lists(elements, min_size=n, max_size=n))) for n in lengths)

    return ContestProblem(
        name="random",
        intervals=tuple(
            (start, start + draw(st.integers(0, 3))) for (start,) in rows(st.integers(0, 5), [1] * len(sizes))
        ),
        costs=rows(COSTS, sizes),
        usages=rows(USAGES, sizes),
        edges=tuple(map(tuple, edges)),
        edge_costs=rows(COSTS, [math.prod(sizes[v] for v in edge) for edge in edges]),
        usage_limit=draw(LIMITS),
    )


def random_contest_problem(nodes: int, strategies: int, seed: int, share: float = 0.5) -> ContestProblem:
    """A chain with skips, each output alive until its last reader; memory between the smallest and the largest.

    ``share`` says where the limit lies between the peaks of the smallest and the largest strategies.
    """
    rng = random.Random(seed)
    edges = [(v - 1, v) for v in range(1, nodes)]
    edges += [(v, min(nodes - 1, v + rng.randrange(2, 9))) for v in range(0, nodes - 2, 3)]
    ends = [max([v, *(w for u, w in edges if u == v)]) + 1 for v in range(nodes)]
    sizes = [rng.randrange(2, strategies + 1) for _ in range(nodes)]
    problem = ContestProblem(
        name=f"chain {nodes}",
        intervals=tuple(enumerate(ends)),
        costs=tuple(tuple(rng.randrange(0, 1000) for _ in range(n)) for n in sizes),
        usages=tuple(tuple(rng.randrange(1, 100) for _ in range(n)) for n in sizes),
        edges=tuple(edges),
        edge_costs=tuple(
            tuple(rng.choice([0, rng.randrange(1000)]) for _ in range(sizes[u] * sizes[v])) for u, v in edges
        ),
    )
    smallest = problem.peak(
        [min(range(n), key=u.__getitem__) for n, u in zip(sizes, problem.usages, strict=True)]
    )
    largest = problem.peak(
        [max(range(n), key=u.__getitem__) for n, u in zip(sizes, problem.usages, strict=True)]
    )
    limit = int(smallest + share * (largest - smallest))
    return ContestProblem(
        problem.name,
        problem.intervals,
        problem.costs,
        problem.usages,
        problem.edges,
        problem.edge_costs,
        limit,
    )


def worth(problem: ContestProblem, choice: tuple[int, ...]) -> tuple[int, int]:
    """Cost and peak, spelt out: every edge by running through all combinations, every time point on its own."""
    cost = sum(problem.costs[v][s] for v, s in enumerate(choice))
    for edge, costs in zip(problem.edges, problem.edge_costs, strict=True):
        combinations = itertools.product(*(range(len(problem.costs[v])) for v in edge))
        table = dict(zip(combinations, costs, strict=True))
        cost += table[tuple(choice[v] for v in edge)]
    times = range(max(end for _, end in problem.intervals))
    alive = ([v for v, (a, b) in enumerate(problem.intervals) if a <= t < b] for t in times)
    return cost, max((sum(problem.usages[v][choice[v]] for v in nodes) for nodes in alive), default=0)


def best(problem: ContestProblem) -> int | None:
    """The least cost of a choice that fits and takes nothing forbidden, by trying everything."""
    limit = math.inf if problem.usage_limit is None else problem.usage_limit
    choices = itertools.product(*(range(len(costs)) for costs in problem.costs))
    worths = (worth(problem, choice) for choice in choices)
    return min((cost for cost, peak in worths if peak <= limit and cost < NEVER), default=None)


def best_of_network(network: Network) -> tuple[float, dict[int, int] | None]:
    """The same for a network: the least cost, and the positions that reach it."""
    nodes = sorted(network.nodes)
    least, chosen = math.inf, None
    for positions in itertools.product(*(range(network.costs[v].size) for v in nodes)):
        choice = dict(zip(nodes, positions, strict=True))
        if (cost := network.cost(choice)) < least and fits(network, choice):
            least, chosen = cost, choice
    return least, chosen


def fits(network: Network, choice: dict[int, int]) -> bool:
    def taken(row: int) -> float:
        return sum(b[choice[v]] for v in choice for (a, z), b in network.pieces[v].items() if a <= row < z)

    return all(taken(row) <= capacity for row, capacity in enumerate(network.capacity))


def unshrunk(problem: ContestProblem) -> Network | None:
    """The problem's network without what is forbidden, reduced no further for want of time; None without a solution."""
    network = network_of(problem)
    try:
        shrink(network, deadline=-math.inf)
    except Infeasible:
        return None
    return network

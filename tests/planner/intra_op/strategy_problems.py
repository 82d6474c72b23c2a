"""Small problems, and the answer by trying every choice."""

import itertools
import math

import hypothesis.extra.numpy as arrays_of
import hypothesis.strategies as st
import numpy as np

from planner.intra_op.problem import Choice, StrategyProblem

SECONDS = st.sampled_from([0.0, 1.0, 2.0, 3.0, 5.5, 8.25, math.inf])
BYTES = st.sampled_from([0.0, 1.0, 2.0, 3.0, 5.0])
LIMITS = st.sampled_from([math.inf, 0.0, 1.0, 3.0, 5.0, 6.0, 8.0, 10.0, 13.0])


@st.composite
def problems(
    draw: st.DrawFn, max_nodes: int = 5, limits: st.SearchStrategy[float] = LIMITS
) -> StrategyProblem:
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=max_nodes))
    node = st.integers(0, len(sizes) - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=7))

    def table(shape, elements):
        return draw(arrays_of.arrays(np.float64, shape, elements=elements))

    return StrategyProblem(
        nodes=tuple(f"op{k}" for k in range(len(sizes))),
        seconds=tuple(table(n, SECONDS) for n in sizes),
        bytes_=tuple(table(n, BYTES) for n in sizes),
        edges=tuple(edges),
        edge_seconds=tuple(table((sizes[u], sizes[v]), SECONDS) for u, v in edges),
        edge_bytes=tuple(table((sizes[u], sizes[v]), BYTES) for u, v in edges) if draw(st.booleans()) else (),
        memory_limit=draw(limits),
    )


def random_problem(
    edges: list[tuple[int, int]], strategies: int, seed: int, memory_limit: float = math.inf
) -> StrategyProblem:
    """Costs without ties, for problems too large to enumerate."""
    rng = np.random.default_rng(seed)
    num = 1 + max((n for edge in edges for n in edge), default=0)
    return StrategyProblem(
        nodes=tuple(f"op{k}" for k in range(num)),
        seconds=tuple(rng.random(strategies) for _ in range(num)),
        bytes_=tuple(rng.random(strategies) for _ in range(num)),
        edges=tuple(edges),
        edge_seconds=tuple(rng.random((strategies, strategies)) for _ in edges),
        memory_limit=memory_limit,
    )


def every_choice(problem: StrategyProblem) -> list[Choice]:
    return list(itertools.product(*(range(n) for n in problem.sizes)))


def least_cost(problem: StrategyProblem) -> float:
    """The optimum, by trying everything; ``inf`` if nothing is allowed and fits."""
    return min((problem.cost(c) for c in every_choice(problem) if problem.fits(c)), default=math.inf)

"""How long the exact intra-operator solver takes on synthetic blocks, and which of its parts decides.

    python benchmarks/intra_op.py [--strategies 30] [--repeat 5]

Each row is the median over seeds. ``limit`` is where the memory limit lies between the smallest choice (0)
and the fastest (1); ``none`` does not bind.
"""

import argparse
import statistics
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from planner.intra_op.ilp import solve, solve_program
from planner.intra_op.problem import Array, StrategyProblem

Layouts = npt.NDArray[np.int64]

DENSE = (
    "input norm_1, norm_1 query, norm_1 key, norm_1 value, query rope_q, key rope_k, rope_q attention,"
    " rope_k attention, value attention, attention out, out add_1, input add_1, add_1 norm_2, norm_2 up,"
    " up activation, activation down, down add_2, add_1 add_2"
)
EXPERTS = (
    "input norm_1, norm_1 qkv, qkv attention, attention out, out add_1, input add_1, add_1 norm_2,"
    " norm_2 router, norm_2 dispatch, router dispatch, dispatch up, up activation, activation down,"
    " down combine, router combine, norm_2 shared, shared combine, combine add_2, add_1 add_2"
)
BLOCKS = {"dense block": (DENSE, 1), "expert block": (EXPERTS, 1), "4 dense blocks": (DENSE, 4)}
LIMITS = (None, 0.8, 0.5, 0.2, 0.05)


def block_problem(arrows: str, copies: int, strategies: int, seed: int) -> StrategyProblem:
    """Operators whose strategies are random layouts: the more they keep, the faster; resharding costs."""
    rng = np.random.default_rng(seed)
    pairs = [tuple(arrow.split()) for arrow in arrows.split(",")]
    first, last = pairs[0][0], pairs[-1][1]
    names = list(dict.fromkeys(name for pair in pairs for name in pair))
    nodes = [f"{name}.{c}" for c in range(copies) for name in names]
    arcs = [(f"{u}.{c}", f"{v}.{c}") for c in range(copies) for u, v in pairs]
    arcs += [(f"{last}.{c}", f"{first}.{c + 1}") for c in range(copies - 1)]
    layouts = [rng.integers(0, 8, strategies) for _ in nodes]
    weight = rng.lognormal(0, 1, len(nodes))
    sharded = [rng.random(strategies) for _ in nodes]
    index = {name: k for k, name in enumerate(nodes)}
    edges = tuple((index[u], index[v]) for u, v in arcs)
    return StrategyProblem(
        nodes=tuple(nodes),
        seconds=tuple(
            1e-3 * w * (1 + s + 0.2 * rng.random(strategies)) for w, s in zip(weight, sharded, strict=True)
        ),
        bytes_=tuple(1e9 * w * (1.1 - s) for w, s in zip(weight, sharded, strict=True)),
        edges=edges,
        edge_seconds=tuple(resharding(rng, layouts[u], layouts[v]) for u, v in edges),
    )


def resharding(rng: np.random.Generator, u: Layouts, v: Layouts) -> Array:
    """Seconds between layouts: none where they agree."""
    seconds = 1e-3 * rng.random((8, 8)) * (1 - np.eye(8))
    return seconds[np.ix_(u, v)]


def limited(problem: StrategyProblem, share: float | None) -> StrategyProblem:
    """The problem with a limit between its smallest and its fastest choice."""
    if share is None:
        return problem
    fastest = problem.memory(solve(problem).choice)
    smallest = solve(problem.least_memory()).cost
    return replace(problem, memory_limit=smallest + share * (fastest - smallest))


def measure(problem: StrategyProblem, alone: bool) -> tuple[float, str]:
    """Wall seconds and what decided."""
    start = time.perf_counter()
    method = solve_program(problem).method + " alone" if alone else solve(problem).method
    return time.perf_counter() - start, method


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--strategies", type=int, default=30)
    parser.add_argument("--repeat", type=int, default=5, help="problems per row")
    parser.add_argument("--alone", action="store_true", help="the integer program without shortcuts")
    options = parser.parse_args()
    table = Table("block", "nodes", "limit", "median ms", "worst ms", "decided by")
    for name, (arrows, copies) in BLOCKS.items():
        problems = [block_problem(arrows, copies, options.strategies, seed) for seed in range(options.repeat)]
        solve(limited(problems[0], 0.5))  # imports the solver
        for share in LIMITS:
            runs = [measure(limited(p, share), options.alone) for p in problems]
            seconds = [s for s, _ in runs]
            methods = ", ".join(f"{m} {n}" for m, n in Counter(m for _, m in runs).most_common())
            limit = "none" if share is None else f"{share:g}"
            median, worst = (f"{1e3 * f(seconds):.1f}" for f in (statistics.median, max))
            table.add_row(name, str(len(problems[0].nodes)), limit, median, worst, methods)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()

"""The exact solver: an integer linear program, and the shortcuts that usually make it unnecessary.

Formulation
-----------
Variables::

    x[v, s] in {0, 1}    node v takes strategy s
    y[k, i, j] >= 0      edge k = (u, v) is paid at [i, j]; integral whenever x is

Objective::

    minimise  sum_v,s seconds[v][s] x[v, s]  +  sum_k,i,j edge_seconds[k][i, j] y[k, i, j]

Rows::

    one_{v}         sum_s x[v, s] = 1
    out_{k}_{i}     sum_j y[k, i, j] = x[u, i]          for every strategy i of u
    in_{k}_{j}      sum_i y[k, i, j] = x[v, j]          for every strategy j of v
    memory          sum bytes[v][s] x[v, s] + sum edge_bytes[k][i, j] y[k, i, j] <= memory_limit
    not_{n}         sum_v x[v, choice(v)] <= (number of nodes) - 1      for a choice that only rounding let in

Forbidden strategies and pairs have no variable. The objective and the memory row are scaled to numbers that
suit the solver's tolerances.

Source: Zheng et al., "Alpa", OSDI 2022, section 4.2 (nodes, edges, one-hot choice, linearised edges); the
equalities ``out`` and ``in`` in place of its inequalities are the local polytope of Werner, "A linear
programming approach to max-sum problem", IEEE PAMI 29 (2007), a tighter relaxation.

Shortcuts (each exact)
----------------------
1. `elimination` solves the problem without the limit; if its optimum fits, it is the answer.
2. `branching` meets the limit: `lagrangian` prices memory for a bound and drops strategies that no better
   choice contains, `labelling` goes through the choices that are left, and what is still open is split.
3. `reductions` drop dominated strategies and eliminate nodes, and the program decides: where nodes are too
   densely connected for 1, or parts too many for 2.
"""

import itertools
import math
import shutil
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from planner.errors import Infeasible, SolverStopped
from planner.intra_op.branching import branch_and_bound
from planner.intra_op.elimination import TooWide, minimise
from planner.intra_op.lagrangian import ROUNDING, Relaxation, out_of_memory, price_memory
from planner.intra_op.problem import Array, Choice, Method, Solution, StrategyProblem, relative_gap
from planner.intra_op.reductions import (
    apply,
    drop_dominated,
    drop_forbidden,
    eliminate_nodes,
    keep,
    merge_parallel_edges,
)

if TYPE_CHECKING:
    import pulp

LARGEST_EXPONENT = 13
"""Coefficients are scaled to at most 2**13; solvers tolerate errors of about 1e-7."""

Variables = Mapping[tuple[int, ...], Any]
"""Variables of one node by strategy (s,), or of one edge by pair (i, j)."""


class ProgramAnswer(NamedTuple):
    """What the integer program gave; no choice where it is infeasible or time ran out."""

    choice: Choice | None
    lower_bound: float
    feasible: bool
    """False: proven to have no solution."""
    optimal: bool
    """Proven within the gap."""
    method: Method


def solve(problem: StrategyProblem, seconds: float = 60.0, gap: float = 0.0) -> Solution:
    """The cheapest choice that fits, to a relative ``gap``, with at most ``seconds`` in the integer program.

    Raises `Infeasible` where no choice is allowed and fits (it says the least memory that would do), and
    `SolverStopped` where time ran out before any was found.
    """
    free = _without_limit(problem)
    if free is not None:
        return free
    tidy = apply(problem, merge_parallel_edges, drop_forbidden)
    try:
        solution = _by_elimination(tidy.problem, seconds, gap)
    except TooWide:
        solution = _by_program(tidy.problem, None, seconds, gap)
    choice = tidy.undo(solution.choice)
    cost = problem.cost(choice)
    return replace(solution, choice=choice, cost=cost, lower_bound=min(cost, solution.lower_bound))


def formulate(problem: StrategyProblem) -> "pulp.LpProblem":
    """``problem`` as an integer linear program; variables and rows as in the module's docstring."""
    return _formulate(problem)[0]


def solve_program(problem: StrategyProblem, seconds: float = 60.0, gap: float = 0.0) -> ProgramAnswer:
    """The answer of the integer program alone, without shortcuts."""
    import pulp

    if not problem.nodes:
        return ProgramAnswer((), 0.0, True, True, "elimination")
    scaled, scale = _scaled(problem)
    model, x = _formulate(scaled)
    solver, method = _solver(seconds, gap)
    for refused in itertools.count():
        model.solve(solver)
        if model.status != pulp.LpStatusOptimal:
            return ProgramAnswer(None, -math.inf, model.status != pulp.LpStatusInfeasible, False, method)
        choice = tuple(_taken(chosen) for chosen in x)
        if problem.fits(choice):
            break
        row = pulp.lpSum(chosen[s,] for chosen, s in zip(x, choice, strict=True))
        model.addConstraint(row <= len(choice) - 1, f"not_{refused}")
    optimal = bool(model.sol_status == pulp.LpSolutionOptimal)
    cost = problem.cost(choice)
    bound = cost if optimal and gap == 0 else min(cost, _dual_bound(model) / scale)
    return ProgramAnswer(choice, bound, True, optimal, method)


def _without_limit(problem: StrategyProblem) -> Solution | None:
    """The solution where elimination is narrow enough and its answer happens to fit; else None."""
    try:
        elimination = minimise(problem)
    except TooWide:
        return None
    if math.isinf(elimination.constant):
        return None
    choice = elimination.choice
    if math.isfinite(problem.memory_limit) and not problem.fits(choice):
        return None
    cost = problem.cost(choice)
    return Solution(choice, cost, cost, "optimal", "elimination")


def _by_elimination(problem: StrategyProblem, seconds: float, gap: float) -> Solution:
    """The solution by dynamic programming, branching where the memory limit binds."""
    elimination = minimise(problem)
    cost = elimination.constant
    if math.isinf(cost):
        raise _forbidden()
    if problem.fits(elimination.choice):
        return Solution(elimination.choice, cost, cost, "optimal", "elimination")
    small = drop_dominated(problem)
    known = price_memory(small.problem)
    best = branch_and_bound(small.problem, known, gap)
    cost = small.problem.cost(best.choice)
    known = known._replace(choice=best.choice, lower_bound=best.lower_bound)
    if relative_gap(cost, best.lower_bound) > max(gap, ROUNDING):
        solution = _by_program(small.problem, known, seconds, gap)
    else:
        solution = Solution(best.choice, cost, best.lower_bound, "optimal", "branching")
    return replace(solution, choice=small.undo(solution.choice))


def _by_program(problem: StrategyProblem, known: Relaxation | None, seconds: float, gap: float) -> Solution:
    """The solution by integer program, after the reductions that what is ``known`` allows."""
    steps = [drop_dominated, eliminate_nodes]
    if known is not None:
        masks = known.alive(problem.cost(known.choice))
        steps.insert(0, lambda problem: keep(problem, masks))
    core = apply(problem, *steps)
    answer = solve_program(core.problem, seconds, gap)
    candidates = [] if known is None else [known.choice]
    bound = -math.inf if known is None else known.lower_bound
    if answer.choice is not None:
        choice = core.undo(answer.choice)
        constant = problem.cost(choice) - core.problem.cost(answer.choice)
        bound = max(bound, answer.lower_bound + constant)
        candidates.insert(0, choice)
    if not candidates:
        raise _no_choice(problem, answer, seconds)
    best = min(candidates, key=problem.cost)
    cost = problem.cost(best)
    proven = answer.optimal or not answer.feasible or relative_gap(cost, bound) <= gap
    bound = cost if gap == 0 and proven else min(bound, cost)
    return Solution(best, cost, bound, "optimal" if proven else "time limit", answer.method)


def _no_choice(problem: StrategyProblem, answer: ProgramAnswer, seconds: float) -> Infeasible | SolverStopped:
    if answer.feasible:
        return SolverStopped(f"{answer.method} found no choice of strategies within {seconds:g} s")
    if math.isinf(problem.memory_limit):
        return _forbidden()
    smallest = solve(problem.least_memory(), seconds)
    return out_of_memory(problem, smallest.cost)


def _forbidden() -> Infeasible:
    return Infeasible("every choice of strategies contains a forbidden pair of neighbours")


def _formulate(problem: StrategyProblem) -> "tuple[pulp.LpProblem, list[Variables]]":
    import pulp  # takes half a second, which most problems never need

    model = pulp.LpProblem("intra_op", pulp.LpMinimize)
    x: list[Variables] = [
        {(s,): model.add_variable(f"x_{v}_{s}", cat=pulp.LpBinary) for (s,) in _allowed(seconds)}
        for v, seconds in enumerate(problem.seconds)
    ]
    y: list[Variables] = [
        {
            (i, j): model.add_variable(f"y_{k}_{i}_{j}", lowBound=0)
            for i, j in _allowed(seconds)
            if (i,) in x[u] and (j,) in x[v]
        }
        for k, ((u, v), seconds) in enumerate(zip(problem.edges, problem.edge_seconds, strict=True))
    ]
    seconds = zip((*x, *y), (*problem.seconds, *problem.edge_seconds), strict=True)
    model.setObjective(pulp.LpAffineExpression(_weighted(seconds)))
    for v, chosen in enumerate(x):
        model.addConstraint(pulp.lpSum(chosen.values()) == 1, f"one_{v}")
    for k, (u, v) in enumerate(problem.edges):
        _link(model, f"out_{k}", x[u], y[k], 0)
        _link(model, f"in_{k}", x[v], y[k], 1)
    if math.isfinite(problem.memory_limit):
        bytes_ = zip((*x, *y), (*problem.bytes_, *problem.edge_bytes), strict=True)
        row = pulp.LpAffineExpression(_weighted(bytes_))
        model.addConstraint(row <= problem.memory_limit, "memory")
    return model, x


def _link(model: "pulp.LpProblem", name: str, node: Variables, pairs: Variables, end: int) -> None:
    """An edge's pairs at each strategy of one end add up to that strategy."""
    import pulp

    at: dict[int, list[tuple[Any, float]]] = defaultdict(list)
    for pair, variable in pairs.items():
        at[pair[end]].append((variable, 1.0))
    for (s,), variable in node.items():
        model.addConstraint(pulp.LpAffineExpression([*at[s], (variable, -1.0)]) == 0, f"{name}_{s}")


def _allowed(seconds: Array) -> list[tuple[int, ...]]:
    return [tuple(int(i) for i in index) for index in np.argwhere(np.isfinite(seconds))]


def _weighted(parts: Iterable[tuple[Variables, Array]]) -> list[tuple[Any, float]]:
    return [(variable, float(table[at])) for variables, table in parts for at, variable in variables.items()]


def _taken(chosen: Variables) -> int:
    return max(chosen, key=lambda index: chosen[index].value())[0]


def _scaled(problem: StrategyProblem) -> tuple[StrategyProblem, float]:
    """The problem in units that suit a solver's tolerances, and units per second; powers of two are exact."""
    time = _scale([*problem.seconds, *problem.edge_seconds])
    size = _scale([*problem.bytes_, *problem.edge_bytes])
    scaled = replace(
        problem,
        seconds=tuple(time * a for a in problem.seconds),
        edge_seconds=tuple(time * a for a in problem.edge_seconds),
        bytes_=tuple(size * a for a in problem.bytes_),
        edge_bytes=tuple(size * a for a in problem.edge_bytes),
        memory_limit=size * problem.memory_limit,
    )
    return scaled, time


def _scale(tables: Iterable[Array]) -> float:
    largest = max((float(np.abs(a[np.isfinite(a)]).max(initial=0.0)) for a in tables), default=0.0)
    return math.ldexp(1.0, LARGEST_EXPONENT - math.frexp(largest)[1]) if largest else 1.0


def _solver(seconds: float, gap: float) -> tuple[Any, Method]:
    """HiGHS, or CBC where highspy is not installed; one thread and a fixed seed, so that runs repeat."""
    import pulp

    if pulp.HiGHS(msg=False).available():
        from planner.highs import REPEATABLE, Silent, release_threads

        release_threads()
        Silent()  # so that the one that PuLP makes has no name left to print
        return pulp.HiGHS(msg=False, **REPEATABLE, timeLimit=seconds, gapRel=gap), "highs"
    path = shutil.which("cbc") or pulp.PULP_CBC_CMD.pulp_cbc_path
    return pulp.COIN_CMD(msg=False, threads=1, timeLimit=seconds, gapRel=gap, path=path), "cbc"


def _dual_bound(model: "pulp.LpProblem") -> float:
    """The bound that the solver proved; CBC does not hand it over."""
    highs = getattr(model, "solverModel", None)
    return -math.inf if highs is None else float(highs.getInfo().mip_dual_bound)

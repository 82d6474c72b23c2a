"""Contest problems as networks, and their solutions."""

import math
import time
from dataclasses import dataclass, replace

import numpy as np

from planner.intra_op.answers import Stopped
from planner.intra_op.anytime import solve_network
from planner.intra_op.iopddl import NEVER, ContestProblem
from planner.intra_op.liveness import rows_of
from planner.intra_op.network import Network
from planner.intra_op.problem import Array


@dataclass(frozen=True, slots=True)
class ContestSolution:
    """A choice that fits, and what is proven about it."""

    choice: tuple[int, ...]
    """Strategy of each node."""
    cost: int
    """``problem.cost(choice)``."""
    lower_bound: int
    """No choice that fits costs less."""
    interrupted: bool = False
    """Whether Ctrl-C ended it before it was done."""

    @property
    def gap(self) -> float:
        """(cost - lower bound) / cost; zero where the choice is proven optimal."""
        return (self.cost - self.lower_bound) / self.cost if self.cost else 0.0


def solve_contest_problem(problem: ContestProblem, deadline: float) -> ContestSolution:
    """The best choice found before the clock (`time.monotonic`) says ``deadline``, or Ctrl-C comes.

    Raises `Infeasible` where nothing is allowed and fits, `SolverStopped` where nothing was found in time.
    """
    interrupted = False
    start = time.monotonic()
    rest, least = without_least(problem)
    network = network_of(rest)
    writing = time.monotonic() - start  # about what the answer takes to be expanded and priced
    try:
        answer = solve_network(network, deadline - writing)
    except Stopped as stop:
        answer, interrupted = stop.answer, True
    choice = tuple(answer.choice[v] for v in range(len(problem.costs)))
    cost = problem.cost(choice)
    return ContestSolution(choice, cost, min(cost, least + math.ceil(answer.lower_bound)), interrupted)


def without_least(problem: ContestProblem) -> tuple[ContestProblem, int]:
    """The problem with the least entry of every node and edge taken off all of it, and what that is in all.

    Every choice pays it. Beside one entry near `NEVER` that is forced, differences between choices would be below the
    rounding of sums.
    """
    least = [_least(entries) for entries in problem.costs]
    of_edges = [_least(entries) for entries in problem.edge_costs]
    rest = replace(
        problem,
        costs=tuple(map(_lowered, problem.costs, least)),
        edge_costs=tuple(map(_lowered, problem.edge_costs, of_edges)),
    )
    return rest, sum(least) + sum(of_edges)


def _least(entries: tuple[int, ...]) -> int:
    """What is taken at least, or nothing where all is forbidden."""
    least = min(entries)
    return least if least < NEVER else 0


def _lowered(entries: tuple[int, ...], by: int) -> tuple[int, ...]:
    return tuple(c if c >= NEVER else c - by for c in entries) if by else entries


def network_of(problem: ContestProblem) -> Network:
    """The problem's nodes, and one more node per edge of more than two nodes, which chooses for all of them."""
    costs = [_array(c) for c in problem.costs]
    tables: list[tuple[int, int, Array]] = []
    for edge, entries in zip(problem.edges, problem.edge_costs, strict=True):
        table = _array(entries).reshape([len(problem.costs[v]) for v in edge])
        if len(edge) == 1:
            costs[edge[0]] = costs[edge[0]] + table
        elif len(edge) == 2:
            tables.append((*edge, table))
        else:
            tables += _spokes(len(costs), edge, table)
            costs.append(table.ravel())
    limit = math.inf if problem.usage_limit is None else float(problem.usage_limit)
    usages = [np.array(u, dtype=np.float64) for u in problem.usages]
    pieces, capacity = rows_of(problem.intervals, usages, limit)
    network = Network(dict(enumerate(costs)), pieces, capacity)
    for u, v, table in tables:
        network.add_table(u, v, table)
    return network


def _spokes(hub: int, edge: tuple[int, ...], table: Array) -> list[tuple[int, int, Array]]:
    """Tables that make each node of an edge agree with the combination that the node ``hub`` takes."""
    combinations = np.indices(table.shape).reshape(len(edge), -1)
    return [
        (hub, v, np.where(combinations[axis][:, None] == np.arange(table.shape[axis]), 0.0, np.inf))
        for axis, v in enumerate(edge)
    ]


def _array(entries: tuple[int, ...]) -> Array:
    array = np.array(entries, dtype=np.float64)
    return np.where(array >= NEVER, np.inf, array)

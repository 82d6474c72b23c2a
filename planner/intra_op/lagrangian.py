"""The memory limit as a price: a bound, a good feasible choice, and strategies that no optimum contains.

Charging p seconds per byte over the limit M gives the dual function

    g(p) = min over choices of  cost + p (memory - M),        g(p) <= optimum  for every p >= 0,

and each evaluation is an unlimited problem, solved exactly by elimination. The best p is where the cheapest
choices just within and just beyond the limit cost the same. A strategy whose min-marginal there exceeds the
cost of a feasible choice is in no optimum.
Source: Handler and Zang, "A dual algorithm for the constrained shortest path problem", Networks 10 (1980);
for fixing by min-marginals, Aneja, Aggarwal and Nair, Networks 13 (1983).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from planner.errors import Infeasible
from planner.intra_op.elimination import Elimination, min_marginals, minimise
from planner.intra_op.problem import Array, Choice, StrategyProblem
from planner.intra_op.reductions import IncidentTables, Mask, NodeTables, incident_tables

ROUNDING = 1e-9
"""Relative differences below this are rounding."""


class Relaxation(NamedTuple):
    """What pricing memory told."""

    choice: Choice
    """The best choice found that fits."""
    lower_bound: float
    """No choice that fits costs less [s]."""
    price: float
    """Of memory, where the bound is best [s/B]."""
    bounds: tuple[Array, ...]
    """Per node and strategy: no choice that fits and contains it costs less [s]."""

    def alive(self, cost: float) -> tuple[Mask, ...]:
        """The strategies that a choice of at most ``cost`` could contain."""
        return tuple(bound <= cost + ROUNDING * abs(cost) for bound in self.bounds)


def price_memory(problem: StrategyProblem) -> Relaxation:
    """Bound a problem with a memory limit.

    Raises `Infeasible` where no choice fits and `TooWide` where elimination is out of reach.
    """
    dual, best_price = minimise(problem), 0.0
    best, bound = dual.choice, dual.constant
    if not problem.fits(best):
        incident = incident_tables(problem)
        best = _descend(problem, _smallest(problem), incident)
        for price, elimination in _prices(problem, dual.choice, best):
            value = elimination.constant - price * problem.memory_limit
            if value >= bound:
                bound, best_price, dual = value, price, elimination
            if problem.fits(elimination.choice):
                best = min(best, _descend(problem, elimination.choice, incident), key=problem.cost)
    charged = best_price * problem.memory_limit if best_price else 0.0
    marginals = min_marginals(dual)
    return Relaxation(best, bound, best_price, tuple(marginals[v] - charged for v in range(len(marginals))))


def _smallest(problem: StrategyProblem) -> Choice:
    choice = minimise(problem.least_memory()).choice
    if not problem.fits(choice):
        raise out_of_memory(problem, problem.memory(choice))
    return choice


def out_of_memory(problem: StrategyProblem, least_bytes: float) -> Infeasible:
    """The error for a problem whose smallest choice does not fit."""
    return Infeasible(
        f"no choice of strategies fits in {problem.memory_limit:.6g} bytes;"
        f" the smallest takes {least_bytes:.6g}",
        least_change=f"raise the memory limit to {least_bytes:.6g} bytes",
    )


def _prices(
    problem: StrategyProblem, fastest: Choice, feasible: Choice
) -> Iterator[tuple[float, Elimination]]:
    """Prices on the way to the best, along secants of the lower hull of (bytes, cost)."""
    over, low = problem.memory(fastest), problem.cost(fastest)
    within, high = problem.memory(feasible), problem.cost(feasible)
    while high > low:
        price = (high - low) / (over - within)
        elimination = minimise(problem, price)
        yield price, elimination
        bytes_, cost = problem.memory(elimination.choice), problem.cost(elimination.choice)
        if cost + price * bytes_ >= (low + price * over) * (1 - ROUNDING):
            return
        if bytes_ <= problem.memory_limit:
            within, high = bytes_, cost
        else:
            over, low = bytes_, cost


def _descend(problem: StrategyProblem, choice: Choice, incident: IncidentTables) -> Choice:
    """``choice`` after changing one node at a time to what is fastest and fits, until nothing improves."""
    current = list(choice)
    improved = True
    while improved:
        improved = False
        for v, (seconds, bytes_) in enumerate(incident):
            times, sizes = _given(seconds, current), _given(bytes_, current)
            room = problem.memory_limit - problem.memory(current)
            times[sizes - sizes[current[v]] > room] = np.inf
            trial = [*current[:v], int(times.argmin()), *current[v + 1 :]]
            if problem.cost(trial) < problem.cost(current) and problem.fits(trial):
                current, improved = trial, True
    return tuple(current)


def _given(tables: NodeTables, choice: Sequence[int]) -> Array:
    """Per strategy of a node, what it costs when the others are as in ``choice``."""
    (_, own), *edges = tables
    return own[:, 0] + sum((table[:, choice[other]] for other, table in edges), np.zeros(len(own)))

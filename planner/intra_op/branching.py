"""Branch and bound under a binding memory limit, for problems that elimination can bound.

A subproblem is bounded by pricing its memory (`lagrangian`) and settled, if few choices below the best known
are left, by going through them (`labelling`). Otherwise it is split into one subproblem per strategy of the
node whose bytes vary most: a bound is loose where the limit falls between two strategies of a large node.
Subproblems wait in the order of their bounds, so the least of those is a bound on the whole.
"""

import heapq
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from planner.errors import Infeasible
from planner.intra_op.labelling import search
from planner.intra_op.lagrangian import ROUNDING, Relaxation, price_memory
from planner.intra_op.problem import Choice, StrategyProblem, relative_gap
from planner.intra_op.reductions import Mask, Reduction, after, drop_dominated, keep

Branch = tuple[float, Reduction]
"""The least that any choice of a part of a problem could cost [s], and the part."""

WIDTHS = (2**8, 2**11)
"""Labels kept at once in each subproblem: few for a good choice, then more to go through what is below it."""

MAX_SUBPROBLEMS = 300
"""Subproblems to look at before giving up; one takes some 20 ms for a transformer block."""


class Bounded(NamedTuple):
    """The best choice known and the least that any could cost."""

    choice: Choice
    lower_bound: float
    """[s]"""


def branch_and_bound(problem: StrategyProblem, root: Relaxation, gap: float) -> Bounded:
    """The best choice that fits, to a relative ``gap`` unless there are too many subproblems."""
    best, cost = root.choice, problem.cost(root.choice)
    queue = [(root.lower_bound, 0, Reduction(problem, tuple))]
    tickets = itertools.count(1)
    for _ in range(MAX_SUBPROBLEMS):
        if not queue or relative_gap(cost, queue[0][0]) <= max(gap, ROUNDING):
            break
        bound, ticket, subproblem = heapq.heappop(queue)
        try:
            known = price_memory(subproblem.problem) if ticket else root
        except Infeasible:
            continue
        found, branches = _explore(subproblem.problem, known, cost)
        if problem.cost(subproblem.undo(found)) < cost:
            best = subproblem.undo(found)
            cost = problem.cost(best)
        for least, branch in branches:
            heapq.heappush(queue, (max(bound, least), next(tickets), after(subproblem, branch)))
    return Bounded(best, min(cost, queue[0][0]) if queue else cost)


def _explore(problem: StrategyProblem, known: Relaxation, cost: float) -> tuple[Choice, list[Branch]]:
    """A choice that fits, and the branches that could hold one below both it and ``cost``."""
    best = known.choice
    for width in WIDTHS:
        cost = min(cost, problem.cost(best))
        if known.lower_bound >= cost:
            return best, []
        rest = _keep(problem, known.alive(cost))
        found = search(rest.problem, known.price, cost, width)
        if found.choice is not None:
            best = rest.undo(found.choice)
        if found.complete:
            return best, []
    cost = min(cost, problem.cost(best))
    return best, _split(problem, known, cost) if known.lower_bound < cost else []


def _split(problem: StrategyProblem, known: Relaxation, cost: float) -> list[Branch]:
    """One branch per strategy of the node whose bytes vary most."""
    alive = known.alive(cost)
    node = max(range(len(alive)), key=lambda v: (alive[v].sum() > 1, np.ptp(problem.bytes_[v][alive[v]])))
    branches = []
    for s in np.flatnonzero(alive[node]):
        only = tuple(np.arange(mask.size) == s if v == node else mask for v, mask in enumerate(alive))
        branches.append((float(known.bounds[node][s]), _keep(problem, only)))
    return branches


def _keep(problem: StrategyProblem, masks: Sequence[Mask]) -> Reduction:
    kept = keep(problem, masks)
    return after(kept, drop_dominated(kept.problem))

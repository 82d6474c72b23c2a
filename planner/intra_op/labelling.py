"""Every choice that could still be the best, built node by node (labels of a constrained shortest path).

Going back through the buckets of an elimination, a *label* is a partial choice. Three eliminations with the
same order, of seconds, of bytes, and of seconds plus priced bytes, say exactly how little the rest can add,
so a label is dropped as soon as no completion is within the limit and below the target. Of two labels that
agree on all nodes that the rest depends on, one that is neither faster nor smaller is dropped too.

Source: Dumitrescu and Boland, "Improved preprocessing, labeling and scaling algorithms for the
weight-constrained shortest path problem", Networks 42 (2003); here over an elimination order, not a path.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from planner.intra_op.elimination import Elimination, Scope, minimise
from planner.intra_op.problem import Array, Choice, StrategyProblem

Picks = npt.NDArray[np.int32]

ROUNDING = 1e-9
"""Relative slack given to sums before they count as too large."""


class Labels(NamedTuple):
    """Partial choices; one row per label."""

    picks: Picks
    """[label, node]; meaningful where the node has been reached."""
    excess: Array
    """[measure, label]: what it adds to the least possible seconds, bytes and priced seconds."""


class Search(NamedTuple):
    """What a search found."""

    choice: Choice | None
    """The best choice that fits and costs at most the target; None if it met none."""
    complete: bool
    """No label was left aside for want of room, so the choice is the best there is."""


def search(problem: StrategyProblem, price: float, target: float, width: int) -> Search:
    """The cheapest choice that fits and costs at most ``target`` [s], with at most ``width`` labels at once.

    ``price`` [s/B] should be the best of the Lagrangian dual; any gives the same answer, less quickly. Where
    there are more labels, those with the least priced seconds are kept (a beam search). Raises `TooWide`
    where elimination is out of reach.
    """
    eliminations = [minimise(problem), minimise(problem.least_memory()), minimise(problem, price)]
    limits = np.array([target, problem.memory_limit, target + price * problem.memory_limit])
    start = np.array([e.constant for e in eliminations])
    room = limits - start + ROUNDING * np.maximum(np.abs(limits), np.abs(start))
    labels = Labels(np.zeros((1, len(problem.nodes)), dtype=np.int32), np.zeros((3, 1)))
    ahead = _frontiers(eliminations[0])
    complete = True
    for k in reversed(range(len(problem.nodes))):
        labels = _undominated(_extend(labels, eliminations, k, room), ahead[k])
        if len(labels.picks) > width:
            complete = False
            labels = _take(labels, np.argsort(labels.excess[2], kind="stable")[:width])
    by_cost = np.argsort(labels.excess[0], kind="stable")
    choices = (tuple(int(s) for s in labels.picks[row]) for row in by_cost)
    return Search(next((c for c in choices if problem.fits(c)), None), complete)


def _extend(labels: Labels, eliminations: Sequence[Elimination], k: int, room: Array) -> Labels:
    """Every label with every strategy of the next node that leaves room."""
    node, scope, _ = eliminations[0].buckets[k]
    given: tuple[Any, ...] = (slice(None), *(labels.picks[:, n] for n in scope))
    added = [_above_least(e.buckets[k].table)[given] for e in eliminations]
    excess = np.stack([a if scope else a[:, None] for a in added]) + labels.excess[:, None, :]
    strategy, row = np.nonzero((excess <= room[:, None, None]).all(axis=0))
    picks = labels.picks[row]
    picks[:, node] = strategy
    return Labels(picks, excess[:, strategy, row])


def _above_least(table: Array) -> Array:
    least = table.min(axis=0)
    above = np.full(table.shape, np.inf)
    np.subtract(table, least, out=above, where=np.isfinite(table))
    return above


def _undominated(labels: Labels, frontier: Scope) -> Labels:
    """Per choice on the ``frontier``, the labels that none beats in seconds and bytes."""
    group = np.zeros(len(labels.picks), dtype=np.int64)
    for n in frontier:
        base = int(labels.picks[:, n].max(initial=0)) + 1
        group = np.unique(group * base + labels.picks[:, n], return_inverse=True)[1].reshape(-1)
    seconds, bytes_ = labels.excess[:2]
    order = np.lexsort((bytes_, seconds, group))
    rank = np.unique(bytes_, return_inverse=True)[1].reshape(-1)[order]
    descending = rank - group[order] * (rank.size + 1)
    smallest_before = np.minimum.accumulate(descending)[:-1]
    better = np.concatenate([[True], descending[1:] < smallest_before])[: order.size]
    return _take(labels, order[better])


def _take(labels: Labels, rows: npt.NDArray[np.intp]) -> Labels:
    return Labels(labels.picks[rows], labels.excess[:, rows])


def _frontiers(order: Elimination) -> list[Scope]:
    """Per step, the nodes on which the nodes still to be reached depend."""
    frontiers: list[Scope] = []
    seen: set[int] = set()
    for bucket in order.buckets:
        frontiers.append(tuple(sorted(seen)))
        seen |= set(bucket.scope)
        seen.discard(bucket.node)
    return frontiers

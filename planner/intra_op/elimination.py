"""Exact minimisation of a sum of small tables, one node at a time (min-plus variable elimination).

Every table is indexed by the strategies of a few nodes, its *scope*. Eliminating node v adds up the tables
that mention v and takes the minimum over v's strategies; what is left is a table over v's neighbours. Chains,
trees and series-parallel graphs vanish without a table ever having more than two axes besides v's. Going
back through the *buckets* (the sums before the minimum was taken) recovers the best strategies, and the
*min-marginals*: how cheap the whole can be when one node's strategy is fixed.

Source: Bertele and Brioschi, Nonserial Dynamic Programming (1972); Dechter, "Bucket elimination", Artificial
Intelligence 113 (1999).
"""

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from planner.intra_op.problem import Array, Choice, StrategyProblem

Scope = tuple[int, ...]
Tables = dict[Scope, Array]

MAX_ENTRIES = 2**21
"""Largest table that an elimination may build (16 MiB): four nodes of 38 strategies each."""


REMEMBERED = 500
"""Tables of a problem whose order of elimination is worth keeping: a block's, of which many are alike."""


class TooWide(Exception):
    """The nodes are too densely connected to be eliminated; another method must answer."""


class Bucket(NamedTuple):
    """A node when it was eliminated."""

    node: int
    scope: Scope
    """Its neighbours then, ascending."""
    table: Array
    """Sum of the tables that mentioned it; axes: the node, then ``scope``."""


@dataclass(frozen=True, slots=True)
class Elimination:
    """What eliminating nodes left behind."""

    buckets: tuple[Bucket, ...]
    """In the order of elimination."""
    tables: Mapping[Scope, Array]
    """Over the nodes that remain; scope ``()`` holds the constant."""

    @property
    def constant(self) -> float:
        """Minimum of the whole, if every node was eliminated."""
        return float(self.tables.get((), np.float64(0)))

    @property
    def choice(self) -> Choice:
        """The choice of the minimum, if every node was eliminated."""
        return self.complete([0] * len(self.buckets))

    def complete(self, choice: Sequence[int]) -> Choice:
        """``choice`` with the best strategy of every eliminated node filled in; the first of equals."""
        full = list(choice)
        for bucket in reversed(self.buckets):
            given: tuple[Any, ...] = (slice(None), *(full[n] for n in bucket.scope))
            full[bucket.node] = int(bucket.table[given].argmin())
        return tuple(full)


def tables_of(problem: StrategyProblem, seconds_per_byte: float = 0.0) -> Tables:
    """Seconds of ``problem`` as tables, parallel edges added up, bytes charged at a price [s/B]."""
    tables: Tables = {}
    for v, (seconds, bytes_) in enumerate(zip(problem.seconds, problem.bytes_, strict=True)):
        tables[(v,)] = seconds + seconds_per_byte * bytes_ if seconds_per_byte else seconds
    for edge, seconds, bytes_ in zip(problem.edges, problem.edge_seconds, problem.edge_bytes, strict=True):
        priced = seconds + seconds_per_byte * bytes_ if seconds_per_byte else seconds
        _add(tables, *ascending(edge, priced))
    return tables


def ascending(edge: tuple[int, int], table: Array) -> tuple[Scope, Array]:
    """The table of an edge with its scope in ascending order; a self edge becomes a node's table."""
    u, v = edge
    if u == v:
        return (u,), np.diagonal(table)
    return ((u, v), table) if u < v else ((v, u), table.T)


def eliminate(
    sizes: Sequence[int],
    tables: Tables,
    nodes: Iterable[int],
    max_degree: int | None = None,
    max_entries: int | None = None,
) -> Elimination:
    """Eliminate ``nodes``, smallest table first, as long as their degree and their tables stay in bounds."""
    bound = MAX_ENTRIES if max_entries is None else max_entries
    remaining = {scope: np.asarray(table) for scope, table in tables.items()}
    buckets = []
    for node, scope, parts in _order(sizes, tables, nodes, max_degree, bound):
        joint = _join([(part, remaining.pop(part)) for part in parts], (node, *scope), sizes)
        buckets.append(Bucket(node, scope, joint))
        _add(remaining, scope, joint.min(axis=0))
    return Elimination(tuple(buckets), remaining)


def _order(
    sizes: Sequence[int], tables: Tables, nodes: Iterable[int], max_degree: int | None, max_entries: int
) -> "tuple[_Step, ...]":
    ordered = _steps if len(tables) <= REMEMBERED else _steps.__wrapped__
    return ordered(tuple(sizes), frozenset(tables), frozenset(nodes), max_degree, max_entries)


class _Step(NamedTuple):
    """One node to eliminate."""

    node: int
    scope: Scope
    """Its neighbours then."""
    parts: tuple[Scope, ...]
    """Of the tables that mention it then."""


@lru_cache(maxsize=256)
def _steps(
    sizes: tuple[int, ...],
    scopes: frozenset[Scope],
    nodes: frozenset[int],
    max_degree: int | None,
    max_entries: int,
) -> tuple[_Step, ...]:
    """The order of elimination, which depends on the shapes of the tables only; many problems share it."""
    remaining = _Remaining(sizes, scopes)
    candidates = set(nodes)
    queue = [(remaining.entries(v), v) for v in candidates]
    heapq.heapify(queue)
    steps = []
    while queue:
        entries, v = heapq.heappop(queue)
        scope = remaining.neighbours(v)
        stale = v not in candidates or entries != remaining.entries(v)
        if stale or entries > max_entries or (max_degree is not None and len(scope) > max_degree):
            continue  # a change among its neighbours puts a node back into the queue
        candidates.discard(v)
        steps.append(_Step(v, scope, remaining.remove(v)))
        remaining.add(scope)
        for n in candidates.intersection(scope):
            heapq.heappush(queue, (remaining.entries(n), n))
    return tuple(steps)


class _Remaining:
    """Scopes of the tables of nodes not yet eliminated, found by node."""

    def __init__(self, sizes: Sequence[int], scopes: Iterable[Scope]) -> None:
        self.sizes = sizes
        self.mentions: list[set[Scope]] = [set() for _ in sizes]
        for scope in scopes:
            self.add(scope)

    def neighbours(self, v: int) -> Scope:
        return tuple(sorted({n for scope in self.mentions[v] for n in scope} - {v}))

    def entries(self, v: int) -> int:
        """Size of the table that eliminating v builds."""
        return self.sizes[v] * math.prod(self.sizes[n] for n in self.neighbours(v))

    def add(self, scope: Scope) -> None:
        for n in scope:
            self.mentions[n].add(scope)

    def remove(self, v: int) -> tuple[Scope, ...]:
        """Take out the tables that mention v."""
        parts = tuple(sorted(self.mentions[v]))
        for scope in parts:
            for n in scope:
                self.mentions[n].discard(scope)
        return parts


def minimise(problem: StrategyProblem, seconds_per_byte: float = 0.0) -> Elimination:
    """Eliminate every node, the memory limit left aside; raises `TooWide` if tables would grow too large."""
    return eliminate_all(problem.sizes, tables_of(problem, seconds_per_byte))


def eliminate_all(sizes: Sequence[int], tables: Tables) -> Elimination:
    """Eliminate every node; raises `TooWide` before anything is added up if tables would grow too large."""
    nodes = range(len(sizes))
    if len(_order(sizes, tables, nodes, None, MAX_ENTRIES)) < len(nodes):
        raise TooWide
    return eliminate(sizes, tables, nodes)


def min_marginals(elimination: Elimination) -> dict[int, Array]:
    """Least total for each strategy of each node, every node having been eliminated."""
    position = {bucket.node: k for k, bucket in enumerate(elimination.buckets)}
    joints: dict[int, tuple[Scope, Array]] = {}
    for node, scope, table in reversed(elimination.buckets):
        if scope:
            parent = min(scope, key=position.__getitem__)
            best = _project(*joints[parent], scope)
        else:
            best = np.asarray(elimination.constant)
        message = table.min(axis=0)
        elsewhere = np.full(message.shape, np.inf)
        np.subtract(best, message, out=elsewhere, where=np.isfinite(message))
        joints[node] = ((node, *scope), table + elsewhere)
    return {node: _project(scope, table, (node,)) for node, (scope, table) in joints.items()}


def _add(tables: Tables, scope: Scope, table: Array) -> None:
    tables[scope] = tables[scope] + table if scope in tables else np.asarray(table)


def _join(parts: Sequence[tuple[Scope, Array]], joint: Scope, sizes: Sequence[int]) -> Array:
    """Sum of tables over the scope ``joint``."""
    total = np.zeros([sizes[n] for n in joint])
    for scope, table in parts:
        if len(scope) > 1:
            table = table.transpose(sorted(range(len(scope)), key=lambda axis: joint.index(scope[axis])))
        total += table.reshape([sizes[n] if n in scope else 1 for n in joint])
    return total


def _project(joint: Scope, table: Array, scope: Scope) -> Array:
    """Minimum over the axes that are not in ``scope``, the others in its order."""
    kept = [n for n in joint if n in scope]
    least: Array = table.min(axis=tuple(axis for axis, n in enumerate(joint) if n not in scope))
    return least.transpose([kept.index(n) for n in scope])

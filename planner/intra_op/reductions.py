"""Exact reductions: a smaller problem, and the way back to an answer of the larger one.

Each function keeps at least one optimal choice of the problem it is given, so ``undo`` of an optimum of the
smaller problem is an optimum of the larger, at the same cost up to a constant. Edges are expected to be
merged (`merge_parallel_edges`) before strategies are dropped.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from planner.errors import Infeasible
from planner.intra_op.elimination import Elimination, ascending, eliminate, tables_of
from planner.intra_op.problem import Array, Choice, StrategyProblem

Mask = npt.NDArray[np.bool_]


NodeTables = list[tuple[int, Array]]
"""What depends on one node's strategy: itself first, [own, 1], then (neighbour, [own, the neighbour's])."""

IncidentTables = list[tuple[NodeTables, NodeTables]]
"""Per node, its tables of seconds and its tables of bytes."""


class Reduction(NamedTuple):
    """A problem made smaller."""

    problem: StrategyProblem
    undo: Callable[[Sequence[int]], Choice]
    """From a choice of ``problem`` to one of the problem that it was made from."""


Step = Callable[[StrategyProblem], Reduction]


def after(first: Reduction, second: Reduction) -> Reduction:
    """``second``, which was made from the problem of ``first``, as a reduction of the problem of both."""
    return Reduction(second.problem, lambda choice: first.undo(second.undo(choice)))


def apply(problem: StrategyProblem, *steps: Step) -> Reduction:
    """Reductions one after another."""
    return reduce(lambda done, step: after(done, step(done.problem)), steps, Reduction(problem, tuple))


def merge_parallel_edges(problem: StrategyProblem) -> Reduction:
    """At most one edge per pair of nodes, lower index first; self edges become costs of their node."""
    seconds, bytes_ = list(problem.seconds), list(problem.bytes_)
    edges: dict[tuple[int, ...], tuple[Array, Array]] = {}
    for edge, t, b in zip(problem.edges, problem.edge_seconds, problem.edge_bytes, strict=True):
        (scope, t), (_, b) = ascending(edge, t), ascending(edge, b)
        if len(scope) == 1:
            seconds[scope[0]] = seconds[scope[0]] + t
            bytes_[scope[0]] = bytes_[scope[0]] + b
        elif scope in edges:
            edges[scope] = (edges[scope][0] + t, edges[scope][1] + b)
        else:
            edges[scope] = (t, b)
    merged = replace(
        problem,
        seconds=tuple(seconds),
        bytes_=tuple(bytes_),
        edges=tuple((u, v) for u, v in edges),
        edge_seconds=tuple(t for t, _ in edges.values()),
        edge_bytes=tuple(b for _, b in edges.values()),
    )
    return Reduction(merged, tuple)


def keep(problem: StrategyProblem, masks: Sequence[Mask]) -> Reduction:
    """Only the strategies whose mask is true."""
    kept = [np.flatnonzero(mask) for mask in masks]
    smaller = replace(
        problem,
        seconds=tuple(a[k] for a, k in zip(problem.seconds, kept, strict=True)),
        bytes_=tuple(a[k] for a, k in zip(problem.bytes_, kept, strict=True)),
        edge_seconds=_keep_pairs(problem, problem.edge_seconds, kept),
        edge_bytes=_keep_pairs(problem, problem.edge_bytes, kept),
        labels=tuple(tuple(names[i] for i in k) for names, k in zip(problem.labels, kept, strict=True)),
    )
    return Reduction(smaller, lambda choice: tuple(int(k[s]) for k, s in zip(kept, choice, strict=True)))


def drop_forbidden(problem: StrategyProblem) -> Reduction:
    """Without the strategies that no finite choice can contain: forbidden, or with no partner across an edge.

    Raises `Infeasible` where a node has no strategy left.
    """
    alive = [np.isfinite(a) for a in problem.seconds]
    allowed = [np.isfinite(a) for a in problem.edge_seconds]
    changed = True
    while changed:
        changed = False
        for (u, v), pairs in zip(problem.edges, allowed, strict=True):
            possible = pairs & np.outer(alive[u], alive[v])
            for node, has_partner in ((u, possible.any(axis=1)), (v, possible.any(axis=0))):
                if (alive[node] & ~has_partner).any():
                    alive[node] = alive[node] & has_partner
                    changed = True
    for name, mask in zip(problem.nodes, alive, strict=True):
        if not mask.any():
            raise Infeasible(f"every strategy of {name} is forbidden, by itself or by its neighbours")
    return keep(problem, alive)


def drop_dominated(problem: StrategyProblem) -> Reduction:
    """Without the strategies that another one of the same node can always replace at no loss.

    Strategy t replaces s if, whatever the neighbours choose, it takes no more seconds and no more bytes:
    c(s) - c(t) + sum over edges of min_j [c(s, j) - c(t, j)] >= 0 for both. Of equals, the first stays.
    Source: Goldstein, "Efficient rotamer elimination", Biophysical Journal 66 (1994).
    """
    alive = [np.ones(n, dtype=np.bool_) for n in problem.sizes]
    limited = bool(np.isfinite(problem.memory_limit))
    for v, (seconds, bytes_) in enumerate(incident_tables(problem)):
        index = np.flatnonzero(alive[v])
        replaces = _loss(seconds, index, alive) >= 0
        if limited:
            replaces &= _loss(bytes_, index, alive) >= 0
        earlier = np.tri(index.size, k=-1, dtype=np.bool_)
        alive[v][index] = ~(replaces & (~replaces.T | earlier)).any(axis=1)
    return keep(problem, alive)


def eliminate_nodes(problem: StrategyProblem) -> Reduction:
    """Without the nodes of degree 0, 1 and 2 on whose strategies memory does not depend.

    The best strategy of such a node becomes a function of its neighbours' (dynamic programming); a node of
    degree 2 leaves an edge between them. With no memory limit, every node qualifies.
    """
    weighty = _nodes_with_memory(problem)
    free = [v for v in range(len(problem.nodes)) if v not in weighty]
    done = eliminate(problem.sizes, tables_of(problem), free, max_degree=2)
    gone = {bucket.node for bucket in done.buckets}
    stays = [v for v in range(len(problem.nodes)) if v not in gone]

    def undo(choice: Sequence[int]) -> Choice:
        full = [0] * len(problem.nodes)
        for v, s in zip(stays, choice, strict=True):
            full[v] = s
        return done.complete(full)

    return Reduction(_core(problem, done, stays), undo)


def incident_tables(problem: StrategyProblem) -> IncidentTables:
    """Per node, its tables of seconds and its tables of bytes."""
    incident = [
        ([(v, t[:, None])], [(v, b[:, None])])
        for v, (t, b) in enumerate(zip(problem.seconds, problem.bytes_, strict=True))
    ]
    for (u, v), t, b in zip(problem.edges, problem.edge_seconds, problem.edge_bytes, strict=True):
        incident[u][0].append((v, t))
        incident[u][1].append((v, b))
        incident[v][0].append((u, t.T))
        incident[v][1].append((u, b.T))
    return incident


def _keep_pairs(
    problem: StrategyProblem, tables: Sequence[Array], kept: Sequence[npt.NDArray[np.intp]]
) -> tuple[Array, ...]:
    return tuple(a[np.ix_(kept[u], kept[v])] for (u, v), a in zip(problem.edges, tables, strict=True))


def _loss(tables: NodeTables, index: npt.NDArray[np.intp], alive: Sequence[Mask]) -> Array:
    """[s, t]: the least that is lost by taking s where t could be, over all choices of the neighbours."""
    (_, own), *edges = tables
    parts = [_least_difference(own[index])]
    parts += [_least_difference(table[np.ix_(index, np.flatnonzero(alive[other]))]) for other, table in edges]
    hopeless = np.logical_or.reduce([np.isposinf(part) for part in parts])
    total = np.sum([np.where(hopeless, 0.0, part) for part in parts], axis=0)
    return np.where(hopeless, np.inf, total)


def _least_difference(rows: Array, max_entries: int = 2**20) -> Array:
    """[s, t]: min over j of rows[s, j] - rows[t, j]; a forbidden rows[s, j] loses to anything."""
    num, width = rows.shape
    result = np.empty((num, num))
    for part in np.array_split(np.arange(num), max(1, num * num * width // max_entries)):
        difference = np.full((part.size, num, width), np.inf)
        some = np.broadcast_to(np.isfinite(rows[part])[:, None, :], difference.shape)
        np.subtract(rows[part][:, None, :], rows[None, :, :], out=difference, where=some)
        result[part] = difference.min(axis=2)
    return result


def _nodes_with_memory(problem: StrategyProblem) -> set[int]:
    """Nodes whose strategy changes the bytes, where those matter."""
    if np.isinf(problem.memory_limit):
        return set()
    nodes = {v for v, b in enumerate(problem.bytes_) if np.ptp(b) > 0}
    edges = (e for e, b in zip(problem.edges, problem.edge_bytes, strict=True) if np.ptp(b) > 0)
    return nodes.union(*edges)


def _core(problem: StrategyProblem, done: Elimination, stays: Sequence[int]) -> StrategyProblem:
    """The nodes that remain; the bytes of the others, which do not vary, come off the limit."""
    place = {v: k for k, v in enumerate(stays)}
    old_bytes = dict(zip(problem.edges, problem.edge_bytes, strict=True))
    edges = sorted(scope for scope in done.tables if len(scope) == 2)
    fixed = sum(float(b[0]) for v, b in enumerate(problem.bytes_) if v not in place)
    fixed += sum(float(b.flat[0]) for e, b in old_bytes.items() if not place.keys() >= set(e))
    return StrategyProblem(
        nodes=tuple(problem.nodes[v] for v in stays),
        seconds=tuple(done.tables[(v,)] for v in stays),
        bytes_=tuple(problem.bytes_[v] for v in stays),
        edges=tuple((place[u], place[v]) for u, v in edges),
        edge_seconds=tuple(done.tables[e] for e in edges),
        edge_bytes=tuple(old_bytes.get((u, v), np.zeros(done.tables[u, v].shape)) for u, v in edges),
        memory_limit=problem.memory_limit - fixed,
        labels=tuple(problem.labels[v] for v in stays),
    )

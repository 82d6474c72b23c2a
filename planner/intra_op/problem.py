"""Which strategy for each operator? The question as data, able to price any answer.

A node is an operator (or a tensor) with a finite list of strategies. A choice takes one strategy per node and
pays the seconds of each, plus those of every edge, which depend on the strategies at both ends (resharding).
Bytes add up in the same way and may not exceed ``memory_limit``.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from planner.errors import InputError

Array = npt.NDArray[np.float64]
Choice = tuple[int, ...]
Method = Literal["elimination", "branching", "highs", "cbc"]


@dataclass(frozen=True, slots=True, eq=False)
class StrategyProblem:
    """Nodes with strategies, edges between them, one limit on memory; seconds of ``inf`` are forbidden."""

    nodes: tuple[str, ...]
    """Names, unique; everything else refers to nodes by their index here."""
    seconds: tuple[Array, ...]
    """Per node, one entry per strategy [s]; ``inf`` forbids the strategy."""
    bytes_: tuple[Array, ...]
    """Per node, one entry per strategy [B]."""
    edges: tuple[tuple[int, int], ...] = ()
    """Pairs of node indices (u, v); repeated pairs add up, and u = v is allowed."""
    edge_seconds: tuple[Array, ...] = ()
    """Per edge, [strategies of u, strategies of v] [s]; ``inf`` forbids the pair."""
    edge_bytes: tuple[Array, ...] = ()
    """Per edge, the same shape [B]: copies that resharding keeps. Left out: none."""
    memory_limit: float = math.inf
    """Largest sum of bytes allowed [B]."""
    labels: tuple[tuple[str, ...], ...] = ()
    """Per node, a name for each strategy. Left out: the strategies' numbers."""

    def __post_init__(self) -> None:
        for field in ("seconds", "bytes_", "edge_seconds", "edge_bytes"):
            arrays = tuple(np.asarray(a, dtype=np.float64) for a in getattr(self, field))
            object.__setattr__(self, field, arrays)
        if not self.edge_bytes:
            object.__setattr__(self, "edge_bytes", tuple(_zeros(a.shape) for a in self.edge_seconds))
        if not self.labels:
            numbers = tuple(tuple(str(i) for i in range(a.size)) for a in self.seconds)
            object.__setattr__(self, "labels", numbers)
        _check_nodes(self)
        _check_edges(self)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of strategies of each node."""
        return tuple(a.size for a in self.seconds)

    def cost(self, choice: Sequence[int]) -> float:
        """Seconds of ``choice``: nodes plus edges; ``inf`` where it takes something forbidden."""
        return _total(self, choice, self.seconds, self.edge_seconds)

    def memory(self, choice: Sequence[int]) -> float:
        """Bytes of ``choice``: nodes plus edges."""
        return _total(self, choice, self.bytes_, self.edge_bytes)

    def fits(self, choice: Sequence[int]) -> bool:
        """Whether ``choice`` is within the memory limit."""
        return self.memory(choice) <= self.memory_limit

    def without_limit(self) -> "StrategyProblem":
        """The same problem on devices of unlimited memory."""
        return replace(self, memory_limit=math.inf)

    def priced_memory(self, seconds_per_byte: float) -> "StrategyProblem":
        """The same choices without a limit, every byte [B] costing seconds instead."""
        return replace(
            self,
            seconds=tuple(s + seconds_per_byte * b for s, b in zip(self.seconds, self.bytes_, strict=True)),
            edge_seconds=tuple(
                s + seconds_per_byte * b for s, b in zip(self.edge_seconds, self.edge_bytes, strict=True)
            ),
            memory_limit=math.inf,
        )

    def least_memory(self) -> "StrategyProblem":
        """The problem of the smallest memory: bytes in place of seconds, what is forbidden stays so."""
        return replace(
            self,
            seconds=_where_allowed(self.seconds, self.bytes_),
            edge_seconds=_where_allowed(self.edge_seconds, self.edge_bytes),
            memory_limit=math.inf,
        )


@dataclass(frozen=True, slots=True)
class Solution:
    """A choice and what is proven about it."""

    choice: Choice
    """Strategy index of each node."""
    cost: float
    """``problem.cost(choice)`` [s]."""
    lower_bound: float
    """No feasible choice costs less [s]."""
    status: Literal["optimal", "time limit"]
    """``optimal``: within the gap that was asked for."""
    method: Method
    """What found or proved it."""

    @property
    def gap(self) -> float:
        """(cost - lower bound) / abs(cost)."""
        return relative_gap(self.cost, self.lower_bound)


def relative_gap(cost: float, lower_bound: float) -> float:
    """(cost - bound) / abs(cost), never negative; zero where the two are equal."""
    excess = cost - lower_bound
    return 0.0 if excess <= 0 else excess / abs(cost) if cost else math.inf


@lru_cache(maxsize=4096)
def _zeros(shape: tuple[int, ...]) -> Array:
    return np.broadcast_to(np.float64(0), shape)  # takes no memory, and cannot be written to


def _total(
    problem: StrategyProblem, choice: Sequence[int], nodes: Sequence[Array], edges: Sequence[Array]
) -> float:
    if len(choice) != len(problem.nodes):
        raise InputError(f"{len(choice)} strategies given for {len(problem.nodes)} nodes; each needs one")
    at_nodes = sum(float(a[s]) for a, s in zip(nodes, choice, strict=True))
    at_edges = sum(float(a[choice[u], choice[v]]) for (u, v), a in zip(problem.edges, edges, strict=True))
    return at_nodes + at_edges


def _where_allowed(seconds: Sequence[Array], bytes_: Sequence[Array]) -> tuple[Array, ...]:
    return tuple(np.where(np.isinf(s), np.inf, b) for s, b in zip(seconds, bytes_, strict=True))


def _check_nodes(problem: StrategyProblem) -> None:
    num = len(problem.nodes)
    if len(set(problem.nodes)) != num:
        raise InputError("node names must be unique")
    for what in ("seconds", "bytes_", "labels"):
        per_node = getattr(problem, what)
        if len(per_node) != num:
            raise InputError(f"{what} needs one entry per node: {len(per_node)} given, {num} nodes")
    for name, seconds, bytes_, labels in zip(
        problem.nodes, problem.seconds, problem.bytes_, problem.labels, strict=True
    ):
        if seconds.ndim != 1 or seconds.size == 0:
            raise InputError(f"node {name}: seconds need one axis and a strategy, not shape {seconds.shape}")
        if bytes_.shape != seconds.shape or len(labels) != seconds.size:
            raise InputError(
                f"node {name}: {seconds.size} seconds, {bytes_.size} bytes and {len(labels)} labels;"
                " each strategy needs one of each"
            )
        _check_values(f"node {name}", seconds, bytes_)
    if math.isnan(problem.memory_limit):
        raise InputError("memory_limit is not a number")


def _check_edges(problem: StrategyProblem) -> None:
    num = len(problem.edges)
    for what in ("edge_seconds", "edge_bytes"):
        per_edge = getattr(problem, what)
        if len(per_edge) != num:
            raise InputError(f"{what} needs one table per edge: {len(per_edge)} given, {num} edges")
    for (u, v), seconds, bytes_ in zip(problem.edges, problem.edge_seconds, problem.edge_bytes, strict=True):
        if not (0 <= u < len(problem.nodes) and 0 <= v < len(problem.nodes)):
            raise InputError(f"edge ({u}, {v}): nodes are numbered 0 to {len(problem.nodes) - 1}")
        name = f"edge {problem.nodes[u]} -> {problem.nodes[v]}"
        shape = (problem.seconds[u].size, problem.seconds[v].size)
        if seconds.shape != shape or bytes_.shape != shape:
            raise InputError(f"{name}: tables must be {shape}, not {seconds.shape} and {bytes_.shape}")
        _check_values(name, seconds, bytes_)


def _check_values(name: str, seconds: Array, bytes_: Array) -> None:
    # Of ufuncs, as methods of arrays take longer than such small tables; a minimum is NaN where anything is.
    if not np.minimum.reduce(seconds, axis=None, initial=math.inf) > -math.inf:
        raise InputError(f"{name}: seconds must be numbers, or inf where forbidden")
    if bytes_ is _zeros(bytes_.shape):
        return
    least, most = (ends.reduce(bytes_, axis=None, initial=0.0) for ends in (np.minimum, np.maximum))
    if not math.isfinite(least + most):
        raise InputError(f"{name}: bytes must be finite")

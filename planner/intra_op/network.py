"""A problem under reduction: nodes, tables between them, and memory over live intervals, made smaller in place.

Every operation keeps at least one optimal choice, and what it decides is written down, so that a choice for
the nodes that are left expands to a choice of the whole. Integers below 2**53 stay exact.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from planner.errors import Infeasible
from planner.intra_op.problem import Array

Indices = npt.NDArray[np.int32]
Rows = tuple[int, int]
"""First memory row, and the one after the last."""


class Piece(NamedTuple):
    """Memory of one node over some rows."""

    rows: Rows
    bytes_: Array
    """One entry per strategy [B]."""


class Decision(NamedTuple):
    """The strategy of a node that is gone, as a function of other nodes' strategies."""

    node: int
    scope: tuple[int, ...]
    labels: tuple[Indices, ...]
    """Per node of the scope, its strategies at that time, ascending."""
    strategy: Indices
    """By the positions in ``labels``."""


class Network:
    """Nodes with strategies, at most one table per pair of nodes, memory rows with capacities."""

    def __init__(self, costs: Sequence[Array], pieces: Sequence[Piece | None], capacity: Array) -> None:
        self.costs = [np.array(c, dtype=np.float64) for c in costs]
        """Per node, one entry per strategy left; ``inf`` forbids."""
        self.labels: list[Indices] = [np.arange(c.size, dtype=np.int32) for c in self.costs]
        """Per node, the original numbers of the strategies left, ascending."""
        self.tables: list[dict[int, Array]] = [{} for _ in self.costs]
        """Per node, neighbour -> [own strategy, the neighbour's]; both directions share memory."""
        self.pieces: list[dict[Rows, Array]] = [{p.rows: p.bytes_} if p else {} for p in pieces]
        """Per node, rows -> bytes by strategy. The ranges may overlap; they add up."""
        self.capacity = capacity
        """Per memory row, the bytes that all nodes together may take."""
        self.constant = 0.0
        """Cost of what has been decided."""
        self.decisions: list[Decision] = []
        self.nodes: set[int] = set(range(len(self.costs)))
        """Nodes that are left."""

    def add_table(self, u: int, v: int, table: Array) -> None:
        """Add costs between two nodes; [strategy of u, strategy of v]."""
        if u == v:
            self.costs[u] = self.costs[u] + np.diagonal(table)
            return
        if v in self.tables[u]:
            table = self.tables[u][v] + table
        self.tables[u][v] = table
        self.tables[v][u] = table.T

    def remove_table(self, u: int, v: int) -> None:
        """Take out the costs between two nodes."""
        del self.tables[u][v], self.tables[v][u]

    def keep(self, v: int, kept: npt.NDArray[np.intp]) -> None:
        """Leave only some strategies of a node, ascending positions; raises `Infeasible` where there are none."""
        if not kept.size:
            raise Infeasible("every strategy of a node is forbidden, too large, or without a partner")
        self.costs[v] = self.costs[v][kept]
        self.labels[v] = self.labels[v][kept]
        self.pieces[v] = {rows: bytes_[kept] for rows, bytes_ in self.pieces[v].items()}
        for w, table in self.tables[v].items():
            table = table[kept]
            self.tables[v][w] = table
            self.tables[w][v] = table.T

    def merge(self, v: int, u: int, partner: npt.NDArray[np.intp]) -> None:
        """Make v a part of u: strategy i of u goes with strategy ``partner[i]`` of v."""
        table = self.tables[v].pop(u)
        del self.tables[u][v]
        self.costs[u] = self.costs[u] + self.costs[v][partner] + table[partner, np.arange(partner.size)]
        for w, table in self.tables[v].items():
            del self.tables[w][v]
            self.add_table(u, w, table[partner])
        for rows, bytes_ in self.pieces[v].items():
            self.pieces[u][rows] = self.pieces[u].get(rows, 0.0) + bytes_[partner]
        self._decide(v, (u,), self.labels[v][partner])

    def eliminate(self, v: int) -> None:
        """Take the best strategy of v as a function of its at most two neighbours'; v must have no memory."""
        neighbours = tuple(self.tables[v])
        tables = [self.tables[v].pop(w) for w in neighbours]
        for w in neighbours:
            del self.tables[w][v]
        if len(neighbours) == 2:
            joint = (self.costs[v][:, None] + tables[0])[:, :, None] + tables[1][:, None, :]
        else:
            joint = self.costs[v][:, None] + tables[0] if neighbours else self.costs[v]
        best = joint.argmin(axis=0)
        least = np.take_along_axis(joint, best[None], axis=0)[0]
        if len(neighbours) == 2:
            self.add_table(*neighbours, least)
        elif neighbours:
            self.costs[neighbours[0]] = self.costs[neighbours[0]] + least
        else:
            self.constant += float(least)
        self._decide(v, neighbours, self.labels[v][best])

    def expand(self, choice: Mapping[int, int]) -> list[int]:
        """Original strategies of all nodes, from the positions chosen for those that are left."""
        full = [0] * len(self.costs)
        for v in self.nodes:
            full[v] = int(self.labels[v][choice[v]])
        for decision in reversed(self.decisions):
            at = tuple(
                int(np.searchsorted(labels, full[w]))
                for w, labels in zip(decision.scope, decision.labels, strict=True)
            )
            full[decision.node] = int(decision.strategy[at])
        return full

    def _decide(self, v: int, scope: tuple[int, ...], strategy: Indices) -> None:
        self.decisions.append(Decision(v, scope, tuple(self.labels[w] for w in scope), np.asarray(strategy)))
        self.nodes.discard(v)
        self.costs[v] = np.empty(0)
        self.pieces[v] = {}
        self.tables[v] = {}

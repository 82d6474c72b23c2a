"""A problem under reduction: nodes, tables between them, and memory over live intervals, made smaller in place.

Every operation keeps at least one optimal choice, and what it decides is written down, so that a choice for
the nodes that are left expands to a choice of the whole. Integers below 2**53 stay exact.
"""

from collections.abc import Iterable, Mapping, Sequence
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

    eager = 0.0
    """How much of a node's cost messages hand on: at 0 as much as comes back, at 1 all of it."""

    def __init__(self, costs: Mapping[int, Array], pieces: Mapping[int, Piece], capacity: Array) -> None:
        self.nodes: set[int] = set(costs)
        """Nodes that are left."""
        self.costs: dict[int, Array] = dict(costs)
        """Per node, one entry per strategy left; ``inf`` forbids."""
        self.labels: dict[int, Indices] = {v: np.arange(c.size, dtype=np.int32) for v, c in costs.items()}
        """Per node, the original numbers of the strategies left, ascending."""
        self.tables: dict[int, dict[int, Array]] = {v: {} for v in costs}
        """Per node, neighbour -> [own strategy, the neighbour's]; both directions share memory."""
        self.pieces: dict[int, dict[Rows, Array]] = {v: {} for v in costs}
        """Per node, rows -> bytes by strategy. The ranges may overlap; they add up."""
        for v, piece in pieces.items():
            self.pieces[v][piece.rows] = piece.bytes_
        self.capacity = capacity
        """Per memory row, the bytes that all nodes together may take."""
        self.rows: Indices = np.arange(capacity.size, dtype=np.int32)
        """Original numbers of the memory rows left, ascending."""
        self.stand_ins: dict[int, int] = {}
        """Memory rows that are gone -> rows that they followed from, by original number."""
        self.constant = 0.0
        """Cost of what has been decided."""
        self.decisions: list[Decision] = []

    def copy(self) -> "Network":
        """The same network under the same numbers of nodes; its strategies are numbered by their positions here."""
        copy = self.part(self.nodes, {}, self.capacity)
        copy.constant, copy.rows, copy.stand_ins = self.constant, self.rows, dict(self.stand_ins)
        return copy

    def fork(self) -> "Network":
        """The same network under the same numbers, with the same decisions, to be reduced on its own."""
        fork = self.copy()
        fork.labels, fork.decisions = dict(self.labels), list(self.decisions)
        return fork

    def part(self, nodes: Iterable[int], choice: Mapping[int, int], capacity: Array) -> "Network":
        """The network of ``nodes`` while all others keep ``choice``, with the ``capacity`` that these leave.

        Nodes are numbered as here, strategies by their positions here.
        """
        part = Network({v: self.costs[v] for v in nodes}, {}, capacity)
        for v in part.nodes:
            part.pieces[v] = dict(self.pieces[v])
            for w, table in self.tables[v].items():
                if w in part.nodes:
                    part.tables[v][w] = table
                else:
                    part.costs[v] = part.costs[v] + table[:, choice[w]]
        return part

    def narrowed(self, kept: Mapping[int, npt.NDArray[np.intp]]) -> "Network":
        """The network of some strategies of each node, which are numbered by their positions here."""
        part = self.copy()
        for v, positions in kept.items():
            part.keep(v, positions)
        return part

    def renumbered(self, order: Sequence[int]) -> "Network":
        """The same network, its nodes numbered as they stand in ``order``, without what has been decided."""
        number = {v: k for k, v in enumerate(order)}
        network = Network({k: self.costs[v] for v, k in number.items()}, {}, self.capacity)
        network.labels = {k: self.labels[v] for v, k in number.items()}
        network.pieces = {k: dict(self.pieces[v]) for v, k in number.items()}
        network.tables = {k: {number[w]: t for w, t in self.tables[v].items()} for v, k in number.items()}
        network.constant, network.rows, network.stand_ins = self.constant, self.rows, dict(self.stand_ins)
        return network

    def rows_of(self, v: int, w: int, positions: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        """Where strategies of a node are found in its table with a neighbour."""
        return positions

    @property
    def size(self) -> int:
        """Strategies, and allowed entries of all tables."""
        pairs = sum(int(np.count_nonzero(t < np.inf)) for v in self.nodes for t in self.tables[v].values())
        return sum(c.size for c in self.costs.values()) + pairs // 2

    @property
    def floor(self) -> float:
        """What every choice costs at least: all that is least, which costs below zero do not exceed."""
        least = sum(float(c.min()) for c in self.costs.values())
        pairs = (float(t.min()) for v in self.nodes for w, t in self.tables[v].items() if v < w)
        return self.constant + least + sum(pairs)

    def most_apart(self) -> float:
        """More than any two allowed choices differ by."""
        costs = self.costs.values()
        tables = (table for v in self.nodes for table in self.tables[v].values())
        return 1.0 + 2.0 * sum(float(np.abs(t[np.isfinite(t)]).max(initial=0.0)) for t in (*costs, *tables))

    def cost(self, choice: Mapping[int, int]) -> float:
        """Cost of the whole where the nodes that are left take these positions."""
        nodes = sum(float(self.costs[v][choice[v]]) for v in self.nodes)
        pairs = ((v, w, t) for v in self.nodes for w, t in self.tables[v].items() if v < w)
        return self.constant + nodes + sum(float(t[choice[v], choice[w]]) for v, w, t in pairs)

    def stand_in(self, row: int) -> int:
        """The row that a memory row follows from, both by original number: itself if it follows from none."""
        while row in self.stand_ins:
            row = self.stand_ins[row]
        return row

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

    def forbid(self, u: int, v: int, pairs: npt.NDArray[np.bool_]) -> None:
        """Forbid pairs of strategies; [strategy of u, strategy of v]."""
        self.tables[u][v] = np.where(pairs, np.inf, self.tables[u][v])
        self.tables[v][u] = self.tables[u][v].T

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
        if np.array_equal(partner, np.arange(self.costs[v].size)) and len(self.pieces[v]) > len(
            self.pieces[u]
        ):
            self.pieces[u], self.pieces[v] = self.pieces[v], self.pieces[u]  # they add up: the fewer move
        theirs = self.pieces[u]
        for rows, bytes_ in self.pieces[v].items():
            moved = bytes_[partner]
            theirs[rows] = theirs[rows] + moved if rows in theirs else moved
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

    def expand(self, choice: Mapping[int, int]) -> dict[int, int]:
        """Original strategies of all nodes, from the positions chosen for those that are left."""
        full = {v: int(self.labels[v][choice[v]]) for v in self.nodes}
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
        del self.costs[v], self.labels[v], self.pieces[v], self.tables[v]


def prices_of(network: Network, known: Mapping[int, float]) -> Array:
    """Prices of the rows left, by original row; what a row cost that is gone, the one costs that it followed from."""
    prices = np.zeros(network.rows.size)
    for row, price in known.items():
        if (at := position(network.rows, network.stand_in(row))) is not None:
            prices[at] += price
    return prices


def position(ascending: Indices, number: int) -> int | None:
    """Where a number stands among ascending ones; None where it does not."""
    at = int(np.searchsorted(ascending, number))
    return at if at < ascending.size and ascending[at] == number else None

"""A network as it is before anything is reduced: tables between *classes* of strategies.

Strategies of a node that look alike to a neighbour are of one class there: an operator has far more ways to run than
ways to leave one of its arrays. Messages between neighbours need the tables of the classes only, so that most
strategies are gone before the table of any two nodes is written out.
"""

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from planner.errors import Infeasible
from planner.intra_op.network import Indices, Network, Rows
from planner.intra_op.problem import Array

Classes = npt.NDArray[np.intp]


class Between(NamedTuple):
    """Costs between two nodes."""

    nodes: tuple[int, int]
    table: Array
    """[class at the first, class at the second]"""
    classes: tuple[Classes, Classes]
    """Per node, the class of each strategy; each class has at least one."""


class Side(NamedTuple):
    """What a node that is gone cost beside one of its neighbours."""

    neighbour: int
    labels: Indices
    """The neighbour's strategies then, ascending,"""
    classes: Classes
    """and the class of each."""
    table: Array
    """[strategy of the node, class]"""


class Gone(NamedTuple):
    """A node that takes what is cheapest beside its neighbours."""

    node: int
    labels: Indices
    costs: Array
    sides: tuple[Side, ...]

    def taken(self, labels: Mapping[int, int]) -> int:
        """The strategy that it takes beside those of its neighbours, all by their original numbers."""
        at = (side.classes[np.searchsorted(side.labels, labels[side.neighbour])] for side in self.sides)
        total = sum((side.table[:, c] for side, c in zip(self.sides, at, strict=True)), self.costs)
        return int(self.labels[total.argmin()])


class Compact(Network):
    """Nodes with strategies, and at most one table of classes per pair of nodes: as much as messages need."""

    eager = 0.8

    def __init__(
        self,
        costs: Mapping[int, Array],
        tables: Iterable[Between],
        order: Sequence[int],
        memory: tuple[Mapping[int, Mapping[Rows, Array]], Array] = ({}, np.zeros(0)),
    ) -> None:
        """Nodes are numbered anew as they stand in ``order``, which is that of messages.

        ``memory``: per node its pieces, and the capacity of each row.
        """
        pieces, capacity = memory
        super().__init__({number: costs[name] for number, name in enumerate(order)}, {}, capacity)
        self.pieces = {number: dict(pieces.get(name, {})) for number, name in enumerate(order)}
        self.names = tuple(order)
        """Per node, its number outside."""
        self.classes: dict[int, dict[int, Classes]] = {v: {} for v in self.nodes}
        """Per node, neighbour -> class of each strategy, by which ``tables`` are indexed."""
        self.gone: list[Gone] = []
        """Nodes that were eliminated, in order."""
        number = {name: v for v, name in enumerate(order)}
        for (u, v), table, classes in tables:
            self._add(number[u], number[v], table, classes)

    @classmethod
    def of(cls, network: Network) -> Self:
        """A network in which every strategy is a class of its own; strategies are numbered by their positions there."""
        own = {v: np.arange(costs.size) for v, costs in network.costs.items()}
        pairs = ((v, w) for v, tables in network.tables.items() for w in tables if v < w)
        tables = (Between((v, w), network.tables[v][w], (own[v], own[w])) for v, w in pairs)
        found = cls(network.costs, tables, sorted(network.nodes), (network.pieces, network.capacity))
        found.constant = network.constant
        return found

    @property
    def num_strategies(self) -> int:
        """Of all nodes together."""
        return sum(costs.size for costs in self.costs.values())

    def fork(self) -> Self:
        """The same network, to be reduced on its own."""
        fork = copy(self)
        fork.nodes, fork.gone = set(self.nodes), list(self.gone)
        fork.costs, fork.labels, fork.stand_ins = dict(self.costs), dict(self.labels), dict(self.stand_ins)
        fork.pieces = {v: dict(pieces) for v, pieces in self.pieces.items()}
        fork.tables = {v: dict(tables) for v, tables in self.tables.items()}
        fork.classes = {v: dict(classes) for v, classes in self.classes.items()}
        return fork

    def only(self, kept: Mapping[int, npt.NDArray[np.intp]]) -> Self:
        """The same with some strategies of some nodes, and of the others those that go with these.

        Raises `Infeasible` where a node has none.
        """
        part = self.fork()
        for v, strategies in kept.items():
            part.keep(v, strategies)
        part.propagate()
        return part

    def renumbered(self, order: Sequence[int]) -> Self:
        """As of a `Network`; nodes that are gone are numbered after those that are left."""
        number = {v: k for k, v in enumerate((*order, *(gone.node for gone in self.gone)))}
        found = copy(self)
        found.nodes = set(range(len(order)))
        found.costs = {number[v]: self.costs[v] for v in order}
        found.labels = {number[v]: self.labels[v] for v in order}
        found.pieces, found.stand_ins = {number[v]: dict(self.pieces[v]) for v in order}, dict(self.stand_ins)
        found.tables = {number[v]: {number[w]: t for w, t in self.tables[v].items()} for v in order}
        found.classes = {number[v]: {number[w]: c for w, c in self.classes[v].items()} for v in order}
        found.names = tuple(self.names[v] for v in number)
        found.gone = [
            gone._replace(
                node=number[gone.node],
                sides=tuple(side._replace(neighbour=number[side.neighbour]) for side in gone.sides),
            )
            for gone in self.gone
        ]
        return found

    def absorb(self, messages: Mapping[tuple[int, int], Array]) -> None:
        """Make messages, by class, a part of the costs; what a choice costs stays the same."""
        for (v, w), message in messages.items():
            self.costs[v] = self.costs[v] + message[self.classes[v][w]]
            if v < w:
                table = self.tables[v][w] - message[:, None]
                table -= messages[w, v]
                self.tables[v][w], self.tables[w][v] = table, table.T

    def margins(self) -> tuple[float, dict[int, Array]]:
        """What every choice costs at least, and by how much each strategy lifts that: by what lies above the least."""
        least, margins = self.constant, dict[int, Array]()
        for v, costs in self.costs.items():
            lowest = costs.min()
            least += float(lowest)
            margins[v] = costs - lowest
        for v, tables in self.tables.items():
            for w, table in tables.items():
                rows = table.min(axis=1)
                lowest = rows.min()
                least += float(lowest) if v < w else 0.0
                margins[v] += (rows - lowest)[self.classes[v][w]]
        return least, margins

    def _add(self, u: int, v: int, table: Array, classes: tuple[Classes, Classes]) -> None:
        rows, columns = classes
        if u == v:
            self.costs[u] = self.costs[u] + table[rows, columns]
            return
        if v in self.tables[u]:
            first, rows = _both(self.classes[u][v], rows)
            second, columns = _both(self.classes[v][u], columns)
            table = self.tables[u][v][np.ix_(first[0], second[0])] + table[np.ix_(first[1], second[1])]
        self.tables[u][v], self.tables[v][u] = table, table.T
        self.classes[u][v], self.classes[v][u] = rows, columns

    def propagate(self) -> None:
        """Drop strategies that are forbidden, or have no allowed partner; raises `Infeasible` where none is left."""
        forbidding = self._forbidding()
        changed = set(self.nodes)
        while changed:
            looked_at, changed = sorted(changed), set()
            for v in looked_at:
                if self._drop_forbidden(v, forbidding[v]):
                    changed |= {v, *forbidding[v]}

    def _forbidding(self) -> dict[int, list[int]]:
        """Of each node, the neighbours whose table forbids something."""
        found: dict[int, list[int]] = {v: [] for v in self.nodes}
        for v, tables in self.tables.items():
            for w, table in tables.items():
                if v < w and table.max() == np.inf:
                    found[v].append(w)
                    found[w].append(v)
        return found

    def _drop_forbidden(self, v: int, neighbours: Sequence[int]) -> bool:
        allowed = np.isfinite(self.costs[v])
        for w in neighbours:
            allowed &= (self.tables[v][w].min(axis=1) < np.inf)[self.classes[v][w]]
        if not allowed.all():
            self.keep(v, np.flatnonzero(allowed))
        return not allowed.all()

    def keep(self, v: int, kept: npt.NDArray[np.intp]) -> None:
        """Leave only some strategies of a node, ascending positions, and the classes that these have."""
        if not kept.size:
            raise Infeasible("every strategy of a node is forbidden, or without a partner")
        self.costs[v], self.labels[v] = self.costs[v][kept], self.labels[v][kept]
        self.pieces[v] = {rows: bytes_[kept] for rows, bytes_ in self.pieces[v].items()}
        for w, table in self.tables[v].items():
            classes = self.classes[v][w] = self.classes[v][w][kept]
            present = np.zeros(len(table), np.bool_)
            present[classes] = True
            if not present.all():
                self.classes[v][w] = (np.cumsum(present) - 1)[classes]
                self.tables[v][w] = table[present]
                self.tables[w][v] = self.tables[v][w].T

    def eliminate(self, v: int, known: dict[object, Array] | None = None) -> None:
        """As of a `Network`, of a node with neighbours: between two of them there is a table of their classes then.

        Tables that are ``known`` are not found again.
        """
        classes = self.classes.pop(v)
        sides = tuple(
            Side(w, self.labels[w], self.classes[w].pop(v), table[classes[w]])
            for w, table in self.tables.pop(v).items()
        )
        self.gone.append(Gone(v, self.labels.pop(v), self.costs.pop(v), sides))
        self.nodes.discard(v)
        del self.pieces[v]
        first = self.gone[-1].costs[:, None] + sides[0].table
        for side in sides:
            del self.tables[side.neighbour][v]
        if len(sides) == 1:
            w = sides[0].neighbour
            self.costs[w] = self.costs[w] + first.min(axis=0)[sides[0].classes]
        else:
            least = _least(first, sides[1].table, {} if known is None else known)
            self._add(sides[0].neighbour, sides[1].neighbour, least, (sides[0].classes, sides[1].classes))

    def cost(self, choice: Mapping[int, int]) -> float:
        """Cost of the whole where nodes take these positions."""
        nodes = sum(float(costs[choice[v]]) for v, costs in self.costs.items())
        pairs = ((v, w, t) for v, tables in self.tables.items() for w, t in tables.items() if v < w)
        taken = (t[self.classes[v][w][choice[v]], self.classes[w][v][choice[w]]] for v, w, t in pairs)
        return self.constant + nodes + sum(map(float, taken))

    def rows_of(self, v: int, w: int, positions: Classes) -> Classes:
        """As of a `Network`: their classes."""
        return self.classes[v][w][positions]

    def narrowed(self, kept: Mapping[int, npt.NDArray[np.intp]]) -> Network:
        """As of a `Network`, with every table written out."""
        network = Network({v: self.costs[v][positions] for v, positions in kept.items()}, {}, self.capacity)
        network.labels = {v: positions.astype(np.int32) for v, positions in kept.items()}
        network.rows, network.stand_ins, network.constant = self.rows, dict(self.stand_ins), self.constant
        network.pieces = {
            v: {rows: bytes_[kept[v]] for rows, bytes_ in pieces.items()} for v, pieces in self.pieces.items()
        }
        if not self.rows.size:
            network.eager = self.eager
        for v, tables in self.tables.items():
            for w, table in tables.items():
                if v < w:
                    rows, columns = self.classes[v][w][kept[v]], self.classes[w][v][kept[w]]
                    network.add_table(v, w, table[np.ix_(rows, columns)])
        return network

    def written_out(self) -> Network:
        """The same of all strategies."""
        return self.narrowed({v: np.arange(costs.size) for v, costs in self.costs.items()})

    def expand(self, choice: Mapping[int, int]) -> dict[int, int]:
        """Original numbers of nodes and strategies."""
        labels = {v: int(self.labels[v][position]) for v, position in choice.items()}
        for gone in reversed(self.gone):
            labels[gone.node] = gone.taken(labels)
        return {self.names[v]: label for v, label in labels.items()}


def _least(first: Array, second: Array, known: dict[object, Array]) -> Array:
    """What the cheapest strategy costs beside each two classes of neighbours, from [strategy, class] of either."""
    key = first.shape, first.tobytes(), second.tobytes()
    if key not in known:
        known[key] = (first[:, :, None] + second[:, None, :]).min(axis=0)
    return known[key]


def _both(first: Classes, second: Classes) -> tuple[tuple[Classes, Classes], Classes]:
    """The pairs of classes that strategies have, and which of these each has."""
    base = 1 + int(second.max(initial=0))
    pairs, which = np.unique(first * base + second, return_inverse=True)
    return (pairs // base, pairs % base), which

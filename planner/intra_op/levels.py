"""A network's numbers laid out end to end, so that many nodes and edges are worked on at once.

Nodes on one *level*, none of which are neighbours, lie together; of their edges, those whose tables have the
same shape do. Every edge has a *message* into each of its ends, one number per strategy, or per class of strategies
where its table is of these (`planner.intra_op.compact`).
"""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from planner.intra_op.compact import Compact
from planner.intra_op.network import Network
from planner.intra_op.problem import Array

Numbers = npt.NDArray[np.intp]


class Tables(NamedTuple):
    """Tables of one shape, and where the numbers that belong to them lie."""

    edges: list[tuple[int, int]]
    """Node and neighbour."""
    costs: Array
    """[the neighbour's strategy, edge, own strategy]: what is taken over all neighbours' strategies runs fast so."""
    own: Numbers
    """[edge, own strategy]: place of the message into the node."""
    other: Numbers
    """[the neighbour's strategy, edge]: place of the message into the neighbour."""
    neighbour: Numbers
    """[edge]: position of the neighbour."""
    classes: Numbers | None
    """[edge, the neighbour's strategy]: its class, where it has one; 0 beyond the last strategy."""

    def shown(self, choice: Numbers) -> Array:
        """[edge, own strategy]: costs beside what a choice, by position, takes at the neighbour."""
        every, taken = np.arange(len(self.edges)), choice[self.neighbour]
        return self.costs[taken if self.classes is None else self.classes[every, taken], every]


class Slots(NamedTuple):
    """Strategies as the messages into them see them, message by message."""

    strategy_of: Numbers
    """Per slot."""
    message_of: Numbers | None = None
    """Per slot; its own if None."""
    first: Numbers | None = None
    """Per message, its first slot."""

    @property
    def num_messages(self) -> int:
        """Numbers that all messages have together."""
        return (self.strategy_of if self.first is None else self.first).size

    def spread(self, messages: Array) -> Array:
        """Per slot, what the message says."""
        return messages if self.message_of is None else messages[self.message_of]

    def least(self, strategies: Array) -> Array:
        """Per message, the least of its strategies."""
        slots = strategies[self.strategy_of]
        return slots if self.first is None else np.minimum.reduceat(slots, self.first)


class Level(NamedTuple):
    """Nodes that are worked on together."""

    nodes: slice
    """Their positions,"""
    strategies: slice
    """the places of their strategies,"""
    messages: slice
    """and those of the messages into them."""
    slots: Slots
    """Strategies and messages counted within the level."""
    behind: list[Tables]
    """Edges to nodes of lower levels,"""
    ahead: list[Tables]
    """and to nodes of higher ones."""
    forward: Array
    """Per message, the share of its strategies' cost that it takes ahead,"""
    backward: Array
    """or back."""


class Layout:
    """Where the numbers of a network lie."""

    def __init__(self, network: Network) -> None:
        self.network = network
        level_of = _levels(network)
        self.nodes = sorted(network.nodes, key=lambda v: (level_of[v], v))
        """By position."""
        self.position = {v: k for k, v in enumerate(self.nodes)}
        self.sizes = np.array([network.costs[v].size for v in self.nodes], dtype=np.intp)
        self.first = np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.intp)
        """Per position, the place of the first strategy; the others follow."""
        self.owner = np.repeat(np.arange(self.sizes.size), self.sizes)
        """Per strategy, its node's position."""
        self.costs = _joined([network.costs[v] for v in self.nodes])
        """Per strategy."""
        self.place: dict[int, dict[int, int]] = {}
        """Node -> neighbour -> place of the message from their edge into the node."""
        self.slots = self._place_messages()
        self.levels = [self._level(level_of, nodes) for nodes in _runs([level_of[v] for v in self.nodes])]
        self.pieces = Pieces(network, dict(zip(self.nodes, self.first.tolist(), strict=False)))

    def strategies(self, v: int) -> slice:
        """Places of a node's strategies."""
        k = self.position[v]
        return slice(int(self.first[k]), int(self.first[k + 1]))

    def edges(self) -> Iterator[Tables]:
        """Every edge once."""
        for level in self.levels:
            yield from level.ahead

    def _place_messages(self) -> Slots:
        places = 0
        strategies: list[Numbers] = []
        messages: list[Numbers] = []
        for k, v in enumerate(self.nodes):
            self.place[v] = {}
            for w, table in self.network.tables[v].items():
                self.place[v][w] = places
                own = np.arange(self.first[k], self.first[k + 1])
                if isinstance(self.network, Compact):
                    classes = self.network.classes[v][w]
                    few = classes.astype(np.uint16)  # sorted by their digits
                    by_class = np.argsort(few, kind="stable")
                    own = own[by_class]
                    messages.append(places + classes[by_class])
                strategies.append(own)
                places += len(table)
        of = _joined(strategies).astype(np.intp)
        if not isinstance(self.network, Compact):
            return Slots(of)
        message_of = _joined(messages).astype(np.intp)
        return Slots(of, message_of, np.flatnonzero(np.diff(message_of, prepend=-1)))

    def _slots(self, first: int, last: int) -> tuple[slice, Slots]:
        """The messages into a run of strategies, and their slots."""
        of, message_of, starts = self.slots
        begin, end = np.searchsorted(
            of, [first, last]
        )  # slots of earlier nodes stand before those of later ones
        if message_of is None or starts is None:
            return slice(int(begin), int(end)), Slots(of[begin:end] - first)
        messages = slice(*np.searchsorted(starts, [begin, end]).tolist())
        own = message_of[begin:end] - messages.start
        return messages, Slots(of[begin:end] - first, own, starts[messages] - begin)

    def _level(self, level_of: Mapping[int, int], nodes: slice) -> Level:
        first, last = int(self.first[nodes.start]), int(self.first[nodes.stop])
        messages, slots = self._slots(first, last)
        behind: dict[tuple[int, ...], list[tuple[int, int]]] = defaultdict(list)
        ahead: dict[tuple[int, ...], list[tuple[int, int]]] = defaultdict(list)
        forward: list[float] = []
        backward: list[float] = []
        sizes: list[int] = []
        for v in self.nodes[nodes]:
            tables = self.network.tables[v]
            higher = [level_of[w] > level_of[v] for w in tables]
            ahead_share, behind_share = _shares(self.network.eager, sum(higher), len(higher))
            forward += [ahead_share * is_ahead for is_ahead in higher]
            backward += [behind_share * (not is_ahead) for is_ahead in higher]
            for (w, table), is_ahead in zip(tables.items(), higher, strict=True):
                sizes.append(len(table))
                (ahead if is_ahead else behind)[table.shape].append((v, w))
        return Level(
            nodes, slice(first, last), messages, slots,
            [self._tables(edges) for edges in behind.values()],
            [self._tables(edges) for edges in ahead.values()],
            np.repeat(np.array(forward), sizes), np.repeat(np.array(backward), sizes),
        )  # fmt: skip

    def _tables(self, edges: list[tuple[int, int]]) -> Tables:
        v, w = edges[0]
        num_other, num_own = self.network.tables[w][v].shape
        # In this order: another makes minima take ten times as long.
        costs = np.empty((num_other, len(edges), num_own))
        for k, (v, w) in enumerate(edges):
            costs[:, k] = self.network.tables[w][v]
        own = np.array([self.place[v][w] for v, w in edges])
        other = np.array([self.place[w][v] for v, w in edges])
        return Tables(
            edges,
            costs,
            own[:, None] + np.arange(costs.shape[2]),
            other + np.arange(costs.shape[0])[:, None],
            np.array([self.position[w] for _, w in edges]),
            self._classes(edges) if isinstance(self.network, Compact) else None,
        )

    def _classes(self, edges: list[tuple[int, int]]) -> Numbers:
        assert isinstance(self.network, Compact)
        classes = [self.network.classes[w][v] for v, w in edges]
        found = np.zeros((len(edges), max(c.size for c in classes)), dtype=np.intp)
        for row, own in zip(found, classes, strict=True):
            row[: own.size] = own
        return found


class Pieces:
    """Memory of all nodes, end to end."""

    def __init__(self, network: Network, first: Mapping[int, int]) -> None:
        items = [(v, rows, b) for v in first for rows, b in network.pieces[v].items()]
        self.num_rows = network.capacity.size
        self.rows = np.array([rows for _, rows, _ in items], dtype=np.intp).reshape(-1, 2)
        self.piece = np.repeat(np.arange(len(items)), [b.size for _, _, b in items])
        self.bytes_ = _joined([b for _, _, b in items])
        self.strategy = _joined([np.arange(first[v], first[v] + b.size) for v, _, b in items]).astype(np.intp)

    def priced(self, prices: Array, num_strategies: int) -> Array:
        """What each strategy pays for its memory."""
        total = np.concatenate([[0.0], np.cumsum(prices)])
        price = total[self.rows[:, 1]] - total[self.rows[:, 0]]
        paid = np.bincount(self.strategy, price[self.piece] * self.bytes_, num_strategies)
        return np.asarray(paid, dtype=np.float64)

    def taken(self, chosen: Numbers) -> Array:
        """Bytes that the ``chosen`` strategies take of each row."""
        is_chosen = np.isin(self.strategy, chosen)
        bytes_ = np.bincount(self.piece[is_chosen], self.bytes_[is_chosen], len(self.rows))
        change = np.bincount(self.rows[:, 0], bytes_, self.num_rows + 1)
        change -= np.bincount(self.rows[:, 1], bytes_, self.num_rows + 1)
        return np.asarray(np.cumsum(change)[:-1], dtype=np.float64)


def _shares(eager: float, ahead: int, edges: int) -> tuple[float, float]:
    """What each edge ahead of a node takes of its cost, and what each behind it takes on the way back."""
    kept = (1.0 - eager) / max(1, ahead, edges - ahead)
    return kept + eager / max(1, ahead), kept + eager / max(1, edges - ahead)


def _levels(network: Network) -> dict[int, int]:
    """Longest path of ascending neighbours that ends in each node."""
    levels: dict[int, int] = {}
    for v in sorted(network.nodes):
        levels[v] = 1 + max((levels[w] for w in network.tables[v] if w < v), default=-1)
    return levels


def _runs(values: list[int]) -> Iterator[slice]:
    """Runs of equal values."""
    starts = np.flatnonzero(np.diff(values, prepend=-1)).tolist()
    for start, stop in itertools.pairwise([*starts, len(values)]):
        yield slice(start, stop)


def _joined(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return np.concatenate(parts) if parts else np.zeros(0)

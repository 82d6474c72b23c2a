"""A network's numbers laid out end to end, so that many nodes and edges are worked on at once.

Nodes on one *level*, none of which are neighbours, lie together; of their edges, those whose tables have the same
shape do, or share one table where it is large. Every edge has a *message* into each of its ends, one number per
strategy, or per class of strategies where its table is of these (`planner.intra_op.compact`).
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from planner.intra_op import clock
from planner.intra_op.compact import Compact
from planner.intra_op.network import Network
from planner.intra_op.problem import Array
from planner.intra_op.tables import Classes, Edge, Numbers, Tables, together

LARGE = 8192
"""Entries from which on tables are not put side by side: edges that share one then read it from the nearest cache."""


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

    def part(self, messages: slice) -> "Slots":
        """Those of some of the messages."""
        if self.message_of is None or self.first is None:
            return Slots(self.strategy_of[messages])
        begin, end = np.searchsorted(self.message_of, [messages.start, messages.stop])
        own = self.message_of[begin:end] - messages.start
        return Slots(self.strategy_of[begin:end], own, self.first[messages] - begin)

    def spread(self, messages: Array) -> Array:
        """Per slot, what the message says."""
        return messages if self.message_of is None else messages[self.message_of]

    def least(self, strategies: Array) -> Array:
        """Per message, the least of its strategies."""
        slots = strategies[self.strategy_of]
        return slots if self.first is None else np.minimum.reduceat(slots, self.first)


class Groups(NamedTuple):
    """Edges of a level, node and neighbour, as they are worked on together."""

    behind: list[list[Edge]]
    ahead: list[list[Edge]]


class Share(NamedTuple):
    """What messages ahead of a level, or behind it, take of what their strategies cost."""

    messages: slice
    slots: Slots
    """Strategies counted within the level, messages among these."""
    of: Array
    """Per message."""


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
    """and to nodes of higher ones, small tables put together,"""
    edges: list[Tables]
    """and the latter as they are."""
    forward: Share
    """What goes ahead,"""
    backward: Share
    """and back."""


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
        runs = list(_runs([level_of[v] for v in self.nodes]))
        grouped = [self._grouped(level_of, nodes) for nodes in runs]
        self.place: dict[int, dict[int, int]] = {v: {} for v in self.nodes}
        """Node -> neighbour -> place of the message from their edge into the node."""
        self._large: dict[tuple[int, ...], Array] = {}
        """Large tables, by `_address`."""
        self._seen_from: dict[int, dict[int, int]] = {v: {} for v in self.nodes}
        """Node -> neighbour -> place of the first strategy of the node, as their edge sees it."""
        self._class_of: Numbers | None = None
        """Of all strategies as all edges see them, of networks that have classes."""
        self.slots = self._place_messages(
            list(itertools.chain(*(e for groups in grouped for side in groups for e in side)))
        )
        self.levels = [self._level(nodes, groups) for nodes, groups in zip(runs, grouped, strict=True)]
        self.is_behind = np.zeros(self.slots.num_messages, np.bool_)
        """Per message, whether its edge leads to a lower level."""
        for level in self.levels:
            self.is_behind[level.backward.messages] = True
        self.pieces = Pieces(network, dict(zip(self.nodes, self.first.tolist(), strict=False)))
        groups = [tables for level in self.levels for tables in (*level.behind, *level.ahead)]
        entries = sum(tables.costs.size for tables in groups)
        by_group = clock.MESSAGES_OF_A_GROUP * (len(self.levels) + len(groups))
        self.pass_seconds = by_group + clock.MESSAGES_OF_AN_ENTRY * entries
        """About what one pass of messages takes."""
        clock.work(clock.LAYING_OUT * self.pass_seconds)

    def strategies(self, v: int) -> slice:
        """Places of a node's strategies."""
        k = self.position[v]
        return slice(int(self.first[k]), int(self.first[k + 1]))

    def edges(self) -> Iterator[Tables]:
        """Every edge once."""
        for level in self.levels:
            yield from level.edges

    def _grouped(self, level_of: Mapping[int, int], nodes: slice) -> Groups:
        behind: dict[object, list[Edge]] = defaultdict(list)
        ahead: dict[object, list[Edge]] = defaultdict(list)
        for v in self.nodes[nodes]:
            for w, table in self.network.tables[v].items():
                (ahead if level_of[w] > level_of[v] else behind)[_likeness(table)].append((v, w))
        return Groups(*(sorted(side.values(), key=self._num_rows) for side in (behind, ahead)))

    def _num_rows(self, edges: list[Edge]) -> int:
        v, w = edges[0]
        return len(self.network.tables[w][v])

    def _place_messages(self, edges: list[Edge]) -> Slots:
        """One edge's after the other's."""
        places, slots = 0, 0
        own = {v: np.arange(self.first[k], self.first[k + 1]) for k, v in enumerate(self.nodes)}
        for v, w in edges:
            self.place[v][w], self._seen_from[v][w] = places, slots
            places, slots = places + len(self.network.tables[v][w]), slots + own[v].size
        of = _joined([own[v] for v, _ in edges]).astype(np.intp)
        return self._by_class(edges, of, places) if isinstance(self.network, Compact) else Slots(of)

    def _by_class(self, edges: list[Edge], of: Numbers, num_messages: int) -> Slots:
        """Slots of messages into classes of strategies; notes the classes."""
        assert isinstance(self.network, Compact)
        classes = [self.network.classes[v][w] for v, w in edges]
        self._class_of = _joined(classes).astype(np.intp)
        first = np.repeat([self.place[v][w] for v, w in edges], [c.size for c in classes])
        message_of = self._class_of + first.astype(np.intp)
        few = message_of.astype(np.min_scalar_type(num_messages))  # mostly sorted by their digits
        by_message = np.argsort(few, kind="stable")
        message_of = message_of[by_message]
        return Slots(of[by_message], message_of, np.flatnonzero(np.diff(message_of, prepend=-1)))

    def _level(self, nodes: slice, groups: Groups) -> Level:
        first, last = int(self.first[nodes.start]), int(self.first[nodes.stop])
        behind, ahead = ([self._tables(edges) for edges in side] for side in groups)
        num_ahead = Counter(v for edges in groups.ahead for v, _ in edges)
        shares = {
            v: _shares(self.network.eager, num_ahead[v], len(self.network.tables[v]))
            for v in self.nodes[nodes]
        }

        every = [*behind, *ahead]
        messages = slice(every[0].own.start, every[-1].own.stop) if every else slice(0, 0)
        middle = ahead[0].own.start if ahead else messages.stop
        slots = self.slots.part(messages)
        slots = slots._replace(strategy_of=slots.strategy_of - first)

        def share(tables: list[Tables], part: slice, way: int) -> Share:
            of = np.array([shares[v][way] for t in tables for v, _ in t.edges])
            sizes = [t.costs.shape[2] for t in tables for _ in t.edges]
            own = slots.part(slice(part.start - messages.start, part.stop - messages.start))
            return Share(part, own, np.repeat(of, np.array(sizes, np.intp)))

        forward = share(ahead, slice(middle, messages.stop), 0)
        backward = share(behind, slice(messages.start, middle), 1)
        sides = together(behind), together(ahead)
        return Level(nodes, slice(first, last), messages, slots, *sides, ahead, forward, backward)

    def _tables(self, edges: list[Edge]) -> Tables:
        costs = self._costs(edges)
        rows, _, columns = costs.shape
        start = self.place[edges[0][0]][edges[0][1]]
        other = _places([self.place[w][v] for v, w in edges], rows)
        return Tables(
            edges,
            costs,
            slice(start, start + len(edges) * columns),
            other if isinstance(other, slice) else other.T,
            np.array([self.position[w] for _, w in edges]),
            self._classes(edges),
        )

    def _costs(self, edges: list[Edge]) -> Array:
        """[the neighbour's strategy, edge, own strategy], in this order: another makes minima take twice as long."""
        v, w = edges[0]
        first = self.network.tables[w][v]
        if first.size >= LARGE:
            place = _address(first)
            if place not in self._large:
                self._large[place] = np.ascontiguousarray(first)[:, None]
            costs, (rows, columns) = self._large[place], first.shape
            return costs if len(edges) == 1 else np.broadcast_to(costs, (rows, len(edges), columns))
        return np.ascontiguousarray(np.stack([self.network.tables[w][v] for v, w in edges], axis=1))

    def _classes(self, edges: list[Edge]) -> Classes | None:
        if self._class_of is None:
            return None
        return Classes(self._class_of, np.array([self._seen_from[w][v] for v, w in edges]))


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


def _places(first: list[int], num: int) -> Numbers | slice:
    """[message, number]: places of so many numbers of each message; of one message alone, all of them."""
    return slice(first[0], first[0] + num) if len(first) == 1 else np.array(first)[:, None] + np.arange(num)


def _shares(eager: float, ahead: int, edges: int) -> tuple[float, float]:
    """What each edge ahead of a node takes of its cost, and what each behind it takes on the way back."""
    kept = (1.0 - eager) / max(1, ahead, edges - ahead)
    return kept + eager / max(1, ahead), kept + eager / max(1, edges - ahead)


def _likeness(table: Array) -> object:
    """What tables have in common that are worked on together: their shape, or where the numbers of a large one are."""
    return table.shape if table.size < LARGE else _address(table)


def _address(table: Array) -> tuple[int, ...]:
    """Where the numbers of a table are, and how they are read."""
    return (table.__array_interface__["data"][0], *table.shape, *table.strides)


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

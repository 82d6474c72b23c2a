"""A lower bound of a network of any size, without a solver: messages between neighbours, prices on memory.

Messages phi move costs between edges and their ends, so that node v has theta_v = c_v + prices . bytes +
sum_e phi_e->v and edge e = (v, w) has theta_e = table - phi_e->v - phi_e->w. Whatever the messages and the
prices >= 0::

    bound = constant - prices . capacity + sum_v min theta_v + sum_e min theta_e

and a strategy s of v costs at least the bound plus what it lies above the least in theta_v and in the edges
at v (its *margin*); two strategies of neighbours cost at least the bound plus both margins, less what their
edge lends to each, plus what it takes from the pair. What exceeds the cost of a known choice can go. A sweep
goes through the nodes; each collects all that its edges can give and hands it on in equal shares to the edges
that lie ahead, which never lowers the bound. Prices follow what a choice read off the messages takes
(subgradient steps).

Nodes on one *level*, none of which are neighbours, are worked on together, and of their edges those whose
tables have the same shape.

Source: Kolmogorov, "A new look at reweighted message passing", IEEE PAMI 37 (2015); Held, Wolfe and Crowder,
"Validation of subgradient optimization", Mathematical Programming 6 (1974).
"""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from planner.intra_op.liveness import violated
from planner.intra_op.network import Network
from planner.intra_op.problem import Array

Numbers = npt.NDArray[np.intp]
Messages = Mapping[tuple[int, int], Array]
"""Node and neighbour -> message from their edge into the node."""

STEP = 0.3
"""First step, as a share of the step that would close the gap if the bound were linear."""

MARGIN = 1e-9
"""Relative rounding allowed to bounds before anything goes."""

LONGER, SHORTER = 1.05, 0.9
"""Change of the step after a better and after a worse bound."""


class Bound(NamedTuple):
    """What messages and prices prove."""

    value: float
    margins: dict[int, Array]
    """Per node, by how much each strategy lifts the bound."""


class _Tables(NamedTuple):
    """Tables of one shape, and where the numbers that belong to them lie."""

    edges: list[tuple[int, int]]
    """Node and neighbour."""
    costs: Array
    """[edge, own strategy, the neighbour's]"""
    own: Numbers
    """[edge, own strategy]: place of the message into the node."""
    other: Numbers
    """[edge, the neighbour's strategy]: place of the message into the neighbour."""
    neighbour: Numbers
    """[edge]: position of the neighbour."""


class _Level(NamedTuple):
    """Nodes that are worked on together."""

    nodes: slice
    """Their positions,"""
    strategies: slice
    """the places of their strategies,"""
    messages: slice
    """and those of the messages into them."""
    strategy_of: Numbers
    """Per message, the strategy that it is for, counted within the level."""
    behind: list[_Tables]
    """Edges to nodes of lower levels,"""
    ahead: list[_Tables]
    """and to nodes of higher ones."""
    forward: Array
    """Per message, the share of its strategy's cost that it takes ahead,"""
    backward: Array
    """or back."""


class Relaxation:
    """Messages and prices of one network."""

    def __init__(
        self, network: Network, prices: Mapping[int, float], messages: Messages | None = None
    ) -> None:
        """Start from known ``prices``, by original row, and ``messages``, or none."""
        self.network = network
        self.order = sorted(network.nodes)
        self.rows = network.rows
        """Original numbers of the rows that have prices."""
        self.prices = np.array([prices.get(int(row), 0.0) for row in self.rows])
        self.step = STEP
        self.best = -np.inf
        levels = _levels(network, self.order)
        self._nodes = sorted(self.order, key=lambda v: (levels[v], v))
        """Nodes by position."""
        self._position = {v: k for k, v in enumerate(self._nodes)}
        sizes = np.array([network.costs[v].size for v in self._nodes], dtype=np.intp)
        self._first = np.concatenate([[0], np.cumsum(sizes)])
        """Per position, the place of the first strategy; the others follow."""
        self._owner = np.repeat(np.arange(sizes.size), sizes)
        """Per strategy, its node's position."""
        self._costs = _joined([network.costs[v] for v in self._nodes])
        self._place: dict[int, dict[int, int]] = {}
        """Node -> neighbour -> place of the message from their edge into the node."""
        strategy_of: list[Numbers] = []
        place = 0
        for position, v in enumerate(self._nodes):
            self._place[v] = {}
            for w in network.tables[v]:
                self._place[v][w] = place
                place += int(sizes[position])
                strategy_of.append(np.arange(self._first[position], self._first[position + 1]))
        self._strategy_of = _joined(strategy_of).astype(np.intp)
        self._into = np.zeros(place)
        """Messages."""
        for (v, w), message in (messages or {}).items():
            place = self._place[v][w]
            self._into[place : place + message.size] = message
        self._pieces = _Pieces(network, dict(zip(self._nodes, self._first.tolist(), strict=False)))
        self._levels = [self._level(levels, nodes) for nodes in _runs([levels[v] for v in self._nodes])]
        if messages is None:
            for level in self._levels:
                self._collect(level.ahead)
        self._priced = self._price()

    @property
    def known_prices(self) -> dict[int, float]:
        """Prices above zero, by original row."""
        return {int(row): float(p) for row, p in zip(self.rows, self.prices, strict=True) if p > 0}

    @property
    def messages(self) -> dict[tuple[int, int], Array]:
        """From each edge into each of its nodes."""
        return {
            (v, w): self._into[place : place + self.network.costs[v].size].copy()
            for v, places in self._place.items()
            for w, place in places.items()
        }

    def memory_costs(self, v: int) -> Array:
        """What each strategy of a node pays for its memory."""
        at = slice(*self._first[self._position[v] :][:2])
        return self._priced[at] - self._costs[at]

    def sweep(self) -> None:
        """One pass through the nodes and one back."""
        for level in self._levels:
            self._collect(level.behind)
            self._hand_on(level, level.forward)
        for level in reversed(self._levels):
            self._collect(level.ahead)
            self._hand_on(level, level.backward)

    def value(self) -> float:
        """The bound right after a sweep, which leaves nothing in the edges; up to rounding."""
        return self._of_nodes(self._theta())

    def bound(self) -> Bound:
        """The bound and the margins, computed anew from all tables."""
        value, margins, _ = self._bound()
        return Bound(value, dict(zip(self._nodes, np.split(margins, self._first[1:-1]), strict=False)))

    def fix(self, cost: float) -> float:
        """Forbid in the network what only choices of ``cost`` or more contain: strategies and pairs of them.

        The bound that says so. The network may have strategies without a partner afterwards, and this
        relaxation is no longer of use.
        """
        value, margins, lift = self._bound()
        value -= MARGIN * abs(value)
        slack = cost - 1 - value
        lift[np.isinf(lift)] = 0.0  # no partner is left: the margin says so too
        for tables in self._edges():
            rest = self._rest(tables)
            rest -= rest.min(axis=(1, 2), keepdims=True)
            rest += (margins[self._strategy_of[tables.own]] - lift[tables.own])[:, :, None]
            rest += (margins[self._strategy_of[tables.other]] - lift[tables.other])[:, None, :]
            dear = (rest > slack) & np.isfinite(tables.costs)
            for edge in np.flatnonzero(dear.any(axis=(1, 2))):
                self.network.forbid(*tables.edges[edge], dear[edge])
        for k, v in enumerate(self._nodes):
            kept = np.flatnonzero(margins[self._first[k] : self._first[k + 1]] <= slack)
            if kept.size < self.network.costs[v].size:
                self.network.keep(v, kept)
        return value

    def decode(self) -> dict[int, int]:
        """A choice read off the messages, level by level; it may exceed the capacities."""
        return dict(zip(self._nodes, self._decode().tolist(), strict=True))

    def scores(self, v: int, choice: Mapping[int, int]) -> Array:
        """How expensive each strategy of v looks, given the ``choice`` made for nodes before it."""
        first = self._first[self._position[v]]
        tables = self.network.tables[v]
        total = self._priced[first : first + self.network.costs[v].size]
        for w, table in tables.items():
            if w in choice:
                total = total + table[:, choice[w]]
            else:
                place = self._place[w][v]
                total = total + (table - self._into[place : place + table.shape[1]]).min(axis=1)
        return total

    def reprice(self, value: float, target: float) -> None:
        """Move the prices towards what a decoded choice takes; ``target`` is the cost to be reached."""
        taken = self._pieces.taken(self._first[:-1] + self._decode())
        excess = taken - self.network.capacity
        rows = np.union1d(np.flatnonzero(self.prices), violated(self.network, taken)).astype(int)
        square = float((excess[rows] ** 2).sum())
        self.step = min(STEP, self.step * (LONGER if value > self.best else SHORTER))
        self.best = max(self.best, value)
        if square:
            length = self.step * max(target - value, 0.0) / square
            self.prices[rows] = np.maximum(0.0, self.prices[rows] + length * excess[rows])
            self._priced = self._price()

    def _collect(self, edges: list[_Tables]) -> None:
        """Take into nodes all that their edges can give."""
        for tables in edges:
            self._into[tables.own] = (tables.costs - self._into[tables.other][:, None, :]).min(axis=2)

    def _hand_on(self, level: _Level, share: Array) -> None:
        into = self._into[level.messages]
        theta = self._priced[level.strategies].copy()
        theta += np.bincount(level.strategy_of, into, theta.size)
        into -= share * theta[level.strategy_of]

    def _bound(self) -> tuple[float, Array, Array]:
        """The bound, the margin of each strategy, and the part of it that lies in the edge of each message."""
        theta = self._theta()
        value = self._of_nodes(theta)
        lift = np.zeros(self._into.size)
        for tables in self._edges():
            rest = self._rest(tables)
            value += float(rest.min(axis=(1, 2)).sum())
            rest -= rest.min(axis=(1, 2), keepdims=True)
            lift[tables.own], lift[tables.other] = rest.min(axis=2), rest.min(axis=1)
        return value, theta - self._least(theta)[self._owner] + self._per_strategy(lift), lift

    def _of_nodes(self, theta: Array) -> float:
        """The bound but for what is in the edges."""
        priced = float(self.prices @ self.network.capacity)
        return self.network.constant - priced + float(self._least(theta).sum())

    def _theta(self) -> Array:
        return self._priced + self._per_strategy(self._into)

    def _per_strategy(self, messages: Array) -> Array:
        return np.bincount(self._strategy_of, messages, self._priced.size)

    def _least(self, theta: Array) -> Array:
        return np.minimum.reduceat(theta, self._first[:-1]) if theta.size else np.zeros(0)

    def _rest(self, tables: _Tables) -> Array:
        """What messages leave in the edges."""
        rest: Array = tables.costs - self._into[tables.own][:, :, None]
        rest -= self._into[tables.other][:, None, :]
        return rest

    def _edges(self) -> Iterator[_Tables]:
        """Every edge once."""
        for level in self._levels:
            yield from level.ahead

    def _decode(self) -> Numbers:
        """Per position, the strategy taken; right after a sweep, when messages from ahead are all that is there."""
        choice = np.zeros(len(self._nodes), dtype=np.intp)
        seen = self._into.copy()
        for level in self._levels:
            for tables in level.behind:
                picked = choice[tables.neighbour][:, None, None]
                seen[tables.own] = np.take_along_axis(tables.costs, picked, axis=2)[:, :, 0]
            scores = self._priced[level.strategies] + np.bincount(
                level.strategy_of, seen[level.messages], level.strategies.stop - level.strategies.start
            )
            first = self._first[level.nodes] - level.strategies.start
            owner = self._owner[level.strategies] - level.nodes.start
            best = np.flatnonzero(scores == np.minimum.reduceat(scores, first)[owner])
            _, earliest = np.unique(owner[best], return_index=True)
            choice[level.nodes] = best[earliest] - first
        return choice

    def _price(self) -> Array:
        return self._costs + self._pieces.priced(self.prices, self._costs.size)

    def _level(self, levels: Mapping[int, int], nodes: slice) -> _Level:
        first, last = int(self._first[nodes.start]), int(self._first[nodes.stop])
        here = self._nodes[nodes]
        places = np.searchsorted(self._strategy_of, [first, last])
        strategy_of = self._strategy_of[places[0] : places[1]] - first
        sides = {True: defaultdict(list), False: defaultdict(list)}
        forward, backward = [np.zeros(0)], [np.zeros(0)]
        for v in here:
            tables = self.network.tables[v]
            ahead = np.array([levels[w] > levels[v] for w in tables], dtype=bool)
            share = 1.0 / max(1, ahead.sum(), ahead.size - ahead.sum())
            size = self.network.costs[v].size
            forward.append(np.repeat(ahead * share, size))
            backward.append(np.repeat(~ahead * share, size))
            for w, table in tables.items():
                sides[levels[w] > levels[v]][table.shape].append((v, w))
        return _Level(
            nodes, slice(first, last), slice(int(places[0]), int(places[1])), strategy_of,
            [self._tables(edges) for edges in sides[False].values()],
            [self._tables(edges) for edges in sides[True].values()],
            np.concatenate(forward), np.concatenate(backward),
        )  # fmt: skip

    def _tables(self, edges: list[tuple[int, int]]) -> _Tables:
        costs = np.stack([self.network.tables[v][w] for v, w in edges])
        own = np.array([self._place[v][w] for v, w in edges])
        other = np.array([self._place[w][v] for v, w in edges])
        return _Tables(
            edges,
            costs,
            own[:, None] + np.arange(costs.shape[1]),
            other[:, None] + np.arange(costs.shape[2]),
            np.array([self._position[w] for _, w in edges]),
        )


class _Pieces:
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
        return np.bincount(self.strategy, price[self.piece] * self.bytes_, num_strategies)

    def taken(self, chosen: Numbers) -> Array:
        """Bytes that the ``chosen`` strategies take of each row."""
        is_chosen = np.isin(self.strategy, chosen)
        bytes_ = np.bincount(self.piece[is_chosen], self.bytes_[is_chosen], len(self.rows))
        change = np.bincount(self.rows[:, 0], bytes_, self.num_rows + 1)
        change -= np.bincount(self.rows[:, 1], bytes_, self.num_rows + 1)
        return np.cumsum(change)[:-1]


def _levels(network: Network, order: list[int]) -> dict[int, int]:
    """Longest path of ascending neighbours that ends in each node."""
    levels: dict[int, int] = {}
    for v in order:
        levels[v] = 1 + max((levels[w] for w in network.tables[v] if w < v), default=-1)
    return levels


def _runs(values: list[int]) -> Iterator[slice]:
    """Runs of equal values."""
    starts = np.flatnonzero(np.diff(values, prepend=-1)).tolist()
    for start, stop in itertools.pairwise([*starts, len(values)]):
        yield slice(start, stop)


def _joined(parts: list[Array]) -> Array:
    return np.concatenate(parts) if parts else np.zeros(0)

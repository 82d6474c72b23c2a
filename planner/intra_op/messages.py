"""A lower bound of a network of any size, without a solver: messages between neighbours, prices on memory.

Messages phi move costs between edges and their ends, so that node v has theta_v = c_v + prices . bytes +
sum_e phi_e->v and edge e = (v, w) has theta_e = table - phi_e->v - phi_e->w. Whatever the messages and the
prices >= 0::

    bound = constant - prices . capacity + sum_v min theta_v + sum_e min theta_e

and a strategy s of v costs at least the bound plus what it lies above the least in theta_v and in the edges
at v (its *margin*), so that it can go where that exceeds the cost of a known choice. A sweep goes through the
nodes; each collects all that its edges can give and hands it on in equal shares to the edges that lie ahead,
which never lowers the bound. Prices follow what a choice read off the messages takes (subgradient steps).

Source: Kolmogorov, "A new look at reweighted message passing", IEEE PAMI 37 (2015); Held, Wolfe and Crowder,
"Validation of subgradient optimization", Mathematical Programming 6 (1974).
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from planner.intra_op.liveness import demand, violated
from planner.intra_op.network import Network
from planner.intra_op.problem import Array

STEP = 0.3
"""First step, as a share of the step that would close the gap if the bound were linear."""

LONGER, SHORTER = 1.05, 0.9
"""Change of the step after a better and after a worse bound."""


class Bound(NamedTuple):
    """What messages and prices prove."""

    value: float
    margins: dict[int, Array]
    """Per node, by how much each strategy lifts the bound."""


class Relaxation:
    """Messages and prices of one network."""

    def __init__(self, network: Network, prices: Mapping[int, float]) -> None:
        """Start from no messages and from known ``prices``, by original row."""
        self.network = network
        self.order = sorted(network.nodes)
        self.rows = network.rows
        """Original numbers of the rows that have prices."""
        self.prices = np.array([prices.get(int(row), 0.0) for row in self.rows])
        self.step = STEP
        self.best = -np.inf
        self.into = {v: {w: np.zeros(network.costs[v].size) for w in network.tables[v]} for v in self.order}
        """Node -> neighbour -> message from their edge into the node."""
        for v in self.order:
            for w in self.into[v]:
                if w > v:
                    self.into[v][w] = self._offer(v, w)
        self._priced = self._price()

    @property
    def known_prices(self) -> dict[int, float]:
        """Prices above zero, by original row."""
        return {int(row): float(p) for row, p in zip(self.rows, self.prices, strict=True) if p > 0}

    def sweep(self) -> None:
        """One pass through the nodes and one back."""
        for direction in (1, -1):
            for v in self.order[::direction]:
                self._collect_and_hand_on(v, direction)

    def bound(self) -> Bound:
        """The bound and the margins, computed anew from all tables."""
        network = self.network
        value = network.constant - float(self.prices @ network.capacity)
        margins = {}
        for v in self.order:
            theta = self._theta(v)
            value += float(theta.min())
            margins[v] = theta - theta.min()
        for v in self.order:
            for w, table in network.tables[v].items():
                if v < w:
                    theta = table - self.into[v][w][:, None] - self.into[w][v]
                    least = theta.min()
                    value += float(least)
                    margins[v] = margins[v] + (theta.min(axis=1) - least)
                    margins[w] = margins[w] + (theta.min(axis=0) - least)
        return Bound(value, margins)

    def decode(self) -> dict[int, int]:
        """A choice read off the messages, node by node; it may exceed the capacities."""
        choice: dict[int, int] = {}
        for v in self.order:
            choice[v] = int(self.scores(v, choice).argmin())
        return choice

    def scores(self, v: int, choice: Mapping[int, int]) -> Array:
        """How expensive each strategy of v looks, given the ``choice`` made for nodes before it."""
        tables = self.network.tables[v]
        total = self._priced[v]
        for w, table in tables.items():
            total = total + (table[:, choice[w]] if w in choice else self._offer(v, w))
        return total

    def reprice(self, value: float, target: float) -> None:
        """Move the prices towards what a decoded choice takes; ``target`` is the cost to be reached."""
        choice = self.decode()
        weights = {v: np.eye(1, self.network.costs[v].size, s)[0] for v, s in choice.items()}
        excess = demand(self.network, weights) - self.network.capacity
        rows = np.union1d(np.flatnonzero(self.prices), violated(self.network, excess + self.network.capacity))
        rows = rows.astype(int)
        square = float((excess[rows] ** 2).sum())
        self.step = min(STEP, self.step * (LONGER if value > self.best else SHORTER))
        self.best = max(self.best, value)
        if square:
            length = self.step * max(target - value, 0.0) / square
            self.prices[rows] = np.maximum(0.0, self.prices[rows] + length * excess[rows])
            self._priced = self._price()

    def _collect_and_hand_on(self, v: int, direction: int) -> None:
        into = self.into[v]
        ahead = [w for w in into if (w - v) * direction > 0]
        for w in into:
            if (w - v) * direction < 0:
                into[w] = self._offer(v, w)
        if ahead:
            share = self._theta(v) / max(len(ahead), len(into) - len(ahead))
            for w in ahead:
                into[w] = into[w] - share

    def _offer(self, v: int, w: int) -> Array:
        """All that the edge can give to v, per strategy of v."""
        offer: Array = (self.network.tables[v][w] - self.into[w][v]).min(axis=1)
        return offer

    def _theta(self, v: int) -> Array:
        return _sum(self._priced[v], self.into[v].values())

    def _price(self) -> dict[int, Array]:
        total = np.concatenate([[0.0], np.cumsum(self.prices)])
        return {
            v: _sum(
                self.network.costs[v],
                ((total[b] - total[a]) * bytes_ for (a, b), bytes_ in self.network.pieces[v].items()),
            )
            for v in self.order
        }


def _sum(first: Array, others: Iterable[Array]) -> Array:
    for other in others:
        first = first + other
    return first

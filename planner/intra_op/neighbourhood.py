"""Choices that fit, and better ones: a greedy start, then parts of the network solved while the rest waits.

Source: Shaw, "Using constraint programming and local search methods to solve vehicle routing problems",
CP 1998 (large neighbourhood search).
"""

import bisect
import math
import random
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from planner.errors import Infeasible
from planner.intra_op import clock
from planner.intra_op.liveness import demand, one_hot
from planner.intra_op.local_polytope import Positions, solve_program
from planner.intra_op.messages import Relaxation
from planner.intra_op.network import Network
from planner.intra_op.shrinking import shrink

SECONDS_PER_PART, QUICK_PART = 4.0, 0.25
"""Most that is spent on one part, and how long one may take before they get smaller [s]."""
SMALLEST_PART = 30
FIRST_PART, FIRST_ENTRIES = 200, 50_000
"""Nodes of the first part at most, and entries of its tables, about: whole problems of few nodes with many strategies
have no more than 200 nodes, and take all the time given."""
GROWTH = 1.15

NODES_PER_SEED = 4
"""Size of a part over the nodes that it grows from, where these are many."""

TURNS_PER_LOOK = 10
"""Parts solved before it is looked up anew where they are worth most."""

GREEDY_ROUNDS = 4


class Found(NamedTuple):
    """A choice that fits."""

    choice: Positions
    cost: float


Regrets = Callable[[Found], Mapping[int, float]]
"""Of a choice: node -> how much less another of its strategies might cost; what is not known is not there."""


def greedy(relaxation: Relaxation, deadline: float = math.inf) -> Found | None:
    """A choice that fits, read off the messages node by node, then bettered one node at a time.

    Each node takes the strategy that looks cheapest among those that exceed the memory left to it by least.
    None where the outcome is forbidden or still too large. All nodes are gone through once, whatever the clock says.
    """
    network = relaxation.network
    room = network.capacity.copy()
    choice: Positions = {}
    for turn in range(GREEDY_ROUNDS):
        if turn and clock.now() > deadline:
            break
        for v in sorted(network.nodes):
            pieces = network.pieces[v].items()
            if v in choice:
                for (first, last), bytes_ in pieces:
                    room[first:last] += bytes_[choice[v]]
            excess = np.zeros(network.costs[v].size)
            for (first, last), bytes_ in pieces:
                excess += np.maximum(bytes_ - room[first:last].min(), 0.0)
            scores = np.where(excess <= excess.min(), relaxation.scores(v, choice), np.inf)
            choice[v] = int(scores.argmin())
            for (first, last), bytes_ in pieces:
                room[first:last] -= bytes_[choice[v]]
    if room.min(initial=0.0) < 0 or not np.isfinite(cost := network.cost(choice)):
        return None
    return Found(choice, cost)


class NeighbourhoodSearch:
    """Improves a choice by solving one part of the network after another."""

    def __init__(
        self,
        network: Network,
        found: Found,
        prices: Mapping[int, float] | None = None,
        regrets: Regrets | None = None,
        seed: int = 0,
    ) -> None:
        """Start from ``found``; ``prices`` of memory, by original row, help to solve the parts.

        Nodes of many ``regrets`` are looked at first, or without them any.
        """
        self.network = network
        self.regrets = regrets
        known = prices or {}
        self.prices = {k: known[row] for k, row in enumerate(network.rows.tolist()) if row in known}
        self.found = found
        self.taken = demand(network, one_hot(network, found.choice))
        self.size = _first_size(network)
        self.order = sorted(network.nodes)
        self.crowds: dict[int, list[int]] = {}
        """Row -> nodes alive at it, as far as looked up."""
        self.random = random.Random(seed)
        self.turn = 0
        self.weights: list[float] = [1.0] * len(self.order)

    def improve(self, deadline: float, patience: float = math.inf) -> None:
        """Solve parts until the clock says ``deadline``, or so many times all nodes without success."""
        tried = 0
        while clock.now() < deadline and tried < patience * len(self.order):
            self.turn += 1
            cost = self.found.cost
            part = (self._window, self._ball, self._crowd)[self.turn % 3]()
            start = clock.now()
            self._solve(part, min(deadline, start + SECONDS_PER_PART))
            tried = tried + len(part) if self.found.cost == cost else 0
            quick = clock.now() - start < QUICK_PART
            self.size = int(self.size * GROWTH if quick else max(SMALLEST_PART, self.size / GROWTH**2))

    def _solve(self, nodes: set[int], deadline: float) -> None:
        clock.work(clock.CUTTING_A_NODE_OUT * len(nodes))
        inside = {v: self.found.choice[v] for v in nodes}
        capacity = self.network.capacity - self.taken + demand(self.network, one_hot(self.network, inside))
        whole = self.network.part(nodes, self.found.choice, capacity)
        before, part = whole.cost(inside), whole.copy()
        try:
            shrink(part, deadline=-math.inf)  # the program drops what is dear before it looks for more
            answer = solve_program(part, deadline, before, self.prices)
        except Infeasible:  # nothing below the cutoff is left
            return
        if answer.choice is None:
            return
        chosen = part.expand(answer.choice)
        candidate = {v: chosen[v] for v in nodes}
        after = whole.cost(candidate)
        if after < before:
            self._take(candidate, after - before)

    def _take(self, candidate: Mapping[int, int], change: float) -> None:
        old = {v: self.found.choice[v] for v in candidate}
        self.taken = self.taken + demand(self.network, one_hot(self.network, candidate))
        self.taken = self.taken - demand(self.network, one_hot(self.network, old))
        self.found = Found({**self.found.choice, **candidate}, self.found.cost + change)

    def _window(self) -> set[int]:
        """Nodes that follow each other, as operators of one layer do."""
        size = min(self.size, len(self.order))
        start = bisect.bisect(self.order, self._seed()) - self.random.randrange(size) - 1
        start = max(0, min(start, len(self.order) - size))
        return set(self.order[start : start + size])

    def _ball(self) -> set[int]:
        """Nodes around one node."""
        return self._around([self._seed()])

    def _crowd(self) -> set[int]:
        """Nodes around some that are alive together where memory is dear, far apart as they may be."""
        if not self.prices:
            return self._ball()
        [row] = self.random.choices(list(self.prices), list(self.prices.values()))
        if row not in self.crowds:
            pieces = self.network.pieces
            self.crowds[row] = [v for v in self.order if any(a <= row < b for a, b in pieces[v])]
        alive = self.crowds[row]
        return self._around(self.random.sample(alive, min(len(alive), max(1, self.size // NODES_PER_SEED))))

    def _around(self, seeds: list[int]) -> set[int]:
        nodes: set[int] = set()
        border = list(seeds)
        while border and len(nodes) < self.size:
            v = border.pop(self.random.randrange(len(border)))
            if v not in nodes:
                nodes.add(v)
                border.extend(w for w in self.network.tables[v] if w not in nodes)
        return nodes

    def _seed(self) -> int:
        """A node, the likelier the more there is to gain."""
        if self.regrets is not None and self.turn % TURNS_PER_LOOK == 1:
            regrets = self.regrets(self.found)
            self.weights = [1.0 + regrets.get(v, 0.0) for v in self.order]
        return self.random.choices(self.order, self.weights)[0]


def _first_size(network: Network) -> int:
    entries = sum(table.size for tables in network.tables.values() for table in tables.values()) / 2
    return max(SMALLEST_PART, int(min(FIRST_PART, FIRST_ENTRIES * len(network.nodes) / max(entries, 1.0))))

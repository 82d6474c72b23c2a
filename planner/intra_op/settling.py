"""Choices bettered node by node: one is moved, those around it follow, and what does not pay is taken back.

Memory has its prices meanwhile, so that what a node does to nodes far away is in its own costs; rows that are
exceeded become dearer until none is. What a node's strategies cost beside all others is kept up to date, so that a
move costs no more than a look at the neighbours.

Source: Besag, "On the statistical analysis of dirty pictures", Journal of the Royal Statistical Society B 48 (1986),
for moves of single nodes; Glover, "Ejection chains, reference structures and alternating path methods for traveling
salesman problems", Discrete Applied Mathematics 65 (1996), for moves that others follow.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from planner.intra_op import clock
from planner.intra_op.liveness import demand, one_hot, violated
from planner.intra_op.local_polytope import Positions
from planner.intra_op.messages import Relaxation
from planner.intra_op.neighbourhood import Found, Regrets
from planner.intra_op.network import Network, prices_of
from planner.intra_op.problem import Array

Numbers = npt.NDArray[np.intp]

ALTERNATIVES = 4
"""Cheapest strategies of a node, of which those that it does not take are tried."""

FOLLOWERS = 100
"""Most looks at other nodes after one has moved."""

GAIN = 0.5
"""Least that a move must win; costs are integers, less may be rounding."""

FIRST_PRICES, LATER_PRICES = (1.0, 0.8), (0.8, 0.5)
"""Shares of the prices of memory under which a choice is bettered: those of the best bound leave memory free that
cheaper ones fill, while what does not fit is taken back."""

DEARER, FASTER, ROUNDS = 0.01, 1.25, 60
"""What an exceeded row's price rises by at first, in the sum of all prices (in ones where all are zero); what that is
multiplied by from round to round; and how many there are."""


def read_off(relaxation: Relaxation, deadline: float) -> Found | None:
    """The choice that the messages favour right after a sweep, made to fit and bettered."""
    settling = Settling(relaxation.network, relaxation.decode(), relaxation.prices)
    if not settling.make_fit(deadline):
        return None
    return settling.improve(deadline, lambda found: relaxation.regrets(found.choice), FIRST_PRICES)


def better(
    network: Network, found: Found, prices: Mapping[int, float], regrets: Regrets, deadline: float
) -> Found:
    """``found``, or a choice that costs less, under ``prices`` of memory by original row."""
    settling = Settling(network, found.choice, prices_of(network, prices))
    return min(found, settling.improve(deadline, regrets, LATER_PRICES) or found, key=lambda f: f.cost)


class Around(NamedTuple):
    """The neighbours of one node."""

    nodes: tuple[int, ...]
    places: Numbers
    """Of their strategies, one neighbour's after the other's,"""
    costs: Array
    """and what these pay, [own strategy, place]; finite, since inf - inf is not a number."""


class Settling:
    """A choice of one network, changed in place."""

    def __init__(self, network: Network, choice: Mapping[int, int], prices: Array) -> None:
        """Start from a ``choice``, which may take too much, under ``prices`` of the memory rows."""
        self.network = network
        self.choice: Positions = dict(choice)
        self.prices = prices
        most = network.most_apart()
        nodes = sorted(network.nodes)
        charges = _charges(network, prices)
        own = [np.minimum(network.costs[v], most) + charges.get(v, 0.0) for v in nodes]
        ends = np.cumsum([costs.size for costs in own]).tolist()
        places = {v: np.arange(end - costs.size, end) for v, costs, end in zip(nodes, own, ends, strict=True)}
        self._scores = np.concatenate([np.zeros(0), *own])
        """Of all nodes, end to end: what hundreds of readers of a node pay changes at once."""
        self.scores = {v: self._scores[at[0] : at[-1] + 1] for v, at in places.items()}
        """Per node, what each strategy costs beside the others' choice, memory by its price."""
        self.around = {v: _around(network, v, places, most) for v in nodes}
        for v, around in self.around.items():
            self._scores[around.places] += around.costs[self.choice[v]]
        self.room = network.capacity - demand(network, one_hot(network, self.choice))
        """Bytes that are left of each row."""

    def make_fit(self, deadline: float) -> bool:
        """Raise prices until nothing is exceeded, and go back to the old ones; whether that is so."""
        prices, step = self.prices, DEARER
        for _ in range(ROUNDS):
            self._settle(self.choice, len(self.choice) * ALTERNATIVES)
            bad = violated(self.network, self.network.capacity - self.room)
            if not bad or clock.now() > deadline:
                break
            dearer = self.prices.copy()
            dearer[bad] += step * (self.prices.sum() or 1.0)
            self._reprice(dearer)
            step *= FASTER
        self._reprice(prices)
        return self._fits()

    def improve(self, deadline: float, regrets: Regrets, shares: Iterable[float]) -> Found | None:
        """Move nodes, under ``shares`` of the prices one after another, until no move helps or time is up.

        Nodes of many ``regrets`` come first. The best choice met; None where it is forbidden or takes too much.
        """
        prices, best = self.prices, self._found()
        found = best
        for share in shares:
            self._reprice(share * prices)
            todo = set(self.choice)
            while todo and found and clock.now() < deadline:
                todo = self._move_all(todo, regrets(found), deadline)
                found = self._found()
                best = min((f for f in (best, found) if f), key=lambda f: f.cost, default=None)
        return best

    def _move_all(self, nodes: Iterable[int], worth: Mapping[int, float], deadline: float) -> set[int]:
        """Move nodes, the most worthy first; those that may then be moved again."""
        changed = set()
        for v in sorted(nodes, key=lambda v: (-worth.get(v, 0.0), v)):
            changed |= self._move(v)
            if clock.now() > deadline:
                break
        return changed.union(*(self.around[v].nodes for v in changed))

    def _found(self) -> Found | None:
        cost = self.network.cost(self.choice)
        taken = demand(self.network, one_hot(self.network, self.choice))
        allowed = np.isfinite(cost) and not violated(self.network, taken)
        return Found(dict(self.choice), cost) if allowed else None

    def _fits(self) -> bool:
        return bool(self.room.min(initial=0.0) >= 0)

    def _move(self, v: int) -> set[int]:
        """Try other strategies of a node, let its neighbours follow and then itself; what changed for the better."""
        clock.work(clock.TRYING_A_MOVE)
        for s in np.argsort(self.scores[v], kind="stable")[:ALTERNATIVES].tolist():
            if s == self.choice[v]:
                continue
            before = [(v, self.choice[v])]
            change = self._take(v, s)
            change += self._settle(self.around[v].nodes, FOLLOWERS, before, fixed=v)
            change += self._settle([v], FOLLOWERS, before)
            if change < -GAIN and self._fits():
                return {w for w, _ in before}
            for w, t in reversed(before):
                self._take(w, t)
        return set()

    def _settle(
        self, nodes: Iterable[int], looks: int, before: list[tuple[int, int]] | None = None, fixed: int = -1
    ) -> float:
        """Let ``nodes``, and what is around those that change, take their cheapest strategies; the change of cost.

        After so many ``looks`` it ends. What nodes took is appended to ``before``; one node may be ``fixed``.
        """
        change = 0.0
        queue = deque(nodes)
        waiting = {*queue, fixed}
        while queue and looks > 0:
            v = queue.popleft()
            waiting.discard(v)
            looks -= 1
            scores = self.scores[v]
            cheapest = int(scores.argmin())
            if scores[cheapest] < scores[self.choice[v]]:
                if before is not None:
                    before.append((v, self.choice[v]))
                change += self._take(v, cheapest)
                around = [w for w in self.around[v].nodes if w not in waiting]
                queue.extend(around)
                waiting.update(around)
        return change

    def _take(self, v: int, strategy: int) -> float:
        """Let one node take a strategy; the change of cost."""
        old, self.choice[v] = self.choice[v], strategy
        _, places, costs = self.around[v]
        self._scores[places] += costs[strategy] - costs[old]
        for (first, last), bytes_ in self.network.pieces[v].items():
            if more := bytes_[strategy] - bytes_[old]:
                self.room[first:last] -= more
        return float(self.scores[v][strategy] - self.scores[v][old])

    def _reprice(self, prices: Array) -> None:
        for v, charge in _charges(self.network, prices - self.prices).items():
            self.scores[v] += charge
        self.prices = prices


def _charges(network: Network, prices: Array) -> dict[int, Array]:
    """What each strategy pays for memory, of the nodes that pay at all."""
    total = np.concatenate([[0.0], np.cumsum(prices)]).tolist()
    charges: dict[int, Array] = {}
    for v, pieces in network.pieces.items():
        for (first, last), bytes_ in pieces.items():
            if price := total[last] - total[first]:
                charges[v] = charges.get(v, 0.0) + price * bytes_
    return charges


def _around(network: Network, v: int, places: Mapping[int, Numbers], most: float) -> Around:
    tables = network.tables[v]
    costs = np.concatenate([np.zeros((network.costs[v].size, 0)), *tables.values()], axis=1)
    theirs = np.concatenate([np.zeros(0, dtype=np.intp), *(places[w] for w in tables)])
    return Around(tuple(tables), theirs, np.minimum(costs, most, out=costs))

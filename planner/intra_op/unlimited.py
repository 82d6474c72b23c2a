"""Networks of few nodes with many strategies each that no memory limits: only those that a cheap choice can contain.

Messages give a bound, and by how much each strategy lifts it (`planner.intra_op.messages`). A choice that is read off
them and costs no more is the best. Otherwise strategies within a small *slack* of the bound make a *part*, whose best
choice is looked for node by node (`planner.intra_op.frontier`). Whatever contains another strategy costs more than the
slack allows, so that a best choice of the part is one of the whole; where there is none the slack grows, to no more
than the best choice known needs. Parts that are still too wide get messages of their own. What these do not settle
either is tied together by a node that many others read (a *hub*): it is decided strategy by strategy, groups of which
one bound shows to cost too much.

Source: Kolmogorov, "A new look at reweighted message passing", IEEE PAMI 37 (2015), for the messages; Nesterov, "A
method for solving the convex programming problem with convergence rate O(1/k^2)", Soviet Mathematics Doklady 27 (1983),
and O'Donoghue and Candes, "Adaptive restart for accelerated gradient schemes", Foundations of Computational Mathematics
15 (2015), for how far they go beyond each sweep.
"""

import heapq
import itertools
from collections.abc import Iterator, Mapping

import numpy as np

from planner.errors import Infeasible
from planner.intra_op import clock
from planner.intra_op.answers import NetworkAnswer
from planner.intra_op.anytime import solve_network
from planner.intra_op.compact import Classes, Compact
from planner.intra_op.folding import MOST_SUMS, MOST_SUMS_OF_A_PART, fold
from planner.intra_op.frontier import cheapest, order
from planner.intra_op.messages import MARGIN, Relaxation
from planner.intra_op.problem import Array

VISITS, SHARE = 16, 0.4
"""Of parts, and of the time left, after which guesses of the cost and the integer program decide; mostly a dozen parts
are enough."""

SWEEPS, RECENT, MANY = 20, 2, 16
"""Of messages at most, before strategies go; the last ones, whose gain says whether more of them follow; and how many
more at this rate take longer than a look at parts, where a choice near the bound is known."""

NEARLY = 0.03
"""Of the bound: a sweep that lifts it by more is followed by another before a choice is read off the messages."""

ENOUGH = 2e-3
"""Of the bound: what ``RECENT`` sweeps must lift it by for more to follow."""

NEAR, GROWTH, LAST_SLACK = 1e-2, 2.0, 2.0
"""Of the bound: above it a choice is looked for first; by what that grows; and what it does not exceed."""

NEARER, SLIGHT = 3.0, 1e-3
"""It is looked for in such a part of what a better choice may cost, unless that is hardly more than the bound."""

TRIED, PROVEN = 2**21, 2**23
"""States of one frontier, times strategies of all nodes, to find a choice, and to prove that none is better."""

SMALLER = 0.5
"""Of the strategies of a network: what must be left for messages to go on there."""

SWEEPS_OF_A_GROUP = 2
"""Of messages, where a hub takes one of a group of strategies."""


def solve_unlimited(network: Compact, deadline: float, below: float = np.inf) -> NetworkAnswer:
    """The cheapest choice, by original numbers; raises `Infeasible` where none is allowed.

    Where only a choice that costs less than ``below`` is of use: it costs ``inf`` if there is none.
    """
    fold(network, MOST_SUMS)
    network.propagate()
    network = network.renumbered(order(network))
    now = clock.now()
    search = _Search(now + SHARE * (deadline - now) if np.isfinite(deadline) else deadline, below)
    search.run(network)
    choice, cost = search.best
    if search.least == search.cost < np.inf:
        return NetworkAnswer(choice, cost, search.least)
    answer = solve_network(network.written_out(), deadline, search.cost)
    if answer.cost < cost:
        choice, cost = network.expand(answer.choice), answer.cost
    return NetworkAnswer(choice, cost, min(cost, max(search.least, answer.lower_bound)))


Margins = Mapping[int, Array]
"""Per node, by how much each strategy lifts the bound."""


class _Search:
    """The best choice so far of a network, and what of it may have a better one."""

    def __init__(self, deadline: float, below: float) -> None:
        self.deadline = deadline
        self.cost = below
        """What a choice must cost less than, to be better."""
        self.found: tuple[Compact, dict[int, int]] | None = None
        """The best choice, by position, and the network in which it is one."""
        self.open: list[tuple[float, int, Compact]] = []
        """Networks that may have a better one, the most promising first: what it costs at least, a number, and each."""
        self.numbers = itertools.count()
        self.visited = np.inf
        """The same of the one that is looked through, if it is not done."""

    @property
    def best(self) -> tuple[dict[int, int], float]:
        """The best choice by original numbers, and what it costs; none costs ``inf``."""
        if self.found is None:
            return {}, np.inf
        network, choice = self.found
        return network.expand(choice), self.cost

    @property
    def stopped(self) -> bool:
        """Whether time is up."""
        return clock.now() > self.deadline

    @property
    def least(self) -> float:
        """What every choice costs at least, or every one that is of use."""
        least = min([self.cost, self.visited, *(least for least, _, _ in self.open)])
        return self.cost if least > self.cost - 1 else least  # costs are whole numbers

    def run(self, network: Compact) -> None:
        """Look through a network and parts of it, until nothing can be better, there are too many, or time is up."""
        self._add(-np.inf, network)
        for _ in range(VISITS):
            if not self.open or self.open[0][0] > self.cost - 1 or self.stopped:
                break
            self.visited, _, network = heapq.heappop(self.open)
            self._visit(network)
            if not self.stopped:
                self.visited = np.inf

    def _add(self, least: float, network: Compact) -> None:
        heapq.heappush(self.open, (least, next(self.numbers), network))

    def _visit(self, network: Compact) -> None:
        """Find the best choice of a network, if it is better than the best so far, or part it."""
        part: Compact | None = network
        while part is not None and not self.stopped:
            network, relaxation = part, Relaxation(part, {})
            if self._settled(network, relaxation, SWEEPS):
                return
            absorbed = network.fork()
            absorbed.absorb(relaxation.exact_messages)
            least, margins = absorbed.margins()
            if self._look(absorbed, least, margins):
                return
            part = self._narrowed(absorbed, least, margins)
            if part is not None and part.num_strategies > SMALLER * network.num_strategies:
                self._part(part)
                return

    def _settled(self, network: Compact, relaxation: Relaxation, sweeps: int) -> bool:
        """Whether messages prove that nothing is better; each sweep is from farther beyond the last (Nesterov)."""
        pace, values = 0, [-np.inf] * RECENT
        for _ in range(sweeps):
            relaxation.go_beyond(pace / (pace + 2))
            relaxation.sweep()
            value = relaxation.keep_best()
            pace = pace + 1 if value > values[-1] else 0
            if value - values[-1] < NEARLY * abs(value):
                self._consider(network, *relaxation.priced_decode())
            values.append(value)
            if value - MARGIN * abs(value) > self.cost - 1:
                return True
            if self._enough(values) or self.stopped:
                break
        return False

    def _enough(self, values: list[float]) -> bool:
        """Whether a look at parts is faster than messages at the rate at which they close a gap, or lift the bound."""
        was, left = (self.cost - value for value in (values[-1 - RECENT], values[-1]))
        if 1 < left < NEAR * abs(values[-1]) and was < np.inf:
            return bool(RECENT * np.log(left) > MANY * np.log(was / left))
        return values[-1] - values[-1 - RECENT] < ENOUGH * abs(values[-1])

    def _look(self, network: Compact, least: float, margins: Margins) -> bool:
        """Look for a better choice near the bound, then ever farther from it; whether it is proven to be the best."""
        before, slack = self.cost, min(NEAR * abs(least), (self.cost - least) / NEARER)
        while SLIGHT * abs(least) <= slack < LAST_SLACK * abs(least) and 2 * slack < before - least:
            part = _within(network, margins, slack)
            proven = part is not None and self._better(part, least + slack, TRIED)
            if self.cost < before:
                return proven
            slack *= GROWTH
        return False

    def _narrowed(self, network: Compact, least: float, margins: Margins) -> Compact | None:
        """Without strategies that no better choice contains; None where there is no better choice."""
        part = _within(network, margins, self.cost - 1 - least + MARGIN * abs(least))
        if part is None:
            return None
        fold(part, MOST_SUMS_OF_A_PART)
        return None if self._better(part, self.cost - 1, PROVEN, prove=True) else part

    def _better(self, part: Compact, target: float, most: int, prove: bool = False) -> bool:
        """Look for a better choice of a part, of at most ``target``; whether it has no other of that cost or less."""
        found, proven = cheapest(part, target, 1 + most // (1 + part.num_strategies), self.deadline, prove)
        if found is not None:
            self._consider(part, found, part.cost(found))
        return proven

    def _part(self, network: Compact) -> None:
        """Part a network by what the node takes that most others read, but where one bound says that it costs too much.

        The strategies that are dearest by themselves stay together.
        """
        many = max(len(tables) for v, tables in network.tables.items() if network.costs[v].size > 1) - 1
        hubs = [
            v for v in sorted(network.nodes) if len(network.tables[v]) >= many and network.costs[v].size > 1
        ]
        hub = min(hubs, key=lambda v: network.costs[v].size)
        relaxation = Relaxation(network, {})
        if self._settled(network, relaxation, SWEEPS_OF_A_GROUP):
            return
        start, margins = relaxation.snapshot(), relaxation.bound().margins[hub]
        for group in _doubling(np.argsort(margins, kind="stable").tolist()):
            relaxation.restore(start)
            relaxation.hold({hub: group})
            if not self._settled(network, relaxation, SWEEPS_OF_A_GROUP):
                absorbed = network.fork()
                absorbed.absorb(relaxation.exact_messages)
                if (branch := _only(absorbed, {hub: np.sort(group)})) is not None:
                    self._add(relaxation.best, branch)

    def _consider(self, network: Compact, choice: dict[int, int], cost: float) -> None:
        """Take a choice of a part if it is better."""
        if cost < self.cost - 0.5:
            self.cost, self.found = float(np.rint(cost)), (network, choice)


def _within(network: Compact, margins: Margins, slack: float) -> Compact | None:
    """With the strategies that lift the bound by at most so much; None where a node has none."""
    return _only(network, {v: np.flatnonzero(lifts <= slack) for v, lifts in margins.items()})


def _only(network: Compact, kept: Mapping[int, Classes]) -> Compact | None:
    """With some strategies of some nodes; None where another node has none that goes with these."""
    try:
        return network.only(kept)
    except Infeasible:
        return None


def _doubling(strategies: list[int]) -> Iterator[list[int]]:
    """One by itself, then ever more together."""
    first = 0
    while first < len(strategies):
        yield strategies[first : 2 * first or 1]
        first = 2 * first or 1

"""Large networks solved as well as time allows: a choice that fits and a proven bound at any moment.

The network is reduced first. What is left, the *core*, is where choices are searched for; a copy of it, the
*proof*, loses in addition every strategy, and every pair of neighbours' strategies, that no choice better than
the best known can contain (reduced-cost fixing), until branches and the integer program can decide the rest.
Every choice below the best known cost is in the proof, so the smaller of that cost and the bound of the proof
is a bound of the whole.
"""

import time
from dataclasses import dataclass

import numpy as np

from planner.errors import Infeasible, SolverStopped
from planner.intra_op.messages import MARGIN, Bound, Relaxation
from planner.intra_op.neighbourhood import Found, NeighbourhoodSearch, greedy
from planner.intra_op.network import Indices, Network
from planner.intra_op.shrinking import shrink
from planner.intra_op.tree import solve_tree

LEAST_DROPPED = 0.02
"""Share of the proof that fixing must drop before it is worth reducing anew."""

NARROWER = 0.9
"""Of the gap at the last fixing: what it must have come down to before more is fixed."""

SMALL, LARGE = 10_000, 400_000
"""Sizes of a proof that the integer program decides at once, and of one that may be parted into branches."""

REDUCING, RELAXING, SEARCHING = 0.5, 0.4, 0.3
"""Shares of the time left that go into the reductions, into one round of messages, and of search."""

FURTHEST = 0.3
"""Of the bound: how far above it steps of the prices aim at most, however dear the best choice is."""
PRICES_PER_LOOK = 50
"""Changes of the prices between two looks at the bound."""
LEAST_GAIN = 0.0003
"""Share by which the bound must rise between two looks for messages to go on."""
PATIENCE = 3.0
"""Times that the search goes through all nodes without success before it ends."""
DEARER = (1.02, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.4, 1.5)
"""Factors on the prices of memory under which choices are read off the messages: at prices where the bound is
best, a choice takes just too much as often as not."""
SWEEPS_WHEN_DEARER = 4

DEAR_MEMORY = 100.0
"""Price of a whole memory row, in largest costs, that makes memory come first."""


@dataclass(frozen=True, slots=True)
class NetworkAnswer:
    """A choice and what is proven about it."""

    choice: dict[int, int]
    """Strategy of each node, by its original number."""
    cost: float
    lower_bound: float
    """No choice that fits costs less."""


def solve_network(network: Network, deadline: float) -> NetworkAnswer:
    """The cheapest choice of ``network``, which is used up, that is found before the clock says ``deadline``.

    Costs are integers, so that a bound within one of the cost proves it; where the integer program decides,
    that is to the tolerance of its solver, about 1e-9 of the cost. A first choice is looked for even if that
    takes longer. Raises `Infeasible` where nothing fits, and `SolverStopped` where none was found in time.
    """
    now = time.monotonic()
    shrink(network, now + REDUCING * (deadline - now))
    solver = _Anytime(network, deadline)
    solver.run()
    if solver.found is None and solver.lower_bound < np.inf:
        shrink(network)
        solver = _Anytime(network, deadline)
        solver.run()
    if solver.found is None:
        if solver.lower_bound == np.inf:
            raise Infeasible("no choice of strategies is allowed and fits in memory")
        raise SolverStopped("no choice of strategies that fits was found in the time given; give it more")
    cost = solver.found.cost
    bound = cost if solver.lower_bound > cost - 1 else solver.lower_bound
    return NetworkAnswer(network.expand(solver.found.choice), cost, bound)


class _Anytime:
    """The best choice so far, in positions of the core, and the bound so far."""

    def __init__(self, core: Network, deadline: float) -> None:
        self.core = core
        self.deadline = deadline
        self.proof = core.copy()
        self.relaxation = Relaxation(self.proof, {})
        self.found: Found | None = None
        self.searches = 0
        self.lower_bound = core.constant
        self.fixed_at = np.inf
        """Gap between the best choice and the bound when the proof was last fixed."""
        self.looking = 0.0
        """Time that the last look for a choice took [s]."""

    def run(self) -> None:
        """Everything, in turns, until the best choice is proven or time is up."""
        try:
            self._start()
            while self._open() and self.proof.size > SMALL:
                self._relax(self._soon(RELAXING))
                self._fix()
                self._search(self._soon(SEARCHING))
                self._fix()
                if self.proof.size <= LARGE:
                    break
            if self._open():
                self._decide()
        except Infeasible:  # the proof is empty: nothing beats the best choice
            self.lower_bound = np.inf

    def _start(self) -> None:
        """A first bound and choice, whatever the time: off the costs, or off prices that put memory first."""
        self.relaxation.sweep()
        self._prove_by(self.relaxation.bound())
        self._look()
        if self.found is None:
            dear = DEAR_MEMORY * _largest_cost(self.core) / float(self.core.capacity.max(initial=1.0))
            frugal = Relaxation(self.proof, {int(row): dear for row in self.proof.rows})
            frugal.sweep()
            self._look(frugal)

    def _open(self) -> bool:
        unproven = self.found is None or self.lower_bound <= self.found.cost - 1
        return unproven and time.monotonic() < self.deadline

    def _soon(self, share: float) -> float:
        now = time.monotonic()
        return now + share * (self.deadline - now)

    def _relax(self, deadline: float) -> None:
        """Better messages and prices, as long as they close the gap fast enough."""
        gaining = True
        deadline -= self.looking
        while self._open() and time.monotonic() < deadline and gaining:
            before = self.relaxation.value()
            cost = self.found.cost if self.found else np.inf
            for _ in range(PRICES_PER_LOOK):
                value = self.relaxation.value()
                self.relaxation.reprice(value, min(cost, value + FURTHEST * max(abs(value), 1.0)))
                self.relaxation.sweep()
                if time.monotonic() > deadline:
                    break
            self._prove_by(self.relaxation.bound())
            self._look()
            gaining = self.relaxation.best > before + LEAST_GAIN * abs(before)
        self.relaxation.return_to_best()
        for factor in DEARER if self.relaxation.known_prices else ():
            if time.monotonic() < deadline:
                dearer = self.relaxation.with_dearer_memory(factor)
                for _ in range(SWEEPS_WHEN_DEARER):
                    dearer.sweep()
                self._look(dearer)

    def _prove_by(self, bound: Bound) -> None:
        self._prove(bound.value - MARGIN * abs(bound.value))

    def _prove(self, bound: float) -> None:
        self.lower_bound = max(self.lower_bound, bound)

    def _look(self, relaxation: Relaxation | None = None) -> None:
        """A choice read off the messages, if it is better than what we have."""
        start = time.monotonic()
        found = greedy(relaxation or self.relaxation)
        if found is not None:
            self._take(self.proof.expand(found.choice))
        self.looking = time.monotonic() - start

    def _take(self, choice: dict[int, int]) -> None:
        positions = {v: choice[v] for v in self.core.nodes}
        cost = self.core.cost(positions)
        if self.found is None or cost < self.found.cost:
            self.found = Found(positions, cost)

    def _search(self, deadline: float) -> None:
        if self.found is not None and self._open():
            self.searches += 1
            prices = self.relaxation.known_prices
            search = NeighbourhoodSearch(self.core, self.found, prices, self._regrets, self.searches)
            search.improve(deadline, PATIENCE)
            self.found = search.found

    def _regrets(self, found: Found) -> dict[int, float]:
        """Where a choice lies above the bound, as far as the proof still has its strategies."""
        gap = max(0.0, found.cost - self.lower_bound)
        labels = self.proof.labels
        known = {v: at for v in self.proof.nodes if (at := _position(labels[v], found.choice[v])) is not None}
        regrets = self.relaxation.regrets(known)
        # what is more than the whole gap comes of strategies and pairs that reductions replaced by others
        return {v: regret for v, regret in regrets.items() if regret <= gap}

    def _fix(self) -> None:
        """Drop from the proof what cannot be in a better choice, and reduce it again."""
        if self.found is None or not self._open():
            return
        if self.found.cost - self.lower_bound > NARROWER * self.fixed_at:
            return
        self.fixed_at = self.found.cost - self.lower_bound
        messages, prices = self.relaxation.messages, self.relaxation.known_prices
        labels, size = dict(self.proof.labels), self.proof.size
        self._prove(self.relaxation.fix(self.found.cost))
        much = self.proof.size < (1 - LEAST_DROPPED) * size
        shrink(self.proof, self._soon(REDUCING) if much else -np.inf)
        kept = {
            (v, w): messages[v, w][np.searchsorted(labels[v], self.proof.labels[v])]
            for v in self.proof.nodes
            for w in self.proof.tables[v]
            if (v, w) in messages
        }
        self.relaxation = Relaxation(self.proof, prices, kept)
        self.relaxation.sweep()

    def _decide(self) -> None:
        """Let branches and the integer program decide."""
        cutoff = self.found.cost if self.found else np.inf
        answer = solve_tree(self.proof, self.relaxation.known_prices, self.deadline, cutoff)
        if answer.choice is not None:
            self._take(answer.choice)
        self._prove(answer.lower_bound)


def _position(labels: Indices, label: int) -> int | None:
    at = int(np.searchsorted(labels, label))
    return at if at < labels.size and labels[at] == label else None


def _largest_cost(network: Network) -> float:
    tables = (t for v in network.nodes for t in (network.costs[v], *network.tables[v].values()))
    return max(float(t[np.isfinite(t)].max(initial=0.0)) for t in tables)

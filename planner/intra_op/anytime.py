"""Large networks solved as well as time allows: a choice that fits and a proven bound at any moment.

The network is reduced first. What is left, the *core*, is where choices are searched for; a copy of it, the
*proof*, loses in addition every strategy that no choice better than the best known can contain (reduced-cost
fixing), until the integer program can decide the rest. Every choice below the best known cost is in the proof,
so the smaller of that cost and the bound of the proof is a bound of the whole.
"""

import time
from dataclasses import dataclass

import numpy as np

from planner.errors import Infeasible, SolverStopped
from planner.intra_op.local_polytope import solve_program
from planner.intra_op.messages import Bound, Relaxation
from planner.intra_op.neighbourhood import Found, NeighbourhoodSearch, greedy
from planner.intra_op.network import Network
from planner.intra_op.problem import Array
from planner.intra_op.shrinking import Mask, shrink

SMALL_PROGRAM, LARGE_PROGRAM = 100_000, 600_000
"""Entries of a proof that the integer program decides at once, and of one that it may be tried on at all."""

REDUCING, RELAXING, SEARCHING = 0.5, 0.25, 0.5
"""Shares of the time left that go into the reductions, into one round of messages, and of search."""

SWEEPS_PER_PRICE = 3
PRICES_PER_CHOICE = 8
FIRST_PATIENCE, PATIENCE = 5, 25
"""Changes of the prices without a better bound, after which messages wait for a better choice, or first for the
integer program: often they have proven the optimum by then, in a fraction of its time."""
LEAST_DROPPED = 0.02
"""Share of the strategies that fixing must drop before the proof is reduced anew."""

DEAR_MEMORY = 100.0
"""Price of a whole memory row, in largest costs, that makes memory come first."""

MARGIN = 1e-9
"""Relative rounding allowed to bounds before a strategy goes."""


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
        self.lower_bound = core.constant

    def run(self) -> None:
        """Everything, in turns, until the best choice is proven or time is up."""
        try:
            self._start()
            if self._open():
                self._relax(self._soon(RELAXING), FIRST_PATIENCE)
                self._fix()
            if self.proof.entries > SMALL_PROGRAM:
                self._take_turns()
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

    def _take_turns(self) -> None:
        """Messages, search and fixing, until the proof is small or there is just time left for a program."""
        turns = 0
        while self._open() and self.proof.entries > SMALL_PROGRAM:
            self._relax(self._soon(RELAXING))
            self._search(self._soon(SEARCHING))
            self._fix()
            turns += 1
            if turns > 1 and self.proof.entries <= LARGE_PROGRAM:
                return

    def _soon(self, share: float) -> float:
        now = time.monotonic()
        return now + share * (self.deadline - now)

    def _relax(self, deadline: float, patience: int = PATIENCE) -> None:
        rounds = since_better = 0
        while rounds == 0 or (self._open() and since_better < patience and time.monotonic() < deadline):
            self.relaxation.sweep()
            bound = self.relaxation.bound()
            since_better = 0 if bound.value > self.lower_bound else since_better + 1
            self._prove_by(bound)
            if rounds % PRICES_PER_CHOICE == 0:
                self._look()
            target = self.found.cost if self.found else bound.value + abs(bound.value)
            self.relaxation.reprice(bound.value, target)
            for _ in range(SWEEPS_PER_PRICE - 1):
                self.relaxation.sweep()
            rounds += 1

    def _prove_by(self, bound: Bound) -> None:
        self._prove(bound.value - MARGIN * abs(bound.value))

    def _prove(self, bound: float) -> None:
        self.lower_bound = max(self.lower_bound, bound)

    def _look(self, relaxation: Relaxation | None = None) -> None:
        """A choice read off the messages, if it is better than what we have."""
        found = greedy(relaxation or self.relaxation)
        if found is not None:
            self._take(self.proof.expand(found.choice))

    def _take(self, choice: dict[int, int]) -> None:
        positions = {v: choice[v] for v in self.core.nodes}
        cost = self.core.cost(positions)
        if self.found is None or cost < self.found.cost:
            self.found = Found(positions, cost)

    def _search(self, deadline: float) -> None:
        if self.found is not None and self._open():
            search = NeighbourhoodSearch(self.core, self.found)
            search.improve(deadline)
            self.found = search.found

    def _fix(self) -> None:
        """Drop from the proof what cannot be in a better choice, and reduce it again."""
        if self.found is None:
            return
        bound, cost = self.relaxation.bound(), self.found.cost
        kept = {v: _may_be_better(bound, margins, cost) for v, margins in bound.margins.items()}
        dropped = sum(int((~mask).sum()) for mask in kept.values())
        if dropped < LEAST_DROPPED * sum(mask.size for mask in kept.values()):
            return  # new messages would cost more than that is worth
        for v, mask in kept.items():
            self.proof.keep(v, np.flatnonzero(mask))
        shrink(self.proof, self._soon(REDUCING))
        self.relaxation = Relaxation(self.proof, self.relaxation.known_prices)

    def _decide(self) -> None:
        """Let the integer program decide."""
        cutoff = self.found.cost if self.found else np.inf
        answer = solve_program(self.proof, self.deadline, cutoff)
        if answer.choice is not None:
            self._take(self.proof.expand(answer.choice))
        self._prove(answer.lower_bound)


def _largest_cost(network: Network) -> float:
    tables = (t for v in network.nodes for t in (network.costs[v], *network.tables[v].values()))
    return max(float(t[np.isfinite(t)].max(initial=0.0)) for t in tables)


def _may_be_better(bound: Bound, margins: Array, cost: float) -> Mask:
    least = bound.value - MARGIN * abs(bound.value) + margins
    return np.asarray(least <= cost - 1)

"""Networks of few nodes with many strategies each under a memory limit: only those that a cheap choice can contain.

Messages and prices on memory give a bound, and by how much each strategy lifts it (`planner.intra_op.messages`). Where
the choice that they favour fits and costs no more than the bound, it is the best. Otherwise strategies within a small
*slack* of the bound make a small network. Whatever contains another one costs more than the bound and the slack, so an
optimum of the small network below that is one of the whole; else the slack grows, to no more than the best choice
needs. This is reduced-cost fixing with a guess in the place of a known choice. What memory does not limit, or no longer
does in such a part, is solved without prices (`planner.intra_op.unlimited`).

Source: Kolmogorov, "A new look at reweighted message passing", IEEE PAMI 37 (2015), for the messages.
"""

import time

import numpy as np

from planner.errors import Infeasible, SolverStopped
from planner.intra_op.answers import NetworkAnswer
from planner.intra_op.anytime import solve_network
from planner.intra_op.ascent import FURTHEST, PRICES_PER_LOOK
from planner.intra_op.bounds import Bound
from planner.intra_op.compact import Compact
from planner.intra_op.folding import fold
from planner.intra_op.liveness import demand, one_hot, settle, violated
from planner.intra_op.messages import MARGIN, Relaxation
from planner.intra_op.network import Network
from planner.intra_op.shrinking import shrink
from planner.intra_op.unlimited import solve_unlimited

FIRST_SLACK, GROWTH = 3e-4, 20.0
"""Of the bound; and by what the slack is multiplied where it was too small."""

NEAR = 4.0
"""Slacks that a choice may cost more than the bound for the next part to need no better one."""

LAST_SLACK = 2.0
"""Beyond which nothing is left out any more."""

LEAST_GAIN = 3e-3
"""Of the bound: the gain by so many changes of prices for which there are more of them."""

SHARE = 0.5
"""Of the time left, what a part may take."""


def solve_narrowed(network: Network, deadline: float) -> NetworkAnswer:
    """As `planner.intra_op.anytime.solve_network`, by way of ever larger parts of the strategies."""
    if isinstance(network, Compact):
        settle(network)
    else:
        shrink(network, 0.0)  # arc consistency alone, which the messages need
    if not network.rows.size:
        return _without_memory(network, deadline)
    if isinstance(network, Compact):
        fold(network)
        network.propagate()
    return _under_memory(_Known(network, deadline), deadline)


def _under_memory(known: "_Known", deadline: float) -> NetworkAnswer:
    slack, near = FIRST_SLACK, False
    while slack < LAST_SLACK and time.monotonic() < deadline:
        if not near:
            known.tighten()
        if known.proven:
            return known.whole()
        target = known.least + slack * abs(known.least)
        if known.best and known.within(2 * slack):
            target = known.best.cost  # the next part would go as far: what this one gives is the best
        answer = _within(known, target, time.monotonic() + SHARE * (deadline - time.monotonic()))
        known.take(answer)
        known.outside(target, answer.lower_bound)
        if known.proven:
            return known.whole()
        if answer.cost <= target:
            break
        near = known.within(NEAR * slack)
        slack *= GROWTH
    if known.best is None:
        answer = solve_network(_unnarrowed(known.network), deadline)
    else:
        answer = _within(known, known.best.cost, deadline)
    known.take(answer)
    known.outside(np.inf if known.best is None else known.best.cost, answer.lower_bound)
    return known.whole()


class _Known:
    """What messages say of a network so far: a bound, and the best choice, in positions of the network."""

    def __init__(self, network: Network, deadline: float) -> None:
        self.network, self.deadline = network, deadline
        self.relaxation = Relaxation(network, {})
        self._bound = Bound(-np.inf, {})
        self.best: NetworkAnswer | None = None
        self.least = -np.inf
        """What every choice costs at least, rounding allowed for."""
        self.most = _dearest(network)
        """No choice costs more: where prices on memory prove that every one does, there is none."""

    def within(self, slack: float) -> bool:
        """Whether a choice is known that costs at most so much, of the bound, above the bound."""
        return self.best is not None and self.best.cost <= self.least + slack * abs(self.least)

    @property
    def wanted(self) -> float:
        """What a choice may cost that is worth looking for."""
        return np.inf if self.best is None else self.best.cost - 1

    def outside(self, target: float, inside: float) -> None:
        """A part has nothing below ``inside``, and what it leaves out nothing up to ``target``."""
        self.least = max(self.least, min(target, inside))

    @property
    def proven(self) -> bool:
        """Nothing is better than the best choice; costs are whole numbers."""
        return self.best is not None and self.least > self.best.cost - 1

    def tighten(self) -> None:
        """More messages, and prices on memory, while they help."""
        value, helps = 0.0, True
        while helps and value <= min(self.most, self.wanted):
            before, value = value, self._price()
            helps = value - before > LEAST_GAIN * abs(value) and time.monotonic() <= self.deadline
        self.least = max(self.least, value - MARGIN * abs(value))
        if self.least > self.most:
            # Which can mostly say by how much memory is short.
            shrink(_unnarrowed(self.network), self.deadline)
            raise Infeasible("no choice of strategies fits in memory")
        if not self.proven:
            improved = self.relaxation.improve(self.relaxation.decode())
            self._consider(improved, self.network.cost(improved))

    def margins(self) -> Bound:
        """The best bound so far, and by how much each strategy lifts it."""
        self._bound = max(self._bound, self.relaxation.bound(), key=lambda bound: bound.value)
        return self._bound

    def _price(self) -> float:
        for _ in range(PRICES_PER_LOOK):
            self.relaxation.sweep()
            value = self.relaxation.value()
            self.relaxation.reprice(value, value + FURTHEST * abs(value))
            if time.monotonic() > self.deadline:
                break
        self.relaxation.sweep()
        self._consider(*self.relaxation.priced_decode())
        self.relaxation.return_to_best()
        return self.relaxation.best

    def take(self, answer: NetworkAnswer) -> None:
        """An answer to the whole or a part."""
        if answer.cost < (np.inf if self.best is None else self.best.cost):
            self.best = answer

    def whole(self) -> NetworkAnswer:
        """The best choice by the original numbers of its strategies."""
        assert self.best is not None
        bound = self.best.cost if self.proven else self.least
        return NetworkAnswer(self.network.expand(self.best.choice), self.best.cost, bound)

    def _consider(self, choice: dict[int, int], cost: float) -> None:
        """Take a choice that the messages favour, right after a sweep, if it is better than what we have."""
        if np.isfinite(cost) and self._fits(choice):
            self.take(NetworkAnswer(choice, cost, -np.inf))

    def _fits(self, choice: dict[int, int]) -> bool:
        network = self.network
        return not network.rows.size or not violated(network, demand(network, one_hot(network, choice)))


def _unnarrowed(network: Network) -> Network:
    """One to be reduced, of all strategies."""
    return network.narrowed({v: np.arange(costs.size) for v, costs in network.costs.items()})


def _dearest(network: Network) -> float:
    """The sum of all that is dearest."""
    pairs = (t for v, tables in network.tables.items() for w, t in tables.items() if v < w)
    return sum(float(t.max(where=np.isfinite(t), initial=0.0)) for t in (*network.costs.values(), *pairs))


def _within(known: _Known, target: float, deadline: float) -> NetworkAnswer:
    """The best choice of strategies that may cost at most ``target``, in positions of the network.

    It costs ``inf`` where there is none, or none was found; the bound says which.
    """
    value, margins = known.margins()
    below = np.inf if known.best is None else known.best.cost
    try:
        part = known.network.narrowed({v: np.flatnonzero(value + m <= target) for v, m in margins.items()})
        shrink(part, deadline)
        if part.rows.size:
            return solve_network(part, deadline, below, known.relaxation.known_prices)
        return _without_memory(part, deadline, min(target + 1, below))
    except Infeasible:
        return NetworkAnswer({}, np.inf, below)
    except SolverStopped:
        return NetworkAnswer({}, np.inf, -np.inf)


def _without_memory(network: Network, deadline: float, below: float = np.inf) -> NetworkAnswer:
    """The cheapest choice of a network that no memory limits, by original numbers; ``inf`` if it is not ``below``."""
    if isinstance(network, Compact):
        return solve_unlimited(network, deadline, below)
    answer = solve_unlimited(Compact.of(network), deadline, below)
    choice = network.expand(answer.choice) if answer.cost < np.inf else {}
    return NetworkAnswer(choice, answer.cost, answer.lower_bound)

"""Networks of few nodes with many strategies each: only those are looked at that a cheap choice can contain.

Messages give a bound, and by how much each strategy lifts it (`planner.intra_op.messages`). Where the choice that they
favour costs no more than the bound, it is the best. Otherwise strategies within a small *slack* of the bound make a
small network. Whatever contains another one costs more than the bound and the slack, so an optimum of the small network
below that is one of the whole; else the slack grows, to no more than the best choice needs, and messages go on. This is
reduced-cost fixing with a guess in the place of a known choice. Where memory does not bind, more messages settle most
small networks, and node by node what frontiers can take decides the others (`planner.intra_op.frontier`), or those
near whose best choice messages are slow; a better choice that frontiers find without a proof makes the network smaller
still.

Source: Kolmogorov, "A new look at reweighted message passing", IEEE PAMI 37 (2015), for the messages; Nesterov, "A
method for solving the convex programming problem with convergence rate O(1/k^2)", Soviet Mathematics Doklady 27 (1983),
and O'Donoghue and Candes, "Adaptive restart for accelerated gradient schemes", Foundations of Computational Mathematics
15 (2015), for how far they go beyond each sweep.
"""

import time
from dataclasses import replace
from functools import cached_property

import numpy as np

from planner.errors import Infeasible, SolverStopped
from planner.intra_op.answers import NetworkAnswer
from planner.intra_op.anytime import solve_network
from planner.intra_op.ascent import FURTHEST, PRICES_PER_LOOK
from planner.intra_op.compact import Compact
from planner.intra_op.folding import fold
from planner.intra_op.frontier import cheapest, order
from planner.intra_op.liveness import demand, one_hot, settle, violated
from planner.intra_op.messages import MARGIN, Bound, Messages, Relaxation
from planner.intra_op.network import Network
from planner.intra_op.shrinking import drop_forbidden, shrink

FIRST_SLACK, FIRST_SLACK_UNDER_MEMORY = 3e-3, 3e-4
GROWTH, GROWTH_UNDER_MEMORY = 5.0, 20.0
"""Of the bound; and by what the slack is multiplied where it was too small: parts are solved fast without memory."""

NEAR = 4.0
"""Slacks that a choice may cost more than the bound for the next part to need no better one, under memory."""

LAST_SLACK = 2.0
"""Beyond which nothing is left out any more."""

SWEEPS = 5
"""Between two looks at whether more of them help."""

NEARLY = 0.03
"""Of the bound: a sweep that lifts it by more is followed by another before a choice is read off the messages."""

SWEEPS_ALONG = 2
"""Of messages in the order in which frontiers go, before these do."""

STATES = 2**10, 2**14, 2**18
"""Of one frontier: of few the cheapest make a good choice soon; more are tried where they make none."""

CLOSING = 0.05
"""Of what is left to the best choice, or the most that a part may cost: the gain by so many sweeps for which there are
more of them."""

RECENT, MANY = 3, 16
"""Of the first sweeps, the last ones, which say how fast the bound nears a close choice; and how many more at this rate
take longer than frontiers. Later the rate says little: the last part of what is left mostly goes at once."""

LEAST_GAIN, LEAST_GAIN_UNDER_MEMORY = 1e-4, 3e-3
"""The same of the bound where there is no such choice, or by so many changes of prices."""

SHARE = 0.5
"""Of the time left, what a part under memory may take."""


def solve_narrowed(network: Network, deadline: float) -> NetworkAnswer:
    """As `planner.intra_op.anytime.solve_network`, by way of ever larger parts of the strategies."""
    if isinstance(network, Compact):
        settle(network)
        fold(network)
        network.propagate()
    else:
        shrink(network, 0.0)  # arc consistency alone, which the messages need
    known = _Known(network, deadline)
    limited = network.rows.size > 0
    slack, growth = (FIRST_SLACK_UNDER_MEMORY, GROWTH_UNDER_MEMORY) if limited else (FIRST_SLACK, GROWTH)
    near = False
    while slack < LAST_SLACK and time.monotonic() < deadline:
        if not near:
            known.tighten()
        if known.proven:
            return known.whole()
        target = known.least + slack * abs(known.least)
        if known.best and known.within((2 if limited else growth) * slack):
            target = known.best.cost  # the next part would go as far: what this one gives is the best
        soon = time.monotonic() + SHARE * (deadline - time.monotonic())
        answer = _within(known, target, soon if limited else deadline)
        known.take(answer)
        known.outside(target, answer.lower_bound)
        if known.proven:
            return known.whole()
        if answer.cost <= target:
            break
        near = limited and known.within(NEAR * slack)
        slack *= growth
    if known.best is None:
        answer = solve_network(_unnarrowed(network), deadline)
    else:
        answer = _within(known, known.best.cost, deadline)
    known.take(answer)
    known.outside(np.inf if known.best is None else known.best.cost, answer.lower_bound)
    return known.whole()


class _Known:
    """What messages say of a network so far: a bound, and the best choice, in positions of the network."""

    def __init__(self, network: Network, deadline: float, messages: Messages | None = None) -> None:
        self.network, self.deadline = network, deadline
        self._messages = messages or {}
        self.limit = np.inf
        """What is looked for costs at most so much."""
        self.pace = 0
        """Sweeps since the bound last fell."""
        self.values = list[float]()
        """The best bound after each sweep."""
        self._bound = Bound(-np.inf, {})
        self.best: NetworkAnswer | None = None
        self.least = -np.inf
        """What every choice costs at least, rounding allowed for."""
        self.most = _dearest(network) if network.rows.size else np.inf
        """No choice costs more: where prices on memory prove that every one does, there is none."""

    @cached_property
    def relaxation(self) -> Relaxation:
        """Messages and prices, laid out only where some are sent."""
        return Relaxation(self.network, {}, self._messages)

    @property
    def messages(self) -> Messages:
        """The last ones: those to start from, where none were sent since."""
        return self.relaxation.messages if self.values else self._messages

    def within(self, slack: float) -> bool:
        """Whether a choice is known that costs at most so much, of the bound, above the bound."""
        return self.best is not None and self.best.cost <= self.least + slack * abs(self.least)

    @property
    def wanted(self) -> float:
        """What a choice may cost that is worth looking for."""
        return self.limit if self.best is None else min(self.limit, self.best.cost - 1)

    def outside(self, target: float, inside: float) -> None:
        """A part has nothing below ``inside``, and what it leaves out nothing up to ``target``."""
        self.least = max(self.least, min(target, inside))

    @property
    def proven(self) -> bool:
        """Nothing is better than the best choice; costs are whole numbers."""
        return self.best is not None and self.least > self.best.cost - 1

    @property
    def is_slow(self) -> bool:
        """Whether the first sweeps leave little to a choice, but need many more to close it at their rate."""
        if self.best is None or not RECENT < len(self.values) == SWEEPS:
            return False
        was, left = (self.best.cost - value for value in (self.values[-1 - RECENT], self.values[-1]))
        near = left <= 2 * FIRST_SLACK * abs(self.values[-1])
        return bool(near and left > 1 and RECENT * np.log(left) > MANY * np.log(was / left))

    def tighten(self) -> None:
        """More messages, and prices on memory, while they help."""
        lift = self._price if self.relaxation.rows.size else self._sweep
        value, helps = 0.0, True
        while helps and value <= min(self.most, self.wanted):
            before, value = value, lift()
            helps = value - before > self._enough(value) and time.monotonic() <= self.deadline
            helps = helps and not self.is_slow
        self.least = max(self.least, value - MARGIN * abs(value))
        if self.least > self.most:
            # Which can mostly say by how much memory is short.
            shrink(_unnarrowed(self.network), self.deadline)
            raise Infeasible("no choice of strategies fits in memory")
        if not self.proven:
            improved = self.relaxation.improve(self.relaxation.decode())
            self._consider(improved, self.network.cost(improved))

    def _enough(self, value: float) -> float:
        """The gain for which there are more messages, where the bound is this."""
        if self.relaxation.rows.size:
            return LEAST_GAIN_UNDER_MEMORY * abs(value)
        left = self.wanted - value
        return CLOSING * left if np.isfinite(left) else LEAST_GAIN * abs(value)

    def margins(self) -> Bound:
        """The best bound so far, and by how much each strategy lifts it."""
        self._bound = max(self._bound, self.relaxation.bound(), key=lambda bound: bound.value)
        return self._bound

    def _sweep(self) -> float:
        """Several, each from farther beyond the last ones, the longer the bound has not fallen (Nesterov)."""
        relaxation = self.relaxation
        for _ in range(SWEEPS):
            before = relaxation.best
            relaxation.go_beyond(self.pace / (self.pace + 2))
            relaxation.sweep()
            value = relaxation.keep_best()
            self.values.append(value)
            self.pace = self.pace + 1 if value > before else 0
            if value - before < NEARLY * abs(value):
                self._consider(*relaxation.priced_decode())
            if value > self.wanted or time.monotonic() > self.deadline:
                break
        return relaxation.best

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
    messages: Messages = {}
    try:
        part = known.network.narrowed({v: np.flatnonzero(value + m <= target) for v, m in margins.items()})
        if part.rows.size:
            shrink(part, deadline)
        else:
            drop_forbidden(part)
            messages = known.relaxation.seen_in(part)
        if part.rows.size:
            return solve_network(part, deadline, below, known.relaxation.known_prices)
        return _without_memory(known, part, messages, min(target, below - 1))
    except Infeasible:
        return NetworkAnswer({}, np.inf, below)
    except SolverStopped:
        return NetworkAnswer({}, np.inf, -np.inf)


def _without_memory(whole: _Known, part: Network, messages: Messages, target: float) -> NetworkAnswer:
    """The best choice of at most ``target``: by messages, else along frontiers, or by guesses of the cost.

    A better choice that frontiers find without a proof leaves a smaller part, where messages and frontiers go on.
    """
    known = _Known(part, whole.deadline, messages)
    known.limit = target
    if not whole.is_slow:
        known.tighten()
    wanted = known.wanted
    proven = known.proven or known.least > target or _along_frontiers(known)
    if not proven and known.wanted < wanted:
        rest = _within(known, known.wanted, known.deadline)
        known.take(rest)
        best = known.whole()
        return replace(best, lower_bound=min(best.cost, rest.lower_bound))
    answer = NetworkAnswer({}, np.inf, np.inf)
    if known.best is not None and known.best.cost <= target:
        answer = replace(known.whole(), lower_bound=known.best.cost)
    if proven:
        return answer
    whole.take(answer)
    shrink(part, whole.deadline)
    return solve_network(part, whole.deadline, known.wanted + 1)


def _along_frontiers(known: _Known) -> bool:
    """Take the first choice that is better, by messages that run as the frontier does; whether there is no other."""
    nodes = order(known.network)
    number = {v: k for k, v in enumerate(nodes)}
    network, sent = known.network.renumbered(nodes), known.messages
    relaxation = Relaxation(network, {}, {(number[v], number[w]): m for (v, w), m in sent.items()})
    for _ in range(SWEEPS_ALONG):
        relaxation.sweep()
    relaxation.absorb()
    for most in STATES:
        found, proven = cheapest(network, known.wanted, most, known.deadline)
        if found is not None:
            choice = {nodes[k]: strategy for k, strategy in found.items()}
            known.take(NetworkAnswer(choice, known.network.cost(choice), -np.inf))
        if proven or found is not None:
            break
    return proven

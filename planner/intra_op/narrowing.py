"""Networks of few nodes with many strategies each: only those are looked at that a cheap choice can contain.

Messages give a bound, and by how much each strategy lifts it (`planner.intra_op.messages`). Strategies within a
small *slack* of the bound make a small network. Whatever contains another one costs more than the bound and the
slack, so an optimum of the small network below that is one of the whole; else the slack grows, to no more than the
best choice needs, and messages go on. This is reduced-cost fixing with a guess in the place of a known choice. What
the small network leaves to decide is eliminated node by node where memory does not bind and tables stay small.

Source: Kolmogorov, "A new look at reweighted message passing", IEEE PAMI 37 (2015), for the messages.
"""

import time

import numpy as np

from planner.errors import Infeasible, SolverStopped
from planner.intra_op.anytime import NetworkAnswer, solve_network
from planner.intra_op.elimination import Tables, TooWide, eliminate_all
from planner.intra_op.messages import MARGIN, Bound, Relaxation
from planner.intra_op.network import Network
from planner.intra_op.shrinking import shrink

FIRST_SLACK, GROWTH, GROWTH_UNDER_MEMORY = 3e-4, 5.0, 20.0
"""Of the bound; and by what the slack is multiplied where it was too small: parts are solved fast without memory."""

LAST_SLACK = 2.0
"""Beyond which nothing is left out any more."""

SWEEPS = 3
LEAST_GAIN = 3e-3
"""Relative gain of the bound by so many sweeps for which there are more of them."""


def solve_narrowed(network: Network, deadline: float) -> NetworkAnswer:
    """As `planner.intra_op.anytime.solve_network`, by way of ever larger parts of the strategies."""
    shrink(network, 0.0)  # arc consistency alone, which the messages need
    relaxation = Relaxation(network, {})
    relaxation.sweep()
    best: NetworkAnswer | None = None
    slack, bound = FIRST_SLACK, relaxation.bound()
    while slack < LAST_SLACK and time.monotonic() < deadline:
        bound = _tightened(relaxation, bound)
        least = bound.value - MARGIN * abs(bound.value)
        target = least + slack * abs(least)
        if best and best.cost <= target + slack * abs(least):
            target = best.cost  # not far above: then whatever the part gives is the best
        answer = _within(network, bound, target, deadline)
        if answer is not None:
            best = answer if best is None or answer.cost < best.cost else best
            if answer.cost <= target:
                return _whole(network, best, max(least, answer.lower_bound))
        slack *= GROWTH_UNDER_MEMORY if network.rows.size else GROWTH
    answer = solve_network(network.copy(), deadline)
    return _whole(network, min(answer, best or answer, key=lambda a: a.cost), answer.lower_bound)


def _whole(network: Network, answer: NetworkAnswer, lower_bound: float) -> NetworkAnswer:
    return NetworkAnswer(network.expand(answer.choice), answer.cost, min(lower_bound, answer.cost))


def _tightened(relaxation: Relaxation, bound: Bound) -> Bound:
    """The bound after more messages, and prices on memory, while they help."""
    gain = np.inf
    while gain > LEAST_GAIN:
        for _ in range(SWEEPS):
            relaxation.sweep()
        new = relaxation.bound()
        gain = new.value / bound.value - 1 if bound.value > 0 else 0.0
        bound = max(bound, new, key=lambda b: b.value)
        if relaxation.rows.size:
            relaxation.reprice(new.value, (1 + LEAST_GAIN) * new.value)
    return bound


def _within(network: Network, bound: Bound, target: float, deadline: float) -> NetworkAnswer | None:
    """The best choice of strategies that may cost at most ``target``, in positions of ``network``."""
    part = network.copy()
    try:
        for v, margins in bound.margins.items():
            part.keep(v, np.flatnonzero(bound.value + margins <= target))
        shrink(part, deadline)
        try:
            return _eliminated(part)
        except TooWide:
            return solve_network(part, deadline)
    except (Infeasible, SolverStopped):
        return None


def _eliminated(network: Network) -> NetworkAnswer:
    """The optimum by dynamic programming; raises `TooWide` where memory binds or tables would grow too large."""
    if network.rows.size:
        raise TooWide
    nodes = sorted(network.nodes)
    at = {v: k for k, v in enumerate(nodes)}
    tables: Tables = {(at[v],): network.costs[v] for v in nodes}
    tables |= {(at[v], at[w]): t for v in nodes for w, t in network.tables[v].items() if v < w}
    done = eliminate_all([network.costs[v].size for v in nodes], tables)
    cost = network.constant + done.constant
    if not np.isfinite(cost):
        raise Infeasible("no choice of strategies is allowed")
    return NetworkAnswer(network.expand(dict(zip(nodes, done.choice, strict=True))), cost, cost)

"""Networks of few nodes with many strategies each under a memory limit: only those that a cheap choice can contain.

Messages and prices on memory give a bound, and by how much each strategy lifts it (`planner.intra_op.messages`). Where
the choice that they favour fits and costs no more than the bound, it is the best. Otherwise strategies within a small
*slack* of the bound make a *part*. Whatever contains another one costs more than the bound and the slack, so an optimum
of the part below that is one of the whole; else the slack grows, to no more than the best choice needs. This is
reduced-cost fixing with a guess in the place of a known choice.

The bound of the whole is that of a mixture: cheap choices that take too much memory, and dear ones that take little.
A part has the dear ones no more, so that messages and prices in it (`planner.intra_op.parts`) reach a far higher bound.

Source: Kolmogorov, "A new look at reweighted message passing", IEEE PAMI 37 (2015), for the messages.
"""

from dataclasses import replace

import numpy as np

from planner.errors import Infeasible
from planner.intra_op import clock
from planner.intra_op.answers import NetworkAnswer, combined
from planner.intra_op.anytime import solve_network
from planner.intra_op.compact import Compact
from planner.intra_op.folding import fold
from planner.intra_op.liveness import settle
from planner.intra_op.messages import Relaxation
from planner.intra_op.network import Network
from planner.intra_op.parts import ascend, cheapest_within
from planner.intra_op.shrinking import shrink
from planner.intra_op.unlimited import solve_unlimited

FIRST_SLACK, GROWTH = 5e-3, 3.0
"""Of the bound; and by what the slack is multiplied where it was too small."""

NEAR = 3.0
"""Slacks above the bound within which all that is of use lies, for the next part to reach as far: what it gives is the
best."""

LAST_SLACK = 2.0
"""Beyond which nothing is left out any more but what costs more than a known choice."""

SHARE = 0.5
"""Of the time left, what a part may take."""


def solve_narrowed(
    network: Network, deadline: float, most: float = np.inf, largest: float = np.inf
) -> NetworkAnswer:
    """As `planner.intra_op.anytime.solve_network`, by way of ever larger parts of the strategies.

    Where only a choice that costs at most so much is of use, a dearer one may be given where there is none, or none at
    ``inf``. Raises `planner.intra_op.parts.TooLarge` where memory leaves a part of more than ``largest`` entries.
    """
    if not isinstance(network, Compact):
        answer = solve_narrowed(Compact.of(network), deadline, most, largest)
        return replace(answer, choice=network.expand(answer.choice) if answer.choice else {})
    settle(network)
    if not network.rows.size:
        return solve_unlimited(network, deadline, most + 1)
    fold(network)
    network.propagate()
    return _under_memory(network, deadline, most, largest)


def _under_memory(network: Compact, deadline: float, most: float, largest: float) -> NetworkAnswer:
    relaxation, dearest = Relaxation(network, {}), _dearest(network)
    best = ascend(network, relaxation, min(most, dearest), deadline)
    if best.lower_bound > dearest:
        shrink(network.written_out(), deadline)  # which can mostly say by how much memory is short
        raise Infeasible("no choice fits in memory")
    bound, prices, slack = relaxation.bound(), relaxation.known_prices, FIRST_SLACK
    while not best.proven and best.lower_bound <= most and slack < LAST_SLACK and clock.now() < deadline:
        least, now = best.lower_bound, clock.now()
        useful = min(most, best.cost - 1)
        near = least + NEAR * slack * abs(least)
        target = useful if useful <= near else min(useful, np.floor(least + slack * abs(least)))
        until = deadline if target == useful else now + SHARE * (deadline - now)
        enough = near if target < useful else -np.inf
        best = combined(cheapest_within(network, bound, least, target, prices, until, largest, enough), best)
        if best.lower_bound <= target:  # its time was up, and what follows would be larger
            if target == useful:
                return best
            break
        slack *= GROWTH
    if best.proven or best.lower_bound > most:
        return best
    if best.cost == most == np.inf:
        answer = solve_network(network.written_out(), deadline)
        return NetworkAnswer(network.expand(answer.choice), answer.cost, answer.lower_bound)
    most = min(most, best.cost - 1)
    return combined(cheapest_within(network, bound, best.lower_bound, most, prices, deadline, largest), best)


def _dearest(network: Network) -> float:
    """The sum of all that is dearest: where prices on memory prove that every choice costs more, there is none."""
    pairs = (t for v, tables in network.tables.items() for w, t in tables.items() if v < w)
    return sum(float(t.max(where=np.isfinite(t), initial=0.0)) for t in (*network.costs.values(), *pairs))

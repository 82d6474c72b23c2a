"""A first choice that fits, cheap enough to be looked for before a network is reduced.

Whatever the reductions and all that follows then take, there is an answer. It is read off messages, by the costs or,
where that fits nowhere, by prices that put memory first.
"""

import numpy as np

from planner.intra_op import clock
from planner.intra_op.forward_checking import look_ahead
from planner.intra_op.liveness import settle
from planner.intra_op.messages import MARGIN, Relaxation
from planner.intra_op.neighbourhood import Found, greedy
from planner.intra_op.network import Network
from planner.intra_op.shrinking import drop_forbidden

DEAR_MEMORY = 100.0
"""Price of a whole memory row, in largest costs, that makes memory come first."""


def first_choice(network: Network, deadline: float) -> tuple[Found | None, float]:
    """A choice that fits, if one is easily found, and a bound; of ``network``, which becomes arc consistent.

    It is looked for even if that takes longer than the ``deadline``, but then in the way that fails least.
    Raises `Infeasible` where no strategy of some node is left, or where even the least memory is too much.
    """
    settle(network)
    drop_forbidden(network)
    relaxation = Relaxation(network, {})
    start = relaxation.snapshot()
    relaxation.sweep()
    value = relaxation.value()
    found = greedy(relaxation, deadline) if clock.now() < deadline else None
    if found is None:
        relaxation.restore(start)
        found = frugal(relaxation, deadline)
    return found, value - MARGIN * abs(value)


def frugal(relaxation: Relaxation, deadline: float) -> Found | None:
    """A choice that fits, read off prices that put memory first; with a look at what it forces, where that fails.

    That look comes first where there is no time for both. The ``relaxation`` must be as it was made, and has those
    prices afterwards.
    """
    network = relaxation.network
    dear = DEAR_MEMORY * _largest_cost(network) / float(network.capacity.max(initial=1.0))
    relaxation.restore(relaxation.snapshot()._replace(prices=np.full(network.rows.size, dear)))
    relaxation.sweep()
    if clock.now() > deadline:
        return look_ahead(relaxation) or greedy(relaxation)
    return greedy(relaxation, deadline) or look_ahead(relaxation)


def _largest_cost(network: Network) -> float:
    tables = (t for v in network.nodes for t in (network.costs[v], *network.tables[v].values()))
    return max((float(t[np.isfinite(t)].max(initial=0.0)) for t in tables), default=0.0)

"""A first choice that fits, cheap enough to be looked for before a network is reduced.

Whatever the reductions and all that follows then take, there is an answer. It is read off messages, by the costs or,
where that fits nowhere, by prices that put memory first.
"""

import numpy as np

from planner.intra_op.forward_checking import look_ahead
from planner.intra_op.liveness import settle
from planner.intra_op.messages import MARGIN, Relaxation
from planner.intra_op.neighbourhood import Found, greedy
from planner.intra_op.network import Network
from planner.intra_op.shrinking import drop_forbidden

DEAR_MEMORY = 100.0
"""Price of a whole memory row, in largest costs, that makes memory come first."""


def first_choice(network: Network) -> tuple[Found | None, float]:
    """A choice that fits, if one is easily found, and a bound; of ``network``, which becomes arc consistent.

    Raises `Infeasible` where no strategy of some node is left, or where even the least memory is too much.
    """
    settle(network)
    drop_forbidden(network)
    relaxation = Relaxation(network, {})
    relaxation.sweep()
    value = relaxation.value()
    return greedy(relaxation) or frugal(network), value - MARGIN * abs(value)


def frugal(network: Network) -> Found | None:
    """A choice that fits, read off prices that put memory first; with a look at what it forces, where that fails."""
    dear = DEAR_MEMORY * _largest_cost(network) / float(network.capacity.max(initial=1.0))
    relaxation = Relaxation(network, {int(row): dear for row in network.rows})
    relaxation.sweep()
    return greedy(relaxation) or look_ahead(relaxation)


def _largest_cost(network: Network) -> float:
    tables = (t for v in network.nodes for t in (network.costs[v], *network.tables[v].values()))
    return max((float(t[np.isfinite(t)].max(initial=0.0)) for t in tables), default=0.0)

"""A known choice of a large network under a memory limit, bettered before anything is proven.

Where much may be chosen, little of which is cheaper, choices read off messages are far from the best: these mix what
is cheap and takes too much with what is dear. What is near a choice that somebody knows is mostly better.

Source: Shaw, "Using constraint programming and local search methods to solve vehicle routing problems", CP 1998.
"""

from collections.abc import Mapping

import numpy as np

from planner.intra_op.answers import NetworkAnswer, combined
from planner.intra_op.compact import Compact
from planner.intra_op.folding import fold
from planner.intra_op.liveness import settle
from planner.intra_op.messages import Relaxation
from planner.intra_op.neighbourhood import Found, NeighbourhoodSearch
from planner.intra_op.network import Network
from planner.intra_op.parts import ascend, left
from planner.intra_op.settling import better

PATIENCE = 1.0
"""Times that the search goes through all nodes without success before it ends."""


def bettered(network: Compact, choice: Mapping[int, int], deadline: float) -> NetworkAnswer:
    """What is found near a ``choice`` that fits, by original numbers, or that choice.

    Only what a cheaper choice can contain is looked at, by messages and prices on memory.
    """
    number = {name: v for v, name in enumerate(network.names)}
    wanted = {number[name]: strategy for name, strategy in choice.items()}
    cost = network.cost(_positions(network, wanted))
    settle(network)
    fold(network)
    network.propagate()
    relaxation = Relaxation(network, {})
    known = ascend(network, relaxation, cost - 1, deadline)
    known = combined(known, NetworkAnswer(dict(choice), cost, known.lower_bound))
    if known.proven or known.cost < cost:
        return known
    part = left(network, relaxation.bound(), cost)
    found = _search(
        part.written_out(), Found(_positions(part, wanted), cost), relaxation.known_prices, deadline
    )
    return combined(NetworkAnswer(part.expand(found.choice), found.cost, -np.inf), known)


def _search(network: Network, found: Found, prices: Mapping[int, float], deadline: float) -> Found:
    relaxation = Relaxation(network, prices)
    relaxation.sweep()

    def regrets(found: Found) -> Mapping[int, float]:
        return relaxation.regrets(found.choice)

    search = NeighbourhoodSearch(network, better(network, found, prices, regrets, deadline), prices, regrets)
    search.improve(deadline, PATIENCE)
    return search.found


def _positions(network: Network, wanted: Mapping[int, int]) -> dict[int, int]:
    """Where strategies stand, by their original numbers, of the nodes that are left."""
    return {v: int(np.searchsorted(network.labels[v], wanted[v])) for v in network.nodes}

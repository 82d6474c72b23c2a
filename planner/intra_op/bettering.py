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
    cost = network.cost(_positions(network, choice))
    settle(network)
    fold(network)
    network.propagate()
    relaxation = Relaxation(network, {})
    read_off = ascend(network, relaxation, cost - 1, deadline)
    known = combined(read_off, NetworkAnswer(dict(choice), cost, -np.inf))
    if known.proven:
        return known
    part = left(network, relaxation.bound(), known.cost + 1)  # bounds are rounded
    start = Found(_positions(part, known.choice), known.cost)
    found = _search(part.written_out(), start, relaxation.known_prices, deadline)
    return combined(NetworkAnswer(part.expand(found.choice), found.cost, -np.inf), known)


def _search(network: Network, found: Found, prices: Mapping[int, float], deadline: float) -> Found:
    relaxation = Relaxation(network, prices)
    relaxation.sweep()

    def regrets(found: Found) -> Mapping[int, float]:
        return relaxation.regrets(found.choice)

    search = NeighbourhoodSearch(network, better(network, found, prices, regrets, deadline), prices, regrets)
    search.improve(deadline, PATIENCE)
    return search.found


def _positions(network: Compact, choice: Mapping[int, int]) -> dict[int, int]:
    """Where strategies stand, by their original numbers, of the nodes that are left."""
    labels, names = network.labels, network.names
    return {v: int(np.searchsorted(labels[v], choice[names[v]])) for v in network.nodes}

"""What is left of a network when only choices below a cost are looked at, and costs guessed for that.

Duals of a relaxation drop what no choice below a cost contains; what is left is reduced, bounded anew, and so on.
Where that leaves nothing, no choice costs less; where it leaves little, the integer program decides it. So a cost a
little above the bound either proves a better bound or finds the optimum, and far more is dropped than the best
choice known allows: the guess takes its place, and is raised as long as nothing lies below it.
"""

from typing import NamedTuple

import numpy as np

from planner.errors import Infeasible
from planner.intra_op import clock
from planner.intra_op.local_polytope import Positions, solve_program
from planner.intra_op.messages import MARGIN, Relaxation
from planner.intra_op.neighbourhood import Found, NeighbourhoodSearch
from planner.intra_op.network import Network
from planner.intra_op.settling import read_off
from planner.intra_op.shrinking import shrink

LEAST_DROPPED = 0.02
"""Share of a network that fixing must drop before it is worth reducing anew."""

STEPS = 8
"""Changes of the prices between two fixings."""

SEARCHING = 0.4
"""Share of the time left that goes into the search for choices in a network too large to decide."""

PATIENCE = 1.0
"""Times that the search goes through all nodes without success before it ends."""

SMALL = 100_000
"""Size of a network that the integer program decides."""


class Guess(NamedTuple):
    """What a guessed cost gave."""

    choice: Positions | None
    """Original strategies of all nodes in a choice that fits; it need not cost less than the guess."""
    lower_bound: float
    """No choice costs less, as far as the guess says."""
    decided: bool
    """The bound has reached the guess, or the choice is the best."""


def narrow(relaxation: Relaxation, cost: float, deadline: float) -> Relaxation:
    """Reduce the network of ``relaxation`` to what choices below ``cost`` contain; its relaxation afterwards.

    Raises `Infeasible` where there is none. Ends early when the clock says ``deadline``.
    """
    network = relaxation.network
    dropped = 1.0
    while dropped > LEAST_DROPPED and network.nodes and clock.now() < deadline:
        prices, size = relaxation.known_prices, network.size
        relaxation.absorb()
        relaxation.fix(cost)
        dropped = 1 - network.size / size
        shrink(network, deadline if dropped > LEAST_DROPPED else -np.inf)
        relaxation = Relaxation(network, prices, {})
        relaxation.sweep()
        for _ in range(STEPS if clock.now() < deadline else 0):
            value = relaxation.value()
            relaxation.reprice(value, max(cost, value))
            relaxation.press_on()
        relaxation.return_to_best()
    return relaxation


def guess(network: Network, prices: dict[int, float], cost: float, deadline: float) -> Guess:
    """Look for a choice below ``cost`` in a ``network``, which is used up, under known ``prices`` of memory."""
    try:
        relaxation = narrow(Relaxation(network, prices, {}), cost, deadline)
        bound = relaxation.bound().value
        bound -= MARGIN * abs(bound)
        if network.size > SMALL:
            return _answer(network, _searched(relaxation, deadline), bound, cost)
        answer = solve_program(network, deadline, cost, relaxation.known_prices)
        found = None if answer.choice is None else Found(answer.choice, network.cost(answer.choice))
        return _answer(network, found, max(bound, answer.lower_bound), cost)
    except Infeasible:
        return Guess(None, cost, True)


def _answer(network: Network, found: Found | None, bound: float, cost: float) -> Guess:
    bound = min(bound, cost)
    if found is None:
        return Guess(None, bound, bound >= cost)
    return Guess(network.expand(found.choice), bound, bound > min(found.cost, cost) - 1)


def _searched(relaxation: Relaxation, deadline: float) -> Found | None:
    """A choice read off the messages, and bettered part by part; few strategies are left to choose from."""
    found = read_off(relaxation, deadline)
    if found is None:
        return None
    search = NeighbourhoodSearch(relaxation.network, found, relaxation.known_prices)
    now = clock.now()
    search.improve(now + SEARCHING * (deadline - now), PATIENCE)
    return search.found

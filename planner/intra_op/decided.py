"""Choices under a decision of all hubs: first of what lifts the bound by next to nothing, then of all.

Once hubs are decided messages are nearly exact, and good choices keep to strategies that these hardly tell apart. What
is left of those alone is so small that branches decide much of it; it proves nothing of the rest.

Source: Danna, Rothberg and Le Pape, "Exploring relaxation induced neighborhoods to improve MIP solutions", Mathematical
Programming 102 (2005), for parts that a relaxation points to.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from planner.errors import Infeasible, SolverStopped
from planner.intra_op import clock
from planner.intra_op.answers import NOTHING, NetworkAnswer, Stopped
from planner.intra_op.hubs import Decided, climb, rise
from planner.intra_op.messages import Relaxation
from planner.intra_op.network import Network
from planner.intra_op.shrinking import shrink

SLACK = 5e-5
"""Of the bound: what strategies that are near it lift it by at most."""

STEPS, SWEEPS = 100, 30
"""Changes of the prices of memory, and sweeps under the best ones, before it is seen which those are."""

FIRST = 0.75
"""Share of the time left that goes into those."""

Solve = Callable[[Network, float, float, Mapping[int, float]], NetworkAnswer]
"""What solves a network before a deadline, for choices below a cost, from prices of memory."""


def solve_decided(
    network: Network, hubs: Decided, deadline: float, below: float, solve: Solve, *, near: bool
) -> NetworkAnswer:
    """The best choice below a cost found where hubs are so decided, in positions of ``network``; its cost may be inf.

    With ``near``, what is near the bound comes first. The answer's bound says nothing of other decisions.
    """
    part = network.narrowed({v: np.array([s], dtype=np.intp) for v, s in hubs.choice.items()})
    best = NOTHING
    try:
        if near:
            shrink(part, deadline)
            best = _solve_near(part, hubs.prices, deadline, below, solve)
        return _cheaper(best, solve(part, deadline, min(below, best.cost), hubs.prices))
    except Stopped as stop:
        raise Stopped(_cheaper(best, stop.answer)) from None
    except (Infeasible, SolverStopped):  # which says nothing of other decisions
        return best


def _solve_near(
    part: Network, prices: Mapping[int, float], deadline: float, below: float, solve: Solve
) -> NetworkAnswer:
    """The best choice found of strategies near the bound of a reduced network, by the numbers before that."""
    relaxation = Relaxation(part, prices)
    climb(relaxation, STEPS)
    rise(relaxation, SWEEPS)
    value, margins = relaxation.bound()
    kept = {v: np.flatnonzero(margin <= SLACK * abs(value)) for v, margin in margins.items()}
    now = clock.now()
    try:
        answer = solve(part.narrowed(kept), now + FIRST * (deadline - now), below, relaxation.known_prices)
    except Stopped as stop:
        raise Stopped(_expanded(part, stop.answer)) from None
    except (Infeasible, SolverStopped):
        return NOTHING
    return _expanded(part, answer)


def _expanded(part: Network, answer: NetworkAnswer) -> NetworkAnswer:
    return replace(answer, choice=part.expand(answer.choice)) if answer.choice else NOTHING


def _cheaper(one: NetworkAnswer, other: NetworkAnswer) -> NetworkAnswer:
    return min(one, other, key=lambda answer: answer.cost)

"""Prices of memory moved one at a time, judged by the bound that messages reach under them.

Steps along what a choice takes (`planner.intra_op.messages`) go wrong where messages contradict each other: the choice
read off them then takes what no cheapest choice does. Where few moments have prices it costs little to try others, and
to let messages settle under each.

Source: Hooke and Jeeves, "Direct search solution of numerical and statistical problems", Journal of the ACM 8 (1961).
"""

import numpy as np

from planner.intra_op import clock
from planner.intra_op.ascent import GAIN
from planner.intra_op.bounds import State
from planner.intra_op.hubs import rise
from planner.intra_op.messages import Relaxation

FIRST, LAST = 0.2, 0.1
"""First share by which a price is raised or lowered, and where halving it ends."""

SWEEPS = 6
"""Under each price that is tried."""

ROWS = 2
"""Most that are moved: those that most is paid for."""


def search_prices(relaxation: Relaxation, enough: float = np.inf, deadline: float = np.inf) -> None:
    """Raise the bound, until it is more than ``enough``, it no longer rises, or the clock says ``deadline``."""
    best, state = _settled(relaxation, relaxation.snapshot())
    paid = relaxation.prices * relaxation.network.capacity
    rows = [int(row) for row in np.argsort(-paid, kind="stable")[:ROWS] if paid[row] > 0]
    directions, step = dict.fromkeys(rows, 1), FIRST
    while rows and step >= LAST and best <= enough and clock.now() < deadline:
        before = best
        for row in rows:
            for direction in (directions[row], -directions[row]):
                prices = state.prices.copy()
                prices[row] *= (1 + step) ** direction
                value, reached = _settled(relaxation, State(prices, state.messages))
                if value > best + GAIN * abs(best):
                    best, state, directions[row] = value, reached, direction
                    break
        step = step if best > before else step / 2
    relaxation.restore(state)


def _settled(relaxation: Relaxation, state: State) -> tuple[float, State]:
    """The bound once messages have settled, and where they and the prices are then."""
    relaxation.restore(state)
    rise(relaxation, SWEEPS)
    return relaxation.value(), relaxation.snapshot()

"""Nodes of many neighbours, *hubs*, decided one after another: what is left hardly has cycles then.

An array that hundreds of operators read ties all of these together, in cycles that messages do not see: they let each
reader, and each hub, take its own half of everything. Once the hubs have their strategies, messages are nearly exact.
So hubs are decided in a *dive*: the clearest one takes what messages say is cheapest, messages adapt, and so on. The
bound of a network whose hubs are decided is about what its best choice costs.

Source: Koller and Friedman, Probabilistic Graphical Models (2009), section 9.5, for conditioning on a cutset.
"""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import numpy as np

from planner.intra_op import clock
from planner.intra_op.ascent import LEAST_GAIN
from planner.intra_op.messages import Relaxation
from planner.intra_op.network import Network
from planner.intra_op.problem import Array

MANY = 20
"""Neighbours that make a node a hub."""

SWEEPS, LAST_STEPS = 3, 60
"""Sweeps after each hub that is decided, and changes of the prices after the last one, as often as they help."""

AT_ONCE = 0.12
"""Share of the hubs left that are decided between sweeps."""

LAST_SWEEPS = 20
"""Under the best prices."""


FAR = 0.01
"""How far above the bound steps of the prices aim, as a share of it."""


class Decided(NamedTuple):
    """Hubs with strategies."""

    choice: dict[int, int]
    value: float
    """The bound of the network where hubs are so decided."""
    prices: dict[int, float]
    """Of memory, by original row, that give this bound."""


def hubs_of(network: Network) -> list[int]:
    """Nodes of many neighbours, those of the most first."""
    hubs = [v for v in sorted(network.nodes) if len(network.tables[v]) >= MANY]
    return sorted(hubs, key=lambda v: -len(network.tables[v]))


def dive(
    relaxation: Relaxation,
    choice: Mapping[int, int],
    hubs: Collection[int],
    enough: float = np.inf,
    deadline: float = np.inf,
) -> Decided:
    """Decide ``hubs``, where others are decided by ``choice``; messages and prices are those under them then.

    Some are left undecided where the bound reaches ``enough`` before: it only rises. After the last one the bound is
    raised until that gains little, or the clock says ``deadline``, so that bounds of two decisions compare.
    """
    decided, left = dict(choice), set(hubs)
    relaxation.hold(_alone(decided))
    while left:
        for _ in range(SWEEPS):
            relaxation.press_on()
        value, margins = relaxation.bound()
        if value >= enough:
            return Decided(decided, value, relaxation.known_prices)
        clearest = sorted(left, key=lambda v: (-lead(margins[v]), v))[: 1 + int(AT_ONCE * len(left))]
        decided |= {v: int(margins[v].argmin()) for v in clearest}
        left -= set(clearest)
        relaxation.hold(_alone(decided))
    _settle(relaxation, enough, deadline)
    return Decided(decided, relaxation.value(), relaxation.known_prices)


def _settle(relaxation: Relaxation, enough: float, deadline: float) -> None:
    value, gaining = -np.inf, True
    while gaining and value < enough:
        before = value
        climb(relaxation, LAST_STEPS)
        rise(relaxation, LAST_SWEEPS)
        value = relaxation.value()
        gaining = value - before > LEAST_GAIN * abs(value) and clock.now() < deadline


def _alone(choice: Mapping[int, int]) -> dict[int, tuple[int]]:
    return {v: (s,) for v, s in choice.items()}


def target(value: float) -> float:
    """What steps of the prices aim at, from a bound."""
    return value + FAR * abs(value)


def climb(relaxation: Relaxation, steps: int, aim: Callable[[float], float] = target) -> None:
    """Raise the bound by so many changes of the prices of memory towards what ``aim`` says, each with a sweep."""
    for _ in range(steps):
        relaxation.press_on()
        value = relaxation.value()
        relaxation.reprice(value, aim(value))
    relaxation.sweep()
    relaxation.return_to_best()


def rise(relaxation: Relaxation, sweeps: int, enough: float = np.inf, deadline: float = np.inf) -> None:
    """Raise the bound by so many sweeps, or until it is more than ``enough`` or the clock says ``deadline``."""
    for _ in range(sweeps):
        relaxation.press_on()
        if relaxation.note_best() > enough or clock.now() > deadline:
            break
    relaxation.keep_best()


def lead(margins: Array) -> float:
    """By how much the second best is dearer than the best."""
    return float(np.partition(margins, 1)[1] - margins.min()) if margins.size > 1 else np.inf

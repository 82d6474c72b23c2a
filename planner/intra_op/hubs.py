"""Nodes of many neighbours, *hubs*, decided one after another: what is left hardly has cycles then.

An array that hundreds of operators read ties all of these together, in cycles that messages do not see: they let each
reader, and each hub, take its own half of everything. Once the hubs have their strategies, messages are nearly exact.
So hubs are decided in a *dive*: the clearest one takes what messages say is cheapest, messages adapt, and so on. Then
a family of hubs, those that have most of their readers in common, is released and decided anew, which is kept where
the bound under all hubs' strategies falls: the bound of a network whose hubs are decided is about what its best choice
costs.

Source: Koller and Friedman, Probabilistic Graphical Models (2009), section 9.5, for conditioning on a cutset.
"""

import time
from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np

from planner.intra_op.messages import Relaxation
from planner.intra_op.network import Network

MANY = 20
"""Neighbours that make a node a hub."""

ALIKE = 0.8
"""Share of the readers of either of two hubs of one family that both have."""

SWEEPS, LAST_SWEEPS = 3, 20
"""Sweeps after each hub that is decided, and after the last one."""

AT_ONCE = 0.03
"""Share of the hubs left that are decided between sweeps."""

GAIN = 1e-6
"""Relative; what the bound must fall by for a family to be decided otherwise."""


class Decided(NamedTuple):
    """Hubs with strategies."""

    choice: dict[int, int]
    value: float
    """The bound of the network where hubs are so decided."""


def hubs_of(network: Network) -> list[int]:
    """Nodes of many neighbours, those of the most first."""
    hubs = [v for v in sorted(network.nodes) if len(network.tables[v]) >= MANY]
    return sorted(hubs, key=lambda v: -len(network.tables[v]))


def decide_hubs(relaxation: Relaxation, hubs: Collection[int], deadline: float) -> Decided:
    """Good strategies of ``hubs`` under the prices of memory that there are; messages are those under them then."""
    best = _dive(relaxation, {}, hubs)
    waiting = families(relaxation.network, hubs)
    undisturbed = 0
    while undisturbed < len(waiting) and time.monotonic() < deadline:
        family = waiting.pop(0)
        waiting.append(family)
        messages = relaxation.snapshot()
        others = {v: s for v, s in best.choice.items() if v not in family}
        found = _dive(relaxation, others, family)
        if found.value < best.value - GAIN * abs(best.value):
            best, undisturbed = found, 0
        else:
            relaxation.hold(best.choice)
            relaxation.restore(messages)
            undisturbed += 1
    return best


def families(network: Network, hubs: Collection[int]) -> list[set[int]]:
    """Hubs parted by whom they have for neighbours, for the most part."""
    around = {v: network.tables[v].keys() for v in hubs}
    found: list[list[int]] = []
    for v in hubs:
        for family in found:
            first = around[family[0]]
            if len(first & around[v]) >= ALIKE * max(len(first), len(around[v])):
                family.append(v)
                break
        else:
            found.append([v])
    return [set(family) for family in found]


def _dive(relaxation: Relaxation, choice: Mapping[int, int], hubs: Collection[int]) -> Decided:
    """Decide ``hubs``, where others are decided by ``choice``."""
    decided, left = dict(choice), set(hubs)
    relaxation.hold(decided)
    while left:
        for _ in range(SWEEPS):
            relaxation.sweep()
        margins = relaxation.bound().margins
        clearest = sorted(left, key=lambda v: (-_lead(margins[v]), v))[: 1 + int(AT_ONCE * len(left))]
        decided |= {v: int(margins[v].argmin()) for v in clearest}
        left -= set(clearest)
        relaxation.hold(decided)
    for _ in range(LAST_SWEEPS):
        relaxation.sweep()
    return Decided(decided, relaxation.value())


def _lead(margins: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> float:
    """By how much the second best is dearer than the best."""
    return float(np.partition(margins, 1)[1] - margins.min()) if margins.size > 1 else np.inf

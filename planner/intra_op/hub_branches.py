"""Branches on the strategies of hubs, bounded by messages and prices of memory alone.

Messages let hubs, and all that read them, take their own half of everything. A branch says what one hub takes, so
messages prove more in it; some tens of branches on the right hubs close more of the gap than thousands of sweeps. The
right ones are those that messages leave undecided between strategies and whose readers pay much for disagreeing; once
branches on a hub have been seen, how much they raised the bound says it better. The branch with the least bound comes
first, and now and then all hubs left in it are decided, since it is the likeliest to hold a good choice.

Source: Land and Doig, "An automatic method of solving discrete programming problems", Econometrica 28 (1960);
Benichou et al., "Experiments in mixed-integer linear programming", Mathematical Programming 1 (1971), for pseudo-costs.
"""

import heapq
import itertools
import time
from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np

from planner.intra_op.hubs import climb, dive, lead, rise
from planner.intra_op.local_polytope import WHOLE
from planner.intra_op.messages import MARGIN, Relaxation, State
from planner.intra_op.network import Network
from planner.intra_op.problem import Array

STEPS, SWEEPS = 20, 30
"""Changes of the prices of memory in a branch that is parted, and sweeps in each that comes of it, less where its bound
exceeds what hubs are known to allow."""

UNDECIDED = 0.01
"""Of the gap: by how much the second best strategy of a hub may be dearer than the best."""

DIVE_EVERY = 4
"""Branches parted between two decisions of all hubs."""


class _Branch(NamedTuple):
    bound: float
    number: int
    held: Mapping[int, int]
    """Hubs and their strategies."""
    state: State


class HubTree:
    """Branches of one network, whose ``relaxation`` holds the messages and the prices of memory."""

    def __init__(self, relaxation: Relaxation, hubs: Collection[int]) -> None:
        self.relaxation = relaxation
        self.hubs = tuple(hubs)
        self.expected = {v: disagreement(relaxation.network, v) for v in self.hubs}
        """How much branches on a hub raise the bound, as far as known; in a unit of their own until they are tried."""
        self.gains: dict[int, list[float]] = {}
        self.count = itertools.count()
        self.parted = 0
        self.deadline = np.inf
        value = relaxation.bound().value
        self.open = [_Branch(value - MARGIN * abs(value), next(self.count), {}, relaxation.snapshot())]
        self.best = dive(relaxation, {}, hubs)
        """Good strategies of all hubs, and the bound under them."""
        self._set({}, self.open[0].state)

    @property
    def bound(self) -> float:
        """No choice below the cutoff costs less."""
        return self.open[0].bound if self.open else np.inf

    def explore(self, cutoff: float, deadline: float) -> None:
        """Part branches, those that may hold a choice below ``cutoff``, until the clock says ``deadline``.

        Messages and prices of the relaxation are those from before afterwards.
        """
        state = self.relaxation.snapshot()
        self.deadline = deadline
        while self.bound <= cutoff - WHOLE and self._in_time():
            if len(self.open[0].held) == len(self.hubs):
                break  # hubs do not say more
            self.part(cutoff)
        if self.bound > cutoff - WHOLE:
            self.open.clear()
        self._set({}, state)

    def part(self, cutoff: float) -> None:
        """Part the branch with the least bound on one more hub."""
        branch = heapq.heappop(self.open)
        self.parted += 1
        self._set(branch.held, branch.state)
        climb(self.relaxation, STEPS)
        value, margins = self.relaxation.bound()
        bound = max(branch.bound, value - MARGIN * abs(value))
        branch = branch._replace(bound=bound, state=self.relaxation.snapshot())
        slack = cutoff - WHOLE - value + MARGIN * abs(value)
        hub = self._undecided(branch.held, margins, slack)
        bounds = [self._branch(branch, hub, int(s), cutoff) for s in np.flatnonzero(margins[hub] <= slack)]
        gains = self.gains.setdefault(hub, [])
        gains.append(min(bounds, default=cutoff) - branch.bound)
        if self.parted % DIVE_EVERY == 0 and self._in_time():
            self._dive(branch)

    def _branch(self, parent: _Branch, hub: int, strategy: int, cutoff: float) -> float:
        """The bound of one branch, which is left for later unless nothing in it is below the cutoff."""
        held = {**parent.held, hub: strategy}
        self._set(held, parent.state)
        rise(self.relaxation, SWEEPS, min(self.best.value, cutoff), self.deadline)
        value = self.relaxation.bound().value
        bound = max(parent.bound, value - MARGIN * abs(value))
        if bound <= cutoff - WHOLE:
            heapq.heappush(self.open, _Branch(bound, next(self.count), held, self.relaxation.snapshot()))
        return bound

    def _in_time(self) -> bool:
        return time.monotonic() < self.deadline

    def _set(self, held: Mapping[int, int], state: State) -> None:
        self.relaxation.hold(held)
        self.relaxation.restore(state)

    def _undecided(self, held: Mapping[int, int], margins: Mapping[int, Array], slack: float) -> int:
        """The hub on which branches promise most, of those between whose strategies messages see no difference."""
        left = [v for v in self.hubs if v not in held]
        leads = {v: lead(margins[v]) for v in left}
        undecided = [v for v in left if leads[v] <= UNDECIDED * slack]
        if not undecided:
            return min(left, key=lambda v: leads[v])
        tried = [v for v in self.hubs if v in self.gains]
        unit = sum(np.mean(self.gains[v]) for v in tried) / max(sum(self.expected[v] for v in tried), 1.0)
        expected = {v: np.mean(self.gains[v]) if v in self.gains else unit * self.expected[v] for v in left}
        return max(undecided, key=lambda v: (expected[v], self.expected[v]))

    def _dive(self, branch: _Branch) -> None:
        """Decide all hubs, as the messages of a branch say."""
        self._set(branch.held, branch.state)
        left = [v for v in self.hubs if v not in branch.held]
        found = dive(self.relaxation, branch.held, left, self.best.value)
        self.best = min(self.best, found, key=lambda decided: decided.value)


def disagreement(network: Network, v: int) -> float:
    """What the neighbours of a node pay in all where each takes one of its strategies, and the node another."""
    return sum(float(np.median(t[np.isfinite(t)])) for t in network.tables[v].values())

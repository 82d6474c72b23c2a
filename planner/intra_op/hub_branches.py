"""Branches on the strategies of hubs, and then on memory, bounded by messages and prices alone.

Messages let hubs, and all that read them, take their own half of everything. A branch says what one hub takes, so
messages prove more in it; some tens of branches on the right hubs close more of the gap than thousands of sweeps. The
right ones are those that messages leave undecided between strategies and whose readers pay much for disagreeing; once
branches on a hub have been seen, how much they raised the bound says it better. The branch with the least bound comes
first, and now and then all hubs left in it are decided, since it is the likeliest to hold a good choice.

What hubs leave open is mostly memory: prices mix choices that fit only on average. So each branch is parted either on a
hub or on how much memory one node takes (`planner.intra_op.mixing`), whichever has lately raised the bound faster.

Source: Land and Doig, "An automatic method of solving discrete programming problems", Econometrica 28 (1960);
Benichou et al., "Experiments in mixed-integer linear programming", Mathematical Programming 1 (1971), for pseudo-costs.
"""

import heapq
import itertools
from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np

from planner.intra_op import clock
from planner.intra_op.bounds import State
from planner.intra_op.hubs import FAR, climb, dive, lead, rise
from planner.intra_op.local_polytope import WHOLE
from planner.intra_op.messages import MARGIN, Relaxation
from planner.intra_op.mixing import Mixture, cheaper_half, deviation, mixture
from planner.intra_op.network import Network
from planner.intra_op.problem import Array

STEPS, SWEEPS = 20, 30
"""Changes of the prices of memory, and as many sweeps under the best ones, in a branch that is parted on a hub; and
sweeps in each that comes of it, less where its bound exceeds what hubs are known to allow."""

MEMORY_STEPS, HALF_STEPS = 10, 8
"""Changes of the prices in a branch that is parted on memory, and in each that comes of it, which prove nothing
without. Little is enough: twice as many branches gain more than better ones."""

LEAST_GAIN = 1e-5
"""Share of the bound by which changes of the prices must raise that of a branch that cannot be parted for it to be kept
at; and what branches that gain less are taken to gain, so that they are tried again."""

FORGETTING = 1.25
"""What the gain known of hubs, or of memory, is multiplied by with each branch parted on the other: what memory gains
while hubs are undecided says little of later."""

NEAR = 1e-3
"""Of the bound: how far above it steps of the prices aim at least."""

UNDECIDED = 0.01
"""Of the gap: by how much the second best strategy of a hub may be dearer than the best."""

DIVE_EVERY = 4
"""Branches parted on hubs between two decisions of all hubs."""

Kept = Mapping[int, tuple[int, ...]]
"""Nodes, and the strategies that they may take."""


class _Branch(NamedTuple):
    bound: float
    number: int
    kept: Kept
    state: State


class _Open(NamedTuple):
    """A branch that is about to be parted."""

    branch: _Branch
    margins: Mapping[int, Array]
    slack: float
    """Largest margin of a strategy that may be in a choice below the cutoff."""
    weights: Mixture | None
    """None where it is to be parted on a hub."""

    def allowed(self, v: int) -> list[int]:
        """Strategies that a node may take in it."""
        kept = self.branch.kept.get(v, range(self.margins[v].size))
        return [s for s in kept if self.margins[v][s] <= self.slack]


class HubTree:
    """Branches of one network, whose ``relaxation`` holds the messages and the prices of memory."""

    def __init__(self, relaxation: Relaxation, hubs: Collection[int], deadline: float = np.inf) -> None:
        """With a first decision of the hubs, after whose ``deadline`` its bound is not raised any more."""
        self.relaxation = relaxation
        self.hubs = tuple(hubs)
        self.expected = {v: disagreement(relaxation.network, v) for v in self.hubs}
        """How much branches on a hub raise the bound, as far as known; in a unit of their own until they are tried."""
        self.gains: dict[int, list[float]] = {}
        self.memory_gains: dict[int, list[float]] = {}
        """By how much branches on a node's memory raised the bound, as a share of what it mixed then."""
        self.recent_gain = {"hub": np.inf, "memory": np.inf}
        """By how much branches on either raise the bound, for each branch left and sweep that the parting took (no
        clock, so that all machines part alike): the mean of what was known before and the last gain, growing while the
        other is tried."""
        self.count = itertools.count()
        self.parted = 0
        """On hubs."""
        self.deadline, self.on_memory = np.inf, True
        value = relaxation.proven()
        self.open = [_Branch(value - MARGIN * abs(value), next(self.count), {}, relaxation.snapshot())]
        self.best = dive(relaxation, {}, hubs, deadline=deadline)
        """Good strategies of all hubs, and the bound under them."""
        self._set({}, self.open[0].state)

    @property
    def bound(self) -> float:
        """No choice below the cutoff costs less."""
        return self.open[0].bound if self.open else np.inf

    def explore(self, cutoff: float, deadline: float, *, on_memory: bool = True) -> None:
        """Part branches, those that may hold a choice below ``cutoff``, until the clock says ``deadline``.

        Without ``on_memory``, on hubs alone, which are decided the more often then. Messages and prices of the
        relaxation are those from before afterwards.
        """
        state = self.relaxation.snapshot()
        self.deadline, self.on_memory = deadline, on_memory
        while self.bound <= cutoff - WHOLE and self._in_time():
            if not self.part(cutoff):
                break
        if self.bound > cutoff - WHOLE:
            self.open.clear()
        self._set({}, state)

    def part(self, cutoff: float) -> bool:
        """Part the branch with the least bound; False where hubs, memory and prices say no more of it."""
        start, popped = self.relaxation.swept, heapq.heappop(self.open)
        on_hub = self._hubs_first() and bool(self._undecided(popped))
        found = self._climbed(popped, cutoff, on_hub=on_hub)
        if found.slack < 0:
            return True
        heavy = None if on_hub else self._heaviest(found)
        if heavy is not None:
            self._learn("memory", self._part_on_memory(found, heavy, cutoff), start)
        elif (hub := self._most_promising(found)) is not None:
            self._learn("hub", self._part_on_hub(found, hub, cutoff), start)
            if self.parted % DIVE_EVERY == 0 and self._in_time():
                self._dive(found.branch)
        else:
            # All is decided; where that does not fit, prices may still rise.
            heapq.heappush(self.open, found.branch)
            return found.branch.bound - popped.bound > LEAST_GAIN * abs(popped.bound)
        return True

    def _hubs_first(self) -> bool:
        return not self.on_memory or self.recent_gain["hub"] >= self.recent_gain["memory"]

    def _climbed(self, branch: _Branch, cutoff: float, *, on_hub: bool) -> _Open:
        """A branch under prices of its own, and where it is to be parted on memory what these mix."""
        relaxation = self.relaxation
        self._set(branch.kept, branch.state)
        if on_hub or not self.on_memory:
            weights = None
            climb(relaxation, STEPS, self._aim)
        else:
            weights = mixture(relaxation, MEMORY_STEPS, self._aim)
        rise(relaxation, STEPS if on_hub else MEMORY_STEPS)
        value, margins = relaxation.bound()
        bound = max(branch.bound, value - MARGIN * abs(value))
        branch = branch._replace(bound=bound, state=relaxation.snapshot())
        return _Open(branch, margins, cutoff - WHOLE - value + MARGIN * abs(value), weights)

    def _aim(self, value: float) -> float:
        """What steps of the prices aim at: branches on hubs come no higher than what the best decision allows."""
        return value + float(np.clip(self.best.value - value, NEAR * abs(value), FAR * abs(value)))

    def _part_on_hub(self, found: _Open, hub: int, cutoff: float) -> float:
        """One branch per strategy; by how much they raise the bound, for each."""
        branch = found.branch
        bounds = []
        for s in found.allowed(hub):
            self._set({**branch.kept, hub: (s,)}, branch.state)
            rise(self.relaxation, SWEEPS, min(self.best.value, cutoff), self.deadline)
            bounds.append(self._leave({**branch.kept, hub: (s,)}, branch.bound, cutoff))
        gain = min(bounds, default=cutoff) - branch.bound
        self.gains.setdefault(hub, []).append(gain)
        self.parted += 1
        return gain / max(1, len(bounds))

    def _part_on_memory(self, found: _Open, v: int, cutoff: float) -> float:
        """One branch where a node takes more memory than in the mixture, one where it takes less; what they gain."""
        branch = found.branch
        assert found.weights is not None
        self._set(branch.kept, branch.state)
        memory_costs, weights = self.relaxation.memory_costs(v), found.weights[v]
        less, mixed = cheaper_half(memory_costs, weights), deviation(memory_costs, weights)
        bounds = []
        for side in (less, ~less):
            kept = tuple(s for s in found.allowed(v) if side[s])
            if not kept:
                continue
            self._set({**branch.kept, v: kept}, branch.state)
            if self._in_time():
                climb(self.relaxation, HALF_STEPS, self._aim)
            bounds.append(self._leave({**branch.kept, v: kept}, branch.bound, cutoff))
        gain = min(bounds, default=cutoff) - branch.bound
        self.memory_gains.setdefault(v, []).append(gain / mixed)
        return gain / max(1, len(bounds))

    def _learn(self, kind: str, gain: float, start: int) -> None:
        """Note what a parting since sweep ``start`` gained; the other kind is the likelier to be tried again."""
        other = "hub" if kind == "memory" else "memory"
        rate = max(gain, LEAST_GAIN * abs(self.bound)) / (self.relaxation.swept - start)
        known = self.recent_gain[kind]
        self.recent_gain[kind] = rate if known == np.inf else (known + rate) / 2
        self.recent_gain[other] *= FORGETTING

    def _leave(self, kept: Kept, least: float, cutoff: float) -> float:
        """Leave a branch, in which messages stand, for later, unless nothing in it is below the cutoff; its bound."""
        value = self.relaxation.proven()
        bound = max(least, value - MARGIN * abs(value))
        if bound <= cutoff - WHOLE:
            heapq.heappush(self.open, _Branch(bound, next(self.count), kept, self.relaxation.snapshot()))
        return bound

    def _in_time(self) -> bool:
        return clock.now() < self.deadline

    def _set(self, kept: Kept, state: State) -> None:
        self.relaxation.hold(kept)
        self.relaxation.restore(state)

    def _heaviest(self, found: _Open) -> int | None:
        """The node on whose memory branches promise most, of those that prices leave undecided.

        One that was never tried is taken to gain a little more than the mean of the others, as a share of its mixture.
        """
        if found.weights is None or not self.relaxation.network.rows.size:
            return None
        mixed = {v: deviation(self.relaxation.memory_costs(v), w) for v, w in sorted(found.weights.items())}
        known = {v: max(float(np.mean(gains)), LEAST_GAIN) for v, gains in self.memory_gains.items()}
        others = LEAST_GAIN + float(np.mean(list(known.values()))) if known else 1.0
        v = max(mixed, key=lambda v: mixed[v] * known.get(v, others))
        return v if mixed[v] else None

    def _undecided(self, branch: _Branch) -> list[int]:
        """Hubs that may still take one of several strategies."""
        return [v for v in self.hubs if len(branch.kept.get(v, ())) != 1]

    def _most_promising(self, found: _Open) -> int | None:
        """The hub on which branches promise most, of those between whose strategies messages see no difference."""
        left = self._undecided(found.branch)
        if not left:
            return None
        leads = {v: lead(found.margins[v]) for v in left}
        undecided = [v for v in left if leads[v] <= UNDECIDED * found.slack]
        if not undecided:
            return min(left, key=lambda v: leads[v])
        tried = [v for v in self.hubs if v in self.gains]
        unit = sum(np.mean(self.gains[v]) for v in tried) / max(sum(self.expected[v] for v in tried), 1.0)
        expected = {v: np.mean(self.gains[v]) if v in self.gains else unit * self.expected[v] for v in left}
        return max(undecided, key=lambda v: (expected[v], self.expected[v]))

    def _dive(self, branch: _Branch) -> None:
        """Decide all hubs, as the messages of a branch say; what it says of memory is left aside."""
        decided = {v: branch.kept[v][0] for v in self.hubs if len(branch.kept.get(v, ())) == 1}
        self._set({}, branch.state)
        left = [v for v in self.hubs if v not in decided]
        found = dive(self.relaxation, decided, left, self.best.value, self.deadline)
        self.best = min(self.best, found, key=lambda decided: decided.value)


def disagreement(network: Network, v: int) -> float:
    """What the neighbours of a node pay in all where each takes one of its strategies, and the node another."""
    return sum(float(np.median(t[np.isfinite(t)])) for t in network.tables[v].values())

"""Branches on how much memory nodes take, bounded by messages and prices alone.

A few large arrays may leave a part of the memory free in whatever way they are combined. Prices cannot say so: they
mix ways that fit on average. So a branch says of one node whether it takes more or less memory than the mixture, in
each branch the prices are found anew, and what no choice below the best known one can contain goes. What is mixed is
told by the bound, since strategies that prices mix hardly lift it. Of nodes that mix much, those come first on whose
memory branches have raised the bound, on both sides. That takes some tens of branches where prices and guesses of the
cost (`planner.intra_op.anytime`) come to nothing; each is far cheaper than the linear program of
`planner.intra_op.tree`, which finds better mixtures in networks with many binding moments.

Source: Land and Doig, "An automatic method of solving discrete programming problems", Econometrica 28 (1960);
Benichou et al., "Experiments in mixed-integer linear programming", Mathematical Programming 1 (1971), for pseudo-costs;
Achterberg, Koch and Martin, "Branching rules revisited", Operations Research Letters 33 (2005), for their product.
"""

import heapq
import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from planner.errors import Infeasible
from planner.intra_op import clock
from planner.intra_op.answers import NOTHING, NetworkAnswer
from planner.intra_op.ascent import FURTHEST, LEAST_GAIN, PRICES_PER_LOOK, SETTLING, aim
from planner.intra_op.guessing import narrow
from planner.intra_op.hubs import rise
from planner.intra_op.local_polytope import WHOLE, solve_program
from planner.intra_op.messages import MARGIN, Relaxation
from planner.intra_op.mixing import Mixture, cheaper_half, deviation, most_mixed
from planner.intra_op.neighbourhood import greedy
from planner.intra_op.network import Network
from planner.intra_op.price_search import search_prices
from planner.intra_op.shrinking import shrink

SMALL = 10_000
"""Size of a network that the integer program decides without branches."""

UNDECIDED = 0.01
"""Of the gap: strategies that lift the bound by so much are a third (1 / e) as likely as those that do not lift it."""

STALLED = 0.02
"""Of what is open: where a branch raises the bound by less, prices are moved one at a time, which takes as long as all
else."""

Prices = Mapping[int, float]
"""Of memory, by original row."""


Solve = Callable[[Network, float, float], NetworkAnswer]
"""What solves a network before a deadline, for choices below a cost."""


Side = tuple[int, bool]
"""A node, and whether it takes the cheaper half of its memory."""


class _Halving(NamedTuple):
    """How a branch came about."""

    side: Side
    mixed: float
    """Standard deviation of what the node paid for memory."""
    bound: float
    """Of the branch that was parted."""


class _Branch(NamedTuple):
    bound: float
    number: int
    network: Network
    prices: Prices
    origin: _Halving | None = None


class MemoryTree:
    """The branches of a network that are left, to be explored for as long as there is time, and again."""

    def __init__(self, network: Network, prices: Prices, solve: Solve) -> None:
        """Start from ``network``, which is used up, and ``prices``; what is left without memory is for ``solve``."""
        self.solve = solve
        self.deadline = self.cutoff = np.inf
        self.best = NOTHING
        self.open: list[_Branch] = []
        self.count = itertools.count()
        self.gains: dict[Side, list[float]] = {}
        """By how much branches raised the bound, as a share of what the node mixed."""
        self.add(network.floor, network, prices)

    @property
    def bound(self) -> float:
        """The least of what is open."""
        return self.open[0].bound if self.open else np.inf

    def explore(self, below: float, deadline: float) -> NetworkAnswer:
        """The cheapest choice found before the ``deadline``, and what is proven by then of those below ``below``.

        It may cost more where there is none, or none was found; the bound says which.
        """
        self.cutoff, self.deadline = min(self.cutoff, below), deadline
        while self.bound <= self.cutoff - WHOLE and clock.now() < deadline:
            self._explore()
        return replace(self.best, lower_bound=min(self.bound, self.cutoff))

    def add(self, bound: float, network: Network, prices: Prices, origin: _Halving | None = None) -> None:
        """Leave a branch for later."""
        heapq.heappush(self.open, _Branch(bound, next(self.count), network, prices, origin))

    def _explore(self) -> None:
        """Decide the branch with the least bound, or part it."""
        branch = heapq.heappop(self.open)
        try:
            if branch.network.size <= SMALL or not branch.network.rows.size:
                self._decide(branch)
            else:
                self._part(branch)
        except Infeasible:  # nothing in this branch is below the cutoff
            return

    def _decide(self, branch: _Branch) -> None:
        bound, _, network, prices, _ = branch
        if network.size > SMALL:
            answer = self.solve(network.fork(), self.deadline, self.cutoff)
            self._take(answer.choice, answer.cost)
        else:
            found = solve_program(network, self.deadline, self.cutoff, prices)
            if found.choice is not None:
                self._take(network.expand(found.choice), network.cost(found.choice))
            answer = NetworkAnswer({}, np.inf, found.lower_bound)
        if answer.lower_bound <= self.cutoff - WHOLE:
            self.add(max(bound, answer.lower_bound), network, prices)

    def _part(self, branch: _Branch) -> None:
        relaxation = Relaxation(branch.network, branch.prices)
        self._relax(relaxation)
        if self._stalled(branch, relaxation.best):
            search_prices(relaxation, self.cutoff, self.deadline)
        bound = max(branch.bound, self._look(relaxation))
        self._learn(branch.origin, bound)
        if bound > self.cutoff - WHOLE:
            return
        if clock.now() > self.deadline:
            self.add(bound, branch.network, relaxation.known_prices)
            return
        if self.cutoff < np.inf:
            relaxation = narrow(relaxation, self.cutoff, self.deadline)
        network = relaxation.network
        if network.size <= SMALL:
            self.add(bound, network, relaxation.known_prices)
            return
        rise(relaxation, SETTLING, self.cutoff, self.deadline)
        bound, prices = max(bound, self._look(relaxation)), relaxation.known_prices
        weights = self._likely(relaxation)
        v = self._most_promising(relaxation, weights)
        memory_costs = relaxation.memory_costs(v)
        less, mixed = cheaper_half(memory_costs, weights[v]), deviation(memory_costs, weights[v])
        for cheaper, side in ((True, less), (False, ~less)):
            half, origin = network.fork(), _Halving((v, cheaper), mixed, bound)
            try:
                half.keep(v, np.flatnonzero(side))
                shrink(half, self.deadline)
            except Infeasible:
                self._learn(origin, self.cutoff)
                continue
            self.add(bound, half, prices, origin)

    def _stalled(self, branch: _Branch, bound: float) -> bool:
        """Whether a branch, at its ``bound``, has hardly raised that of the one that was parted."""
        if branch.origin is None:
            return True
        before = branch.origin.bound
        return bound < before + STALLED * (self.cutoff - before)

    def _likely(self, relaxation: Relaxation) -> Mixture:
        """How likely each strategy is, by how little it lifts the bound."""
        value, margins = relaxation.bound()
        unit = UNDECIDED * max(min(self.cutoff - value, FURTHEST * abs(value)), WHOLE)
        weights = {v: np.exp(-(margin - margin.min()) / unit) for v, margin in margins.items()}
        return {v: weight / weight.sum() for v, weight in weights.items()}

    def _most_promising(self, relaxation: Relaxation, weights: Mixture) -> int:
        """The node whose two branches promise most, by what they mix and what such branches have gained.

        A side that was never tried is taken to gain what the others do in the mean.
        """
        known = {side: max(float(np.mean(gains)), LEAST_GAIN) for side, gains in self.gains.items()}
        mean = float(np.mean(list(known.values()))) if known else 1.0
        mixed = {v: deviation(relaxation.memory_costs(v), w) for v, w in sorted(weights.items())}
        if max(mixed.values()) < WHOLE:
            return most_mixed(relaxation, weights)
        return max(
            mixed, key=lambda v: mixed[v] ** 2 * known.get((v, True), mean) * known.get((v, False), mean)
        )

    def _learn(self, origin: _Halving | None, bound: float) -> None:
        """Note by how much a branch has raised the bound of the one that was parted."""
        if origin is None or origin.mixed < WHOLE:  # which may be rounding
            return
        gain = (min(bound, self.cutoff) - origin.bound) / origin.mixed
        if np.isfinite(gain):
            self.gains.setdefault(origin.side, []).append(gain)

    def _relax(self, relaxation: Relaxation) -> None:
        """Prices as good as they become, unless they prove that nothing is below the cutoff."""
        for _ in range(SETTLING):
            relaxation.sweep()
        before, gaining = -np.inf, True
        while gaining and clock.now() < self.deadline:
            for _ in range(PRICES_PER_LOOK):
                self._reprice(relaxation)
                relaxation.press_on()
                if clock.now() > self.deadline:
                    break
            gaining = before + LEAST_GAIN * abs(before) < relaxation.best < self.cutoff
            before = relaxation.best
        relaxation.return_to_best()

    def _reprice(self, relaxation: Relaxation) -> None:
        value = relaxation.value()
        relaxation.reprice(value, aim(value, self.cutoff))

    def _look(self, relaxation: Relaxation) -> float:
        """What the relaxation proves; with it goes a choice read off."""
        if (found := greedy(relaxation)) is not None:
            self._take(relaxation.network.expand(found.choice), found.cost)
        value = relaxation.bound().value
        return value - MARGIN * abs(value)

    def _take(self, choice: dict[int, int], cost: float) -> None:
        if cost < self.best.cost:  # also above the cutoff, below which there may be nothing
            self.cutoff, self.best = min(self.cutoff, cost), NetworkAnswer(choice, cost, -np.inf)

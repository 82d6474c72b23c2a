"""Branch and bound over how much memory nodes take, where memory is what keeps the relaxation from the optimum.

With prices on memory in place of its limits, the relaxation of a reduced network is nearly integral; what
parts it from the optimum is that outputs come in few sizes and do not fill the memory. So a branch says of
one node whether its strategy pays more than so much for memory. In each branch the relaxation's duals drop the
strategies, and the pairs of them, that lead to no better choice, and the network is reduced again: after a
few branches little is left, and the integer program decides it. The branch with the least bound comes first.

Source: Land and Doig, "An automatic method of solving discrete programming problems", Econometrica 28 (1960).
"""

import heapq
import itertools
from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from planner.errors import Infeasible
from planner.intra_op import clock
from planner.intra_op.liveness import fits
from planner.intra_op.local_polytope import WHOLE, LocalPolytope, Positions, solve_program
from planner.intra_op.messages import Relaxation
from planner.intra_op.mixing import cheaper_half, most_mixed
from planner.intra_op.neighbourhood import greedy
from planner.intra_op.network import Network
from planner.intra_op.shrinking import shrink

SMALL = 10_000
"""Size of a network that the integer program decides without branches."""


class TreeAnswer(NamedTuple):
    """What the branches gave."""

    choice: Positions | None
    """The best found below the cutoff: original strategies of all nodes."""
    lower_bound: float
    """No other choice below the cutoff costs less; ``inf`` where there is none."""


def solve_tree(
    network: Network, rows: Collection[int], deadline: float, cutoff: float = np.inf
) -> TreeAnswer:
    """The cheapest choice of a reduced network below ``cutoff``, found before the clock says ``deadline``.

    ``rows`` are memory rows, by original number, that are likely to bind. The network is used up.
    """
    tree = _Tree(rows, deadline, cutoff)
    tree.add(network.floor, network)
    while tree.open and tree.bound <= tree.cutoff - WHOLE and clock.now() < deadline:
        tree.explore()
    return TreeAnswer(tree.choice, tree.bound if tree.bound <= tree.cutoff - WHOLE else np.inf)


class _Tree:
    def __init__(self, rows: Collection[int], deadline: float, cutoff: float) -> None:
        self.rows = set(rows)
        self.deadline = deadline
        self.cutoff = cutoff
        self.choice: Positions | None = None
        self.open: list[tuple[float, int, Network]] = []
        self.count = itertools.count()

    @property
    def bound(self) -> float:
        return self.open[0][0] if self.open else np.inf

    def add(self, bound: float, network: Network) -> None:
        """Leave a branch for later."""
        heapq.heappush(self.open, (bound, next(self.count), network))

    def explore(self) -> None:
        """Decide the branch with the least bound, or part it."""
        bound, _, network = heapq.heappop(self.open)
        try:
            if network.size <= SMALL or not network.nodes:
                self._decide(bound, network)
            else:
                self._part(bound, network)
        except Infeasible:  # nothing in this branch is below the cutoff
            return

    def _decide(self, bound: float, network: Network) -> None:
        answer = solve_program(network, self.deadline, self.cutoff)
        if answer.choice is not None:
            self._take(network, answer.choice)
        if answer.lower_bound <= self.cutoff - WHOLE:
            self.add(max(bound, answer.lower_bound), network)

    def _part(self, bound: float, network: Network) -> None:
        program = LocalPolytope(network, self.rows)
        program.use_interior_point()
        if np.isinf(program.relax(self.deadline)):
            self._decide(bound, network)
            return
        self.rows |= program.rows
        relaxation, weights = program.relaxation(), program.weights()
        relaxation.sweep()
        rounded = {v: int(weight.argmax()) for v, weight in weights.items()}
        if fits(network, rounded):
            self._take(network, rounded)
        if (found := greedy(relaxation)) is not None:
            self._take(network, found.choice)
        v = most_mixed(relaxation, weights)
        fewer = cheaper_half(relaxation.memory_costs(v), weights[v])
        for side in (fewer, ~fewer):
            self._branch(bound, relaxation, v, np.flatnonzero(side))

    def _branch(self, bound: float, relaxation: Relaxation, v: int, kept: npt.NDArray[np.intp]) -> None:
        branch = relaxation.network.fork()
        messages = relaxation.messages
        messages |= {(v, w): messages[v, w][kept] for w in branch.tables[v]}
        try:
            branch.keep(v, kept)
            within = Relaxation(branch, relaxation.known_prices, messages)
            bound = max(bound, within.fix(self.cutoff))
            shrink(branch, self.deadline)
        except Infeasible:
            return
        self.add(bound, branch)

    def _take(self, network: Network, choice: Positions) -> None:
        if (cost := network.cost(choice)) < self.cutoff:
            self.cutoff, self.choice = cost, network.expand(choice)

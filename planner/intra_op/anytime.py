"""Large networks solved as well as time allows: a choice that fits and a proven bound at any moment.

The network is reduced first. What is left, the *core*, is where choices are searched for; a copy of it, the
*proof*, loses in addition every strategy, and every pair of neighbours' strategies, that no choice better than
the best known can contain (reduced-cost fixing), until branches and the integer program can decide the rest.
Every choice below the best known cost is in the proof, so the smaller of that cost and the bound of the proof
is a bound of the whole.
"""

from collections.abc import Mapping

import numpy as np

from planner.errors import Infeasible, SolverStopped
from planner.intra_op import clock
from planner.intra_op.answers import NOTHING, NetworkAnswer, Stopped
from planner.intra_op.ascent import LEAST_GAIN, PRICES_PER_LOOK, SETTLING, aim, kept_length
from planner.intra_op.bounds import Bound
from planner.intra_op.decided import solve_decided
from planner.intra_op.first_choice import first_choice, frugal
from planner.intra_op.guessing import guess
from planner.intra_op.halves import halves_of
from planner.intra_op.hub_branches import HubTree
from planner.intra_op.hubs import Decided, hubs_of
from planner.intra_op.memory_branches import MemoryTree
from planner.intra_op.messages import MARGIN, Relaxation
from planner.intra_op.neighbourhood import Found, NeighbourhoodSearch, greedy
from planner.intra_op.network import Network, position
from planner.intra_op.settling import better, read_off
from planner.intra_op.shrinking import merge_partners, shrink
from planner.intra_op.tree import solve_tree

LEAST_DROPPED = 0.02
"""Share of the proof that fixing must drop before it is worth reducing anew."""

NARROWER = 0.9
"""Of the gap at the last fixing, or look: what it must have come down to before more is fixed, or read off anew."""

CLOSING = 0.05
"""Of the gap, or of one of ``UNSETTLED``: what messages must close from look to look, besides the least rise, to go on.
Until they end, they have no say on hubs: what follows takes most of the time and finds nothing."""

SMALL, LARGE, PARTED = 5_000, 120_000, 250_000
"""Sizes of a proof that the integer program decides at once, and of ones that may be parted into branches: by linear
programs, and on memory by messages."""

REDUCING, RELAXING, SEARCHING, ON_MEMORY, GUESSING = 0.5, 0.5, 0.3, 0.4, 0.2
"""Shares of the time left that go into the reductions, into one round of messages, of search, of branches on memory,
and into one guess. The last search has all of it."""

BEFORE, IN_HALVES = 0.15, (0.45, 0.8)
"""Shares of the time left that go into messages before hubs are decided, or a network is halved; into its halves."""
TURNS, IN_HASTE = ((0.4, 0.3), (0.6, 0.8)), (0.0, 0.5)
"""Shares of the time left that go into branches on hubs, and then into what the best decision leaves, turn by turn: the
first parts on hubs alone; the second, on memory too, has a better decision, or looks in the same one below the choice
that it gave. And those shares where there is no time for turns."""
FAR_APART = 0.01
"""Of the best choice: the gap above which messages are taken to miss what hubs tie together."""
LEFT_TO_GUESSES, IN_BRANCHES = 0.002, 0.1
"""Of the best choice: the gap from which on guesses decide sooner than branches on memory; and of that gap, what these
must close in their share of the time for guesses to wait for them."""
LIFTED = 0.05
"""Of the gap: by how much a decision of all hubs must lift the bound for branches on them."""
UNSETTLED = 0.1
"""Of the best choice: the gap above which a choice is searched for first, unless branches on memory can decide."""

FIRST_SLACK, GROWTH = 1e-5, 3.0
"""Of the bound: how far above it the first guess lies; and by what that is multiplied for the next."""

LOOKS_PER_GUESS, LOOKS_PER_DIVE, LOOKS_PER_BRANCHES, LOOKS_PER_FIXING, LOOKS_PER_ROUND = 15, 10, 60, 2, 4
"""Looks that there must be time for before a guess, a decision of hubs, branches on them, which have a share of that
time, before a fixing, and before one more round of messages where these still gain."""
PATIENCE = 3.0
"""Times that the search goes through all nodes without success before it ends."""


def solve_network(
    network: Network, deadline: float, below: float = np.inf, prices: Mapping[int, float] | None = None
) -> NetworkAnswer:
    """The cheapest choice of ``network``, which is used up, that is found before the clock says ``deadline``.

    Where a choice is known that costs ``below``, only cheaper ones are looked for: the answer may be a dearer one,
    or none at ``inf``, and its bound is no higher than that. ``prices`` of memory, by original row, are where
    messages start from.

    Costs are integers, so that a bound within one of the cost proves it; where the integer program decides,
    that is to the tolerance of its solver, about 1e-9 of the cost. Where none is known, a first choice is looked for
    even if that takes longer. Raises `Infeasible` where nothing fits, `SolverStopped` where none was found in time,
    and `Stopped` where Ctrl-C came once one was found.
    """
    merge_partners(network)
    first, solver = NOTHING, None
    try:
        if below == np.inf:
            first = _first_answer(network, deadline)
        now = clock.now()
        if first.cost < np.inf and now > deadline:
            return first
        shrink(network, now + REDUCING * (deadline - now))
        if first.cost < np.inf and clock.now() > deadline:
            return first
        solver = _Anytime(network, deadline, below, prices or {})
        solver.run()
    except KeyboardInterrupt:
        if (answer := _answer(network, solver, first)).cost == np.inf:
            raise
        raise Stopped(answer) from None
    answer = _answer(network, solver, first)
    if answer.cost == below == np.inf:
        if answer.lower_bound == np.inf:
            raise Infeasible("no choice is allowed and fits in memory")
        raise SolverStopped("nothing that fits was found in the time given; give it more")
    return answer


def _first_answer(network: Network, deadline: float) -> NetworkAnswer:
    """A choice for a network that is reduced afterwards, which may lose it."""
    found, bound = first_choice(network, deadline)
    return NOTHING if found is None else NetworkAnswer(network.expand(found.choice), found.cost, bound)


def _answer(network: Network, solver: "_Anytime | None", first: NetworkAnswer) -> NetworkAnswer:
    """The better of the first choice and what was found since, if anything was."""
    if solver is None:
        return first
    found = solver.found or Found({}, np.inf)
    cost = min(found.cost, first.cost)
    bound = min(cost if solver.lower_bound > cost - 1 else solver.lower_bound, solver.below)
    choice = network.expand(found.choice) if found.cost < first.cost else first.choice
    return NetworkAnswer(choice, cost, bound)


class _Anytime:
    """The best choice so far, in positions of the core, and the bound so far."""

    def __init__(self, core: Network, deadline: float, below: float, prices: Mapping[int, float]) -> None:
        self.core = core
        self.deadline = deadline
        self.below = below
        self.proof = core.copy()
        self.relaxation = Relaxation(self.proof, prices)
        self.found: Found | None = None
        self.searches = 0
        self.bettered = np.inf, -np.inf
        """Cost of the choice that was last bettered node by node, and the bound then: again, and it stays as it is."""
        self.on_memory: MemoryTree | None = None
        self.branches_close = True
        """What branches on memory have left of the proof as it was at first, and whether they last closed much."""
        self.lower_bound = core.floor
        self.fixed_at = np.inf
        """Gap between the best choice and the bound when the proof was last fixed."""
        self.looked_at = np.inf
        """The same, when a choice was last read off the messages."""
        self.slack = FIRST_SLACK
        """Of the bound: how far above it the next guess of the best cost lies."""
        self.looking = 0.0
        """Time that the last look for a choice took, not less than the one before if it was cut short [s]."""

    def run(self) -> None:
        """Everything, in turns, until the best choice is proven or time is up."""
        try:
            self._start()
            if self.below < np.inf:
                self._fix()  # much of what costs as much goes at once, and messages have less to pass
            self._halve()
            self._part()
            while self._open() and self.proof.size > SMALL:
                settled = self._relax(self._soon(RELAXING))
                if not settled and self._time_for(LOOKS_PER_ROUND):
                    continue  # messages still gain more than a search would
                if self._apart(UNSETTLED) and self.proof.size > PARTED:  # guesses are far below any choice
                    self._search()
                self._fix()
                self._part_on_memory()
                if not (self._far_in_branches() and self.branches_close):
                    self._guess()
                self._search()
                self._fix()
                if self.proof.size <= LARGE and not self._far_in_branches():
                    break
            if self._open():
                self._decide()
        except Infeasible:  # the proof is empty: nothing beats the best choice
            self.lower_bound = np.inf

    def _start(self) -> None:
        """A first bound and choice, whatever the time: off the costs, or off prices that put memory first."""
        for _ in range(SETTLING if self.relaxation.known_prices else 1):
            self.relaxation.sweep()
        self._prove_by(self.relaxation.bound())
        start = clock.now()
        self._consider(greedy(self.relaxation))
        self.looking = clock.now() - start
        if self.found is None:
            self._consider(frugal(Relaxation(self.proof, {}), self.deadline))

    @property
    def cutoff(self) -> float:
        """Only choices below this are looked for."""
        return self.below if self.found is None else min(self.found.cost, self.below)

    def _open(self) -> bool:
        return self.lower_bound <= self.cutoff - 1 and clock.now() < self.deadline

    def _apart(self, share: float) -> bool:
        """Whether the gap is at least this share of the best choice."""
        return self.cutoff - self.lower_bound >= share * abs(self.cutoff)

    def _time_for(self, looks: float) -> bool:
        return self.deadline - clock.now() > looks * self.looking

    def _soon(self, share: float) -> float:
        now = clock.now()
        return now + share * (self.deadline - now)

    def _relax(self, deadline: float) -> bool:
        """Better messages and prices, as long as they close the gap fast enough; whether they no longer do."""
        gaining = True
        deadline -= self.looking
        while self._open() and clock.now() < deadline and gaining:
            before, start, done = self.relaxation.value(), clock.now(), 0
            while done < PRICES_PER_LOOK and clock.now() <= deadline:
                value = self.relaxation.value()
                self.relaxation.reprice(value, aim(value, self.cutoff))
                self.relaxation.press_on()
                done += 1
            self._prove_by(self.relaxation.bound())
            gap = self.cutoff - self.lower_bound
            closed = CLOSING * min(gap, UNSETTLED * abs(self.cutoff)) if np.isfinite(gap) else 0.0
            least = max(closed, LEAST_GAIN * abs(before)) * done / PRICES_PER_LOOK
            gaining = self.relaxation.best > before + least
            if gap <= NARROWER * self.looked_at or not gaining or clock.now() > deadline:
                value, cutoff = self.relaxation.value(), self.cutoff
                self._look(2 * clock.now() - start)
                self.relaxation.step = kept_length(self.relaxation.step, value, cutoff, self.cutoff)
                self.looked_at = self.cutoff - self.lower_bound
        self.relaxation.return_to_best()
        return not gaining

    def _prove_by(self, bound: Bound) -> None:
        self._prove(bound.value - MARGIN * abs(bound.value))

    def _prove(self, bound: float) -> None:
        self.lower_bound = max(self.lower_bound, bound)

    def _look(self, deadline: float) -> None:
        """A choice read off the messages, if it is better than what we have."""
        start = clock.now()
        found = read_off(self.relaxation, min(deadline, self.deadline))
        self._consider(found if found or self.found else greedy(self.relaxation))
        took = clock.now() - start
        self.looking = took if start + took < deadline else max(took, self.looking)

    def _consider(self, found: Found | None) -> None:
        """Take a choice of the proof, if there is one and it is better than what we have."""
        if found is not None:
            self._take(self.proof.expand(found.choice))

    def _take(self, choice: dict[int, int]) -> None:
        positions = {v: choice[v] for v in self.core.nodes}
        cost = self.core.cost(positions)
        if self.found is None or cost < self.found.cost:
            self.found = Found(positions, cost)

    def _search(self) -> None:
        if self.found is not None and self._open():
            self.searches += 1
            deadline = self._soon(SEARCHING if self._time_for(LOOKS_PER_ROUND) else 1.0)
            prices = self.relaxation.known_prices
            found = self.found
            if self.bettered != (found.cost, self.lower_bound):
                found = better(self.core, found, prices, self._regrets, deadline)
                self.bettered = found.cost, self.lower_bound
            search = NeighbourhoodSearch(self.core, found, prices, self._regrets, self.searches)
            try:
                search.improve(deadline, PATIENCE)
            finally:  # Ctrl-C keeps what was found
                self.found = search.found

    def _halve(self) -> None:
        """Solve the halves of what nearly falls apart in time, each by itself."""
        if self.proof.size <= LARGE or halves_of(self.relaxation) is None:
            return
        if not self._open() or not self._time_for(LOOKS_PER_BRANCHES):
            return
        if not self._relax(self._soon(BEFORE)):
            return  # messages still gain, and say little yet of what tables between the halves cost
        halves = halves_of(self.relaxation)
        assert halves is not None
        bound, choice, prices = halves.apart, dict[int, int](), self.relaxation.known_prices
        for half, share in zip((halves.early, halves.late), IN_HALVES, strict=True):
            try:
                answer = solve_network(half, self._soon(share), prices=prices)
            except SolverStopped:
                return
            bound += answer.lower_bound
            choice |= answer.choice
        self._prove(bound)
        self._consider(Found(choice, np.inf))

    def _part(self) -> None:
        """Decide hubs, and solve what is left then: little ties it together."""
        hubs = hubs_of(self.proof)
        if not hubs or not self._open() or not self._time_for(LOOKS_PER_DIVE):
            return
        if not any(self._relax(self._soon(share)) for share in (BEFORE, RELAXING)):
            return
        if not self._apart(FAR_APART) or not self._open() or not self._time_for(LOOKS_PER_DIVE):
            return
        at_ease = self._time_for(LOOKS_PER_BRANCHES)
        tree = HubTree(self.relaxation, hubs, self._soon(BEFORE))
        if tree.best.value < tree.bound + LIFTED * (self.cutoff - tree.bound):
            return  # hubs tie little together: what is far from the bound is the choice
        for turn, (branching, parting) in enumerate(TURNS if at_ease else (IN_HASTE,)):
            tree.explore(self.cutoff, self._soon(branching), on_memory=turn > 0)
            self._prove(tree.bound)
            if self._open():
                self._solve_decided(tree.best, self._soon(parting))

    def _solve_decided(self, hubs: Decided, deadline: float) -> None:
        """Look for a choice in what a decision of the hubs leaves."""
        near = not self._apart(FAR_APART)  # else there is nothing good yet to be bettered
        try:
            answer = solve_decided(self.proof, hubs, deadline, self.cutoff, solve_network, near=near)
        except Stopped as stop:
            self._improve(stop.answer)
            raise
        self._improve(answer)

    def _improve(self, answer: NetworkAnswer) -> None:
        """Take the answer to a part of the proof, if there is one."""
        if answer.choice:
            self._consider(Found(answer.choice, answer.cost))

    def _part_on_memory(self) -> None:
        """Branches on memory where so much is open that guesses would have to be far above the bound."""
        small = self.proof.size <= PARTED and self.proof.rows.size
        if not (small or self.on_memory) or not self._apart(LEFT_TO_GUESSES) or not self._open():
            return
        if self.on_memory is None:
            self.on_memory = MemoryTree(self.proof.fork(), self.relaxation.known_prices, solve_network)
        open_before = self.cutoff - self.lower_bound
        answer = self.on_memory.explore(self.cutoff, self._soon(ON_MEMORY))
        if answer.choice:
            self._take(answer.choice)
        self._prove(answer.lower_bound)
        self.branches_close = self.cutoff - self.lower_bound < (1 - IN_BRANCHES) * open_before

    def _far_in_branches(self) -> bool:
        """Whether branches on memory have begun and much is open: they close more of it than the integer program."""
        return self.on_memory is not None and self._apart(LEFT_TO_GUESSES)

    def _guess(self) -> None:
        """Raise the bound by guesses of the best cost, as long as they are decided."""
        if not self._time_for(LOOKS_PER_GUESS):
            return
        failures = 0
        self.relaxation.absorb()
        self.relaxation = Relaxation(self.proof, self.relaxation.known_prices, {})
        while failures < 2 and self._open() and self._time_for(LOOKS_PER_GUESS):
            cost = np.floor(self.lower_bound + self.slack * abs(self.lower_bound)) + 1
            cost = min(cost, self.cutoff)
            answer = guess(self.proof.fork(), self.relaxation.known_prices, cost, self._soon(GUESSING))
            if answer.choice is not None:
                self._take(answer.choice)
            self._prove(answer.lower_bound)
            failures = 0 if answer.decided else failures + 1
            self.slack = (cost / self.lower_bound - 1) / 2 if failures else self.slack * GROWTH

    def _regrets(self, found: Found) -> dict[int, float]:
        """Where a choice lies above the bound, as far as the proof still has its strategies."""
        gap = max(0.0, found.cost - self.lower_bound)
        labels = self.proof.labels
        known = {v: at for v in self.proof.nodes if (at := position(labels[v], found.choice[v])) is not None}
        regrets = self.relaxation.regrets(known)
        # what is more than the whole gap comes of strategies and pairs that reductions replaced by others
        return {v: regret for v, regret in regrets.items() if regret <= gap}

    def _fix(self) -> None:
        """Drop from the proof what cannot be in a better choice, and reduce it again."""
        gap = self.cutoff - self.lower_bound
        if not self._open() or gap == np.inf or gap > NARROWER * self.fixed_at:
            return
        if not self._time_for(LOOKS_PER_FIXING):
            return
        self.fixed_at = gap
        prices, size = self.relaxation.known_prices, self.proof.size
        self.relaxation.absorb()
        self._prove(self.relaxation.fix(self.cutoff))
        much = self.proof.size < (1 - LEAST_DROPPED) * size
        shrink(self.proof, self._soon(REDUCING) if much else -np.inf)
        self.relaxation = Relaxation(self.proof, prices, {})
        self.relaxation.sweep()

    def _decide(self) -> None:
        """Let branches and the integer program decide."""
        answer = solve_tree(self.proof, self.relaxation.known_prices, self.deadline, self.cutoff)
        if answer.choice is not None:
            self._take(answer.choice)
        self._prove(answer.lower_bound)

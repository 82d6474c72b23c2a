"""A lower bound of a network of any size, without a solver: messages between neighbours, prices on memory.

Messages phi move costs between edges and their ends, so that node v has theta_v = c_v + prices . bytes +
sum_e phi_e->v and edge e = (v, w) has theta_e = table - phi_e->v - phi_e->w. Whatever the messages and the
prices >= 0::

    bound = constant - prices . capacity + sum_v min theta_v + sum_e min theta_e

and a strategy s of v costs at least the bound plus what it lies above the least in theta_v and in the edges
at v (its *margin*); two strategies of neighbours cost at least the bound plus both margins, less what their
edge lends to each, plus what it takes from the pair. What exceeds the cost of a known choice can go. A sweep
goes through the nodes; each collects all that its edges can give and hands it on in equal shares to the edges
that lie ahead, which never lowers the bound. Prices follow what a choice read off the messages takes
(subgradient steps).

Source: Kolmogorov, "A new look at reweighted message passing", IEEE PAMI 37 (2015); Held, Wolfe and Crowder,
"Validation of subgradient optimization", Mathematical Programming 6 (1974); Camerini, Fratta and Maffioli, "On
improving relaxation methods by modified gradient techniques", Mathematical Programming Study 3 (1975); Young,
"Iterative methods for solving partial difference equations of elliptic type", Transactions of the American
Mathematical Society 76 (1954), for over-relaxation; Polyak, "Some methods of speeding up the convergence of iteration
methods", USSR Computational Mathematics and Mathematical Physics 4 (1964), for the heavy ball.
"""

from collections.abc import Collection, Mapping

import numpy as np

from planner.intra_op import clock
from planner.intra_op.ascent import GAIN, MOMENTUM, PATIENCE, SHORTER, STEP
from planner.intra_op.bounds import Bound, State
from planner.intra_op.levels import Layout, Level, Share
from planner.intra_op.liveness import violated
from planner.intra_op.network import Network, prices_of
from planner.intra_op.problem import Array
from planner.intra_op.tables import Numbers, Tables

Messages = Mapping[tuple[int, int], Array]
"""Node and neighbour -> message from their edge into the node."""

MARGIN = 1e-9
"""Relative rounding allowed to bounds before anything goes."""

EXACT_BITS = 44
"""Of the 53 that a float holds, those that costs may take to the size of the bound; sums may exceed that 500 times."""

MOST_PACE, PRICED_PACE, PICKUP = 0.93, 0.8, 0.1
"""Share of what the last sweep changed that the next one starts beyond it, at most; at most while prices move, which it
would lead astray; and by how much it grows each time."""

PASSES = 10
"""Through all nodes, in which a choice is improved; mostly two are enough."""


class Relaxation:
    """Messages and prices of one network."""

    def __init__(
        self, network: Network, prices: Mapping[int, float], messages: Messages | None = None
    ) -> None:
        """Start from known ``prices``, by original row, and ``messages``, or none."""
        self.network = network
        self.rows = network.rows
        """Original numbers of the rows that have prices."""
        self.prices = prices_of(network, prices)
        self.step = STEP
        self.best = -np.inf
        """The highest bound that prices have reached."""
        self.swept = 0
        """Sweeps so far."""
        self._direction = np.zeros(self.rows.size)
        self._stalled = 0
        self._layout = Layout(network)
        self._into = np.zeros(self._layout.slots.num_messages)
        """Messages."""
        for (v, w), message in (messages or {}).items():
            place = self._layout.place[v][w]
            self._into[place : place + message.size] = message
        if messages is None:
            for level in self._layout.levels:
                self._collect(level.ahead)
        self._ends = self._into, self._into
        """Messages after the last sweep but one, and after the last."""
        self._pace = 0.0
        """Share of what the last sweep changed that the next one starts beyond it."""
        self._held = np.zeros(self._layout.costs.size)
        self._most_apart = 0.0
        self._priced = self._price()
        self._best_at = State(self.prices, self._into)

    @property
    def known_prices(self) -> dict[int, float]:
        """Prices above zero, by original row."""
        return {int(row): float(p) for row, p in zip(self.rows, self.prices, strict=True) if p > 0}

    @property
    def messages(self) -> dict[tuple[int, int], Array]:
        """From each edge into each of its nodes, by class where the network has classes."""
        return self._by_edge(self._into.copy())

    @property
    def exact_messages(self) -> dict[tuple[int, int], Array]:
        """The same as multiples of a power of two far below the rounding of sums, with whole costs too."""
        unit = np.ldexp(1.0, int(np.frexp(self.value())[1]) - EXACT_BITS)
        return self._by_edge(np.round(self._into / unit) * unit)

    def _by_edge(self, into: Array) -> dict[tuple[int, int], Array]:
        return {
            (v, w): into[place : place + len(self.network.tables[v][w])]
            for v, places in self._layout.place.items()
            for w, place in places.items()
        }

    def memory_costs(self, v: int) -> Array:
        """What each strategy of a node pays for its memory."""
        at = self._layout.strategies(v)
        return np.asarray(self._priced[at] - self._layout.costs[at])

    def sweep(self) -> None:
        """One pass through the nodes and one back."""
        clock.work(2 * self._layout.pass_seconds)
        self.swept += 1
        for level in self._layout.levels:
            self._collect(level.behind)
            self._hand_on(level, level.forward)
        for level in reversed(self._layout.levels):
            self._collect(level.ahead)
            self._hand_on(level, level.backward)
        self._ends = self._ends[1], self._into.copy()

    def press_on(self) -> None:
        """A sweep from farther on in the direction of the last (heavy ball); the bound may fall before it rises."""
        self.go_beyond(self._pace)
        self.sweep()
        self._pace = min(MOST_PACE, self._pace + PICKUP)

    def go_beyond(self, share: float) -> None:
        """Move messages on by a ``share`` of what changed from sweep to sweep (over-relaxation); sweeps must follow.

        Where many sweeps go the same way this saves most of them; the bound may fall before it rises.
        """
        before, after = self._ends
        self._into += share * (after - before)

    def value(self) -> float:
        """The bound right after a sweep, which leaves nothing in the edges; up to rounding."""
        return self._of_nodes(self._theta())

    def bound(self) -> Bound:
        """The bound and the margins, computed anew from all tables."""
        value, margins, _ = self._bound()
        return Bound(value, {v: margins[self._layout.strategies(v)] for v in self._layout.nodes})

    def proven(self) -> float:
        """The value of `bound` alone."""
        value = self._of_nodes(self._theta())
        for tables in self._layout.edges():
            value += float(self._rest(tables).min(axis=0).min(axis=1).sum())
        return value

    def absorb(self) -> None:
        """Make the messages, rounded, a part of the network's costs; what a choice costs stays the same.

        The bound then needs no messages, and no reduction of the network lowers it. Costs stay exact: they are
        multiples of a power of two far below the rounding of sums. Of this relaxation, only `fix` is of use then.
        """
        for (v, w), message in self.exact_messages.items():
            self.network.costs[v] = self.network.costs[v] + message
            self.network.add_table(v, w, np.repeat(-message[:, None], self.network.costs[w].size, axis=1))

    def fix(self, cost: float) -> float:
        """Forbid in the network what only choices of ``cost`` or more contain: strategies and pairs of them.

        The bound that says so. The network may have strategies without a partner afterwards, and this
        relaxation is no longer of use.
        """
        value, margins, lift = self._bound()
        value -= MARGIN * abs(value)
        slack = cost - 1 - value
        lift[np.isinf(lift)] = 0.0  # no partner is left: the margin says so too
        for tables in self._layout.edges():
            rest = self._rest(tables)
            rest -= rest.min(axis=(0, 2), keepdims=True)
            rest += margins[tables.mine(self._layout.slots.strategy_of)] - tables.mine(lift)
            rest += margins[tables.theirs(self._layout.slots.strategy_of)] - tables.theirs(lift)
            dear = (rest > slack) & np.isfinite(tables.costs)
            for edge in np.flatnonzero(dear.any(axis=(0, 2))):
                self.network.forbid(*tables.edges[edge], dear[:, edge].T)
        for v in self._layout.nodes:
            kept = np.flatnonzero(margins[self._layout.strategies(v)] <= slack)
            if kept.size < self.network.costs[v].size:
                self.network.keep(v, kept)
        return value

    def decode(self) -> dict[int, int]:
        """A choice read off the messages, level by level; it may exceed the capacities."""
        return dict(zip(self._layout.nodes, self._decode()[0].tolist(), strict=True))

    def priced_decode(self) -> tuple[dict[int, int], float]:
        """The same, and what the network costs under it."""
        choice, seen = self._decode()
        pairs = self._per_strategy(np.where(self._layout.is_behind, seen, 0.0))
        costs = (self._layout.costs + pairs)[self._layout.first[:-1] + choice]
        named = dict(zip(self._layout.nodes, choice.tolist(), strict=True))
        return named, self.network.constant + float(costs.sum())

    def improve(self, choice: Mapping[int, int]) -> dict[int, int]:
        """A choice that costs no more, memory as it is priced: each node takes what is cheapest beside the others.

        Source: Besag, "On the statistical analysis of dirty pictures", Journal of the Royal Statistical Society B
        48 (1986), section 2.5 (iterated conditional modes).
        """
        taken = np.array([choice[v] for v in self._layout.nodes], dtype=np.intp)
        seen = self._into.copy()
        for _ in range(PASSES):
            before = taken.copy()
            for level in self._layout.levels:
                self._take(level, [*level.behind, *level.ahead], seen, taken)
            if (taken == before).all():
                break
        return dict(zip(self._layout.nodes, taken.tolist(), strict=True))

    def regrets(self, choice: Mapping[int, int]) -> dict[int, float]:
        """By how much the strategy of each node in ``choice`` lifts the bound, and half of what its pairs lift it.

        Summed up they are what a choice costs above the bound, but for the memory that it leaves free where
        memory is priced: they tell where a choice can be bettered. ``inf`` for pairs that are forbidden.
        """
        known = np.array([v in choice for v in self._layout.nodes], dtype=np.bool_)
        taken = np.array([choice.get(v, 0) for v in self._layout.nodes], dtype=np.intp)
        theta = self._theta()
        regret = theta[self._layout.first[:-1] + taken] - self._least(theta)
        for tables in self._layout.edges():
            own = np.array([self._layout.position[v] for v, _ in tables.edges])
            edges = np.flatnonzero(known[own] & known[tables.neighbour])
            own, other = own[edges], tables.neighbour[edges]
            rest = self._rest(tables)
            lift = rest[taken[other], edges, taken[own]] - rest.min(axis=(0, 2))[edges]
            np.add.at(regret, own, lift / 2)
            np.add.at(regret, other, lift / 2)
        return {v: float(r) for v, r, k in zip(self._layout.nodes, regret, known, strict=True) if k}

    def hold(self, kept: Mapping[int, Collection[int]]) -> None:
        """Let these nodes take no other strategies, as if those were dearer than any choice."""
        self._most_apart = self._most_apart or self.network.most_apart()
        self._held[:] = 0.0
        for v, strategies in kept.items():
            at = self._layout.strategies(v)
            self._held[at] = self._most_apart
            self._held[at.start + np.array(strategies, dtype=np.intp)] = 0.0
        self.restore(self.snapshot())

    def snapshot(self) -> State:
        """Prices and messages, to be restored."""
        return State(self.prices.copy(), self._into.copy())

    def restore(self, state: State) -> None:
        """Go back to what `snapshot` gave; the highest bound and the steps of the prices count from here."""
        self.best, self.step = -np.inf, STEP
        self._best_at = state
        self._restore()

    def scores(self, v: int, choice: Mapping[int, int]) -> Array:
        """How expensive each strategy of v looks, given the ``choice`` made for nodes before it."""
        total = self._priced[self._layout.strategies(v)]
        for w, table in self.network.tables[v].items():
            if w in choice:
                total = total + table[:, choice[w]]
            else:
                place = self._layout.place[w][v]
                total = total + (table - self._into[place : place + table.shape[1]]).min(axis=1)
        return total

    def reprice(self, value: float, target: float) -> None:
        """Move the prices towards what a decoded choice takes; ``target`` is the cost to be reached.

        ``value`` is the bound now. Where steps no longer raise it, they go on shorter from the best prices.
        """
        self._remember(value)
        if self._stalled >= PATIENCE:
            self.step *= SHORTER
            self._restore()
        taken = self._layout.pieces.taken(self._layout.first[:-1] + self._decode()[0])
        excess = taken - self.network.capacity
        rows = np.union1d(np.flatnonzero(self.prices), violated(self.network, taken)).astype(int)
        rows = rows[(self.prices[rows] > 0) | (excess[rows] > 0)]
        self._direction *= MOMENTUM
        self._direction[rows] += excess[rows]
        product = float(np.linalg.norm(excess[rows]) * np.linalg.norm(self._direction))
        if product:
            length = self.step * max(target - value, 0.0) / product
            self.prices = np.maximum(0.0, self.prices + length * self._direction)
            self._priced = self._price()
            self._pace = min(self._pace, PRICED_PACE)

    def return_to_best(self) -> None:
        """Go back to the prices, and the messages under them, where the bound was highest; after a sweep."""
        self._remember(self.value())
        self._restore()

    def note_best(self) -> float:
        """The highest bound so far, right after a sweep."""
        return self._remember(self.value())

    def keep_best(self) -> float:
        """The same; back to the messages that gave it, if they are no longer."""
        value = self.value()
        if value < self._remember(value):
            self._restore()
        return self.best

    def _restore(self) -> None:
        prices, into = self._best_at
        self.prices, self._into = prices.copy(), into.copy()
        self._ends = into, into
        self._pace = 0.0
        self._priced = self._price()
        self._direction[:] = 0.0
        self._stalled = 0

    def _remember(self, value: float) -> float:
        least = self.best + GAIN * abs(self.best) if np.isfinite(self.best) else -np.inf
        self._stalled = 0 if value > least else self._stalled + 1
        if value > self.best:
            self.best = value
            self._best_at = self.snapshot()
        return self.best

    def _collect(self, edges: list[Tables]) -> None:
        """Take into nodes all that their edges can give."""
        for tables in edges:
            given = tables.costs - tables.theirs(self._into)
            np.minimum.reduce(given, axis=0, out=tables.mine(self._into))

    def _hand_on(self, level: Level, share: Share) -> None:
        theta = self._priced[level.strategies].copy()
        into = level.slots.spread(self._into[level.messages])
        theta += np.bincount(level.slots.strategy_of, into, theta.size)
        self._into[share.messages] -= share.of * share.slots.least(theta)

    def _bound(self) -> tuple[float, Array, Array]:
        """The bound, the margin of each strategy, and the part of it that lies in the edge of each message."""
        theta = self._theta()
        value = self._of_nodes(theta)
        lift = np.zeros(self._into.size)
        for tables in self._layout.edges():
            rest = self._rest(tables)
            mine, theirs = rest.min(axis=0), rest.min(axis=2)
            least = mine.min(axis=1)
            value += float(least.sum())
            tables.mine(lift)[:] = mine - least[:, None]
            tables.put_theirs(lift, theirs - least)
        return value, theta - self._least(theta)[self._layout.owner] + self._per_strategy(lift), lift

    def _of_nodes(self, theta: Array) -> float:
        """The bound but for what is in the edges."""
        priced = np.flatnonzero(self.prices)  # few of many rows: their product needs no threads
        charged = float(self.prices[priced] @ self.network.capacity[priced])
        return self.network.constant - charged + float(self._least(theta).sum())

    def _theta(self) -> Array:
        return self._priced + self._per_strategy(self._into)

    def _per_strategy(self, messages: Array) -> Array:
        slots = self._layout.slots
        total = np.bincount(slots.strategy_of, slots.spread(messages), self._priced.size)
        return np.asarray(total, dtype=np.float64)

    def _least(self, theta: Array) -> Array:
        return np.minimum.reduceat(theta, self._layout.first[:-1]) if theta.size else np.zeros(0)

    def _rest(self, tables: Tables) -> Array:
        """What messages leave in the edges, [the neighbour's strategy, edge, own strategy]."""
        rest: Array = tables.costs - tables.mine(self._into)
        rest -= tables.theirs(self._into)
        return rest

    def _decode(self) -> tuple[Numbers, Array]:
        """What is taken, right after a sweep, when messages from ahead are there; what it costs is from behind."""
        clock.work(self._layout.pass_seconds)
        choice = np.zeros(len(self._layout.nodes), dtype=np.intp)
        seen = self._into.copy()
        for level in self._layout.levels:
            self._take(level, level.behind, seen, choice)
        return choice, seen

    def _take(self, level: Level, edges: list[Tables], seen: Array, choice: Numbers) -> None:
        """Let nodes of a level choose: beside what is chosen along some edges, and by messages along the others."""
        for tables in edges:
            tables.mine(seen)[:] = tables.shown(choice)
        slots, num = level.slots, level.strategies.stop - level.strategies.start
        messages = slots.spread(seen[level.messages])
        scores = self._priced[level.strategies] + np.bincount(slots.strategy_of, messages, num)
        first = self._layout.first[level.nodes] - level.strategies.start
        owner = self._layout.owner[level.strategies] - level.nodes.start
        best = np.flatnonzero(scores == np.minimum.reduceat(scores, first)[owner])
        choice[level.nodes] = best[np.searchsorted(best, first)] - first  # the earliest of each node

    def _price(self) -> Array:
        costs = self._layout.costs
        return costs + self._held + self._layout.pieces.priced(self.prices, costs.size)

"""Networks without memory rows, solved node by node: all that a few nodes can take, as long as it is cheap enough.

Nodes are taken in turn. A *state* says what the *frontier* takes: those nodes so far that have neighbours still to
come. Of states alike to all these neighbours the cheapest stays, as in dynamic programming; and states beyond a target
go, as in branch and bound: what costs and tables take beyond their least adds up, and nothing later takes it back.
Where messages have moved costs so that the sum of all that is least, the bound, is high
(`planner.intra_op.messages.Relaxation`), few states are left of frontiers whose whole tables no memory would hold.

Source: Morin and Marsten, "Branch-and-bound strategies for dynamic programming", Operations Research 24 (1976).
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from planner.intra_op import clock
from planner.intra_op.network import Network
from planner.intra_op.problem import Array

Numbers = npt.NDArray[np.intp]

NARROW = 10.0
"""Logarithm of the states of the widest frontier below which no other order is tried."""

STARTS = 2
"""Nodes from which orders are tried."""

LARGEST_BATCH = 2**20
"""Entries of the largest temporary array."""

LARGEST_KEY = 2**62
"""Of the number that stands for what a state takes."""


class States(NamedTuple):
    """What a frontier can take."""

    frontier: tuple[int, ...]
    taken: Numbers
    """[state, node of the frontier]: position of the strategy, or of one that is the same to all to come."""
    cost: Array
    """Per state, beyond all that is least."""


class _Step(NamedTuple):
    """How states came to be, by one more node."""

    node: int
    before: Numbers
    """Per state, the one that it came from,"""
    strategy: Numbers
    """and what the node takes."""


def cheapest(
    network: Network, target: float, most: int, deadline: float, prove: bool = False
) -> tuple[dict[int, int] | None, bool]:
    """The cheapest choice of at most ``target`` that is found, by position, or None; and whether no other is cheaper.

    Nodes are taken by their numbers, and of each frontier the ``most`` cheapest states go on, or none where only what
    can be proven is of use. Costs are whole numbers. The clock may say ``deadline`` first.
    """
    slack, proven = target - network.floor, True
    states, steps = States((), np.zeros((1, 0), np.intp), np.zeros(1)), list[_Step]()
    for v in sorted(network.nodes):
        states, step = _grown(network, states, v, slack)
        if states.cost.size > most:
            if prove:
                return None, False
            kept = np.sort(np.argpartition(states.cost, most)[:most])
            states = States(states.frontier, states.taken[kept], states.cost[kept])
            step, proven = _Step(v, step.before[kept], step.strategy[kept]), False
        steps.append(step)
        if not states.cost.size:
            return None, proven
        if clock.now() > deadline:
            return None, False
    choice, state = {}, 0
    for node, before, strategy in reversed(steps):
        choice[node] = int(strategy[state])
        state = int(before[state])
    return choice, proven


def order(network: Network) -> list[int]:
    """All nodes, one after the other such that frontiers have few strategies."""
    nodes = sorted(network.nodes)
    best = _Order(np.inf, 0.0, nodes)
    for v in nodes[:: 1 + len(nodes) // STARTS]:
        best = min(best, _order_from(network, v, best.most) or best)
        if best.most < NARROW:
            break
    return best.nodes


class _Order(NamedTuple):
    """Nodes one after the other, and how wide frontiers are, in logarithms of the combinations of their strategies."""

    most: float
    total: float
    """Over all times."""
    nodes: list[int]


def _order_from(network: Network, start: int, limit: float) -> _Order | None:
    """An order in which the next node leaves the fewest strategies on the frontier; None if one exceeds the limit."""
    logs = {v: float(np.log(costs.size)) for v, costs in network.costs.items()}
    waiting = {v: set(network.tables[v]) for v in network.nodes}
    """Per node to come or on the frontier, its neighbours to come."""
    more = {v: logs[v] if waiting[v] else 0.0 for v in network.nodes}
    """Per node to come, what the frontier has more after it than before."""
    near, found = {start}, list[int]()
    width = most = total = 0.0
    while more:
        v = min(near or more, key=lambda v: (more[v], v))
        found.append(v)
        most, total, width = max(most, width + logs[v]), total + width + logs[v], width + more.pop(v)
        if most > limit:
            return None
        for w in network.tables[v]:
            waiting[w].discard(v)
            if w in more and not waiting[w]:
                more[w] -= logs[w]
        for u in (v, *network.tables[v]):
            if u not in more and len(waiting[u]) == 1:
                more[next(iter(waiting[u]))] -= logs[u]
        near = (near | network.tables[v].keys()) & more.keys()
    return _Order(most, total, found)


def _grown(network: Network, states: States, v: int, slack: float) -> tuple[States, _Step]:
    """The states of the frontier with one more node."""
    before, strategy, cost = _extended(network, states, v, slack)
    every = (*states.frontier, v)
    stays = [k for k, u in enumerate(every) if max(network.tables[u], default=v) > v]
    frontier = tuple(every[k] for k in stays)
    taken = np.concatenate([states.taken[before], strategy[:, None]], axis=1).take(stays, axis=1)
    for k, u in enumerate(frontier):
        if u == v or v in network.tables[u]:
            taken[:, k] = _alike(network, u, [w for w in network.tables[u] if w > v])[taken[:, k]]
    kept = _cheapest_of_alike(taken, cost, [network.costs[u].size for u in frontier])
    return States(frontier, taken[kept], cost[kept]), _Step(v, before[kept], strategy[kept])


def _extended(network: Network, states: States, v: int, slack: float) -> tuple[Numbers, Numbers, Array]:
    """Per state and strategy of one more node, of those that stay below the target: both, and what they cost."""
    costs = network.costs[v] - network.costs[v].min()
    every = np.arange(costs.size)
    near = []
    for k, u in enumerate(states.frontier):
        if v in network.tables[u]:
            table, taken = network.tables[u][v], states.taken[:, k]
            costs -= table.min()
            near.append((table, network.rows_of(u, v, taken), network.rows_of(v, u, every)))
    clock.work(clock.FRONTIER_OF_A_NODE + clock.FRONTIER_OF_A_STATE * states.cost.size * costs.size)
    size = max(1, LARGEST_BATCH // costs.size)
    found = []
    for first in range(0, states.cost.size, size):
        part = slice(first, first + size)
        total = states.cost[part, None] + costs
        for table, rows, columns in near:
            total += table.take(rows[part], axis=0).take(columns, axis=1)
        state, strategy = np.nonzero(total <= slack)
        found.append((state + first, strategy, total[state, strategy]))
    before, strategy, cost = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return before, strategy, cost


def _alike(network: Network, v: int, neighbours: list[int]) -> Numbers:
    """Per strategy of a node, the first one that is the same to these neighbours."""
    every = np.arange(network.costs[v].size)
    rows = [network.rows_of(v, w, every) for w in neighbours]
    if rows[0] is every:
        return every
    key, base = _numbered(rows, [len(network.tables[v][w]) for w in neighbours])
    if base > LARGEST_BATCH:
        _, first, which = np.unique(key, return_index=True, return_inverse=True)
        return np.asarray(first[which])
    first = np.empty(base, np.intp)
    first[key[::-1]] = every[::-1]
    return np.asarray(first[key])


def _cheapest_of_alike(taken: Numbers, cost: Array, sizes: list[int]) -> Numbers:
    """Of states that take the same, the first of the cheapest."""
    different = np.flatnonzero((taken != taken[:1]).any(axis=0)).tolist()
    columns = [np.zeros(cost.size, np.intp), *(taken[:, k] for k in different)]
    key, _ = _numbered(columns, [1, *(sizes[k] for k in different)])
    ordered = np.lexsort((cost, key))
    key = key[ordered]
    first = np.ones(key.size, np.bool_)
    first[1:] = key[1:] != key[:-1]
    return np.asarray(ordered[first])


def _numbered(columns: list[Numbers], sizes: list[int]) -> tuple[Numbers, int]:
    """A number for each row of some columns, whose entries are below ``sizes``, the same for the same; and the end."""
    key, base = columns[0], sizes[0]
    for column, size in zip(columns[1:], sizes[1:], strict=True):
        if base * size > LARGEST_KEY:
            different, key = np.unique(key, return_inverse=True)
            base = different.size
        key = key * size + column
        base *= size
    return key, base

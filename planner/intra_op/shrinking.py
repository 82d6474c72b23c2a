"""Exact reductions of large networks, applied until none helps any more.

Each keeps at least one optimal choice:

* a strategy that is forbidden, or has no allowed partner across some edge, goes (arc consistency);
* a table of the form f(i) + g(j) becomes costs of its two nodes;
* a node with one allowed strategy for every strategy of a neighbour becomes a part of that neighbour;
* a strategy goes that another of its node can replace at no loss, in cost whatever the neighbours choose and
  in memory at any time (dead-end elimination);
* a node whose memory does not depend on its strategy is eliminated where it has at most one neighbour, or two
  and the table between them is no larger than what it replaces (dynamic programming).

Source: Goldstein, "Efficient rotamer elimination", Biophysical Journal 66 (1994); Bertele and Brioschi,
Nonserial Dynamic Programming (1972).
"""

from collections import deque
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from planner.intra_op import clock
from planner.intra_op.liveness import settle
from planner.intra_op.network import Network
from planner.intra_op.problem import Array
from planner.intra_op.row_dominance import profile

Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.intp]

UNREACHABLE = 1e30
"""Stands in for ``inf`` where it is subtracted, since inf - inf is not a number."""

LARGEST_BATCH = 2**18
"""Entries of the largest temporary array: what the caches of a core hold."""

PAIRS_PER_ROW = 4
"""Pairs of strategies for each row of a table, above which rows that recur are looked for first."""

MAX_ENTRIES = 2**21
"""Entries of the largest table that an elimination looks at."""


def shrink(network: Network, deadline: float = np.inf) -> None:
    """Reduce ``network`` in place until nothing changes, or until the clock (`planner.intra_op.clock`) says so.

    What is left is arc consistent in any case. Raises `Infeasible` where no strategy of some node is left, or
    where even the least memory is too much.
    """
    dirty = settle(network) | network.nodes
    while dirty and clock.now() < deadline:
        _propagate(network, dirty, reduce_node, deadline)
        dirty = settle(network)
        if not dirty:
            dirty = {v for v in network.nodes if _may_be_eliminated(network, v)}
    drop_forbidden(network)


def merge_partners(network: Network) -> None:
    """Only make nodes a part of those that decide them: quick, and of whole programs it leaves a fifth of the nodes."""
    _propagate(network, network.nodes, _merge)


def drop_forbidden(network: Network) -> None:
    """Make ``network`` arc consistent; raises `Infeasible` where no strategy of some node is left."""
    _propagate(network, network.nodes, _drop_forbidden)


def _propagate(
    network: Network,
    dirty: Iterable[int],
    reduce: Callable[[Network, int], set[int]],
    deadline: float = np.inf,
) -> None:
    """Work off a queue of nodes; what changes beside them joins it."""
    queue = deque(sorted(dirty))
    waiting = set(queue)
    while queue and clock.now() < deadline:
        v = queue.popleft()
        waiting.discard(v)
        if v in network.nodes:
            entries = sum(table.size for table in network.tables[v].values())
            clock.work(clock.REDUCING_A_NODE + clock.REDUCING_AN_ENTRY * entries)
            changed = reduce(network, v) & network.nodes
            queue.extend(sorted(changed - waiting))
            waiting |= changed


def reduce_node(network: Network, v: int) -> set[int]:
    """Apply the first reduction that works at a node; the nodes that may now be reduced further."""
    return (
        _drop_forbidden(network, v)
        or _separate(network, v)
        or _merge(network, v)
        or _drop_dominated(network, v)
        or _eliminate(network, v)
    )


def _drop_forbidden(network: Network, v: int) -> set[int]:
    allowed = np.isfinite(network.costs[v])
    for table in network.tables[v].values():
        allowed = allowed & (table.min(axis=1) < np.inf)
    return _keep(network, v, allowed)


def _keep(network: Network, v: int, mask: Mask) -> set[int]:
    if mask.all():
        return set()
    network.keep(v, np.flatnonzero(mask))
    return {v, *network.tables[v]}


def _separate(network: Network, v: int) -> set[int]:
    changed = set()
    for w, table in list(network.tables[v].items()):
        if not _corners_separate(table):
            continue
        rows, columns = table[:, 0], table[0]
        if not np.isfinite(rows).all() or not np.isfinite(columns).all():
            continue
        if (table == rows[:, None] + (columns - columns[0])).all():
            network.remove_table(v, w)
            network.costs[v] = network.costs[v] + rows
            network.costs[w] = network.costs[w] + (columns - columns[0])
            changed |= {v, w}
    return changed


def _corners_separate(table: Array) -> bool:
    """What is seen at a glance of tables of the form f(i) + g(j); most others fail it."""
    item = table.item
    return bool(item(-1, -1) == item(-1, 0) + (item(0, -1) - item(0, 0)))


def _merge(network: Network, v: int) -> set[int]:
    for w, table in network.tables[v].items():
        if min(table.shape) > 1 and max(table.item(0, 0), table.item(0, 1), table.item(1, 0)) < np.inf:
            continue  # the first strategy of either has two partners
        finite = np.isfinite(table)
        if (finite.sum(axis=0) == 1).all():
            around = set(network.tables[v])
            network.merge(v, w, finite.argmax(axis=0))
            return around
        if (finite.sum(axis=1) == 1).all():
            around = set(network.tables[w])
            network.merge(w, v, finite.argmax(axis=1))
            return around
    return set()


def _eliminate(network: Network, v: int) -> set[int]:
    if not _may_be_eliminated(network, v):
        return set()
    around = set(network.tables[v])
    network.eliminate(v)
    return around


def _may_be_eliminated(network: Network, v: int) -> bool:
    neighbours = network.tables[v]
    if network.pieces[v] or len(neighbours) > 2:
        return False
    if len(neighbours) < 2:
        return True
    (a, first), (b, second) = neighbours.items()
    new = first.shape[1] * second.shape[1]
    if new * network.costs[v].size > MAX_ENTRIES:
        return False
    return b in network.tables[a] or new <= first.size + second.size


def _drop_dominated(network: Network, v: int) -> set[int]:
    if network.costs[v].size == 1:
        return set()
    return _keep(network, v, ~_dominated(network, v))


def _dominated(network: Network, v: int) -> Mask:
    """Strategies that another replaces at no loss; of equals, the first stays."""
    costs, tables = network.costs[v], list(network.tables[v].values())
    sample = costs + sum((np.minimum(t[:, 0], UNREACHABLE) for t in tables), np.zeros_like(costs))
    possible = _no_more_memory(network, v)
    if all(np.isfinite(t[:, 0]).all() for t in tables):
        possible &= sample[:, None] >= sample[None, :]
    np.fill_diagonal(possible, False)
    s, t = np.nonzero(possible)
    loss = costs[s] - costs[t]
    for table in sorted(tables, key=lambda table: table.size):
        loss = loss + _least_loss(table, s, t)
        real = loss > -UNREACHABLE / 2
        s, t, loss = s[real], t[real], loss[real]
    replaces = np.zeros_like(possible)
    replaces[s, t] = loss >= 0
    earlier = np.tri(costs.size, k=-1, dtype=np.bool_)
    return np.asarray((replaces & (~replaces.T | earlier)).any(axis=1))


def _least_loss(table: Array, s: Numbers, t: Numbers) -> Array:
    """Least of table[s] - table[t] over the columns that s allows."""
    if s.size > PAIRS_PER_ROW * len(table):  # most strategies of large nodes look alike to a neighbour
        rows, alike = _distinct(table)
        table, s, t = _distinct(rows.T)[0].T, alike[s], alike[t]
        if len(table) ** 2 <= s.size:
            every = np.indices((len(table), len(table))).reshape(2, -1)
            return np.asarray(_least_of_pairs(table, every[0], every[1])[s * len(table) + t])
    return _least_of_pairs(table, s, t)


def _distinct(table: Array) -> tuple[Array, Numbers]:
    """The rows of a table, each once, and which of these each row is."""
    numbers: dict[bytes, int] = {}
    alike = np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in table], dtype=np.intp)
    return table[np.unique(alike, return_index=True)[1]], alike


def _least_of_pairs(table: Array, s: Numbers, t: Numbers) -> Array:
    finite = np.minimum(table, UNREACHABLE)
    step = max(1, LARGEST_BATCH // table.shape[1])
    batches = [
        (table[s[at : at + step]] - finite[t[at : at + step]]).min(axis=1, initial=np.inf)
        for at in range(0, s.size, step)
    ]
    return np.concatenate(batches) if batches else np.empty(0)


def _no_more_memory(network: Network, v: int) -> Mask:
    """[s, t]: t takes no more memory than s in any row."""
    pieces = network.pieces[v]
    size = network.costs[v].size
    if len(pieces) <= 1:
        takes = next(iter(pieces.values()), np.zeros(size))
        return np.asarray(takes[:, None] >= takes[None, :])
    _, takes = profile(network, v)
    mask = np.ones((size, size), dtype=np.bool_)
    for part in np.array_split(takes, 1 + takes.size * size // LARGEST_BATCH):
        mask &= (part[:, :, None] >= part[:, None, :]).all(axis=0)
    return mask

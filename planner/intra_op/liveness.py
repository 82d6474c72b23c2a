"""Memory rows of a network: only those that can bind, with only what can still be chosen.

A row is a point of time; what is alive there must fit its capacity. What a node takes in any case is taken
off the capacity. A row that no choice can exceed goes, and so does one that follows from another.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from planner.errors import Infeasible
from planner.intra_op.network import Network, Piece
from planner.intra_op.problem import Array
from planner.intra_op.row_dominance import stand_ins


def rows_of(
    intervals: Sequence[Sequence[int]], usages: Sequence[Array], limit: float
) -> tuple[dict[int, Piece], Array]:
    """Pieces of memory of the nodes that are ever alive, and the capacity of each row, one per event."""
    alive = [k for k, (start, end) in enumerate(intervals) if start < end]
    times = np.unique(np.array([intervals[k] for k in alive], dtype=np.int64))
    pieces: dict[int, Piece] = {}
    if np.isfinite(limit):
        for k in alive:
            first, last = np.searchsorted(times, intervals[k])
            pieces[k] = Piece((int(first), int(last)), usages[k])
    return pieces, np.full(times.size, limit)


def settle(network: Network) -> set[int]:
    """Bring the rows up to date with the strategies that are left; the nodes that may now be reduced further.

    Raises `Infeasible` where even the least memory is too much.
    """
    if not network.capacity.size and not any(network.pieces.values()):
        return set()
    _take_off_the_least(network)
    if (network.capacity < 0).any():
        excess = -network.capacity.min()
        raise Infeasible(
            "even the smallest strategies do not fit in memory",
            f"raise the limit by at least {excess:,.0f} bytes",
        )
    changed = _drop_too_large(network)
    return changed | _renumber(network, _binding(network))


def one_hot(network: Network, choice: Mapping[int, int]) -> dict[int, Array]:
    """Weights of a choice: one for the strategy that each node takes."""
    return {v: np.eye(1, network.costs[v].size, s)[0] for v, s in choice.items()}


def demand(network: Network, weights: Mapping[int, Array]) -> Array:
    """Bytes that a choice takes of each row's capacity, or a mixture: weights of each node's strategies."""
    change = np.zeros(network.capacity.size + 1)
    for v, weight in weights.items():
        for (first, last), bytes_ in network.pieces[v].items():
            taken = float(bytes_ @ weight)
            change[first] += taken
            change[last] -= taken
    return np.cumsum(change)[:-1]


def fits(network: Network, choice: Mapping[int, int]) -> bool:
    """Whether a choice exceeds no row."""
    return not network.rows.size or not violated(network, demand(network, one_hot(network, choice)))


def violated(network: Network, taken: Array, tolerance: float = 0.0) -> list[int]:
    """The worst row of each run of rows that take too much, the worst of all first."""
    excess = taken - (1.0 + tolerance) * network.capacity
    bad = np.concatenate([[False], excess > 0, [False]])
    starts, ends = np.flatnonzero(bad[1:] & ~bad[:-1]), np.flatnonzero(bad[:-1] & ~bad[1:])
    worst = [int(a + excess[a:b].argmax()) for a, b in zip(starts, ends, strict=True)]
    return sorted(worst, key=lambda row: -excess[row])


def _take_off_the_least(network: Network) -> None:
    change = np.zeros(network.capacity.size + 1)
    for v in network.nodes:
        for rows, bytes_ in list(network.pieces[v].items()):
            least = bytes_.min()
            change[rows[0]] += least
            change[rows[1]] -= least
            bytes_ = bytes_ - least
            if bytes_.any():
                network.pieces[v][rows] = bytes_
            else:
                del network.pieces[v][rows]
    network.capacity = network.capacity - np.cumsum(change)[:-1]


def _drop_too_large(network: Network) -> set[int]:
    """Without the strategies that do not fit even when all other nodes take their least."""
    changed = set()
    for v in sorted(network.nodes):
        fits = np.ones(network.costs[v].size, dtype=np.bool_)
        for (first, last), bytes_ in network.pieces[v].items():
            fits &= bytes_ <= network.capacity[first:last].min()
        if not fits.all():
            network.keep(v, np.flatnonzero(fits))
            changed |= {v, *network.tables[v]}
    return changed


def _binding(network: Network) -> npt.NDArray[np.bool_]:
    """The rows that some choice exceeds and that do not follow from others."""
    num = network.capacity.size
    most = np.zeros(num + 1)
    for v in network.nodes:
        for (first, last), bytes_ in network.pieces[v].items():
            most[first] += bytes_.max()
            most[last] -= bytes_.max()
    candidates = np.flatnonzero(np.cumsum(most)[:-1] > network.capacity)
    follows = stand_ins(network, candidates.tolist())
    network.stand_ins |= {int(network.rows[row]): int(network.rows[other]) for row, other in follows.items()}
    binding = np.zeros(num, dtype=np.bool_)
    binding[candidates] = True
    binding[list(follows)] = False
    return binding


def _renumber(network: Network, binding: npt.NDArray[np.bool_]) -> set[int]:
    """Leave only the binding rows; the nodes whose memory has fewer pieces now."""
    fewer = set()
    position = np.concatenate([[0], np.cumsum(binding)])
    for v in network.nodes:
        pieces: dict[tuple[int, int], Array] = {}
        for (first, last), bytes_ in network.pieces[v].items():
            rows = int(position[first]), int(position[last])
            if rows[0] < rows[1]:
                pieces[rows] = pieces[rows] + bytes_ if rows in pieces else bytes_
        if len(pieces) < len(network.pieces[v]):
            fewer.add(v)
        network.pieces[v] = pieces
    network.capacity, network.rows = network.capacity[binding], network.rows[binding]
    return fewer

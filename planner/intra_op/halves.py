"""Networks that nearly fall apart in time: two halves that share no memory, solved one after the other.

Where no node has memory both before and after some moment, only tables tie the two halves together. Messages say what
such a table costs its two ends; with these frozen, rounded to whole numbers, and what they leave in the table taken at
its least, every choice costs at least what its halves do. So the halves' bounds add up to one of the whole, and their
choices together fit. What either takes to be solved by itself is added, not multiplied, as it is where branches part a
whole network.

Source: Komodakis, Paragios and Tziritas, "MRF energy minimization and beyond via dual decomposition", IEEE PAMI 33
(2011), for the bound; of its steps only the messages' are taken.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from planner.intra_op.messages import Relaxation
from planner.intra_op.network import Network

FEW = 0.1
"""Of all tables: those that may tie the halves together."""

SMALLER = 0.2
"""Of all nodes with memory: what the smaller half has at least, for it to be worth while."""


class Halves(NamedTuple):
    """Two networks under the numbers of the one that they are of, their strategies by their positions there."""

    early: Network
    late: Network
    apart: float
    """What choices cost beyond both, at least."""


def halves_of(relaxation: Relaxation) -> Halves | None:
    """The halves of a network, by the messages after a sweep; None where it does not nearly fall apart."""
    network = relaxation.network
    moment = _moment(network)
    if moment is None:
        return None
    early = _early(network, moment)
    late = network.nodes - early
    ties = [(v, w) for v in sorted(early) for w in network.tables[v] if w in late]
    if not late or len(ties) > FEW * sum(map(len, network.tables.values())) / 2:
        return None
    parts = _part(network, early, slice(0, moment)), _part(network, late, slice(moment, None))
    messages = relaxation.messages
    apart = network.constant
    for v, w in ties:
        mine, theirs = np.rint(messages[v, w]), np.rint(messages[w, v])
        parts[0].costs[v] = parts[0].costs[v] + mine
        parts[1].costs[w] = parts[1].costs[w] + theirs
        apart += float((network.tables[v][w] - mine[:, None] - theirs).min())
    return Halves(*parts, apart)


def _moment(network: Network) -> int | None:
    """The row from which on no node has memory that has some before it, with as many nodes as can be on either side."""
    spans = [span for v in network.nodes if (span := _span(network, v)) is not None]
    before, after = (np.zeros(network.capacity.size + 1, dtype=np.intp) for _ in range(2))
    for first, last in spans:
        before[last] += 1
        after[first] += 1
    ended, begun = np.cumsum(before), np.cumsum(after) - after
    smaller = np.where(begun == ended, np.minimum(ended, len(spans) - ended), 0)
    best = int(smaller.argmax())
    return best if smaller[best] > SMALLER * len(spans) else None


def _span(network: Network, v: int) -> tuple[int, int] | None:
    """The first row of a node's memory, and the one after the last; None without memory."""
    rows = network.pieces[v]
    return (min(first for first, _ in rows), max(last for _, last in rows)) if rows else None


def _early(network: Network, moment: int) -> set[int]:
    """The nodes on the early side: by their memory, or else by the side that most of their neighbours are on."""
    side = {v: -1 if span[1] <= moment else 1 for v in network.nodes if (span := _span(network, v))}
    waiting = _around(network, side)
    while waiting:
        found = {v: sum(side.get(w, 0) for w in network.tables[v]) for v in waiting}
        side |= {v: 1 if weight > 0 else -1 for v, weight in found.items()}
        waiting = _around(network, found) - side.keys()
    return {v for v in network.nodes if side.get(v, -1) < 0}


def _around(network: Network, known: Iterable[int]) -> set[int]:
    """Neighbours of nodes whose side is known."""
    known = set(known)
    return {w for v in known for w in network.tables[v]} - known


def _part(network: Network, nodes: Iterable[int], rows: slice) -> Network:
    """The network of some nodes and of rows that no others have memory in, without the tables to others."""
    part = Network({v: network.costs[v] for v in nodes}, {}, network.capacity[rows])
    part.rows, part.stand_ins = network.rows[rows], dict(network.stand_ins)
    for v in part.nodes:
        part.tables[v] = {w: table for w, table in network.tables[v].items() if w in part.nodes}
        part.pieces[v] = {
            (first - rows.start, last - rows.start): bytes_
            for (first, last), bytes_ in network.pieces[v].items()
        }
    return part

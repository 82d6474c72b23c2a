"""Memory rows that follow from other rows: where one is kept, the other is.

Row r follows from row q where no choice takes so much more in r than in q that r is exceeded and q is not::

    sum_v max_s (bytes[v, s, r] - bytes[v, s, q])  <=  capacity[r] - capacity[q]

Only nodes that are born, die or change between the two rows are in the sum, so neighbouring rows are compared. What
is left of rows without capacities of their own are the maximal cliques of the live intervals; with capacities that
differ, small outputs that come and go beside larger ones leave no row either.
"""

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from planner.intra_op.network import Network
from planner.intra_op.problem import Array

Bytes = tuple[int, Array]
"""Which stretch of rows of a node, and what its strategies take there."""


class Change(NamedTuple):
    """What one node takes in two rows."""

    before: Bytes
    after: Bytes
    rise: float
    """Most that a strategy takes more in the second row than in the first,"""
    fall: float
    """and in the first than in the second."""


Changes = dict[int, Change]
"""Per node, where two rows differ."""


def profile(network: Network, v: int) -> tuple[npt.NDArray[np.intp], Array]:
    """Rows where a node's memory changes, and what each strategy takes from there to the next, [row, strategy]."""
    pieces = network.pieces[v]
    if len(pieces) == 1:
        ((only, takes),) = pieces.items()
        return np.array(only), np.array([takes, np.zeros(takes.size)])
    rows, bytes_ = np.array(list(pieces)), np.array(list(pieces.values()))
    events = np.unique(rows)
    change = np.zeros((events.size, network.costs[v].size))
    np.add.at(change, np.searchsorted(events, rows[:, 0]), bytes_)
    np.subtract.at(change, np.searchsorted(events, rows[:, 1]), bytes_)
    return events, np.cumsum(change, axis=0)


def stand_ins(network: Network, rows: Iterable[int]) -> dict[int, int]:
    """Of ascending ``rows``, those that follow from others nearby -> the ones that they follow from."""
    events, at = _events(network), 0
    follows: dict[int, int] = {}
    kept: list[tuple[int, Changes]] = []
    """Rows that follow from none so far, and what changes from the one before to each."""
    now: Changes = {}
    for row in rows:
        while at < len(events) and events[at][0] <= row:
            _put(now, *events[at][1:])
            at += 1
        while kept and _covers(network, row, kept[-1][0], (change.fall for change in now.values())):
            last, since = kept.pop()
            follows[last] = row
            now = _joined(since, now)
        if kept and _covers(network, kept[-1][0], row, (change.rise for change in now.values())):
            follows[row] = kept[-1][0]
        else:
            kept.append((row, now))
            now = {}
    return follows


def _covers(network: Network, row: int, other: int, more: Iterable[float]) -> bool:
    """Whether the ``other`` row follows, where it takes at most so much ``more``."""
    return sum(more) <= float(network.capacity[other] - network.capacity[row])


def _events(network: Network) -> list[tuple[int, int, Bytes, Bytes]]:
    """Row, node, and what it takes before and from there on; by row."""
    events = []
    for v in sorted(network.nodes):
        if not network.pieces[v]:
            continue
        rows, takes = profile(network, v)
        nothing: Bytes = (0, np.zeros(network.costs[v].size))
        stretches = [nothing, *enumerate(takes[:-1], start=1), nothing]
        events += [(row, v, *pair) for row, pair in zip(rows.tolist(), pairwise(stretches), strict=True)]
    return sorted(events, key=lambda event: event[:2])


def _put(changes: Changes, v: int, before: Bytes, after: Bytes) -> None:
    """Let a node change after all else."""
    _set(changes, v, changes[v].before if v in changes else before, after)


def _joined(first: Changes, second: Changes) -> Changes:
    """Changes one after the other; the longer of the two is used up."""
    if len(first) < len(second):
        for v, change in first.items():
            _set(second, v, change.before, second[v].after if v in second else change.after)
        return second
    for v, change in second.items():
        _put(first, v, change.before, change.after)
    return first


def _set(changes: Changes, v: int, before: Bytes, after: Bytes) -> None:
    if before[0] == after[0]:
        changes.pop(v, None)
    else:
        more = after[1] - before[1]
        changes[v] = Change(before, after, float(more.max()), -float(more.min()))

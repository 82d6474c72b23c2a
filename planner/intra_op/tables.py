"""Tables of edges that are worked on together, and where the messages that belong to them lie."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from planner.intra_op.problem import Array

Numbers = npt.NDArray[np.intp]

FEW, IN_VAIN = 4096, 512
"""Entries up to which tables of unlike shapes are worked on together, and those that each of them may so add that say
nothing: these take less than starting anew would."""

Edge = tuple[int, int]


class Classes(NamedTuple):
    """Of strategies, as edges to other nodes see them."""

    of: Numbers
    """Node by node and edge by edge, of each strategy in turn."""
    first: Numbers
    """[edge]: the place of a node's first strategy in ``of``."""


class Tables(NamedTuple):
    """Tables of one shape, and where the numbers that belong to them lie."""

    edges: list[Edge]
    """Node and neighbour."""
    costs: Array
    """[the neighbour's strategy, edge, own strategy]: what is taken over all neighbours' strategies runs fast so."""
    own: slice
    """Places of the messages into the nodes, edge by edge."""
    other: Numbers | slice
    """[the neighbour's strategy, edge]: place of the message into the neighbour; of one edge alone, all its places."""
    neighbour: Numbers
    """[edge]: position of the neighbour."""
    classes: Classes | None
    """Of the neighbours' strategies, where these have any."""

    def mine(self, numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """[edge, own strategy]: a view of what of numbers, one per message, belongs to those into nodes."""
        return numbers[self.own].reshape(len(self.edges), -1)

    def theirs(self, numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """[the neighbour's strategy, edge, 1]: what of numbers, one per message, belongs to those into neighbours."""
        if isinstance(self.other, slice):
            return numbers[self.other, None, None]
        return numbers.take(self.other)[:, :, None]

    @property
    def places(self) -> Numbers:
        """[the neighbour's strategy, edge]: place of the message into the neighbour."""
        other = self.other
        return np.arange(other.start, other.stop)[:, None] if isinstance(other, slice) else other

    def put_theirs(self, numbers: Array, new: Array) -> None:
        """Set these of ``numbers``; ``new`` is [the neighbour's strategy, edge]."""
        numbers[self.other] = new[:, 0] if isinstance(self.other, slice) else new

    def shown(self, choice: Numbers) -> Array:
        """[edge, own strategy]: costs beside what a choice, by position, takes at the neighbour."""
        taken = choice[self.neighbour]
        if self.classes is not None:
            taken = self.classes.of[self.classes.first + taken]
        return self.costs[taken, np.arange(len(self.edges))]


def together(side: Sequence[Tables]) -> list[Tables]:
    """Tables by ascending number of rows, small ones of about as many as one: each of their columns is an edge then."""
    found: list[list[Tables]] = []
    rows = 0
    for tables in reversed(side):
        columns = tables.costs[0].size
        in_vain = (rows - len(tables.costs)) * columns
        if found and rows * columns <= FEW and in_vain <= IN_VAIN and found[-1][0].costs.size <= FEW:
            found[-1].insert(0, tables)
        else:
            found.append([tables])
            rows = len(tables.costs)
    return [_columns(run) if len(run) > 1 else run[0] for run in found]


def _columns(run: Sequence[Tables]) -> Tables:
    """Adjacent tables as one of edges to one strategy each; rows that some lack forbid."""
    width = [t.costs.shape[2] for t in run]
    ends = np.cumsum([len(t.edges) * w for t, w in zip(run, width, strict=True)]).tolist()
    rows = max(len(t.costs) for t in run)
    costs, other = np.full((rows, ends[-1], 1), np.inf), np.zeros((rows, ends[-1]), dtype=np.intp)
    for t, w, end in zip(run, width, ends, strict=True):
        at = slice(end - len(t.edges) * w, end)
        costs[: len(t.costs), at, 0] = t.costs.reshape(len(t.costs), -1)
        other[: len(t.costs), at] = np.repeat(t.places, w, axis=1)
    each = [np.repeat(t.neighbour, w) for t, w in zip(run, width, strict=True)]
    classes = None
    if run[0].classes is not None:
        first = [np.repeat(t.classes.first, w) for t, w in zip(run, width, strict=True) if t.classes]
        classes = Classes(run[0].classes.of, np.concatenate(first))
    edges = [edge for t, w in zip(run, width, strict=True) for edge in t.edges for _ in range(w)]
    return Tables(
        edges, costs, slice(run[0].own.start, run[-1].own.stop), other, np.concatenate(each), classes
    )

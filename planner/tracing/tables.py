"""Prices of every option and of every move, as arrays; what is alike is priced once.

A move depends on the layouts at its two ends only, of which there are far fewer than options.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from planner.intra_op.problem import Array
from planner.tracing.evaluation import node_bytes
from planner.tracing.nodes import Link, NodeOption, Nodes, left_layout, refused, wanted_layout
from planner.tracing.options import Option
from planner.tracing.pricing import ProgramPricer

Indices = npt.NDArray[np.intp]

UNLIMITED = 1e30
"""Stands in for the loss of what is forbidden anyway [s]."""


@dataclass(frozen=True, eq=False)
class Moves:
    """Seconds between the options of two nodes, by the layouts that these have."""

    seconds: Array
    """[layout at the source, layout at the target] [s]; ``inf`` is forbidden."""
    rows: Indices
    """Layout of each of the source's options."""
    columns: Indices
    """Layout of each of the target's options."""

    @cached_property
    def full(self) -> Array:
        """[source's option, target's option] [s]."""
        return self.seconds[np.ix_(self.rows, self.columns)]

    @cached_property
    def source_loss(self) -> Array:
        """[a, b]: the most that a instead of b costs at the source, over its options [s]."""
        return _most(self.seconds)[np.ix_(self.rows, self.rows)]

    @cached_property
    def target_loss(self) -> Array:
        """The same at the target."""
        return _most(self.seconds.T)[np.ix_(self.columns, self.columns)]


def _most(table: Array) -> Array:
    """[a, b]: largest of table[a] - table[b] over the columns that b allows."""
    loss = np.empty((len(table), len(table)))
    for b, row in enumerate(table):
        allowed = np.isfinite(row)
        loss[:, b] = (table[:, allowed] - row[allowed]).max(axis=1, initial=-UNLIMITED)
    return loss


class Tables:
    """Tables of one program on one mesh."""

    def __init__(
        self, pricer: ProgramPricer, nodes: Nodes, options: Sequence[tuple[NodeOption, ...]]
    ) -> None:
        self.pricer, self.nodes, self.options = pricer, nodes, options
        self.known: dict[tuple[object, ...], Array] = {}
        self.moves: dict[tuple[object, ...], Array] = {}
        self.links: dict[tuple[object, ...], Moves] = {}
        self.spots: dict[tuple[object, ...], tuple[tuple[NodeOption, ...], Indices]] = {}

    def seconds(self, node: int) -> Array:
        """Of each option of a node; copies are free."""
        first = len(self.nodes.inputs)
        if node < first:
            return np.array(
                [self.pricer.arrival(self.nodes.inputs[node], left_layout(o, 0)) for o in self.options[node]]
            )
        if node >= first + len(self.nodes.operations):
            return np.zeros(len(self.options[node]))
        op = self.nodes.operations[node - first]
        value = self.pricer.program.value
        arrays = tuple((value[n].shape, value[n].dtype) for n in (*op.inputs, *op.outputs))
        key = (id(self.options[node]), op.times, arrays, op.reductions, op.halos)
        if key not in self.known:
            found = [
                self.pricer.operation(op, o).seconds for o in self.options[node] if isinstance(o, Option)
            ]
            self.known[key] = np.array(found)
        return self.known[key]

    def held(self, node: int, state_share: float) -> tuple[Array, ...]:
        """Bytes of each option, output by output."""
        choices = self.options[node]
        first = len(self.nodes.inputs)
        if first <= node < first + len(self.nodes.operations):
            outputs = self.nodes.operations[node - first].outputs
        elif node < first:
            outputs = (self.nodes.inputs[node],)
        else:
            outputs = (self.nodes.copies[node - first - len(self.nodes.operations)].value,)
        sizes = tuple(self.pricer.full_bytes(n) for n in outputs)
        role = self.pricer.program.value[outputs[0]].role if node < first and outputs else ""
        key = ("held", id(choices), sizes, role)
        if key not in self.known:
            rows = [node_bytes(self.pricer, self.nodes, node, o, state_share) for o in choices]
            self.known[key] = np.array(rows).reshape(len(choices), len(outputs))
        return tuple(self.known[key].T)

    def link(self, link: Link) -> Moves:
        """Between a source's options and a target's."""
        before, after = self.options[link.source.node], self.options[link.target.node]
        left, rows = self._spots(
            ("left", id(before), link.source.place), [left_layout(o, link.source.place) for o in before]
        )
        how = ("wanted", id(after), link.target.place, link.returned, link.copied)
        right, columns = self._spots(how, [o if link.copied else wanted_layout(o, link) for o in after])
        size = self.pricer.full_bytes(link.value)
        key = (left, right, size, link.times)
        if key not in self.moves:
            priced = [[self._move(link, s, t) for t in right] for s in left]
            self.moves[key] = np.array(priced, dtype=np.float64)
        names = (key, id(before), link.source.place, *how)
        if names not in self.links:
            self.links[names] = Moves(self.moves[key], rows, columns)
        return self.links[names]

    def _spots(
        self, key: tuple[object, ...], layouts: Sequence[NodeOption]
    ) -> tuple[tuple[NodeOption, ...], Indices]:
        """Distinct layouts (or options of a copy), and for each option which of them it has."""
        if key not in self.spots:
            distinct = {layout: i for i, layout in enumerate(dict.fromkeys(layouts))}
            self.spots[key] = (
                tuple(distinct),
                np.array([distinct[layout] for layout in layouts], dtype=np.intp),
            )
        return self.spots[key]

    def _move(self, link: Link, source: NodeOption, target: NodeOption) -> float:
        """[s]; ``inf`` where a copy claims to be the value as it lies, which lies otherwise."""
        have, want = left_layout(source, 0), left_layout(target, 0)
        if refused(link, have, target):
            return np.inf
        return sum(e.seconds * e.times for e in self.pricer.move(link.value, have, want, link.times))

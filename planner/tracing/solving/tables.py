"""Prices of every option and of every move, as arrays; what is alike is priced once.

A move depends on the layouts at its two ends only, of which there are far fewer than options.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from planner.intra_op.problem import Array
from planner.tracing.layouts import PARTS, WHOLE, Layout, Layouts, Ways, distinct, in_parts, shares, ways
from planner.tracing.program import Operation
from planner.tracing.solving.concatenation import patterns_of
from planner.tracing.solving.evaluation import held_share
from planner.tracing.solving.nodes import (
    AgainOption,
    CopyOption,
    Link,
    NodeOption,
    NodeOptions,
    Nodes,
    given_layout,
    kept_layout,
    left_layout,
    made_layout,
    wanted_layout,
)
from planner.tracing.solving.options import SUMMING, Options, layouts_of
from planner.tracing.solving.pricing import ProgramPricer
from planner.tracing.solving.recomputing import Again

Indices = npt.NDArray[np.intp]

HERE, AS_IT_LIES, NOWHERE = range(3)
"""There is an array that lies so; there is one only if it lies so anyhow; there is none."""


class Spots(NamedTuple):
    """How an array can lie at a node."""

    layouts: Layouts
    """[spot, axis], each once"""
    state: Indices
    """[spot]: `HERE`, `AS_IT_LIES` or `NOWHERE`."""
    of: Indices
    """Per option, its spot."""

    @property
    def key(self) -> tuple[bytes, bytes]:
        """What all spots have in common that are the same, whoever's options have them."""
        return self.layouts.tobytes(), self.state.tobytes()

    def found_so(self) -> "Spots":
        """The same where nothing is moved to."""
        return self._replace(state=np.where(self.state == HERE, AS_IT_LIES, self.state))


@dataclass(frozen=True, eq=False)
class Moves:
    """Seconds between the options of two nodes, by the layouts that these have."""

    table: Array
    """Seconds between layouts, [source, target] [s]; ``inf`` is forbidden."""
    rows: Indices
    """Layout of each of the source's options."""
    columns: Indices
    """Layout of each of the target's options."""

    @property
    def back(self) -> "Moves":
        """The same, seen from the target."""
        return Moves(self.table.T, self.columns, self.rows)

    @cached_property
    def full(self) -> Array:
        """[source's option, target's option] [s]."""
        return self.table[np.ix_(self.rows, self.columns)]


class Tables:
    """Tables of one program on one mesh."""

    def __init__(self, pricer: ProgramPricer, nodes: Nodes, options: Sequence[NodeOptions]) -> None:
        self.pricer, self.nodes, self.options = pricer, nodes, options
        self.known: dict[tuple[object, ...], Array] = {}
        self.tables: dict[tuple[object, ...], Array] = {}
        self.spots: dict[object, Spots] = _lying_so(options)
        self.ways: dict[tuple[bytes, bytes], Ways] = {}

    def seconds(self, node: int) -> Array:
        """Of each option of a node; copies are free, and what runs as one takes less than by itself."""
        first = len(self.nodes.inputs)
        if node < first:
            name, options = self.nodes.inputs[node], self.options[node]
            if not self.pricer.arrives(name):
                return np.zeros(len(options))
            return np.array([self.pricer.arrival(name, made_layout(o, 0)) for o in options])
        if node >= self.nodes.first_joint:
            return np.array([0.0, *(-s for s in self.nodes.joints[node - self.nodes.first_joint].saved)])
        if node >= self.nodes.first_again:
            operation = first + self.nodes.agains[node - self.nodes.first_again].operation
            place = {option: i for i, option in enumerate(self.options[operation])}
            runs = [o.option if isinstance(o, AgainOption) else None for o in self.options[node]]
            seconds = self.seconds(operation)
            return np.array([0.0 if o is None else seconds[place[o]] for o in runs])
        if node >= first + len(self.nodes.operations):
            return np.zeros(len(self.options[node]))
        return self._operators[node - first]

    @cached_property
    def _operators(self) -> list[Array]:
        """Seconds of each option of each operator; alike operators are priced once."""
        first, runs = len(self.nodes.inputs), dict[tuple[object, ...], tuple[Operation, Options]]()
        keys = []
        for op, options in zip(self.nodes.operations, self.options[first:], strict=False):
            assert isinstance(options, Options)
            value = self.pricer.program.value
            arrays = tuple((value[n].shape, value[n].dtype) for n in (*op.inputs, *op.outputs))
            stored = tuple(n not in self.pricer.made_in_products for n in op.outputs)
            implied = tuple(op.implied.items())
            keys.append((id(options), op.times, arrays, op.reductions, op.halos, implied, stored))
            runs.setdefault(keys[-1], (op, options))
        known = dict(zip(runs, self.pricer.seconds(list(runs.values())), strict=True))
        return [known[key] for key in keys]

    def held(self, node: int, state_share: float) -> tuple[Array, ...]:
        """Bytes of each option, as `node_bytes` has them; of a second run as its intervals are."""
        choices = self.options[node]
        first = len(self.nodes.inputs)
        if node >= self.nodes.first_joint:
            return ()
        if node >= self.nodes.first_again:
            return self._held_late(self.nodes.agains[node - self.nodes.first_again], choices)
        if first <= node < first + len(self.nodes.operations):
            outputs = self.nodes.operations[node - first].outputs
        elif node < first:
            outputs = (self.nodes.inputs[node],)
        else:
            outputs = (self.nodes.copies[node - first - len(self.nodes.operations)].value,)
        states = held_share(self.pricer.program, outputs[0], state_share) if node < first else 1.0
        held = isinstance(choices, Options) or np.array([_is_held(o) for o in choices])
        size = self.pricer.stored_bytes if isinstance(choices, Options) else self.pricer.full_bytes
        found = [
            np.where(held, self._shares(choices, k) * (size(name) * states), 0.0)
            for k, name in enumerate(outputs)
        ]
        if node < first:
            returned = self.pricer.program.returned.get(outputs[0], ())
            found += [self._shares(choices, 0) * self.pricer.full_bytes(name) for name in returned]
        if isinstance(choices, Options):
            found += self._beside(self.nodes.operations[node - first], choices)
        return tuple(found)

    def _beside(self, op: Operation, choices: Options) -> Iterator[Array]:
        """What an operator brings for a loop, or scatters."""
        mesh, size = self.pricer.mesh, self.pricer.full_bytes
        if choices.brought is not None:
            yield np.where(choices.brought, shares(mesh, choices.reads[0]) * size(op.inputs[0]), 0.0)
        if op.kind in SUMMING:
            before = shares(mesh, layouts_of(op.writes[0], choices.split))
            after = shares(mesh, choices.writes[0])
            yield np.where(before > after, before * size(op.outputs[0]), 0.0)

    def _held_late(self, again: Again, choices: NodeOptions) -> tuple[Array, ...]:
        kept = np.array([isinstance(o, AgainOption) and o.kept is not None for o in choices])
        shared = np.array([isinstance(o, AgainOption) and o.shared for o in choices])
        found = []
        for value in again.values:
            part, size = self._shares(choices, value.place), self.pricer.full_bytes
            wanted = shared | (value.last_own >= 0)
            stored = np.where(wanted & kept, part * size(value.held) * value.rows, 0.0)
            held = part * size(value.name)
            found += [stored, np.where(wanted, held, 0.0), np.where(shared, held, 0.0)]
        return tuple(found)

    def _shares(self, choices: NodeOptions, place: int) -> Array:
        """Part of an array that one device holds, by option."""
        key = ("share", id(choices), place)
        if key not in self.known:
            spots = self._made(choices, place)
            self.known[key] = np.where(spots.state == NOWHERE, 0.0, shares(self.pricer.mesh, spots.layouts))[
                spots.of
            ]
        return self.known[key]

    def link(self, link: Link) -> Moves:
        """Between a source's options and a target's."""
        before, after = self.options[link.source.node], self.options[link.target.node]
        if link.kept:
            place = link.target.place
            left = self._made(before, link.source.place)
            right = self._listed(("kept", id(after), place, link.seen), (kept_layout(o, link) for o in after))
        elif link.joint:
            assert isinstance(before, Options)
            op = self.nodes.operations[link.source.node - len(self.nodes.inputs)]
            place = self.nodes.joints[link.target.node - self.nodes.first_joint].place
            left = self._lying(patterns_of(op, place, before.split), ("patterns", id(before), place))
            right = self._listed(("pattern", id(after)), (getattr(o, "pattern", None) for o in after))
        else:
            left = self._given(before, link)
            right = self._wanted(after, link)
            right = right.found_so() if link.own else right
        same = link.kept or link.joint
        key = (left.key, right.key, self.pricer.full_bytes(link.value), link.times, same)
        if key not in self.tables:
            self.tables[key] = _alike(left, right) if same else self._seconds(link, left, right)
        return Moves(self.tables[key], left.of, right.of)

    def _made(self, choices: NodeOptions, place: int) -> Spots:
        if isinstance(choices, Options):
            return self._lying(choices.writes[place])
        if not isinstance(choices[0], AgainOption):
            return self._whole(choices)
        return self._listed(("made", id(choices), place), (left_layout(o, place) for o in choices))

    def _given(self, choices: NodeOptions, link: Link) -> Spots:
        if link.row:
            return self._listed(("row", id(choices)), (given_layout(o, link) for o in choices))
        if isinstance(choices, Options) or not isinstance(choices[0], AgainOption):
            return self._made(choices, link.source.place)
        key = ("given", id(choices), link.source.place, link.again, link.early, link.anew, link.seen)
        return self._listed(key, (given_layout(o, link) for o in choices))

    def _wanted(self, choices: NodeOptions, link: Link) -> Spots:
        if isinstance(choices, Options):
            if link.stack and choices.brought is not None:
                return self._brought(choices, choices.brought)
            return self._lying((choices.writes if link.returned else choices.reads)[link.target.place])
        if not isinstance(choices[0], AgainOption):
            return self._whole(choices, link.copied)
        key = ("wanted", id(choices), link.target.place)
        return self._listed(key, (wanted_layout(o, link) for o in choices))

    def _whole(self, choices: NodeOptions, copied: bool = False) -> Spots:
        """Of an input or a copy, whose options are layouts; ``copied`` tells those apart that are not held."""
        key = ("whole", id(choices), copied)
        if key not in self.spots:
            copies = [o for o in choices if isinstance(o, CopyOption)]
            layouts = np.array([o.layout for o in copies] or choices)
            state = np.array([HERE if o.held else AS_IT_LIES for o in copies])
            self.spots[key] = (
                Spots(layouts, state, np.arange(len(choices))) if copied else self._lying(layouts, (*key, 0))
            )
        return self.spots[key]

    def _brought(self, choices: Options, brought: npt.NDArray[np.bool_]) -> Spots:
        """Of what a loop goes over, which some options bring and others must find so."""
        key = ("brought", id(choices))
        if key not in self.spots:
            ((found, of),) = distinct([np.column_stack([choices.reads[0], brought])])
            self.spots[key] = Spots(found[:, :-1], np.where(found[:, -1], HERE, AS_IT_LIES), of)
        return self.spots[key]

    def _lying(self, layouts: Layouts, name: object = None) -> Spots:
        """Of an array of each of many options, [option, axis]; by a name where it is made up."""
        key = name or id(layouts)
        if key not in self.spots:
            ((found, of),) = distinct([layouts])
            self.spots[key] = Spots(found, np.zeros(len(found), np.intp), of)
        return self.spots[key]

    def _listed(self, key: tuple[object, ...], found: Iterable[Layout | None]) -> Spots:
        """Of layouts, or of none, option by option."""
        if key not in self.spots:
            self.spots[key] = _spots(found, len(self.pricer.mesh.sizes))
        return self.spots[key]

    def _seconds(self, link: Link, left: Spots, right: Spots) -> Array:
        """[source, target] [s]; ``inf`` is forbidden (`planner.tracing.solving.nodes.refused`)."""
        ends = left.layouts.tobytes(), right.layouts.tobytes()
        if ends not in self.ways:
            self.ways[ends] = ways(left.layouts, right.layouts)
        seconds = self.pricer.way_seconds(link.value, self.ways[ends], link.times)
        if PARTS in left.layouts or PARTS in right.layouts:
            seconds[in_parts(left.layouts, right.layouts)] = np.inf
        if (right.state == AS_IT_LIES).any():
            seconds[~_same(left, right) & (right.state == AS_IT_LIES)] = np.inf
        seconds[left.state == NOWHERE] = np.inf
        seconds[:, right.state == NOWHERE] = 0.0
        return seconds


def _lying_so(options: Iterable[NodeOptions]) -> dict[object, Spots]:
    """Of the arrays of operators, by what has their layouts."""
    layouts = {id(w): w for o in options if isinstance(o, Options) for w in (*o.reads, *o.writes)}
    each = distinct(list(layouts.values()))
    return {
        name: Spots(found, np.zeros(len(found), np.intp), of)
        for name, (found, of) in zip(layouts, each, strict=True)
    }


def _spots(found: Iterable[Layout | None], axes: int) -> Spots:
    seen: dict[Layout | None, int] = {}
    of = [seen.setdefault(layout, len(seen)) for layout in found]
    layouts = np.array([(WHOLE,) * axes if layout is None else layout for layout in seen])
    state = np.array([NOWHERE if layout is None else HERE for layout in seen])
    return Spots(layouts, state, np.array(of, np.intp))


def _is_held(option: NodeOption) -> bool:
    return not isinstance(option, CopyOption) or option.held


def _alike(left: Spots, right: Spots) -> Array:
    """Of what goes with nothing else: free, or forbidden."""
    return np.where(_same(left, right) | (right.state == NOWHERE), 0.0, np.inf)


def _same(left: Spots, right: Spots) -> npt.NDArray[np.bool_]:
    columns = zip(left.layouts.T, right.layouts.T, strict=True)
    return np.asarray(np.logical_and.reduce([mine[:, None] == theirs for mine, theirs in columns]))

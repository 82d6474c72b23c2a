"""Prices of every option and of every move, as arrays; what is alike is priced once.

A move depends on the layouts at its two ends only, of which there are far fewer than options.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from planner.intra_op.problem import Array
from planner.tracing.layouts import Codes, Layouts, as_layouts, distinct, in_parts, share, steps
from planner.tracing.solving.concatenation import patterns_of
from planner.tracing.solving.evaluation import held_share
from planner.tracing.solving.nodes import (
    AgainOption,
    CopyOption,
    Link,
    NodeOptions,
    Nodes,
    given_layout,
    kept_layout,
    left_layout,
    made_layout,
    wanted_layout,
)
from planner.tracing.solving.options import Options
from planner.tracing.solving.pricing import ProgramPricer
from planner.tracing.solving.recomputing import Again

Indices = npt.NDArray[np.intp]

Spot = Any
"""A layout of an array at a node, or None for no array; an option of a copy; the layouts of all that is kept."""

Spots = tuple[tuple[Spot, ...], Indices]
"""Distinct ones at a node, and which of them each option has."""


@dataclass(frozen=True, eq=False)
class Moves:
    """Seconds between the options of two nodes, by the layouts that these have."""

    table: Array
    """Seconds between layouts, [source, target] [s]; ``inf`` is forbidden."""
    rows: Indices
    """Layout of each of the source's options."""
    columns: Indices
    """Layout of each of the target's options."""

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
        self.spots: dict[tuple[object, ...], Spots] = {}
        self.steps: dict[tuple[object, ...], list[Codes]] = {}

    def seconds(self, node: int) -> Array:
        """Of each option of a node; copies are free, and what runs as one takes less than by itself."""
        first = len(self.nodes.inputs)
        if node < first:
            return np.array(
                [self.pricer.arrival(self.nodes.inputs[node], made_layout(o, 0)) for o in self.options[node]]
            )
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
        op = self.nodes.operations[node - first]
        value = self.pricer.program.value
        arrays = tuple((value[n].shape, value[n].dtype) for n in (*op.inputs, *op.outputs))
        key = (id(self.options[node]), op.times, arrays, op.reductions, op.halos)
        if key not in self.known:
            options = self.options[node]
            assert isinstance(options, Options)
            self.known[key] = self.pricer.seconds(op, options)
        return self.known[key]

    def held(self, node: int, state_share: float) -> tuple[Array, ...]:
        """Bytes of each option, output by output; of a second run as its intervals are."""
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
        free = np.zeros(len(choices), np.bool_)
        if not isinstance(choices, Options):
            free = np.array([isinstance(o, CopyOption) and not o.held for o in choices])
        return tuple(
            np.where(free, 0.0, self._shares(choices, k) * (self.pricer.full_bytes(name) * states))
            for k, name in enumerate(outputs)
        )

    def _held_late(self, again: Again, choices: NodeOptions) -> tuple[Array, ...]:
        kept = np.array([isinstance(o, AgainOption) and o.kept is not None for o in choices])
        shared = np.array([isinstance(o, AgainOption) and o.shared for o in choices])
        found = []
        for value in again.values:
            part, size = self._shares(choices, value.place), self.pricer.full_bytes
            wanted = shared | (value.last_own >= 0)
            stored = np.where(wanted & kept, part * size(value.held), 0.0)
            held = part * size(value.name)
            found += [stored, np.where(wanted, held, 0.0), np.where(shared, held, 0.0)]
        return tuple(found)

    def _shares(self, choices: NodeOptions, place: int) -> Array:
        """Part of an array that one device holds, by option."""
        key = ("share", id(choices), place)
        if key not in self.known:
            how = ("left", id(choices), place)
            arrays = choices.writes if isinstance(choices, Options) else ()
            found, rows = self._spots(how, arrays[place:], lambda: [left_layout(o, place) for o in choices])
            mesh = self.pricer.mesh
            self.known[key] = np.array([0.0 if at is None else share(mesh, at) for at in found])[rows]
        return self.known[key]

    def link(self, link: Link) -> Moves:
        """Between a source's options and a target's."""
        before, after = self.options[link.source.node], self.options[link.target.node]
        if link.kept:
            place = link.target.place
            left, rows = self._spots(
                ("made", id(before), link.source.place),
                before.writes[link.source.place :] if isinstance(before, Options) else (),
                lambda: [left_layout(o, link.source.place) for o in before],
            )
            right, columns = self._spots(
                ("kept", id(after), place), (), lambda: [kept_layout(o, place) for o in after]
            )
        elif link.joint:
            assert isinstance(before, Options)
            op = self.nodes.operations[link.source.node - len(self.nodes.inputs)]
            place = self.nodes.joints[link.target.node - self.nodes.first_joint].place
            patterns = patterns_of(op, place, before.split)
            left, rows = self._spots(("patterns", id(before), place), [patterns], tuple)
            right, columns = self._spots(
                ("pattern", id(after)), (), lambda: [getattr(o, "pattern", None) for o in after]
            )
        else:
            left, rows = self._spots(
                ("given", id(before), link.source.place, link.again, link.early),
                before.writes[link.source.place :] if isinstance(before, Options) else (),
                lambda: [given_layout(o, link) for o in before],
            )
            arrays = (after.writes if link.returned else after.reads) if isinstance(after, Options) else ()
            right, columns = self._spots(
                ("wanted", id(after), link.target.place, link.returned, link.copied),
                arrays[link.target.place :],
                lambda: [o if link.copied else wanted_layout(o, link) for o in after],
            )
        key = (left, right, self.pricer.full_bytes(link.value), link.times, link.kept or link.joint)
        if key not in self.tables:
            self.tables[key] = self._seconds(link, left, right)
        return Moves(self.tables[key], rows, columns)

    def _spots(
        self, key: tuple[object, ...], arrays: Sequence[Layouts], found: Callable[[], Sequence[Spot]]
    ) -> Spots:
        """Distinct layouts (or options of a copy), and for each option which of them it has.

        Of the first of ``arrays`` [option, axis], or of what is ``found`` option by option.
        """
        if key not in self.spots:
            if len(arrays):
                layouts, places = distinct(arrays[0])
                self.spots[key] = as_layouts(layouts), places
            else:
                seen: dict[Spot, int] = {}
                which = [seen.setdefault(layout, len(seen)) for layout in found()]
                self.spots[key] = tuple(seen), np.array(which, dtype=np.intp)
        return self.spots[key]

    def _seconds(self, link: Link, left: Sequence[Spot], right: Sequence[Spot]) -> Array:
        """[source, target] [s]; ``inf`` is forbidden (`planner.tracing.solving.nodes.refused`)."""
        if link.kept or link.joint:
            return np.array([[0.0 if t in (None, s) else np.inf for t in right] for s in left])
        there = [i for i, s in enumerate(left) if s is not None]
        wanted = [j for j, t in enumerate(right) if t is not None]
        have = tuple(s for s in left if s is not None)
        want = tuple(t.layout if isinstance(t, CopyOption) else t for t in right if t is not None)
        seconds = np.zeros((len(left), len(right)))
        seconds[:, wanted] = np.inf
        if (have, want) not in self.steps:
            self.steps[have, want] = steps(have, want)
        moved = self.pricer.step_seconds(link.value, self.steps[have, want], link.times)
        moved[in_parts(have, want)] = np.inf
        if link.copied:
            number = {layout: i for i, layout in enumerate(dict.fromkeys((*have, *want)))}
            lies, shown = (np.array([number[layout] for layout in layouts]) for layouts in (have, want))
            claims = np.array([isinstance(t, CopyOption) and not t.held for t in right])
            moved[(lies[:, None] != shown[None, :]) & claims] = np.inf
        seconds[np.ix_(there, wanted)] = moved
        return seconds

"""Who decides what: inputs, operators, and copies that several readers share, with the arrays between them.

A value that several operators read one after another may be brought into another layout once for all of them:
between the value and these readers stands a *copy*, which either is the value as it lies or holds it anew.
"""

from collections.abc import Sequence
from typing import NamedTuple

from planner.tracing.layouts import Layout, NamedMesh
from planner.tracing.options import Option, all_layouts, options
from planner.tracing.program import Operation, Program

NEAR = 12
"""Readers with at most so many operators between them share a copy."""


class Slot(NamedTuple):
    """An array at a node: what it makes (``output``) or wants."""

    node: int
    place: int


class Link(NamedTuple):
    """A value on its way from where it is made to where it is wanted."""

    value: str
    source: Slot
    target: Slot
    times: int
    copied: bool = False
    """Into a copy, which may have the value only as it lies where its option says so."""
    returned: bool = False
    """Against the order of the program: the target's *output* is the layout that is wanted."""


class Copy(NamedTuple):
    """A value as some of its readers have it."""

    value: str
    first: int
    last: int
    """Positions of the first and last reader."""


class CopyOption(NamedTuple):
    """How a copy lies, and whether it takes memory of its own."""

    layout: Layout
    held: bool


class Nodes(NamedTuple):
    """Everything that decides: inputs first, then operators, then copies."""

    inputs: tuple[str, ...]
    operations: tuple[Operation, ...]
    copies: tuple[Copy, ...]
    links: tuple[Link, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """One per node."""
        copies = (f"{c.value} for {self.operations[c.first].name}" for c in self.copies)
        return (*self.inputs, *(op.name for op in self.operations), *copies)

    @property
    def operators(self) -> tuple[str, ...]:
        """Per node, the operator (or input) that exchanges are attributed to; a copy is its first reader's."""
        copies = (self.operations[c.first].name for c in self.copies)
        return (*self.inputs, *(op.name for op in self.operations), *copies)


def nodes_of(program: Program) -> Nodes:
    """The nodes of a program and what runs between them."""
    inputs = tuple(v.name for v in program.values if v.role != "intermediate")
    at = {name: Slot(i, 0) for i, name in enumerate(inputs)}
    for i, op in enumerate(program.operations):
        at |= {name: Slot(len(inputs) + i, k) for k, name in enumerate(op.outputs)}
    copies: list[Copy] = []
    links: list[Link] = []
    first_copy = len(inputs) + len(program.operations)
    for name, readers in program.readers.items():
        for near in _clusters(program.operations, readers):
            source, times = at[name], program.operations[near[0]].times
            if len(near) > 1:
                copies.append(Copy(name, near[0], near[-1]))
                target = Slot(first_copy + len(copies) - 1, 0)
                links.append(Link(name, source, target, times, copied=True))
                source = target
            links += [
                Link(name, source, Slot(len(inputs) + i, k), program.operations[i].times)
                for i in near
                for k, read in enumerate(program.operations[i].inputs)
                if read == name
            ]
    links += [Link(t.source, at[t.source], at[t.target], t.times, returned=True) for t in program.ties]
    return Nodes(inputs, program.operations, tuple(copies), tuple(links))


def _clusters(operations: Sequence[Operation], readers: Sequence[int]) -> list[list[int]]:
    """Readers that stand near one another in one body."""
    found: list[list[int]] = []
    for i in readers:
        last = found[-1][-1] if found else i
        if found and i - last <= NEAR and operations[i].region == operations[last].region:
            found[-1].append(i)
        else:
            found.append([i])
    return found


NodeOption = Option | CopyOption | Layout


def node_options(program: Program, nodes: Nodes, mesh: NamedMesh) -> list[tuple[NodeOption, ...]]:
    """Per node, what it can choose among; alike operators share one tuple."""
    shapes = {v.name: v.shape for v in program.values}
    known: dict[tuple[object, ...], tuple[NodeOption, ...]] = {}
    found: list[tuple[NodeOption, ...]] = [all_layouts(shapes[name], mesh.sizes) for name in nodes.inputs]
    for op in nodes.operations:
        key: tuple[object, ...] = (
            op.kind,
            op.sizes,
            op.reads,
            op.writes,
            op.whole,
            tuple(shapes[n] for n in op.outputs),
        )
        if key not in known:
            known[key] = options(op, [shapes[n] for n in op.outputs], mesh)
        found.append(known[key])
    for copy in nodes.copies:
        layouts = all_layouts(shapes[copy.value], mesh.sizes)
        key = ("copy", layouts)
        if key not in known:
            known[key] = tuple(CopyOption(layout, held) for held in (False, True) for layout in layouts)
        found.append(known[key])
    return found


def left_layout(option: NodeOption, place: int) -> Layout:
    """How a node leaves the array of an output."""
    if isinstance(option, Option):
        return option.writes[place]
    return option.layout if isinstance(option, CopyOption) else option


def wanted_layout(option: NodeOption, link: Link) -> Layout:
    """How a link's target wants the array."""
    if isinstance(option, Option):
        return option.writes[link.target.place] if link.returned else option.reads[link.target.place]
    return option.layout if isinstance(option, CopyOption) else option


def refused(link: Link, source: Layout, option: NodeOption) -> bool:
    """Whether a copy claims to be the value as it lies, which lies otherwise."""
    return link.copied and isinstance(option, CopyOption) and not option.held and option.layout != source

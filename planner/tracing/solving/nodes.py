"""Who decides what: inputs, operators, and copies that several readers share, with the arrays between them.

A value that several operators read one after another may be brought into another layout once for all of them:
between the value and these readers stands a *copy*, which either is the value as it lies or holds it anew. Late
readers may find between them and the operator that makes a value its *second run*
(`planner.tracing.solving.recomputing`).
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

from planner.tracing.layouts import PARTS, Layout, NamedMesh
from planner.tracing.program import Operation, Program
from planner.tracing.solving.concatenation import Joint, Pattern
from planner.tracing.solving.options import Option, Options, all_layouts, options
from planner.tracing.solving.recomputing import Again, clusters, late_readers
from planner.tracing.solving.rows import Seen

NOT_SEEN = PARTS - 1
"""Along all axes of what lies so that those who want it cannot have it: no layout at all."""


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
    kept: bool = False
    """From what was made to a second run, which may keep it only as it lies."""
    again: bool = False
    """Between second runs."""
    joint: bool = False
    """From a product to what runs it together with others: how it is split, not how its output lies."""
    early: bool = False
    """Between second runs, of which the source's would come too late: it must have kept what is wanted."""
    anew: bool = False
    """Between second runs, of what is never kept: the source must have run."""
    row: bool = False
    """From all rows of an input to a second run, which takes one."""
    stack: bool = False
    """All rows that a loop goes over, to what hands them out."""
    seen: tuple[Seen, tuple[int, ...]] | None = None
    """Under other dims than those that a second run's operator has, on a mesh of these sizes."""
    own: bool = False
    """From the copy that the target has for itself, which lies as it is wanted."""


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


class AgainOption(NamedTuple):
    """A second run: of an operator in some way, or none, with what the first made kept or not."""

    option: Option | None = None
    """How it runs again."""
    kept: tuple[Layout, ...] | None = None
    """How the outputs lie that are kept."""
    shared: bool = False
    """Held for other second runs too, not only for late readers."""


class JointOption(NamedTuple):
    """Products run as one, all split so, or apart."""

    pattern: Pattern | None = None


class Nodes(NamedTuple):
    """Everything that decides: inputs first, then operators, copies, second runs, products that may run as one."""

    inputs: tuple[str, ...]
    operations: tuple[Operation, ...]
    copies: tuple[Copy, ...]
    links: tuple[Link, ...]
    agains: tuple[Again, ...] = ()
    joints: tuple[Joint, ...] = ()

    @property
    def first_again(self) -> int:
        """The first second run's node."""
        return len(self.inputs) + len(self.operations) + len(self.copies)

    @property
    def first_joint(self) -> int:
        """The node of the first products that may run as one."""
        return self.first_again + len(self.agains)

    @property
    def names(self) -> tuple[str, ...]:
        """One per node."""
        copies = (f"{c.value} for {self.operations[c.first].name}" for c in self.copies)
        agains = (f"{self.operations[a.operation].name} again" for a in self.agains)
        joints = (" and ".join(self.operations[i].name for i in j.operations) for j in self.joints)
        return (*self.inputs, *(op.name for op in self.operations), *copies, *agains, *joints)

    @property
    def operators(self) -> tuple[str, ...]:
        """Per node, the operator (or input) that exchanges are attributed to; a copy is its first reader's."""
        copies = (self.operations[c.first].name for c in self.copies)
        agains = (self.operations[a.operation].name for a in self.agains)
        joints = (self.operations[j.operations[0]].name for j in self.joints)
        return (*self.inputs, *(op.name for op in self.operations), *copies, *agains, *joints)

    @property
    def inwards(self) -> list[int]:
        """All nodes, from both ends of the program to its middle, where the backward pass begins.

        What stands as far from the middle in both passes belongs to one layer, and messages run through both at once.
        """
        first: dict[str, int] = {}
        made: dict[str, int] = {}
        for i, op in enumerate(self.operations):
            made |= dict.fromkeys(op.outputs, i)
            for name in op.inputs:
                first.setdefault(name, i)
        moments = [(first.get(name, 0), 0) for name in self.inputs]
        moments += [(i, 2) for i in range(len(self.operations))]
        moments += [(made.get(copy.value, -1), 3) for copy in self.copies]
        moments += [(again.first, 1) for again in self.agains]
        moments += [(joint.operations[-1], 3) for joint in self.joints]
        last = len(self.operations)
        ways = [(2 * at, rank) if 2 * at <= last else (2 * (last - at), -rank) for at, rank in moments]
        return sorted(range(len(ways)), key=ways.__getitem__)


def nodes_of(
    program: Program, agains: Sequence[Again] = (), joints: Sequence[Joint] = (), sizes: tuple[int, ...] = ()
) -> Nodes:
    """The nodes of a program and what runs between them, with second runs of some, and some to run as one."""
    inputs = tuple(v.name for v in program.values if v.role != "intermediate")
    at = {name: Slot(i, 0) for i, name in enumerate(inputs)}
    for i, op in enumerate(program.operations):
        at |= {name: Slot(len(inputs) + i, k) for k, name in enumerate(op.outputs)}
    late = late_readers(program, agains)
    shared = [
        (name, near, bool(near) and near[0] in late.get(name, ()))
        for name, readers in program.readers.items()
        for part in _parts(readers, late.get(name, ()))
        for near in clusters(program.operations, part)
    ]
    first_copy = len(inputs) + len(program.operations)
    first_again = first_copy + sum(len(near) > 1 for _, near, _ in shared)
    again = {late.name: Slot(first_again + j, late.place) for j, a in enumerate(agains) for late in a.values}
    seen = {late.name: (late.seen, sizes) for a in agains for late in a.values if late.seen is not None}
    copies: list[Copy] = []
    links: list[Link] = []
    for name, near, is_late in shared:
        source, times = again[name] if is_late else at[name], program.operations[near[0]].times
        way = seen.get(name) if is_late else None
        if len(near) > 1:
            copies.append(Copy(name, near[0], near[-1]))
            target = Slot(first_copy + len(copies) - 1, 0)
            links.append(Link(name, source, target, times, copied=True, seen=way))
            source, way = target, None
        links += [
            Link(name, source, Slot(len(inputs) + i, k), op.times, stack=op.takes_rows_for != "", seen=way)
            for i, op in ((i, program.operations[i]) for i in near)
            for k, read in enumerate(op.inputs)
            if read == name
        ]
    links += _again_links(program, agains, at, again, seen)
    links += [Link(t.source, at[t.source], at[t.target], t.times, returned=True) for t in program.ties]
    links += _joint_links(program, joints, len(inputs), first_again + len(agains))
    return Nodes(inputs, program.operations, tuple(copies), tuple(links), tuple(agains), tuple(joints))


def _again_links(
    program: Program,
    agains: Sequence[Again],
    at: Mapping[str, Slot],
    again: Mapping[str, Slot],
    seen: Mapping[str, tuple[Seen, tuple[int, ...]]],
) -> Iterator[Link]:
    """To second runs: of what they keep, and of what they read."""
    late = [(a, v) for a in agains for v in a.values]
    made = {**again, **{v.inside: again[v.name] for _, v in late if v.inside}}
    first = {name: a.first for a, v in late for name in (v.name, v.inside)}
    never_kept = {v.name for _, v in late if v.rows == 0}
    for a in agains:
        node, times = again[a.values[0].name].node, program.operations[a.operation].times
        for v in a.values:
            if v.rows:
                yield Link(v.name, at[v.name], Slot(node, v.place), times, kept=True, seen=seen.get(v.name))
        for k, (n, stack) in enumerate(zip_longest(a.reads, a.stacks, fillvalue="")):
            source = at[stack] if stack else made.get(n, at[n])
            yield Link(
                n,
                source,
                Slot(node, k),
                times,
                again=n in made,
                row=stack != "",
                early=first.get(n, 0) > a.first,
                anew=n in never_kept,
            )


def _joint_links(program: Program, joints: Sequence[Joint], first: int, first_joint: int) -> Iterator[Link]:
    """From products, whose nodes begin at ``first``, to what runs them as one."""
    for j, joint in enumerate(joints):
        for k, i in enumerate(joint.operations):
            op = program.operations[i]
            yield Link(op.outputs[0], Slot(first + i, 0), Slot(first_joint + j, k), op.times, joint=True)


def _parts(readers: Sequence[int], late: Sequence[int]) -> list[list[int]]:
    """Readers that come early, and those that come late."""
    return [[r for r in readers if r not in late], [r for r in readers if r in late]]


NodeOption = Option | CopyOption | AgainOption | JointOption | Layout

NodeOptions = (
    Options | tuple[CopyOption, ...] | tuple[AgainOption, ...] | tuple[JointOption, ...] | tuple[Layout, ...]
)


def node_options(program: Program, nodes: Nodes, mesh: NamedMesh) -> list[NodeOptions]:
    """Per node, what it can choose among; alike operators share one object."""
    shapes = {v.name: v.shape for v in program.values}
    known: dict[tuple[object, ...], NodeOptions] = {}
    lasting = {name for op in nodes.operations for name in op.addends}
    found: list[NodeOptions] = [all_layouts(shapes[name], mesh.sizes) for name in nodes.inputs]
    for op in nodes.operations:
        key: tuple[object, ...] = (
            op.kind,
            op.sizes,
            op.reads,
            op.writes,
            op.whole,
            op.attention,
            None if op.manual is None else tuple(op.manual.items()),
            tuple(shapes[n] for n in op.outputs),
            tuple(n in op.addends for n in op.inputs),
            lasting.issuperset(op.outputs),
            op.takes_rows_for != "",
        )
        if key not in known:
            shown = [shapes[n] for n in op.outputs]
            known[key] = options(op, shown, mesh, lasting.issuperset(op.outputs))
        found.append(known[key])
    for copy in nodes.copies:
        layouts = all_layouts(shapes[copy.value], mesh.sizes)
        key = ("copy", layouts)
        if key not in known:
            known[key] = tuple(CopyOption(layout, held) for held in (False, True) for layout in layouts)
        found.append(known[key])
    for again in nodes.agains:
        first = found[len(nodes.inputs) + again.operation]
        runs = nodes.operations[again.operation].kind != "boundary"
        key = ("again", id(first), again.for_others, runs)
        if key not in known:
            known[key] = tuple(_second_runs(first, again.for_others, runs))
        found.append(known[key])
    for joint in nodes.joints:
        key = ("joint", joint.patterns)
        if key not in known:
            known[key] = (JointOption(), *map(JointOption, joint.patterns))
        found.append(known[key])
    return found


def _second_runs(first: Sequence[NodeOption], for_others: bool, runs: bool) -> Iterator[AgainOption]:
    """Nothing, what was made in each way that it may lie, and a run in each way (not of a loop's state)."""
    ways = [o for o in first if isinstance(o, Option)]
    yield AgainOption()
    for shared in (False, True) if for_others else (True,):
        yield from (AgainOption(kept=w, shared=shared) for w in dict.fromkeys(o.writes for o in ways))
        yield from (AgainOption(option=o, shared=shared) for o in ways if runs)


def left_layout(option: NodeOption, place: int) -> Layout | None:
    """How a node leaves the array of an output; None where it does not."""
    if isinstance(option, AgainOption):
        writes = option.option.writes if option.option else option.kept
        return writes[place] if writes is not None else None
    if isinstance(option, Option):
        return option.writes[place]
    if isinstance(option, JointOption):
        return None
    return option.layout if isinstance(option, CopyOption) else option


def kept_layout(option: NodeOption, link: Link) -> Layout | None:
    """How a link's target has kept the array of an output, as that is seen; None where it has not."""
    kept = option.kept if isinstance(option, AgainOption) else None
    if kept is None:
        return None
    layout = kept[link.target.place]
    return _seen(layout, link) or (NOT_SEEN,) * len(layout)


def _seen(layout: Layout, link: Link) -> Layout | None:
    """A layout under the dims that the other end of a link has."""
    return layout if link.seen is None else link.seen[0].layout(layout, link.seen[1])


def given_layout(option: NodeOption, link: Link) -> Layout | None:
    """How a link's source leaves the array for its target."""
    if (
        link.again
        and isinstance(option, AgainOption)
        and not (option.shared and (not link.anew if option.kept else not link.early))
    ):
        return None
    left = left_layout(option, link.source.place)
    if left is None:
        return None
    return _of_a_row(left) if link.row else _seen(left, link)


def _of_a_row(stack: Layout) -> Layout | None:
    """How one row lies in its stack; None where devices have different ones."""
    return None if 0 in stack else tuple(dim - 1 if dim > 0 else dim for dim in stack)


def made_layout(option: NodeOption, place: int) -> Layout:
    """The same of a node that does leave it: an input, an operator, a copy."""
    layout = left_layout(option, place)
    assert layout is not None
    return layout


def wanted_layout(option: NodeOption, link: Link) -> Layout | None:
    """How a link's target wants the array; None where it does not."""
    if isinstance(option, AgainOption):
        return option.option.reads[link.target.place] if option.option else None
    if isinstance(option, Option):
        return option.writes[link.target.place] if link.returned else option.reads[link.target.place]
    if isinstance(option, JointOption):
        return None
    return option.layout if isinstance(option, CopyOption) else option


def refused(link: Link, source: NodeOption, target: NodeOption) -> bool:
    """Whether the target has a value only as it does not lie, wants one that is gone, or parts where there are none."""
    if link.kept:
        assert isinstance(target, AgainOption)
        kept = kept_layout(target, link)
        return kept is not None and kept != left_layout(source, link.source.place)
    have, want = given_layout(source, link), wanted_layout(target, link)
    if have is None:
        return want is not None
    if want is None:
        return False
    if any((h == PARTS) != (w == PARTS) for h, w in zip(have, want, strict=True)):
        return True
    return not _may_move(link, target) and want != have


def _may_move(link: Link, target: NodeOption) -> bool:
    """Whether a link's target takes memory for the value as it wants it, or must find it so."""
    if link.own:
        return False
    if isinstance(target, CopyOption):
        return target.held or not link.copied
    return not link.stack or not isinstance(target, Option) or target.brought


def without_idle_copies(nodes: Nodes, chosen: Sequence[NodeOption]) -> tuple[NodeOption, ...]:
    """The same where nothing is held anew that lies just so already."""
    found = list(chosen)
    for link in (link for link in nodes.links if link.copied or link.stack):
        option = chosen[link.target.node]
        moves = given_layout(chosen[link.source.node], link) != wanted_layout(option, link)
        if isinstance(option, CopyOption):
            found[link.target.node] = option._replace(held=option.held and moves)
        elif isinstance(option, Option):
            found[link.target.node] = option._replace(brought=option.brought and moves)
    return tuple(found)

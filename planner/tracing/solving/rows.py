"""Rows that the body of one scan hands on to the body of another, as a forward pass does to its backward pass."""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

from planner.tracing.layouts import Layout
from planner.tracing.program import Dims, Operation, Program, elements


class Stack(NamedTuple):
    """All rows of a value, between two scans."""

    name: str
    slice_at: int
    """Position of the boundary that hands out its rows."""


class Seen(NamedTuple):
    """How a value's dims are seen in its rows, where they are others there."""

    dims: tuple[int, ...]
    """Of each dim of the value, the one of a row in which it is the major part; -1 where there is none."""
    limits: tuple[int, ...]
    """The size of that part, which axes that split the dim must divide."""

    def layout(self, layout: Layout, sizes: Sequence[int]) -> Layout | None:
        """How rows lie of a value that lies so, on axes of some sizes; None where they do not lie at all."""
        for dim in set(layout):
            count = elements(n for n, d in zip(sizes, layout, strict=True) if d == dim)
            if dim >= 0 and (self.dims[dim] < 0 or self.limits[dim] % count):
                return None
        return tuple(self.dims[dim] if dim >= 0 else dim for dim in layout)


class Pair(NamedTuple):
    """Two scans, of which the second has rows of the first."""

    first: str
    second: str
    rows: Mapping[str, str]
    """What the first's body has -> what that is called in the second's."""
    stacks: Mapping[str, Stack]
    """Of these, what is collected for nobody else."""
    turned: Mapping[str, tuple[str, Stack, Seen]]
    """The same of what is seen under other dims in its rows."""


def pairs(program: Program) -> list[Pair]:
    """Of scans that are not in other scans, in order."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    stacks: dict[tuple[str, str], dict[str, Stack]] = {}
    turned: dict[tuple[str, str], dict[str, tuple[str, Stack, Seen]]] = {}
    slices: dict[str, list[tuple[str, str]]] = {}
    for at, op in enumerate(program.operations):
        if op.kind != "boundary" or op.region or not op.inputs:
            continue
        scan, is_slice, _ = op.name.rpartition("/slice.")
        if not is_slice:
            continue
        (source,), (row,) = op.inputs, op.outputs
        for other, known in slices.get(source, ()):
            rows.setdefault((other, scan), {}).setdefault(known, row)
        slices.setdefault(source, []).append((scan, row))
        maker = program.operations[program.producer[source]] if source in program.producer else None
        if maker is None or not _hands_on(maker, op):
            continue
        key, name, stack = (maker.region, scan), maker.inputs[0], Stack(source, at)
        alone = program.readers[source] == (at,) and not _leaves(program, source)
        seen = seen_as(maker.sizes, maker.reads[0], maker.writes[0][1:])
        if seen is None:
            rows.setdefault(key, {}).setdefault(name, row)
        if alone and seen is None:
            stacks.setdefault(key, {}).setdefault(name, stack)
        elif alone and seen is not None:
            turned.setdefault(key, {}).setdefault(name, (row, stack, seen))
    return [
        Pair(
            *key,
            rows.get(key, {}),
            stacks.get(key, {}),
            {name: as_row for name, as_row in turned.get(key, {}).items() if name not in rows.get(key, {})},
        )
        for key in dict.fromkeys((*stacks, *turned))
    ]


def _hands_on(stack: Operation, rows: Operation) -> bool:
    """Whether the one collects what the other hands out as it is collected, in another scan."""
    if "/stack." not in stack.name or len(stack.inputs) != 1 or rows.reads[0][1:] != rows.writes[0]:
        return False
    return stack.region != "" and not rows.name.startswith(f"{stack.region}/")


def seen_as(sizes: Sequence[int], value: Dims, row: Dims) -> Seen | None:
    """How the dims of a value are seen in a row of it; None where they are the same."""
    if value == row:
        return None
    first = {dim[0]: place for place, dim in enumerate(row) if dim}
    dims = tuple(first.get(dim[0], -1) if dim else -1 for dim in value)
    shared = (
        takewhile(lambda pair: pair[0] == pair[1], zip(dim, row[place], strict=False)) if place >= 0 else ()
        for dim, place in zip(value, dims, strict=True)
    )
    return Seen(dims, tuple(elements(sizes[f] for f, _ in pairs) for pairs in shared))


def _leaves(program: Program, name: str) -> bool:
    return name in program.outputs or any(name in (t.source, t.target) for t in program.ties)

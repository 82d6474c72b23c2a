"""Every way to run one operator on a mesh: which loop each axis splits, and where sums end up.

An axis splits one factor of the operator, or none. A factor can be split where it is the major one of every dim
that it indexes. Products, gathers and scatters leave a sum over a factor that their output lacks: it is reduced
to all devices of the axis, or scattered over a dim of the output, or, where products are only added up, left in
parts for the kernel that adds them, which reduces or scatters their total.
"""

import itertools
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from planner.tracing.layouts import PARTS, WHOLE, Layout, NamedMesh, splits
from planner.tracing.program import Dims, Operation

SUMMING = frozenset({"product", "lookup", "accumulate"})
"""Kinds whose split leaves partial sums."""


class Option(NamedTuple):
    """One way to run an operator, and what it makes of its arrays."""

    split: tuple[int, ...]
    """Per mesh axis, the factor that it splits, or `WHOLE`."""
    reads: tuple[Layout, ...]
    """How each input must lie."""
    writes: tuple[Layout, ...]
    """How each output is left."""

    def summed(self, op: Operation, output: int) -> tuple[int, ...]:
        """Axes over which an output is a sum of parts before it is left as it is."""
        if op.kind not in SUMMING:
            return ()
        indexed = {f for dim in op.writes[output] for f in dim}
        return tuple(a for a, f in enumerate(self.split) if f != WHOLE and f not in indexed)

    @property
    def parts(self) -> tuple[int, ...]:
        """Axes along which an output is left in parts, or inputs arrive so and are summed up here."""
        arrays = (*self.reads, *self.writes)
        return tuple(a for a in range(len(self.split)) if any(layout[a] == PARTS for layout in arrays))


def options(
    op: Operation, shapes: Sequence[Sequence[int]], mesh: NamedMesh, lasting: bool = False
) -> tuple[Option, ...]:
    """All of them, in a fixed order.

    ``shapes`` of the outputs; ``lasting`` says that partial sums may be left as they are.
    """
    factors = splittable(op)
    found: list[Option] = []
    per_axis = [[f for f in factors if op.sizes[f] % n == 0] if n > 1 else [] for n in mesh.sizes]
    for split in itertools.product(*([*fs, WHOLE] for fs in per_axis)):
        if all(
            op.sizes[f] % mesh.degree([a for a, g in enumerate(split) if g == f]) == 0
            for f in set(split)
            if f >= 0
        ):
            reads = tuple(layout_of(dims, split) for dims in op.reads)
            found += [Option(split, reads, w) for w in _outcomes(op, split, shapes, mesh, lasting)]
            if op.addends:
                found += [found[-1]._replace(reads=r) for r in _in_parts(op, found[-1], mesh)]
    return tuple(found)


def total_layout(op: Operation, option: Option) -> Layout:
    """How the total of a kernel's addends lies before it is summed up."""
    dims = next(m.writes[0] for m in op.members if m.name == op.total)
    whole = layout_of(dims, option.split)
    return tuple(WHOLE if a in option.parts else d for a, d in enumerate(whole))


def _in_parts(op: Operation, option: Option, mesh: NamedMesh) -> Iterator[tuple[Layout, ...]]:
    """The reads of a kernel whose addends arrive in parts along some axes."""
    dims = next(m.writes[0] for m in op.members if m.name == op.total)
    total = layout_of(dims, option.split)
    axes = [a for a, n in enumerate(mesh.sizes) if n > 1 and (total[a] != WHOLE or option.split[a] == WHOLE)]
    for count in range(1, len(axes) + 1):
        for parts in itertools.combinations(axes, count):
            inner = ((a, b) for a in parts for b in range(a + 1, len(total)) if b not in parts)
            if any(total[a] == total[b] != WHOLE for a, b in inner):
                continue  # an inner axis already splits this dim: its blocks would have to change places
            yield tuple(
                tuple(PARTS if a in parts else d for a, d in enumerate(layout))
                if name in op.addends
                else layout
                for name, layout in zip(op.inputs, option.reads, strict=True)
            )


def splittable(op: Operation) -> list[int]:
    """Factors that a mesh axis may split."""
    minor = {f for dims in (*op.reads, *op.writes) for dim in dims for f in dim[1:]}
    return [f for f in range(len(op.sizes)) if f not in minor and f not in op.whole]


def layout_of(dims: Dims, split: Sequence[int]) -> Layout:
    """How an array lies when its loops are split so."""
    major = {dim[0]: i for i, dim in enumerate(dims) if dim}
    return tuple(major.get(f, WHOLE) for f in split)


def _outcomes(
    op: Operation, split: Sequence[int], shapes: Sequence[Sequence[int]], mesh: NamedMesh, lasting: bool
) -> Iterator[tuple[Layout, ...]]:
    """How the outputs may be left: whole over the axes of a sum, or scattered along a dim, or all in parts."""
    plain = tuple(layout_of(dims, split) for dims in op.writes)
    indexed = {f for dim in op.writes[0] for f in dim} if op.writes else set()
    summed = [a for a, f in enumerate(split) if f != WHOLE and f not in indexed]
    if op.kind not in SUMMING or not summed:
        yield plain
        return
    if lasting:
        yield (tuple(PARTS if a in summed else d for a, d in enumerate(plain[0])),)
    dims = [d for d, n in enumerate(shapes[0]) if n > 1]
    for places in itertools.product((WHOLE, *dims), repeat=len(summed)):
        layout = list(plain[0])
        for axis, dim in zip(summed, places, strict=True):
            layout[axis] = dim
        if any(
            plain[0][b] == dim != WHOLE
            for a, dim in zip(summed, places, strict=True)
            for b in range(a, len(split))
        ):
            continue  # an inner axis already splits this dim: its blocks would have to change places
        if splits(mesh, shapes[0], tuple(layout)):
            yield (tuple(layout),)


@lru_cache(maxsize=1 << 12)
def all_layouts(shape: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[Layout, ...]:
    """Every layout that divides evenly."""
    per_axis = [[*(i for i, n in enumerate(shape) if size > 1 and n % size == 0), WHOLE] for size in sizes]
    found = []
    for layout in itertools.product(*per_axis):
        degrees = [1] * len(shape)
        for axis, dim in enumerate(layout):
            if dim != WHOLE:
                degrees[dim] *= sizes[axis]
        if all(n % d == 0 for n, d in zip(shape, degrees, strict=True)):
            found.append(layout)
    return tuple(found)

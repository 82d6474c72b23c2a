"""Every way to run one operator on a mesh: which loop each axis splits, and where sums end up.

An axis splits one factor of the operator, or none. A factor can be split where it is the major one of every dim
that it indexes. Products, gathers and scatters leave a sum over a factor that their output lacks: it is reduced
to all devices of the axis, or scattered over a dim of the output, or, where products are only added up, left in
parts for the kernel that adds them, which reduces or scatters their total.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple, overload

import numpy as np
import numpy.typing as npt

from planner.tracing.layouts import PARTS, WHOLE, Codes, Layout, Layouts, NamedMesh, as_layouts, divides, grid
from planner.tracing.program import Dims, Operation
from planner.tracing.solving.rings import loops_of, ring_of

SUMMING = frozenset({"product", "lookup", "accumulate"})
"""Kinds whose split leaves partial sums."""

Mask = npt.NDArray[np.bool_]


class Option(NamedTuple):
    """One way to run an operator, and what it makes of its arrays."""

    split: tuple[int, ...]
    """Per mesh axis, the factor that it splits, or `WHOLE`; keys of an attention go round in a ring."""
    reads: tuple[Layout, ...]
    """How each input must lie."""
    writes: tuple[Layout, ...]
    """How each output is left."""
    brought: bool = False
    """Whether all rows that a loop goes over are brought here before it, and held until it ends; else they lie so."""

    def before(self, op: Operation) -> Layout:
        """How the first output lies before sums are done."""
        (layout,) = as_layouts(layouts_of(op.writes[0], np.array([self.split])))
        return layout

    @property
    def parts(self) -> tuple[int, ...]:
        """Axes along which an output is left in parts, or inputs arrive so and are summed up here."""
        arrays = (*self.reads, *self.writes)
        return tuple(a for a in range(len(self.split)) if any(layout[a] == PARTS for layout in arrays))


@dataclass(frozen=True, eq=False)
class Options(Sequence[Option]):
    """Many ways to run one operator, as arrays."""

    split: Layouts
    """[option, axis]"""
    reads: tuple[Layouts, ...]
    """Per input, [option, axis]."""
    writes: tuple[Layouts, ...]
    """Per output, [option, axis]."""
    brought: Mask | None = None
    """[option]: as of an `Option`; None of operators that take no rows for a loop."""

    @classmethod
    def of(cls, option: Option) -> "Options":
        """A single one."""
        reads, writes = (tuple(np.array([w]) for w in arrays) for arrays in (option.reads, option.writes))
        brought = np.array([True]) if option.brought else None
        return cls(np.array([option.split]), reads, writes, brought)

    @classmethod
    def split_so(cls, op: Operation, split: Layouts) -> "Options":
        """With outputs as the loops make them, before sums."""
        ring = ring_of(op)

        def lies(dims: Dims) -> Layouts:
            return layouts_of(dims, split if ring is None else ring.along(loops_of(dims), split))

        lying = {dims: lies(dims) for dims in dict.fromkeys((*op.reads, *op.writes))}
        return cls(split, tuple(lying[d] for d in op.reads), tuple(lying[d] for d in op.writes))

    def rows(self, row: Codes) -> "Options":
        """Some of them, or one several times; arrays that are indexed alike stay one."""
        taken = {id(w): w.take(row, axis=0) for w in (self.split, *self.reads, *self.writes)}
        reads, writes = (tuple(taken[id(w)] for w in arrays) for arrays in (self.reads, self.writes))
        return Options(
            taken[id(self.split)], reads, writes, None if self.brought is None else self.brought[row]
        )

    def __len__(self) -> int:
        return len(self.split)

    @overload
    def __getitem__(self, at: int) -> Option: ...
    @overload
    def __getitem__(self, at: slice) -> "Sequence[Option]": ...
    def __getitem__(self, at: int | slice) -> "Option | Sequence[Option]":
        if isinstance(at, slice):
            return [self[i] for i in range(len(self))[at]]
        reads, writes = (tuple(tuple(w[at].tolist()) for w in arrays) for arrays in (self.reads, self.writes))
        brought = self.brought is not None and bool(self.brought[at])
        return Option(tuple(self.split[at].tolist()), reads, writes, brought)

    @cached_property
    def parts(self) -> Mask:
        """[option, axis]: as of an `Option`."""
        found = np.zeros(self.split.shape, np.bool_)
        for layouts in (*self.reads, *self.writes):
            found |= layouts == PARTS
        return found

    def summed(self, op: Operation) -> Mask:
        """[option, axis]: over which the first output is a sum of parts before it is left as it is."""
        if op.kind not in SUMMING or not op.writes:
            return np.zeros(self.split.shape, np.bool_)
        return _free(op)[self.split]


def options(
    op: Operation, shapes: Sequence[Sequence[int]], mesh: NamedMesh, lasting: bool = False
) -> Options:
    """All of them, in a fixed order.

    ``shapes`` of the outputs; ``lasting`` says that partial sums may be left as they are.
    """
    found = Options.split_so(op, splits_of(op, mesh))
    if op.takes_rows_for:
        both = found.rows(np.tile(np.arange(len(found)), 2))
        return replace(both, brought=np.arange(len(both)) >= len(found))
    if found.summed(op).any():
        return _outcomes(op, found, shapes[0], mesh, lasting)
    return _in_parts(op, found, mesh) if op.addends else found


def splits_of(op: Operation, mesh: NamedMesh) -> Layouts:
    """[option, axis]: every factor that an axis may split; of keys, as the queries with them.

    Parts of an image are no smaller than the borders that they lack, which are then those of neighbours alone.
    """
    ring = ring_of(op)
    factors = {f: op.sizes[f] for f in (*splittable(op), *(() if ring is None else (ring.keys,)))}
    if op.manual is None:
        split = _even_splits(tuple(factors.items()), mesh.sizes)
    else:
        fixed = np.array([[op.manual.get(axis, WHOLE) for axis in mesh.axes]])
        split = fixed[divides(fixed, mesh.sizes, factors)]
    for halo in op.halos:
        degree = np.where(split == halo.factor, mesh.sizes, 1).prod(axis=1)
        split = split[halo.elements * degree <= op.image_length(halo)]
    if ring is None:
        return split
    return split[divides(ring.along((), split), mesh.sizes, {ring.rows: op.sizes[ring.rows]})]


@lru_cache(maxsize=1 << 10)
def _even_splits(factors: tuple[tuple[int, int], ...], sizes: tuple[int, ...]) -> Layouts:
    """[option, axis]: every factor that an axis of these ``sizes`` may split, of these numbers and lengths."""
    found = grid([[*(f for f, n in factors if size > 1 and n % size == 0), WHOLE] for size in sizes])
    found = found[divides(found, sizes, dict(factors))]
    found.setflags(write=False)  # operators share it
    return found


def _outcomes(op: Operation, plain: Options, shape: Sequence[int], mesh: NamedMesh, lasting: bool) -> Options:
    """How the output may be left: whole over the axes of a sum, or scattered along a dim, or all in parts."""
    ends = np.array([WHOLE, *(d for d, n in enumerate(shape) if n > 1)])
    adds, whole = plain.summed(op), plain.writes[0]
    counts = np.where(adds, ends.size, 1)
    row, times = _each(np.multiply.reduce(counts, axis=1))
    summed, before = adds.take(row, axis=0), whole.take(row, axis=0)
    after = before.copy()
    for axis in reversed(range(after.shape[1])):
        times, end = np.divmod(times, counts[row, axis])
        after[:, axis] = np.where(summed[:, axis], ends[end], after[:, axis])
    allowed = divides(after, mesh.sizes, dict(enumerate(shape)))
    for a, b in itertools.combinations(range(after.shape[1]), 2):
        # an inner axis already splits this dim: its blocks would have to change places
        meets = (after[:, a] == before[:, b]) & (after[:, a] != WHOLE)
        allowed &= ~(summed[:, a] & meets)
    kept = np.flatnonzero(allowed)
    row, after = row[kept], after.take(kept, axis=0)
    if lasting:
        first = np.flatnonzero(adds.any(axis=1))
        row = np.concatenate([first, row])
        after = np.concatenate([np.where(adds, PARTS, whole)[first], after])
        order = np.argsort(row, kind="stable")
        row, after = row[order], after.take(order, axis=0)
    return replace(plain.rows(row), writes=(after,))


def _each(counts: Codes) -> tuple[Codes, Codes]:
    """Every place as often as ``counts`` says, and which time it is."""
    at = np.repeat(np.arange(counts.size), counts)
    return at, np.arange(at.size) - (np.cumsum(counts) - counts)[at]


def _in_parts(op: Operation, whole: Options, mesh: NamedMesh) -> Options:
    """The same with addends that arrive in parts along some axes, each after the one where they arrive whole."""
    total = layouts_of(_total_dims(op), whole.split)
    may = (np.array(mesh.sizes) > 1) & ((total != WHOLE) | (whole.split == WHOLE))
    rows, parts = [np.arange(len(whole))], [np.zeros(whole.split.shape, np.bool_)]
    for axes in subsets(len(mesh.sizes)):
        allowed = may[:, axes].all(axis=1)
        # Where an inner axis already splits a dim, its blocks would have to change places.
        inner = ((a, b) for a in axes for b in range(a + 1, len(mesh.sizes)) if b not in axes)
        for a, b in inner:
            allowed &= (total[:, a] != total[:, b]) | (total[:, a] == WHOLE)
        rows.append(np.flatnonzero(allowed))
        part = [a in axes for a in range(len(mesh.sizes))]
        parts.append(np.broadcast_to(part, (rows[-1].size, len(part))))
    row = np.concatenate(rows)
    order = np.argsort(row, kind="stable")
    row, in_parts = row[order], np.concatenate(parts)[order]
    found = whole.rows(row)
    reads = tuple(
        np.where(in_parts, PARTS, layouts) if name in op.addends else layouts
        for name, layouts in zip(op.inputs, found.reads, strict=True)
    )
    return replace(found, reads=reads)


def subsets(count: int) -> Iterator[list[int]]:
    """Of the first numbers, all but the empty one, small ones first."""
    for size in range(1, count + 1):
        yield from map(list, itertools.combinations(range(count), size))


def total_layouts(op: Operation, found: Options) -> tuple[Layouts, Layouts]:
    """How the total of a kernel's addends lies before it is summed up, and after; [option, axis]."""
    after = layouts_of(_total_dims(op), found.split)
    return np.where(found.parts, WHOLE, after), after


def _total_dims(op: Operation) -> Dims:
    return next(m.writes[0] for m in op.members if m.name == op.total)


def splittable(op: Operation) -> list[int]:
    """Factors that a mesh axis may split: not those that an array has behind others, nor one that only a view made.

    What is read through a view lies behind it with dims of its own, but compilers see the view, too.
    """
    arrays = {*op.reads, *op.writes, *(dims for m in op.members for dims in (*m.reads, *m.writes))}
    minor = {f for dims in arrays for dim in dims for f in dim[1:]}
    return [f for f in range(len(op.sizes)) if f not in minor and f not in op.whole]


def _free(op: Operation) -> Mask:
    """Per factor, whether the first output lacks it; the last entry is of `WHOLE`."""
    found = np.ones(len(op.sizes) + 1, np.bool_)
    found[[WHOLE, *(f for dim in op.writes[0] for f in dim)]] = False
    return found


def layouts_of(dims: Dims, split: Layouts) -> Layouts:
    """How an array lies when its loops are split so; [option, axis]."""
    major = np.full(max((*(f for dim in dims for f in dim), int(split.max(initial=0)))) + 2, WHOLE)
    for i, dim in enumerate(dims):
        if dim:
            major[dim[0]] = i
    return major[split]


@lru_cache(maxsize=1 << 12)
def all_layouts(shape: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[Layout, ...]:
    """Every layout that divides evenly."""
    per_axis = [[*(i for i, n in enumerate(shape) if size > 1 and n % size == 0), WHOLE] for size in sizes]
    found = grid(per_axis)
    return as_layouts(found[divides(found, sizes, dict(enumerate(shape)))])

"""How an array lies on a mesh, and the collectives that turn one layout into another.

A `Layout` names, per mesh axis, the dim that it shards. Where several axes shard one dim, the earlier axis of
the mesh is the major one; blocks that keep their place need no move, others change places first.

Source: Xu et al., GSPMD, arXiv:2105.04663, section 4.5.
"""

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cluster_specs.cluster import ClusterSpec
from cluster_specs.topology import CommGroup, comm_group
from planner.errors import InputError
from planner.sharding.resharding import Move

Layout = tuple[int, ...]
"""Per mesh axis, the dim that it shards, or `WHOLE`, or `PARTS`."""

WHOLE = -1
PARTS = -2
"""Along this axis the array is the sum of what the devices hold."""

MAX_AXES = 3
ALL = (1 << MAX_AXES) - 1
"""Every axis, as the bits of a number."""

_BITS = (1 << np.arange(MAX_AXES)).astype(np.uint8)

COLLECTIVE_OF = ("", "send", "all_to_all", "all_gather", "reduce_scatter", "all_reduce")
"""By the number that stands for it in the code of a step."""

CODES = len(COLLECTIVE_OF) << 2 * MAX_AXES
"""All codes are below this."""

MOST_LAYOUTS = 250
"""Of which the ways from each to each are worth keeping: those of arrays of which three axes may split five dims."""

Codes = npt.NDArray[np.integer[Any]]

Layouts = npt.NDArray[np.int64]
"""Several of them, [layout, axis]."""

Partition = tuple[tuple[str, ...], ...]
"""Per dim of an array, the mesh axes that shard it, major first; as JAX's ``PartitionSpec``."""


@dataclass(frozen=True, eq=False)
class NamedMesh:
    """Devices in a grid with named axes, the last one varying fastest, as ``jax.make_mesh`` lays them out."""

    cluster: ClusterSpec
    axes: Mapping[str, int]
    """Name -> size, outermost (slowest links) first."""
    _groups: dict[tuple[int, ...], CommGroup] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not 1 <= len(self.axes) <= MAX_AXES or min(self.axes.values()) < 1:
            raise InputError(
                f"mesh {dict(self.axes)}: one to three axes are needed, each of at least 1 device"
            )
        if math.prod(self.axes.values()) > self.cluster.num_devices:
            raise InputError(
                f"mesh {dict(self.axes)} needs {math.prod(self.axes.values())} devices, "
                f"cluster {self.cluster.name} has {self.cluster.num_devices}"
            )

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Devices along each axis."""
        return tuple(self.axes.values())

    def degree(self, axes: Iterable[int]) -> int:
        """Devices in a group over some axes, given by their numbers."""
        degree = 1
        for axis in axes:
            degree *= self.sizes[axis]
        return degree

    def group(self, axes: Sequence[int]) -> CommGroup:
        """The devices that differ only in their places along some axes."""
        key = tuple(axes)
        if key not in self._groups:
            wide = sorted(a for a in axes if self.sizes[a] > 1)
            spans = [(self.sizes[a], math.prod(self.sizes[a + 1 :])) for a in reversed(wide)]
            self._groups[key] = comm_group(self.cluster, tuple(spans))
        return self._groups[key]


def degrees(sizes: Sequence[int], axes: npt.NDArray[np.bool_]) -> Codes:
    """Devices in groups over some of the axes, [..., axis]."""
    return divisors(tuple(sizes))[mask(axes)]


@lru_cache(maxsize=1 << 5)
def divisors(sizes: tuple[int, ...]) -> Codes:
    """Devices in groups, by the axes as the bits of a number."""
    return np.array([math.prod(sizes[a] for a in axes_of(m)) for m in range(1 << len(sizes))])


def among(layouts: Layouts, numbers: Collection[int]) -> npt.NDArray[np.bool_]:
    """Whether entries are among some dims or factors."""
    chosen = np.zeros(max((*numbers, int(layouts.max(initial=0)))) + 1 - PARTS, np.bool_)
    chosen[list(numbers)] = True
    return chosen[layouts]


def divides(numbers: Layouts, sizes: Sequence[int], extents: Mapping[int, int]) -> npt.NDArray[np.bool_]:
    """[layout]: whether each dim's extent divides evenly by the axes that split it."""
    evenly = np.ones(len(numbers), np.bool_)
    for number, extent in extents.items():
        if extent % math.prod(sizes):  # what all axes together divide, each of them does
            evenly &= extent % degrees(sizes, numbers == number) == 0
    return evenly


def grid(per_axis: Sequence[Sequence[int]]) -> Layouts:
    """[combination, axis]: one of each axis's numbers, the last axis varying fastest."""
    found = np.empty((*map(len, per_axis), len(per_axis)), np.int64)
    for axis, numbers in enumerate(per_axis):
        found[..., axis] = np.array(numbers).reshape([-1 if a == axis else 1 for a in range(len(per_axis))])
    return found.reshape(-1, len(per_axis))


def as_layouts(found: Layouts) -> tuple[Layout, ...]:
    """The rows as tuples."""
    return tuple(map(tuple, found.tolist()))


def distinct(each: Sequence[Layouts]) -> Iterator[tuple[Layouts, npt.NDArray[np.intp]]]:
    """Of each array, every row once, in order, and for each row which of them it is; of all arrays at once."""
    if not each:
        return
    found = np.concatenate(each) - PARTS
    base, axes, lengths = 1 + int(found.max(initial=0)), found.shape[1], [len(rows) for rows in each]
    worth, begins = base ** np.arange(axes), base**axes * np.arange(len(each) + 1)
    numbers = found @ worth + np.repeat(begins[:-1], lengths)
    place = np.zeros(begins[-1], np.intp)  # few, so that they need no sorting
    place[numbers] = 1
    which = np.flatnonzero(place)
    place[which] = np.arange(which.size)
    once, of = which[:, None] // worth % base + PARTS, place[numbers]
    ends = np.searchsorted(which, begins).tolist()
    for k, last in enumerate(itertools.accumulate(lengths)):
        yield once[ends[k] : ends[k + 1]], of[last - lengths[k] : last] - ends[k]


def different(rows: Codes) -> tuple[Codes, npt.NDArray[np.intp]]:
    """Each of some rows of counts once, and for each row which of them it is."""
    base = 1 + rows.max(axis=0, initial=0)
    if math.prod(base.tolist()) >= 1 << 62:
        return rows, np.arange(len(rows))
    numbers = rows @ np.cumprod([1, *base[:-1]])
    _, first, which = np.unique(numbers, return_index=True, return_inverse=True)
    return rows[first], which


def share(mesh: NamedMesh, layout: Layout) -> float:
    """Part of the array that one device holds."""
    return 1 / mesh.degree([a for a, d in enumerate(layout) if d >= 0])


def shares(mesh: NamedMesh, layouts: Layouts) -> npt.NDArray[np.float64]:
    """The same of many."""
    return np.asarray(1 / degrees(mesh.sizes, layouts >= 0))


def moves(mesh: NamedMesh, full_bytes: float, source: Layout, target: Layout) -> tuple[Move, ...]:
    """Collectives, in order, that turn ``source`` into ``target``; axes by their numbers, as text.

    ``full_bytes`` of the array [B]; of each `Move` as there.
    """
    codes = (int(step[0, 0]) for step in steps((source,), (target,)))
    return tuple(step_of(mesh, full_bytes, code) for code in codes if code)


def step_of(mesh: NamedMesh, full_bytes: float, code: int) -> Move:
    """The collective that a code of `steps` stands for, on an array of ``full_bytes`` [B]."""
    axes, split = axes_of(code >> MAX_AXES & ALL), axes_of(code & ALL)
    kind = COLLECTIVE_OF[code >> 2 * MAX_AXES]
    return Move(kind, tuple(str(a) for a in axes), full_bytes / mesh.degree(split))


class Ways(NamedTuple):
    """How each of some layouts turns into each of others."""

    codes: Codes
    """[way, step]: codes of `steps`."""
    which: Codes
    """[source, target]: its way."""


def ways(sources: Layouts, targets: Layouts) -> Ways:
    """The `steps` of many moves, of which most take a way that others take too."""
    number, axes = _numbered(sources, targets), sources.shape[1]
    dims = int(number.max())
    if (dims + 1) ** axes > MOST_LAYOUTS:
        return _ways(sources, targets)
    every, worth = _all_ways(dims, axes), (dims + 1) ** np.arange(axes)[::-1]
    rows, columns = (number[layouts] @ worth for layouts in (sources, targets))
    return Ways(every.codes, every.which.take(rows, axis=0).take(columns, axis=1))


def _numbered(*each: Layouts) -> Codes:
    """[dim]: its number among those that axes split, from 1; 0 of `WHOLE` and, as if it were whole, of `PARTS`.

    Ways depend on which dims are the same and which come first, not on those that no axis splits.
    """
    split = np.zeros(1 - PARTS + max(int(layouts.max(initial=0)) for layouts in each), np.bool_)
    for layouts in each:
        split[layouts] = True
    split[[WHOLE, PARTS]] = False
    return np.where(split, np.cumsum(split), 0)


@lru_cache(maxsize=1 << 5)
def _all_ways(dims: int, axes: int) -> Ways:
    """Between all layouts of so many dims, whatever their sizes, in the order of their `grid`."""
    every = grid([range(WHOLE, dims)] * axes)
    return _ways(every, every)


def _ways(sources: Layouts, targets: Layouts) -> Ways:
    found = np.stack(steps(sources, targets), axis=-1)
    packed = found.astype(np.int64) @ (CODES ** np.arange(found.shape[-1]))
    _, first, which = np.unique(packed, return_index=True, return_inverse=True)
    return Ways(found.reshape(-1, found.shape[-1])[first], which.reshape(packed.shape))


def steps(sources: Sequence[Layout] | Layouts, targets: Sequence[Layout] | Layouts) -> list[Codes]:
    """Step by step [source, target]: collectives that turn one into the other, each as a number, 0 for none.

    Local slices come first and gathers last, those of the last dim first; what goes from one dim to another goes by
    itself: as XLA's partitioner has it (openxla/xla, spmd_partitioner.cc, AllGatherShards). A code is made of the
    collective, of the axes that it crosses and of those that split its whole array, a bit each (`step_of` reads it).
    """
    have = np.maximum(np.array(sources), WHOLE)  # what is in parts stays so, as if it were whole
    want = np.maximum(np.array(targets), WHOLE)
    split, wanted = (mask(layouts != WHOLE) for layouts in (have, want))
    before, after = split[:, None], wanted[None, :]
    misplaced = np.zeros((len(have), len(want)), np.uint8)
    for dim in range(1 + max(have.max(initial=0), want.max(initial=0)) if have.shape[1] > 1 else 0):
        first, last = mask(have == dim)[:, None], mask(want == dim)[None, :]
        cut, exchanged = first | (last & ~before), last | (first & ~after)
        misplaced |= _MISPLACED[first, cut] | _MISPLACED[cut, exchanged] | _MISPLACED[exchanged, last]
    return [
        codes_of("send", misplaced, before | after),
        *_exchanges(have, want, before | after),
        *_gathers(have, np.array(before & ~after), after),
    ]


def _gathers(have: Layouts, gathered: Codes, after: Codes) -> Iterator[Codes]:
    """One for each dim whose axes leave it, the last dim first: the first of each pair of layouts, then the second."""
    left, found, number = gathered, list[Codes](), np.zeros(gathered.shape, np.int8)
    for dim in reversed(range(1 + max(have.max(initial=0), 0))):
        rows = np.flatnonzero((have == dim).any(axis=1))
        now = mask(have[rows] == dim)[:, None] & gathered[rows]
        left[rows] &= ~now
        code = codes_of("all_gather", now, after | left[rows])
        for k in range(len(found) + 1):
            at = np.where(number[rows] == k, code, np.int16(0))
            if not at.any():
                continue
            if k == len(found):
                found.append(np.zeros(gathered.shape, np.int16))
            found[k][rows] |= at
        number[rows] += now > 0
    return iter(found)


def _exchanges(have: Layouts, want: Layouts, split: Codes) -> Iterator[Codes]:
    """All-to-alls, one for the axes that leave the same dim for the same other one."""
    small = np.int16
    dims = small(1 + max(have.max(initial=0), want.max(initial=0)))
    moved = [
        (h[:, None] != w[None, :]) & (h != WHOLE)[:, None] & (w != WHOLE)[None, :]
        for h, w in zip(have.T, want.T, strict=True)
    ]
    ways = [
        h[:, None] * dims + w[None, :]
        for h, w in zip(have.T.astype(small), want.T.astype(small), strict=True)
    ]
    for a, first in enumerate(moved):
        axes = (1 << a) * first.astype(np.uint8)
        for b in reversed(range(len(moved))):
            if b != a:
                together = moved[b] & (ways[a] == ways[b])
                axes = axes * ~together if b < a else axes | (first & together) << b
        yield codes_of("all_to_all", axes, split)


class PartialSums(NamedTuple):
    """Arrays whose parts are to be added up."""

    ends: Layouts
    """[array, axis]: the dim along which an axis scatters its sum, `WHOLE` where all devices get it, `PARTS` where it
    waits."""
    kinds: Layouts
    """[array, axis]"""
    summed: npt.NDArray[np.bool_]
    """[array, axis]: over which there are parts."""
    split: Codes
    """[array]: the axes that split it, a bit each."""


def sums(each: Sequence[PartialSums]) -> list[Codes]:
    """[array, step] of each: collectives that add up parts, as codes of `steps`; of all at once.

    Axes that end in one dim, or of one of the ``kinds`` and everywhere, make one collective; scattered ones come first:
    they leave less.
    """
    if not each:
        return []
    ends, kinds, summed, split = map(np.concatenate, zip(*each, strict=True))
    found = []
    kinds_at_most = 2 + int(kinds.max(initial=0))
    groups = np.where(ends == WHOLE, kinds - WHOLE, (ends - WHOLE) * kinds_at_most)
    left = np.where(
        summed & (ends != PARTS), groups, -1
    ).T.copy()  # [axis, array], whose maxima are found faster
    for _ in range(ends.shape[1]):
        first = left.max(axis=0)
        now = (left == first) & (left >= 0)
        axes, scattered = _BITS[: len(now)] @ now, first >= kinds_at_most
        reduced = codes_of("all_reduce", axes, split)
        found.append(np.where(scattered, codes_of("reduce_scatter", axes, split), reduced))
        split = np.where(scattered, split | axes, split)
        left = np.where(now, -1, left)
    return np.split(np.stack(found, axis=-1), np.cumsum([len(parts.split) for parts in each])[:-1])


def mask(where: npt.NDArray[np.bool_]) -> Codes:
    """Axes, the last dim, as the bits of a number."""
    return np.asarray(where @ _BITS[: where.shape[-1]])


def in_parts(sources: Layouts, targets: Layouts) -> npt.NDArray[np.bool_]:
    """[source, target]: whether one is in parts along an axis where the other is not."""
    have, want = (mask(layouts == PARTS) for layouts in (sources, targets))
    return np.asarray(have[:, None] != want[None, :])


def codes_of(collective: str, axes: Codes, split: Codes) -> Codes:
    """A collective over ``axes`` of an array that the axes in ``split`` split: 0 over none (`step_of` reads them)."""
    kind = np.int16(COLLECTIVE_OF.index(collective) << 2 * MAX_AXES)
    code = kind | np.left_shift(axes, MAX_AXES, dtype=np.int16) | split
    return np.where(axes > 0, code, np.int16(0))


@cache
def axes_of(mask: int) -> tuple[int, ...]:
    """The axes that the bits of a number stand for."""
    return tuple(a for a in range(MAX_AXES) if mask >> a & 1)


def _misplaced(before: int, after: int) -> int:
    """Axes that split a dim before or after, if an outer one comes or goes: then blocks change places."""
    shorter, longer = sorted((axes_of(before), axes_of(after)), key=len)
    return before | after if shorter and longer[: len(shorter)] != shorter else 0


_MISPLACED: Codes = np.array([[_misplaced(b, a) for a in range(ALL + 1)] for b in range(ALL + 1)], np.uint8)

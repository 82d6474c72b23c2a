"""How an array lies on a mesh, and the collectives that turn one layout into another.

A `Layout` names, per mesh axis, the dim that it shards. Where several axes shard one dim, the earlier axis of
the mesh is the major one; blocks that keep their place need no move, others change places first.

Source: Xu et al., GSPMD, arXiv:2105.04663, section 4.5.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

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

COLLECTIVE_OF = ("", "send", "all_to_all", "all_gather")
"""By the number that stands for it in the code of a step."""

Codes = npt.NDArray[np.int64]


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
        key = tuple(sorted(a for a in axes if self.sizes[a] > 1))
        if key not in self._groups:
            spans = [(self.sizes[a], math.prod(self.sizes[a + 1 :])) for a in reversed(key)]
            self._groups[key] = comm_group(self.cluster, tuple(spans))
        return self._groups[key]


def splits(mesh: NamedMesh, shape: Sequence[int], layout: Layout) -> bool:
    """Whether every dim divides evenly."""
    return all(n % mesh.degree([a for a, d in enumerate(layout) if d == i]) == 0 for i, n in enumerate(shape))


def share(mesh: NamedMesh, layout: Layout) -> float:
    """Part of the array that one device holds."""
    return 1 / mesh.degree([a for a, d in enumerate(layout) if d >= 0])


def moves(mesh: NamedMesh, full_bytes: float, source: Layout, target: Layout) -> tuple[Move, ...]:
    """Collectives, in order, that turn ``source`` into ``target``; axes by their numbers, as text.

    ``full_bytes`` of the array [B]; of each `Move` as there.
    """
    codes = steps((source,), (target,))[0, 0]
    return tuple(step_of(mesh, full_bytes, int(code)) for code in codes if code)


def step_of(mesh: NamedMesh, full_bytes: float, code: int) -> Move:
    """The collective that a code of `steps` stands for, on an array of ``full_bytes`` [B]."""
    axes, split = _axes(code >> MAX_AXES & ALL), _axes(code & ALL)
    kind = COLLECTIVE_OF[code >> 2 * MAX_AXES]
    return Move(kind, tuple(str(a) for a in axes), full_bytes / mesh.degree(split))


def steps(sources: Sequence[Layout], targets: Sequence[Layout]) -> Codes:
    """[source, target, step]: collectives that turn one into the other, each as a number, 0 for none.

    Local slices come first and gathers last. A code is made of the collective, of the axes that it crosses and of
    those that split its whole array, a bit each (`step_of` reads it).
    """
    have = np.maximum(np.array(sources), WHOLE)[:, None, :]  # what is in parts stays so, as if it were whole
    want = np.maximum(np.array(targets), WHOLE)[None, :, :]
    bits = 1 << np.arange(have.shape[-1])

    def mask(where: npt.NDArray[np.bool_]) -> Codes:
        return np.asarray(where @ bits)

    sliced, gathered = mask((have == WHOLE) & (want != WHOLE)), mask((have != WHOLE) & (want == WHOLE))
    exchanged = mask((have != WHOLE) & (want != WHOLE) & (have != want))
    split = mask(have != WHOLE) | sliced
    misplaced = np.zeros_like(sliced)
    for dim in range(1 + max(have.max(initial=0), want.max(initial=0))):
        misplaced |= _MISPLACED[mask(have == dim), mask(want == dim)]
    found = (
        _codes("send", misplaced, np.broadcast_to(mask(have != WHOLE), sliced.shape)),
        _codes("all_to_all", exchanged, split),
        _codes("all_gather", gathered, split & ~gathered),
    )
    return np.stack(found, axis=-1)


def in_parts(sources: Sequence[Layout], targets: Sequence[Layout]) -> npt.NDArray[np.bool_]:
    """[source, target]: whether one is in parts along an axis where the other is not."""
    have, want = np.array(sources) == PARTS, np.array(targets) == PARTS
    return np.asarray((have[:, None, :] != want[None, :, :]).any(axis=2))


def _codes(collective: str, axes: Codes, split: Codes) -> Codes:
    code = COLLECTIVE_OF.index(collective) << 2 * MAX_AXES | axes << MAX_AXES | split
    return np.where(axes > 0, code, 0)


def _axes(mask: int) -> tuple[int, ...]:
    return tuple(a for a in range(MAX_AXES) if mask >> a & 1)


def _misplaced(before: int, after: int) -> int:
    """Axes that split a dim before or after, if an outer one comes or goes: then blocks change places."""
    shorter, longer = sorted((_axes(before), _axes(after)), key=len)
    return before | after if shorter and longer[: len(shorter)] != shorter else 0


_MISPLACED: Codes = np.array([[_misplaced(b, a) for a in range(ALL + 1)] for b in range(ALL + 1)])

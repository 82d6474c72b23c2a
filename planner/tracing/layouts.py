"""How an array lies on a mesh, and the collectives that turn one layout into another.

A `Layout` names, per mesh axis, the dim that it shards. Where several axes shard one dim, the earlier axis of
the mesh is the major one; blocks that keep their place need no move, others change places first.

Source: Xu et al., GSPMD, arXiv:2105.04663, section 4.5.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cluster_specs.cluster import ClusterSpec
from cluster_specs.topology import CommGroup, comm_group
from planner.errors import InputError
from planner.sharding.resharding import Move

Layout = tuple[int, ...]
"""Per mesh axis, the dim that it shards, or `WHOLE`."""

WHOLE = -1


@dataclass(frozen=True, eq=False)
class NamedMesh:
    """Devices in a grid with named axes, the last one varying fastest, as ``jax.make_mesh`` lays them out."""

    cluster: ClusterSpec
    axes: Mapping[str, int]
    """Name -> size, outermost (slowest links) first."""
    _groups: dict[tuple[int, ...], CommGroup] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not 1 <= len(self.axes) <= 3 or min(self.axes.values()) < 1:
            raise InputError(
                f"mesh {dict(self.axes)}: one to three axes are needed, each of at least 1 device"
            )
        if math.prod(self.axes.values()) > self.cluster.num_devices:
            raise InputError(
                f"mesh {dict(self.axes)} needs {math.prod(self.axes.values())} devices, "
                f"cluster {self.cluster.name} has {self.cluster.num_devices}"
            )

    @property
    def sizes(self) -> tuple[int, ...]:
        """Devices along each axis."""
        return tuple(self.axes.values())

    def degree(self, axes: Sequence[int]) -> int:
        """Devices in a group over some axes, given by their numbers."""
        return math.prod(self.sizes[a] for a in axes)

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
    return 1 / mesh.degree([a for a, d in enumerate(layout) if d != WHOLE])


def moves(mesh: NamedMesh, full_bytes: float, source: Layout, target: Layout) -> tuple[Move, ...]:
    """Collectives, in order, that turn ``source`` into ``target``; axes by their numbers, as text.

    Local slices come first and gathers last. ``full_bytes`` of the array [B]; of each `Move` as there.
    """
    if source == target:
        return ()
    local = full_bytes * share(mesh, source)
    sliced = [a for a, (s, t) in enumerate(zip(source, target, strict=True)) if s == WHOLE != t]
    gathered = [a for a, (s, t) in enumerate(zip(source, target, strict=True)) if s != WHOLE == t]
    exchanged = [
        a for a, (s, t) in enumerate(zip(source, target, strict=True)) if WHOLE not in (s, t) and s != t
    ]
    done: list[Move] = []
    misplaced = _misplaced(source, target)
    if misplaced:
        done.append(_move("send", misplaced, local))
    local /= mesh.degree(sliced)
    if exchanged:
        done.append(_move("all_to_all", exchanged, local))
    if gathered:
        done.append(_move("all_gather", gathered, local * mesh.degree(gathered)))
    return tuple(done)


def _move(collective: str, axes: Sequence[int], full_bytes: float) -> Move:
    return Move(collective, tuple(str(a) for a in axes), full_bytes)


def _misplaced(source: Layout, target: Layout) -> tuple[int, ...]:
    """Axes of the dims whose blocks are in other places where an outer axis comes or goes."""
    found: list[int] = []
    for dim in set(source) | set(target):
        before = [a for a, d in enumerate(source) if d == dim]
        after = [a for a, d in enumerate(target) if d == dim]
        shorter, longer = sorted((before, after), key=len)
        if dim != WHOLE and shorter and longer[: len(shorter)] != shorter:
            found += [*before, *after]
    return tuple(sorted(set(found)))

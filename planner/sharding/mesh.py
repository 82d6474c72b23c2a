"""A logical mesh of named axes over the devices of one pipeline stage."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from cluster_specs.cluster import ClusterSpec
from cluster_specs.errors import InputError
from cluster_specs.topology import CommGroup, comm_group

AXES = ("tensor", "context_expert", "context", "expert", "data")
"""Axes of a stage's mesh, innermost first: neighbours on ``tensor`` share the fastest links.

Context ranks that hold experts of their own are the axis ``context_expert``: it splits positions, or experts.
"""

EXPERTS_NEAREST = ("tensor", "context_expert", "expert", "context", "data")
"""The order that expert layers see where context ranks are expert ranks as well."""

EXPERT_AXES = ("context_expert", "expert")
"""Axes that split experts where an operator has any, and tokens elsewhere."""

BATCH_AXES = ("expert", "data")
"""Axes that split nothing but the batch, except where operators have experts."""

INNER_AXES = tuple(axis for axis in AXES if axis not in BATCH_AXES)


@dataclass(frozen=True, eq=False)
class Mesh:
    """Sizes of `AXES` on a cluster, and the communication group of any set of them."""

    cluster: ClusterSpec
    sizes: Mapping[str, int]
    experts_nearest: bool = False
    """Expert ranks are numbered before context ranks, which are numbered apart for everything else."""
    _groups: dict[tuple[str, ...], CommGroup] = field(default_factory=dict, repr=False)
    _cut: dict[tuple[tuple[str, ...], int], tuple[CommGroup, CommGroup]] = field(
        default_factory=dict, repr=False
    )

    def __post_init__(self) -> None:
        unknown = set(self.sizes) - set(AXES)
        if unknown:
            raise InputError(f"mesh: unknown axes {sorted(unknown)}; the axes are {', '.join(AXES)}")
        if self.num_devices > self.cluster.num_devices:
            raise InputError(
                f"mesh {dict(self.sizes)} needs {self.num_devices} devices, "
                f"cluster {self.cluster.name} has {self.cluster.num_devices}"
            )

    def size(self, axis: str) -> int:
        """Devices along ``axis``; 1 where the mesh has none."""
        return self.sizes.get(axis, 1)

    @cached_property
    def num_devices(self) -> int:
        """Devices of the mesh."""
        return math.prod(self.sizes.values())

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """Axes that split anything (size above 1), innermost first."""
        return tuple(a for a in AXES if self.size(a) > 1)

    def stride(self, axis: str) -> int:
        """Rank distance between neighbours on ``axis``."""
        return self._stride(axis, AXES)

    def _stride(self, axis: str, order: tuple[str, ...]) -> int:
        return math.prod(self.size(a) for a in order[: order.index(axis)])

    def _spans(self, axes: Iterable[str]) -> list[tuple[int, int]]:
        """Size and stride of those of ``axes`` that split anything, innermost first.

        Expert ranks, and those that hold the same experts (data and context ranks together), may have an order of
        their own; all three together are the same ranks in either.
        """
        asked = set(axes)
        order = EXPERTS_NEAREST if self.experts_nearest and asked & {"expert", "data"} else AXES
        return [(self.size(a), self._stride(a, order)) for a in order if a in asked and self.size(a) > 1]

    def group(self, axes: Iterable[str]) -> CommGroup:
        """The ranks that differ only in their coordinates on ``axes``."""
        asked = tuple(axes)
        if asked not in self._groups:
            self._groups[asked] = comm_group(self.cluster, self._spans(asked))
        return self._groups[asked]

    def inner_outer(self, axes: tuple[str, ...], inner: int) -> tuple[CommGroup, CommGroup]:
        """The group over ``axes`` cut in two: its ``inner`` nearest ranks, and the groups of their peers.

        Hybrid sharding shards over the first and replicates over the second.
        Raises ``InputError`` where ``inner`` does not divide the axes evenly.
        """
        if (axes, inner) not in self._cut:
            self._cut[axes, inner] = self._inner_outer(axes, inner)
        return self._cut[axes, inner]

    def _inner_outer(self, axes: tuple[str, ...], inner: int) -> tuple[CommGroup, CommGroup]:
        near: list[tuple[int, int]] = []
        far: list[tuple[int, int]] = []
        left = inner
        for size, stride in self._spans(axes):
            take = math.gcd(left, size)
            if take > 1:
                near.append((take, stride))
            if size // take > 1:
                far.append((size // take, stride * take))
            left //= take
        if left > 1:
            raise InputError(
                f"a sharding group of {inner} does not divide the axes {tuple(axes)} of {dict(self.sizes)}"
            )
        return comm_group(self.cluster, tuple(near)), comm_group(self.cluster, tuple(far))

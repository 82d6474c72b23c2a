"""Which links a group of ranks crosses.

Ranks are numbered innermost first (neighbours share a node), so a mesh axis is a size and a stride,
and a group over several axes is a list of them, innermost first.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

from cluster_specs.cluster import ClusterSpec, LinkSpec, TorusSpec
from cluster_specs.errors import InputError


class Dispatching(NamedTuple):
    """Rates of kernels that send tokens to experts, each once to a rank, over that of large collectives."""

    deepep: float = 1.0
    hybridep: float = 1.0


@dataclass(frozen=True, slots=True)
class Level:
    """One level of the network inside a group: ``size`` peers (or sub-groups) that exchange over it.

    ``bandwidth`` is what one rank has while all ranks of the cluster do the same. A sub-group of ``k`` ranks
    (the product of the inner levels' sizes) drives ``k`` network cards, so it has up to ``k * bandwidth``.
    """

    size: int
    """Sub-groups joined at this level; the product over levels is the group's size."""
    bandwidth: float
    """Of one rank, one direction, efficiency included [bytes/s]."""
    latency: float
    """Of one hop [s]."""
    kind: str
    """Link kind: nvlink, infiniband, ici, ..."""
    ring_directions: int = 1
    """2 where a wrapped torus dimension can be used both ways at once."""
    in_switch_reduction: bool = False
    in_switch_efficiency: float | None = None
    """Share of ``bandwidth`` that such sums reach; None: the usual one."""
    dispatching: Dispatching = Dispatching()
    crossing: float = 1.0
    """Share of ``bandwidth`` left to routes that cross others: those of trees and of recursive halving."""
    ring_step: float = 0.0
    """Time that each step of a ring that crosses this level takes more [s]."""
    exchange_message: float = 0.0
    """Least message to each peer with which all-to-alls have all of ``bandwidth`` [bytes]."""
    exchange_halving: float = 0.0
    """Share of it that every halving of their messages below that takes."""


@dataclass(frozen=True)
class CommGroup:
    """The ranks that take part in one collective, and the levels between them, innermost first."""

    size: int
    levels: tuple[Level, ...]

    @cached_property
    def active_levels(self) -> tuple[Level, ...]:
        """Levels at which the group has peers, innermost first."""
        return tuple(level for level in self.levels if level.size > 1)

    @cached_property
    def _hash(self) -> int:
        return hash((self.size, self.levels))

    def __hash__(self) -> int:
        """Worked out once: caches of prices ask for it far more often than groups are made."""
        return self._hash

    def __reduce__(self) -> tuple[type["CommGroup"], tuple[int, tuple[Level, ...]]]:
        """Without the hash, which is another one in another process."""
        return CommGroup, (self.size, self.levels)


class _Axis(NamedTuple):
    """Ranks ``0, stride, ..., (size - 1) * stride`` from a base."""

    size: int
    stride: int


def comm_group(cluster: ClusterSpec, axes: Sequence[tuple[int, int]]) -> CommGroup:
    """Group of ranks spanned by ``axes``, each a (size, stride) in ranks, innermost first.

    A tier that the group fills unevenly (6 ranks in a row on nodes of 8) counts as the part that every node
    has in common, which is the slowest case. Raises ``InputError`` where the axes overlap, reach beyond the
    cluster, or cannot be laid out on its torus.
    """
    spans = _merged(axes, cluster)
    size = math.prod(axis.size for axis in spans)
    if size == 1:
        return CommGroup(1, ())
    levels = []
    if cluster.torus is not None:
        levels = _torus_levels(cluster.torus, _spans(spans, _extents(cluster.torus, cluster), cluster))
    levels += _tier_levels(cluster, spans, math.prod(level.size for level in levels))
    return _known(CommGroup(size, tuple(levels)))


@lru_cache(maxsize=1 << 12)
def _known(group: CommGroup) -> CommGroup:
    """Equal groups as one object, by which caches of prices find them without a look at their levels."""
    return group


def route(cluster: ClusterSpec, sender: tuple[int, int], receiver: tuple[int, int]) -> CommGroup:
    """The link from one range of ranks (half open) to another, as a group of two.

    It is the innermost tier that holds both; between pools, what joins those. Ranges smaller than a node leave the
    shares of its other devices in their network cards to the devices that send. Raises ``InputError`` where a range
    is in no pool.
    """
    (pool, a), (other, b) = _in_pool(cluster, sender), _in_pool(cluster, receiver)
    if pool is not other:
        assert cluster.between is not None
        return CommGroup(2, (_tier_level(cluster.between, 2, 2),))
    start, end = min(a[0], b[0]), max(a[1], b[1])
    inside = pool.devices_per_node if pool.torus is not None else 0
    if pool.torus is not None and start // inside == (end - 1) // inside:
        return CommGroup(2, tuple(_next_block(pool.torus, max(a[1] - a[0], b[1] - b[0]), pool)))
    tiers = (link for link in pool.links if start // link.devices == (end - 1) // link.devices)
    tier = next(tiers, pool.links[-1])
    silent = pool.devices_per_node // max(a[1] - a[0], b[1] - b[0])
    shares = max(1, min(tier.devices_per_card, silent))
    level = _tier_level(tier, 2, 2)
    return CommGroup(2, (replace(level, bandwidth=shares * level.bandwidth),))


def has_own_wires(cluster: ClusterSpec) -> bool:
    """Whether neighbours are joined by wires of their own, as in a torus; else each rank has a port to a switch.

    Between slices of a torus, and between pools, there is a network with switches.
    """
    return cluster.torus is not None and cluster.nodes == 1 and not cluster.others


def _in_pool(cluster: ClusterSpec, ranks: tuple[int, int]) -> tuple[ClusterSpec, tuple[int, int]]:
    """The pool that holds the range, and the range in ranks of the pool."""
    start = 0
    for pool in (cluster, *cluster.others):
        end = start + pool.nodes * pool.devices_per_node
        if start <= ranks[0] < ranks[1] <= end:
            return pool, (ranks[0] - start, ranks[1] - start)
        start = end
    raise InputError(f"devices {ranks[0]} to {ranks[1] - 1} are in no pool of cluster {cluster.name!r}")


def pool_of(cluster: ClusterSpec, ranks: tuple[int, int]) -> int:
    """Number of the pool that holds the range of ranks (half open); errors as `route`."""
    found = _in_pool(cluster, ranks)[0]
    return next(i for i, pool in enumerate((cluster, *cluster.others)) if pool is found)


def _merged(axes: Sequence[tuple[int, int]], cluster: ClusterSpec) -> list[_Axis]:
    """Axes without trivial ones, with neighbours that continue one another joined; checked."""
    merged: list[_Axis] = []
    for size, stride in axes:
        if size < 1 or stride < 1:
            raise InputError(f"axis (size {size}, stride {stride}) needs a size and a stride of at least 1")
        if size == 1:
            continue
        if merged and stride == merged[-1].size * merged[-1].stride:
            merged[-1] = _Axis(merged[-1].size * size, merged[-1].stride)
        elif merged and stride < merged[-1].size * merged[-1].stride:
            raise InputError(f"axes {list(axes)} overlap or are not ordered innermost first")
        else:
            merged.append(_Axis(size, stride))
    reach = 1 + sum((axis.size - 1) * axis.stride for axis in merged)
    if reach > cluster.num_devices:
        raise InputError(
            f"axes {list(axes)} reach {reach} devices, cluster {cluster.name!r} has {cluster.num_devices}"
        )
    return merged


def _tier_levels(cluster: ClusterSpec, axes: Sequence[_Axis], reached: int) -> list[Level]:
    """Levels over the tiers of ``cluster.links``, above the ``reached`` members that a torus joins."""
    levels = []
    for link in cluster.links:
        last = link.devices >= cluster.num_devices
        inside = math.prod(axis.size for axis in axes) if last else _inside(axes, link.devices)
        if inside > reached:
            levels.append(_tier_level(link, inside // reached, inside))
            reached = inside
    return levels


def _inside(axes: Sequence[_Axis], devices: int) -> int:
    """Members that every aligned block of ``devices`` ranks has in common, where the group enters it."""
    aligned = [axis for axis in axes if devices % axis.stride == 0]
    return math.prod(math.gcd(devices, axis.size * axis.stride) // axis.stride for axis in aligned)


def _tier_level(link: LinkSpec, size: int, inside: int) -> Level:
    """Level of ``size`` sub-groups over ``link``; ``inside`` members of the group are joined by it in all."""
    bandwidth = link.bandwidth * link.efficiency
    if link.full_mesh:
        # Each pair has its own cable: a group smaller than the mesh leaves the cables to others unused.
        bandwidth *= (inside - 1) / (link.devices - 1)
    return Level(
        size=size,
        bandwidth=bandwidth,
        latency=link.latency,
        kind=link.kind,
        in_switch_reduction=link.in_switch_reduction,
        in_switch_efficiency=link.in_switch_efficiency,
        dispatching=_dispatching(link),
        crossing=max(1.0, size / 2) ** -link.contention,
        ring_step=link.ring_step,
        exchange_message=link.exchange_message,
        exchange_halving=link.exchange_halving,
    )


def _dispatching(link: LinkSpec) -> Dispatching:
    usual = link.dispatch_efficiency or link.efficiency
    return Dispatching((link.deepep_efficiency or usual) / link.efficiency, usual / link.efficiency)


def _extents(torus: TorusSpec, cluster: ClusterSpec) -> tuple[int, ...]:
    """Devices of a chip, chips along every dimension, fastest (last) first, and slices."""
    return (torus.devices_per_point, *reversed(torus.shape), cluster.nodes)


def _next_block(torus: TorusSpec, ranks: int, cluster: ClusterSpec) -> list[Level]:
    """The level from a block of so many ranks to the next one, along the first dimension that it does not fill."""
    extents = _extents(torus, cluster)
    sides = _block(ranks, extents, cluster)
    along = next(i for i, (side, extent) in enumerate(zip(sides, extents, strict=True)) if side < extent)
    return _torus_levels(
        torus, [_Axis(2, side) if i == along else _Axis(1, 1) for i, side in enumerate(sides)]
    )


def _torus_levels(torus: TorusSpec, spans: Sequence[_Axis]) -> list[Level]:
    """Levels over a chip's own devices, then over the torus dimensions, in the order of `_extents`."""
    chip, *dimensions = spans[:-1]
    extents = (torus.devices_per_point, *reversed(torus.shape))
    rings = [
        wrapped and span.size > 1 and span.size * span.stride == extent
        for span, extent, wrapped in zip(dimensions, extents[1:], reversed(torus.wrap), strict=True)
    ]
    joint = torus.joint_efficiency if sum(rings) > 1 else 1.0
    levels = []
    if chip.size > 1:
        bandwidth = torus.point_bandwidth or torus.bandwidth
        levels.append(Level(chip.size, bandwidth * torus.efficiency, torus.latency, "ici"))
    for span, ring in zip(dimensions, rings, strict=True):
        if span.size > 1:
            # Groups that interleave along one dimension, and devices of one chip, share its links.
            sharers = span.stride * torus.devices_per_point
            levels.append(
                Level(
                    size=span.size,
                    bandwidth=torus.bandwidth * torus.efficiency * joint / sharers,
                    latency=torus.latency * span.stride,
                    kind="ici",
                    ring_directions=2 if ring else 1,
                )
            )
    return levels


def _spans(axes: Sequence[_Axis], extents: tuple[int, ...], cluster: ClusterSpec) -> list[_Axis]:
    """Part of the axes along every dimension, innermost first: members, and their distance in points."""
    spans = [_Axis(1, 1)] * len(extents)
    for axis in axes:
        below = _block(axis.stride, extents, cluster)
        whole = _block(axis.stride * axis.size, extents, cluster)
        for i, (inner, outer) in enumerate(zip(below, whole, strict=True)):
            if outer > inner:
                first = spans[i].size == 1
                spans[i] = _Axis(spans[i].size * (outer // inner), inner if first else spans[i].stride)
    return spans


def _block(ranks: int, extents: tuple[int, ...], cluster: ClusterSpec) -> tuple[int, ...]:
    """Sides of the block that the first ``ranks`` ranks fill: of each dimension, fastest first, what divides.

    Where a size does not divide a dimension (16 ranks on 24 points) the block is 8 wide and goes on in the
    next. Raises ``InputError`` where a factor fits no dimension.
    """
    sides, rest = [], ranks
    for extent in extents:
        sides.append(math.gcd(extent, rest))
        rest //= sides[-1]
    if rest != 1:
        shape = "x".join(map(str, reversed(extents[1:-1])))
        raise InputError(
            f"{ranks} ranks do not fill a block of the {shape} torus of cluster {cluster.name!r}"
        )
    return tuple(sides)

"""JAX meshes over slices: each axis as an inner part, on the fast links, and an outer part, across slices.

JAX frameworks name the two ICI (inside a TPU slice, or a box of GPUs) and DCN (between them).
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

from cluster_specs.cluster import ClusterSpec
from planner.errors import Unsupported


class SplitAxes(NamedTuple):
    """Sizes of every axis inside a slice and across slices; their product is the axis."""

    ici: Mapping[str, int]
    dcn: Mapping[str, int]


def split_axes(sizes: Mapping[str, int], cluster: ClusterSpec, target: str) -> SplitAxes:
    """Cut ``sizes`` (innermost first) so that neighbours share a slice as far as there is room.

    Raises ``Unsupported`` where an axis straddles the border of a slice.
    """
    room = cluster.devices_per_node
    ici: dict[str, int] = {}
    for axis, size in sizes.items():
        ici[axis] = math.gcd(size, room)
        room //= ici[axis]
        if size > ici[axis] and room > 1:
            words = ", ".join(f"{name} {n}" for name, n in sizes.items() if n > 1)
            raise Unsupported(
                f"target {target} needs axes that cut slices of {cluster.devices_per_node} devices evenly; "
                f"{words} on {math.prod(sizes.values())} devices do not"
            )
    return SplitAxes(ici, {axis: size // ici[axis] for axis, size in sizes.items()})

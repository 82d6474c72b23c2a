"""A cluster of a given kind with a given number of devices."""

import math
from pathlib import Path

from cluster_specs.assembly import parse_shape
from cluster_specs.catalog import SUFFIXES, load_cluster
from cluster_specs.changes import resized
from cluster_specs.cluster import ClusterSpec
from cluster_specs.errors import InputError
from cluster_specs.shipped import cluster_files


def sized(source: str, devices: int | None = None) -> ClusterSpec:
    """The cluster that ``source`` names, with ``devices`` instead of its own number where given.

    Whole nodes, an even part of one node, or, for a torus, the usual slice of that size. A name may carry a
    size, which ``devices`` replaces. Raises ``InputError`` for a number that the kind does not come in.
    """
    if devices is None:
        return load_cluster(source)
    name = source if _is_file(source) else source.partition(":")[0]
    if "+" in source and not _is_file(source):
        raise InputError(
            f"{source} mixes kinds of nodes, so a number of devices does not say of which: compare sizes with what-if, "
            "each named in full, as dgx-a100-80g:2+dgx-h100:2 dgx-a100-80g:2+dgx-h100:4"
        )
    file = None if _is_file(source) else cluster_files().get(name.lower())
    if file is not None and file.slices is not None:
        return load_cluster(f"{name}:{_shape_of(name, file.slices.usual, devices)}")
    return _of_nodes(load_cluster(source if _is_file(source) else name), name, devices)


def default_sizes(source: str, most: int) -> tuple[int, ...]:
    """Numbers of devices that a kind comes in, up to ``most``: usual slices, or powers of two and thrice them.

    Raises ``InputError`` for an unknown cluster.
    """
    name = source if _is_file(source) else source.partition(":")[0]
    file = None if _is_file(source) else cluster_files().get(name.lower())
    if file is not None and file.slices is not None:
        per_chip = load_cluster(f"{name}:{file.slices.usual[0]}").num_devices
        per_chip //= math.prod(parse_shape(file.slices.usual[0]))
        counts = {math.prod(parse_shape(shape)) * per_chip for shape in file.slices.usual}
    else:
        spec = load_cluster(source if _is_file(source) else name)
        steps = range(max(1, most // spec.devices_per_node).bit_length())
        counts = {factor * (1 << k) * spec.devices_per_node for k in steps for factor in (1, 3)}
    return tuple(sorted(n for n in counts if n <= most))


def neighbours(cluster: ClusterSpec, times: int = 16) -> tuple[ClusterSpec, ...]:
    """The same kind of cluster in other sizes: halves down to one device, doubles up to ``times`` the number.

    Of a torus only shipped slices. Raises ``InputError`` for a torus of no shipped kind.
    """
    if cluster.torus is None:
        name = cluster.name.partition(":")[0]
        largest = (cluster.nodes * times).bit_length()
        counts = {cluster.nodes * cluster.devices_per_node}
        counts |= {cluster.devices_per_node << k for k in range(largest)}
        counts |= {cluster.devices_per_node >> k for k in range(cluster.devices_per_node.bit_length())}
        sizes = [n for n in sorted(counts) if _comes_in(cluster, n) and n <= times * cluster.num_devices]
        return tuple(_of_nodes(cluster, name, n) for n in sizes)
    name = cluster.name.partition(":")[0]
    if name not in cluster_files():
        raise InputError(f"{cluster.name} is a torus of no shipped kind: its other sizes are not known")
    return tuple(sized(name, n) for n in default_sizes(name, times * cluster.num_devices))


def _comes_in(cluster: ClusterSpec, devices: int) -> bool:
    return not (devices % cluster.devices_per_node and cluster.devices_per_node % devices)


def _is_file(source: str) -> bool:
    return source.lower().endswith(SUFFIXES) or Path(source).is_file()


def _shape_of(name: str, usual: tuple[str, ...], devices: int) -> str:
    """The usual slice with this many devices; the smallest shape of a kind tells how many a chip has."""
    per_chip = load_cluster(f"{name}:{usual[0]}").num_devices // math.prod(parse_shape(usual[0]))
    for shape in usual:
        if math.prod(parse_shape(shape)) * per_chip == devices:
            return shape
    known = ", ".join(str(math.prod(parse_shape(shape)) * per_chip) for shape in usual)
    raise InputError(f"{name} has no usual slice of {devices} devices: use one of {known}")


def _of_nodes(cluster: ClusterSpec, name: str, devices: int) -> ClusterSpec:
    """Whole nodes, or an even part of one; of clusters of equal nodes only."""
    if cluster.others:
        raise InputError(f"{cluster.name} has several kinds of nodes: it cannot be resized as a whole")
    per_node = cluster.devices_per_node
    if devices < 1 or (devices > per_node and devices % per_node):
        raise InputError(f"{name} comes in nodes of {per_node} devices: {devices} is no whole number of them")
    if devices < per_node and per_node % devices:
        raise InputError(
            f"{devices} devices are no even part of a node of {name}, which has {per_node}: where so many are meant, "
            f"name {name}:1x{devices}"
        )
    return resized(cluster, name, max(1, devices // per_node), min(devices, per_node))

"""Clusters of published runs: from what a paper or a log says of its hardware to a `ClusterSpec`.

Such descriptions name the accelerator, how many there are, and often the network in a few words
("8x HDR 200 Gb/s", "EFA (AWS p5)"). What they leave out is filled in from the accelerator's usual cluster,
and reported.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from cluster_specs.assembly import assemble, parse_shape
from cluster_specs.cluster import ClusterSpec
from cluster_specs.errors import InputError
from cluster_specs.shipped import ClusterFile, DeviceFile, also_called, cluster_files, fabrics, find_device
from cluster_specs.units import parse_quantity

_RATE = re.compile(
    r"(?:(?P<count>\d+)\s*x\s*)?(?:(?:HDR|NDR|EDR|XDR|InfiniBand|IB)\s+)*"
    r"(?P<rate>\d+(?:\.\d+)?)(?:-\d+(?:\.\d+)?)?\s*(?P<prefix>[GT])b(?:it)?(?:/s|ps)",
    re.IGNORECASE,
)
"""A line rate, with the number of cards before it: ``4x 100 Gb/s``; of a range, the lower end."""
_BOTH_WAYS = re.compile(r"(?P<rate>\d+(?:\.\d+)?)\s*GB/s", re.IGNORECASE)
"""An NVLink rate as data sheets print it, both directions together: ``NVLink3 (600 GB/s)``."""
_BITS = {"g": 1e9, "t": 1e12}
FASTEST_CARD = parse_quantity("400 Gbit/s")
"""What is more for a whole node is taken to be several cards, one for each device."""
PLAIN_ETHERNET = parse_quantity("100 Gbit/s")
"""A single card up to this rate whose fabric is not named is taken to be TCP Ethernet, faster ones RDMA."""


class Outer(NamedTuple):
    """The network between nodes, as far as a description tells."""

    fabric: str | None
    """Shipped fabric."""
    bandwidth: float | None
    """Per device, one direction [bytes/s]."""
    assumed: tuple[str, ...]
    devices_per_card: int = 1


def cluster_for(
    gpu: str,
    n_devices: int,
    devices_per_node: int | None = None,
    *,
    intra_link: str | None = None,
    inter_link: str | None = None,
    slices: int = 1,
    topology: str | None = None,
) -> tuple[ClusterSpec, list[str]]:
    """Cluster of ``n_devices`` of ``gpu`` as a published run describes it, and what was assumed.

    ``n_devices`` counts devices as frameworks do (two per chip for TPU v2, v3 and v7x); ``topology`` is the
    shape of one of the ``slices`` of a TPU. Raises ``InputError`` for unknown devices and counts that do not
    make whole nodes.
    """
    if n_devices < 1 or slices < 1:
        raise InputError(f"hardware: needs at least 1 device and 1 slice, got {n_devices} and {slices}")
    entry = find_device(gpu)
    file = cluster_files()[entry.usual_cluster]
    if file.slices is not None:
        return _slices(file, n_devices, slices, topology)
    spec, assumed = _nodes(entry, file, n_devices, devices_per_node, (intra_link, inter_link))
    others = also_called(gpu)
    named = f"gpu={entry.device.name} ({gpu} may be {' or '.join(others)}, too)"
    return spec, [named, *assumed] if others else assumed


def _slices(
    file: ClusterFile, n_devices: int, slices: int, topology: str | None
) -> tuple[ClusterSpec, list[str]]:
    """Slices of a TPU, of the shape given or the usual one of their size."""
    assert file.slices is not None
    assert file.torus is not None
    chips, rest = divmod(n_devices, slices * int(file.torus.get("devices_per_point", 1)))
    if rest:
        raise InputError(f"hardware: {n_devices} devices of {file.name} do not make {slices} equal slices")
    assumed = []
    if topology is None:
        topology = next(file.slices.of_size(chips), None)
        if topology is None:
            raise InputError(f"hardware: no usual slice of {file.name} has {chips} chips; give its topology")
        if len(parse_shape(topology)) > 1 and chips > 1:
            assumed.append(f"topology={topology} ({chips} chips per slice)")
    name = f"{file.name}:{topology}" + (f"*{slices}" if slices > 1 else "")
    spec = assemble(file, slices, parse_shape(topology), name)
    if spec.num_devices != n_devices:
        raise InputError(f"hardware: topology {topology} has {spec.num_devices} devices, not {n_devices}")
    return spec, assumed


def _nodes(
    entry: DeviceFile,
    file: ClusterFile,
    n_devices: int,
    devices_per_node: int | None,
    link_texts: tuple[str | None, str | None],
) -> tuple[ClusterSpec, list[str]]:
    """Nodes of GPUs, with the network that the description gives or that of the usual cluster."""
    intra_link, inter_link = link_texts
    per_node, assumed = _per_node(file, n_devices, devices_per_node)
    if n_devices % per_node:
        raise InputError(f"hardware: {n_devices} devices do not fill nodes of {per_node}")
    nodes = n_devices // per_node
    if file.torus is not None:
        return assemble(file, nodes, None, f"{file.name}:{nodes}"), assumed
    links = [_inner(file, per_node, intra_link), dict(file.links[-1])]
    if nodes > 1:
        links[1], unsaid = _between(file, per_node, inter_link)
        assumed += unsaid
    said = {
        f"links.{link['name']}.bandwidth": f"the run: {text}"
        for link, text in zip(links, link_texts, strict=True)
        if text is not None and not isinstance(link["bandwidth"], str)  # as a number it is not the file's own
    }
    own = entry.device.name == file.device
    if not own:
        assumed.append(f"cluster as {file.name}, with {entry.device.name}")
    update = {
        "device": entry.device.name,
        "price": file.price if own else None,
        "devices_per_node": per_node,
        "links": tuple(links),
        "sources": {k: v for k, v in file.sources.items() if own or not k.startswith("price.")} | said,
    }
    spec = assemble(file.model_copy(update=update), nodes, None, f"{file.name}:{nodes}")
    return spec, assumed


def _per_node(file: ClusterFile, n_devices: int, given: int | None) -> tuple[int, list[str]]:
    """Devices of one node: those of a host as given, or of a whole NVLink domain where that spans hosts."""
    usual = file.devices_per_node
    assert usual is not None
    if file.torus is not None:
        return usual, []
    if given is not None and given != file.devices_per_host:
        return min(given, n_devices), []
    if n_devices <= usual:
        return n_devices, []
    size = max(size for size in range(1, usual + 1) if n_devices % size == 0)
    return size, [f"{size} of the {usual} devices of each {file.name}"] if size != usual else []


def _inner(file: ClusterFile, per_node: int, text: str | None) -> dict[str, Any]:
    """The link inside a node: that of the usual cluster, with the width given, cut to fewer devices."""
    link = dict(file.links[0])
    if text is not None and (match := _BOTH_WAYS.search(text)):
        link["bandwidth"] = float(match["rate"]) * parse_quantity("1 GB/s") / 2
    if fabrics()[str(link["fabric"])].full_mesh and 1 < per_node < int(link["devices"]):
        link["bandwidth"] = _rate(link) * (per_node - 1) / (int(link["devices"]) - 1)
    return link | {"devices": per_node}


def _between(file: ClusterFile, per_node: int, text: str | None) -> tuple[dict[str, Any], list[str]]:
    """The link between nodes: as described, and as in the usual cluster where nothing is said."""
    link, found = dict(file.links[-1]), _outer(text, per_node)
    assumed = list(found.assumed)
    if found.fabric is not None:
        link |= {"fabric": found.fabric, "name": found.fabric}
    if found.bandwidth is not None:
        link |= {"bandwidth": found.bandwidth, "devices_per_card": found.devices_per_card}
    else:
        assumed.append(f"inter_link={link['bandwidth']} per device, as {file.name}")
    return link, assumed


def _outer(text: str | None, per_node: int) -> Outer:
    """What ``text`` says of the network between nodes of ``per_node`` devices."""
    if text is None:
        return Outer(None, None, ())
    words = set(re.findall(r"[\w-]+", text.lower()))
    fabric = next((name for name, known in fabrics().items() if words & set(known.words)), None)
    named = next((f for f in cluster_files().values() if any(a in text.lower() for a in f.aliases)), None)
    if named is not None and named.links:
        fabric = fabric or str(named.links[-1]["fabric"])
    match = _RATE.search(text)
    if match is None:
        if named is None or not named.links:
            return Outer(fabric, None, ())
        link = named.links[-1]
        sharers = int(link.get("devices_per_card", 1))
        return Outer(str(link["fabric"]), _rate(link), (f"inter_link as {named.name}",), sharers)
    rate = float(match["rate"]) * _BITS[match["prefix"].lower()] / 8
    cards = per_node if re.search(r"per gpu|/gpu", text.lower()) else int(match["count"] or 1)
    several = match["count"] is None and rate > FASTEST_CARD  # the sum of cards that nobody counts
    each, sharers = rate * cards / per_node, 1 if several else max(1, per_node // cards)
    if fabric is None and match["count"] is None and rate <= PLAIN_ETHERNET:
        return Outer("ethernet", each, ("inter_link: plain Ethernet",), sharers)
    return Outer(fabric, each, (), sharers)


def _rate(link: Mapping[str, Any]) -> float:
    """Bandwidth of a link of a file [bytes/s]."""
    bandwidth = link["bandwidth"]
    return parse_quantity(bandwidth, "B/s") if isinstance(bandwidth, str) else float(bandwidth)

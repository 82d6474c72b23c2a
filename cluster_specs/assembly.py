"""From a cluster file to a `ClusterSpec`: names resolved, the outermost tier sized, the torus wrapped."""

import math
from collections.abc import Mapping
from typing import Any

from cluster_specs.cluster import ClusterSpec
from cluster_specs.errors import InputError, UnknownName
from cluster_specs.plain_numbers import check_units
from cluster_specs.record import validated
from cluster_specs.shipped import ClusterFile, fabrics, find_device
from cluster_specs.units import parse_quantity


def assemble(file: ClusterFile, nodes: int, shape: tuple[int, ...] | None, where: str) -> ClusterSpec:
    """Cluster of ``nodes`` nodes (or slices of ``shape``, where the file is of tori of any shape).

    Raises ``InputError`` where the file is incomplete, a name is unknown or the node count is not positive.
    """
    if nodes < 1:
        raise InputError(f"{where}: a cluster needs at least 1 node, got {nodes}")
    torus = _torus(file, shape, where)
    per_node = _devices_per_node(file, torus, where)
    device, device_sources = _device(file)
    check_units(device, f"{where}: device")
    check_units(file.host, f"{where}: host")
    links, link_sources = _links(file, nodes * per_node, where)
    fields = {
        "name": where,
        "device": device,
        "nodes": nodes,
        "devices_per_node": per_node,
        "links": links,
        "torus": torus,
        "host": _host(file.host, per_node),
        "price": file.price,
        "others": file.others,
        "between": file.between,
        "sources": device_sources | link_sources | dict(file.sources),
    }
    return validated(ClusterSpec, fields, where)


def _device(file: ClusterFile) -> tuple[Any, dict[str, str]]:
    """Fields of the device, and the sources of a shipped one under ``device.``."""
    if not isinstance(file.device, str):
        return file.device, {}
    found = find_device(file.device)
    return found.device.model_dump(), {f"device.{field}": source for field, source in found.sources.items()}


def _links(file: ClusterFile, total: int, where: str) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Tiers with their fabrics' numbers filled in, and where those come from; the last joins ``total``."""
    links: list[dict[str, Any]] = []
    sources: dict[str, str] = {}
    for position, raw in enumerate(file.links):
        link = dict(raw)
        check_units(link, f"{where}: links.{position}")
        name = str(link.get("name", link.get("fabric", position)))
        if (fabric_name := link.pop("fabric", None)) is not None:
            if fabric_name not in fabrics():
                raise UnknownName(f"fabric in {where}: links.{position}:", str(fabric_name), fabrics())
            fabric = fabrics()[fabric_name]
            link = {"name": fabric_name} | fabric.model_dump(exclude={"words", "sources"}) | link
            sources |= {f"links.{name}.{field}": source for field, source in fabric.sources.items()}
        if position == len(file.links) - 1 and "devices" not in link:
            link["devices"] = total
        if "devices" not in link:
            raise InputError(f"{where}: links.{name} needs `devices`; only the outermost link may omit it")
        links.append(link)
    return links, sources


def _torus(file: ClusterFile, shape: tuple[int, ...] | None, where: str) -> dict[str, Any] | None:
    """Fields of the torus, with shape and wrapping for a slice of ``shape``."""
    if file.torus is None:
        return None
    torus = dict(file.torus)
    if file.slices is not None:
        shape = shape if shape is not None else _shape_of(torus.get("shape"))
        if shape is None:
            raise InputError(f"{where} needs a slice shape, such as {file.slices.usual[-1]}")
        _check_shape(file, shape, where)
        torus |= {"shape": shape, "wrap": file.slices.wrap(shape)}
    return torus


def _shape_of(value: object) -> tuple[int, ...] | None:
    return tuple(value) if isinstance(value, list | tuple) else None


def _check_shape(file: ClusterFile, shape: tuple[int, ...], where: str) -> None:
    assert file.slices is not None
    rule = file.slices
    if len(shape) != rule.dimensions or min(shape) < 1:
        raise InputError(f"{where}: a slice has {rule.dimensions} dimensions, such as {rule.usual[-1]}")
    if math.prod(shape) > math.prod(parse_shape(rule.usual[-1])):
        raise InputError(f"{where}: the largest slice is {rule.usual[-1]}; add *N for N slices")


def parse_shape(text: str) -> tuple[int, ...]:
    """Dimensions of ``"4x4x8"``; raises ``InputError`` where they are no positive numbers."""
    parts = text.lower().split("x")
    if not all(part.isascii() and part.isdigit() for part in parts) or min(map(int, parts)) < 1:
        raise InputError(f"{text!r} is not a slice shape: write positive sizes as in 4x4x8")
    return tuple(map(int, parts))


def _devices_per_node(file: ClusterFile, torus: Mapping[str, Any] | None, where: str) -> int:
    if file.devices_per_node is not None:
        return file.devices_per_node
    if torus is not None and (shape := _shape_of(torus.get("shape"))) is not None:
        return math.prod(shape) * int(torus.get("devices_per_point", 1))
    raise InputError(f"{where} needs devices_per_node")


def _host(host: Mapping[str, Any], per_node: int) -> dict[str, Any]:
    """Host fields, with ``memory_per_device`` turned into the memory of a node."""
    fields = dict(host)
    if (each := fields.pop("memory_per_device", None)) is not None:
        fields["memory"] = per_node * (parse_quantity(each, "B") if isinstance(each, str) else each)
    return fields

"""Clusters and devices by name: the shipped ones and users' files."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster_specs.assembly import assemble, parse_shape
from cluster_specs.changes import resized, what_if, with_numbers
from cluster_specs.cluster import ClusterSpec, DeviceSpec
from cluster_specs.errors import InputError, UnknownName
from cluster_specs.pools import join, read_pools
from cluster_specs.published import cluster_for
from cluster_specs.record import Record, validated
from cluster_specs.shipped import (
    ChangedCluster,
    ClusterFile,
    SliceRule,
    cluster_files,
    count_in_name,
    device_files,
    find_device,
)
from cluster_specs.texts import load_mapping
from cluster_specs.units import format_count

__all__ = [
    "ClusterSummary",
    "cluster_for",
    "list_clusters",
    "list_devices",
    "load_cluster",
    "load_device",
    "what_if",
]

SUFFIXES = (".toml", ".yaml", ".yml", ".json")

SCHEMA = "meshwright/cluster/1"
"""Of what ``meshwright clusters NAME:NODES --json`` prints."""


MOST_NODES = 10**6
"""Larger numbers are taken for mistakes."""

_PART = re.compile(r"(?<=\d)[xX]")
"""What stands between nodes and the devices that are used of each."""

EXAMPLES = {"node": "dgx-h100:16", "device": "dgx-h100:1x4"}
"""How a size is written."""


class ClusterSummary(Record):
    """One line of the catalogue."""

    name: str
    """What ``load_cluster`` takes, before ``:nodes`` or ``:shape``."""
    summary: str
    device: str
    size: str
    """What follows the name: ``nodes``, or the shape of a slice."""
    devices_per_node: int | None
    """None where the slice's shape decides."""
    sources: Mapping[str, str]


def list_clusters() -> tuple[ClusterSummary, ...]:
    """All shipped clusters, by name."""
    return tuple(
        ClusterSummary(
            name=name,
            summary=file.summary,
            device=str(file.device),
            size="nodes" if file.slices is None else f"shape ({', '.join(file.slices.usual)}), *slices",
            devices_per_node=file.devices_per_node,
            sources=file.sources,
        )
        for name, file in cluster_files().items()
    )


def list_devices() -> tuple[DeviceSpec, ...]:
    """All shipped devices, by name."""
    return tuple(file.device for file in device_files().values())


def load_device(name: str) -> DeviceSpec:
    """Shipped device of this name or alias (``h100-sxm-80g``, ``H100-SXM-80GB``); raises ``UnknownName``."""
    return find_device(name).device


def load_cluster(source: str | Path) -> ClusterSpec:
    """Cluster from ``name:nodes`` (``dgx-h100:16``), ``name:shape*slices`` (``tpu-v5e:16x16*4``) or a file.

    ``name:2x4`` uses four devices of each of two nodes. A name alone is one node; several with ``+`` between them are
    pools of one cluster. A file is TOML, YAML or JSON with the fields of `ClusterSpec`, quantities with units, and the
    shorthands of ``ClusterFile`` or of ``PooledFile``; or what ``meshwright calibrate`` wrote, or ``meshwright clusters
    --json`` printed. ``file.toml:nodes`` gives its number of nodes, ``file.toml:2x4`` devices of each, too.
    Raises ``InputError`` in one sentence.
    """
    text = str(source)
    if isinstance(source, Path) or text.lower().endswith(SUFFIXES) or Path(text).is_file():
        return _from_file(Path(source), None)
    if "+" in text:
        if not all(part.strip() for part in text.split("+")):
            raise InputError(
                f"{text!r}: a pool is missing beside +; write it as in dgx-a100-80g:2+dgx-h100:2"
            )
        return join([_named(part.strip()) for part in text.split("+")], None, text.lower())
    return _named(text)


def _named(text: str) -> ClusterSpec:
    name, colon, size = text.partition(":")
    if text.rpartition(":")[0].lower().endswith(SUFFIXES):
        path, _, size = text.rpartition(":")
        nodes, *part = _PART.split(size, maxsplit=1)
        return _part(_from_file(Path(path), _count(nodes, text)), path, part, text)
    file = cluster_files().get(name.lower())
    if file is None:
        raise _no_cluster(name)
    if file.slices is not None:
        shape, _, slices = size.partition("*")
        if not shape:
            raise InputError(f"{name} needs a slice shape, such as {name}:{file.slices.usual[-1]}")
        return assemble(file, _count(slices or "1", text), parse_shape(shape), text.lower())
    nodes, *part = _PART.split(size if colon else "1", maxsplit=1)
    return _part(assemble(file, _count(nodes, text), None, text.lower()), name.lower(), part, text)


def _part(spec: ClusterSpec, name: str, per_node: Sequence[str], where: str) -> ClusterSpec:
    """``spec``, of whose nodes ``per_node`` devices are used, where the text says how many."""
    return resized(spec, name, spec.nodes, _count(per_node[0], where, "device")) if per_node else spec


def _count(text: str, where: str, of: str = "node") -> int:
    """Positive whole number of nodes, slices, or devices of a node."""
    try:
        count = int(text.encode("ascii"))  # of text it would read the digits of any script
    except ValueError:
        raise InputError(f"{where!r}: {text!r} is not a {of} count; write it as in {EXAMPLES[of]}") from None
    if count < 1:
        raise InputError(f"{where!r}: a cluster needs at least 1 {of}, got {count}")
    if count > MOST_NODES:
        raise InputError(f"{where!r}: a cluster has at most {MOST_NODES:,} {of}s, got {count:,}")
    return count


def _no_cluster(name: str) -> InputError:
    try:
        device = find_device(name)
    except UnknownName:
        return UnknownName("cluster", name, cluster_files(), see="`meshwright clusters` lists them")
    file = cluster_files()[device.usual_cluster]
    if file.slices is not None:
        return InputError(_as_slice(name, file, file.slices))
    part = "" if file.torus is not None else ", or :1x1 for one device"
    own = file.device == device.device.name
    use = f"write {file.name}:NODES{part}" if own else f"a cluster file may say device = {name!r}"
    return InputError(f"{name!r} is a device, not a cluster; {use}")


def _as_slice(name: str, file: ClusterFile, rule: SliceRule) -> str:
    """How to write what ``name`` says of a TPU slice: ``v5p-512`` counts cores, and has a shape."""
    count, per_chip = count_in_name(name), rule.named_per_chip
    usual = f"a shape, such as {file.name}:{rule.usual[-1]}"
    if count is None or per_chip is None:
        return f"{name!r} is a device, not a cluster; write {usual}"
    chips, rest = divmod(count, per_chip)
    shape = None if rest else next(rule.of_size(chips), None)
    if shape is None:
        what = f"{count} cores, {per_chip} a chip" if per_chip > 1 else format_count(count, "chip")
        return f"{name!r}: no usual slice has {what}; write {usual}"
    return f"{name!r} is a slice of {format_count(chips, 'chip')}; write {file.name}:{shape}"


def _from_file(path: Path, nodes: int | None) -> ClusterSpec:
    fields = load_mapping(path)
    if (schema := fields.get("schema", SCHEMA)) != SCHEMA:
        raise InputError(f"{path} has schema {schema!r}, which is no cluster")
    fields = {key: value for key, value in fields.items() if key != "schema"}
    if "pools" in fields:
        if nodes is not None:
            raise InputError(f"{path}:{nodes}: the nodes of each pool stand in the file; leave out :{nodes}")
        return read_pools({"name": path.stem} | fields, str(path), _named, _from_fields)
    if "base" in fields:
        return _changed(validated(ChangedCluster, fields, str(path)), nodes, path)
    spec = _from_fields(fields if nodes is None else _resized(fields, nodes), str(path))
    return spec.model_copy(update={"name": fields.get("name") or path.stem})


def _resized(fields: Mapping[str, Any], nodes: int) -> dict[str, Any]:
    """The fields with so many ``nodes``; an outermost link that joined all of them joins all of these."""
    match fields:
        case {
            "nodes": int(before),
            "devices_per_node": int(per_node),
            "links": [*inner, {"devices": int(reach)} as last],
        }:
            if reach == before * per_node:
                joins_all = {key: value for key, value in last.items() if key != "devices"}
                return {**fields, "nodes": nodes, "links": [*inner, joins_all]}
    return {**fields, "nodes": nodes}


def _from_fields(fields: Mapping[str, Any], where: str) -> ClusterSpec:
    file = validated(ClusterFile, fields, where)
    return assemble(file, file.nodes if file.nodes is not None else 1, None, where)


def _changed(file: ChangedCluster, nodes: int | None, path: Path) -> ClusterSpec:
    """The base with the file's constants, which are sources of their own."""
    if file.base.lower() not in cluster_files():
        raise UnknownName(f"base in {path}:", file.base, cluster_files())
    try:
        spec = with_numbers(load_cluster(f"{file.base}:{nodes or file.nodes}"), file.changes)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    sources = dict(spec.sources) | dict.fromkeys(file.changes, f"calibrated: {path.name}")
    return spec.model_copy(update={"name": file.name or path.stem, "sources": sources})

"""What-ifs: validated copies of a cluster with fields changed by dotted path."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from cluster_specs.cluster import ClusterSpec
from cluster_specs.errors import InputError, UnknownName
from cluster_specs.plain_numbers import check_unit
from cluster_specs.record import validated
from cluster_specs.shipped import find_device

OPEN_TABLES = ("peak_flops_per_second", "price")
"""Tables to which a change may add an entry: a new data type, a first price."""


def what_if(cluster: ClusterSpec, changes: Mapping[str, Any]) -> ClusterSpec:
    """Copy of ``cluster`` with fields changed by dotted path; links go by name.

    ``what_if(cluster, {"links.infiniband.bandwidth": "800 Gbit/s", "nodes": 32, "device": "H200"})``.
    Values are as in a file: numbers in SI, or text with units. A change of ``nodes`` or ``devices_per_node``
    resizes the tiers. Raises ``InputError`` for an unknown path or a bad value, and for a number whose unit is missing.
    """
    for path, value in changes.items():
        check_unit(path, value, f"what-if: {path}")
    return with_numbers(cluster, changes)


def with_numbers(cluster: ClusterSpec, changes: Mapping[str, Any]) -> ClusterSpec:
    """As `what_if`, for numbers that were worked out and may be anything: a machine may be that slow."""
    fields = cluster.model_dump()
    for path, value in changes.items():
        if path == "device" and isinstance(value, str):
            value = find_device(value).device.model_dump()
        _set(fields, path, value)
    fields["sources"] = dict(fields["sources"]) | dict.fromkeys(changes, "what-if")
    if {"nodes", "devices_per_node"} & set(changes):
        _resize(fields, cluster)
    return validated(ClusterSpec, fields, "what-if")


def resized(cluster: ClusterSpec, name: str, nodes: int, per_node: int) -> ClusterSpec:
    """``nodes`` nodes of which ``per_node`` devices are used, called as one writes it: ``name:2``, ``name:2x4``.

    Part of a node has its share of the host, as it has its share of the price. Raises ``InputError`` where nodes have
    fewer devices, or are slices of a torus.
    """
    whole, host = cluster.devices_per_node, cluster.host
    if not 1 <= per_node <= whole:
        raise InputError(f"{name}: a node has {whole} devices, so not {per_node} of them")
    if per_node < whole and cluster.torus is not None:
        raise InputError(f"{name}: the {whole} devices of a node are a torus, which is used whole")
    changes: dict[str, float] = {"nodes": nodes, "devices_per_node": per_node}
    for field, value in (("memory", host.memory), ("memory_bandwidth", host.memory_bandwidth)):
        if value is not None:
            changes[f"host.{field}"] = value * per_node / whole
    part = per_node < whole or (cluster.torus is None and "x" in cluster.name.partition(":")[2])
    size = f"{nodes}x{per_node}" if part else f"{nodes}"
    return what_if(cluster, changes).model_copy(update={"name": f"{name}:{size}", "sources": cluster.sources})


def _set(fields: dict[str, Any], path: str, value: Any) -> None:
    """Set one field in place; raises ``UnknownName`` where the path leads nowhere."""
    *parents, last = path.split(".")
    record: Any = fields
    for part in parents:
        _check_known(record, part, path)
        if record[part] is None:
            record[part] = {}
        record = record[part]
        if isinstance(record, tuple):
            record = {entry["name"]: entry for entry in record}
        if not isinstance(record, dict):
            raise InputError(f"what-if: {part!r} in {path!r} is a value and has no fields of its own")
    if not (parents and parents[-1] in OPEN_TABLES):
        _check_known(record, last, path)
    record[last] = value


def _check_known(record: Mapping[str, Any], part: str, path: str) -> None:
    if part not in record:
        raise UnknownName("field", part, record) from InputError(f"what-if: no {part!r} in {path!r}")


def _resize(fields: dict[str, Any], before: ClusterSpec) -> None:
    """Tiers that spanned a node or the cluster span the new ones."""
    try:
        nodes, per_node = int(fields["nodes"]), int(fields["devices_per_node"])
    except (TypeError, ValueError):
        return  # the validation that follows names the bad value
    links = fields["links"]
    for link in links:
        # Of tiers inside a node, one that joins more devices than are used joins these.
        if link["devices"] == before.devices_per_node or per_node < link["devices"] < before.devices_per_node:
            link["devices"] = per_node
    if links:
        links[-1]["devices"] = nodes * per_node


KNOBS: Mapping[str, str] = {
    "compute": "matrix FLOP/s",
    "memory": "memory size",
    "memory-bandwidth": "memory bandwidth",
    "scale-up": "bandwidth of the fastest links (NVLink, torus)",
    "network": "bandwidth of the slowest network, per device",
    "latency": "latency of all links",
}
"""Short names of hardware numbers, and what they are."""


def knob_paths(cluster: ClusterSpec, knob: str) -> tuple[str, ...]:
    """Dotted paths of the numbers that a knob turns together; none where the cluster has no such part.

    Raises ``UnknownName``.
    """
    if knob not in KNOBS:
        raise UnknownName("hardware number", knob, KNOBS)
    links, torus = cluster.links, cluster.torus
    between = cluster.between
    inner = ("torus.bandwidth",) if torus else tuple(f"links.{link.name}.bandwidth" for link in links[:1])
    outer = tuple(f"links.{link.name}.bandwidth" for link in links[-1:])
    outer = outer if between is None else ("between.bandwidth",)
    return {
        "compute": tuple(f"device.peak_flops_per_second.{d}" for d in cluster.device.peak_flops_per_second),
        "memory": ("device.memory",),
        "memory-bandwidth": ("device.memory_bandwidth",),
        "scale-up": inner,
        "network": outer if outer != inner else (),
        "latency": tuple(f"links.{link.name}.latency" for link in links)
        + (("torus.latency",) if torus else ())
        + (("between.latency",) if between is not None else ()),
    }[knob]


def changed(cluster: ClusterSpec, changes: Mapping[str, str | float]) -> ClusterSpec:
    """Copy of ``cluster`` with knobs or dotted paths changed; a value such as ``2x`` multiplies what is there.

    Raises ``InputError`` for a part that the cluster does not have, and for what is not a quantity.
    """
    written: dict[str, Any] = {}
    for name, value in changes.items():
        paths = knob_paths(cluster, name) if name in KNOBS else (name,)
        if not paths:
            raise InputError(f"{cluster.name} has no {KNOBS[name]} to change")
        factor = _factor(value)
        for path in paths:
            if factor is None:
                check_unit(path, value, f"what-if: {path}")
            written[path] = value if factor is None else factor * _number_at(cluster, path)
    whole = with_numbers(cluster, written)
    return (
        whole.model_copy(update={"others": _changed_pools(cluster.others, changes)})
        if cluster.others
        else whole
    )


def _changed_pools(
    pools: Sequence[ClusterSpec], changes: Mapping[str, str | float]
) -> tuple[ClusterSpec, ...]:
    """Further pools of a cluster with the same knobs turned; the slowest network is what joins the pools."""
    return tuple(
        changed(
            pool, {n: v for n, v in changes.items() if n in KNOBS and n != "network" and knob_paths(pool, n)}
        )
        for pool in pools
    )


def _factor(value: str | float) -> float | None:
    """``2.0`` for ``2x``, None for a value that stands for itself."""
    if not isinstance(value, str) or not value.endswith("x"):
        return None
    try:
        factor = float(value[:-1])
    except ValueError:
        return None
    if not (math.isfinite(factor) and factor > 0):
        raise InputError(f"{value!r} is not a factor above zero, such as 2x")
    return factor


def _number_at(cluster: ClusterSpec, path: str) -> float:
    """The number under a dotted path; links go by name."""
    record: Any = cluster.model_dump()
    for part in path.split("."):
        if isinstance(record, tuple):
            record = {entry["name"]: entry for entry in record}
        if not isinstance(record, dict) or part not in record:
            raise UnknownName("field", part, record if isinstance(record, dict) else ())
        record = record[part]
    if not isinstance(record, int | float) or isinstance(record, bool):
        raise InputError(f"{path!r} is no number, so it cannot be multiplied")
    return float(record)

"""What-ifs: validated copies of a cluster with fields changed by dotted path."""

from collections.abc import Mapping
from typing import Any

from cluster_specs.cluster import ClusterSpec
from cluster_specs.errors import InputError, UnknownName
from cluster_specs.record import validated
from cluster_specs.shipped import find_device

OPEN_TABLES = ("peak_flops_per_second", "price")
"""Tables to which a change may add an entry: a new data type, a first price."""


def what_if(cluster: ClusterSpec, changes: Mapping[str, Any]) -> ClusterSpec:
    """Copy of ``cluster`` with fields changed by dotted path; links go by name.

    ``what_if(cluster, {"links.infiniband.bandwidth": "800 Gbit/s", "nodes": 32, "device": "H200"})``.
    Values are as in a file: numbers in SI, or text with units. A change of ``nodes`` or ``devices_per_node``
    resizes the tiers. Raises ``InputError`` for an unknown path or a bad value.
    """
    fields = cluster.model_dump()
    for path, value in changes.items():
        if path == "device" and isinstance(value, str):
            value = find_device(value).device.model_dump()
        _set(fields, path, value)
    fields["sources"] = dict(fields["sources"]) | dict.fromkeys(changes, "what-if")
    if {"nodes", "devices_per_node"} & set(changes):
        _resize(fields, cluster)
    return validated(ClusterSpec, fields, "what-if")


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
        if link["devices"] == before.devices_per_node:
            link["devices"] = per_node
    if links:
        links[-1]["devices"] = nodes * per_node

"""Lists of what is known, and single entries in full."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType

from cluster_specs.units import format_bandwidth, format_bytes, format_rate, format_seconds
from planner.report.console import columns

UNITS: Mapping[str, Callable[[float], str]] = {
    "peak_flops_per_second": format_rate,
    "memory_bandwidth": format_bandwidth,
    "host_bandwidth": format_bandwidth,
    "bandwidth": format_bandwidth,
    "memory": format_bytes,
    "latency": format_seconds,
    "kernel_launch": format_seconds,
}
"""Fields of hardware records -> how their SI numbers are printed; applies to what is inside them too."""


def catalogue_report(entries: Mapping[str, Mapping[str, Any]], shown: Sequence[str]) -> RenderableType:
    """A table of named entries with the fields to be ``shown`` (those that any entry has)."""
    present = [field for field in shown if any(field in entry for entry in entries.values())]
    numeric = [all(isinstance(e.get(field), int | float) for e in entries.values()) for field in present]
    table = columns("name", *(field.replace("_", " ") for field in present), right="l" + _sides(numeric))
    for name, entry in entries.items():
        table.add_row(name, *(_cell(entry.get(field, "")) for field in present))
    return table


def _sides(numeric: Sequence[bool]) -> str:
    return "".join("r" if number else "l" for number in numeric)


def _cell(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        texts = [str(item) for item in value]
        return ("; " if any("," in text for text in texts) else ", ").join(texts)
    return "" if value is None else str(value)


def fields_report(entry: Mapping[str, Any]) -> RenderableType:
    """Every field of one entry, nested ones by dotted name."""
    table = columns("", "")
    for name, value in _flat(entry):
        table.add_row(name, value)
    return table


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
        for index, inner in enumerate(value):
            yield from _flat(inner, f"{prefix}.{index}")
    else:
        unit = next(
            (UNITS[part] for part in prefix.split(".") if part in UNITS and "efficiency" not in prefix), None
        )
        yield prefix, unit(value) if unit is not None and isinstance(value, float) else _cell(value)

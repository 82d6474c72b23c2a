"""Measured tables of collectives against predictions: the section of docs/accuracy.md, by source.

    python benchmarks/collectives.py    # print it

A source is fitted on or reported as a whole. A table that was timed call by call from PyTorch has the time in
which the host issues a call in it, which a step hides behind the calls before: it is added, as the stack's.
"""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cluster_specs.catalog import load_cluster
from cluster_specs.software import load_software
from cluster_specs.topology import CommGroup, comm_group
from cost_models.collectives import COLLECTIVES

TABLES = Path(__file__).resolve().parent.parent / "tests" / "data" / "collectives.jsonl"
OVER_NODES = TABLES.with_name("collectives_over_nodes.jsonl")
"""Bus bandwidths of 256 MiB over 2 to 64 nodes of 8 H100 with EFA, on which that network was fitted."""
MIDDLE = (4 << 20, 128 << 20)
"""Sizes in between latency and bandwidth, where buckets and layers lie [bytes], both included."""


class Setting(NamedTuple):
    """What a table was measured on."""

    cluster: str
    split: str
    issued_by: str | None = None
    """Software stack whose host issues every call while the clock runs."""


SETTINGS: Mapping[str, Setting] = {
    "coll-001": Setting("p4de.24xlarge:2", "fit"),
    "coll-002": Setting("p5.48xlarge:2", "fit"),
    "coll-005": Setting("dgx-a100-80g:1", "fit", "torch-fsdp2"),
    "coll-006": Setting("dgx-h200:1", "fit", "torch-fsdp2"),
    "coll-016": Setting("dgx-a100-80g:1", "report"),
    "coll-017": Setting("frontier:4", "report"),
    "coll-018": Setting("frontier:4", "report"),
    "coll-026": Setting("dgx-h100:1", "report"),
    "coll-028": Setting("dgx-h100:1", "report"),
    "coll-029": Setting("tpu-v5p:4x4x4", "report"),
    "coll-030": Setting("tpu-v5e:16x16", "report"),
    "coll-031": Setting("tpu-v6e:16x16", "fit"),
}


class Judged(NamedTuple):
    """One table with our errors: (bytes, predicted / measured - 1) by size."""

    row: Mapping[str, Any]
    split: str
    errors: Sequence[tuple[int, float]]

    @property
    def source(self) -> str:
        """Where the table is from, without its path."""
        return str(self.row["source"]).split(" ")[0].split("@")[0].rstrip(",")


def judge() -> list[Judged]:
    """Every table, in the order of the file."""
    rows = (json.loads(line) for line in TABLES.read_text().splitlines())
    return [Judged(row, SETTINGS[row["id"]].split, _errors(row, SETTINGS[row["id"]])) for row in rows]


def _errors(row: Mapping[str, Any], setting: Setting) -> list[tuple[int, float]]:
    group = comm_group(load_cluster(setting.cluster), ((row["nranks"], 1),))
    issue = load_software(setting.issued_by).host_collective if setting.issued_by else 0.0
    return [(point["bytes"], _error(row["op"], point, group, issue)) for point in row["data"]]


def _error(op: str, point: Mapping[str, Any], group: CommGroup, issue: float = 0.0) -> float:
    measured: float = point["time_us"] * 1e-6
    return (COLLECTIVES[op](point["bytes"], group).seconds + issue) / measured - 1


def over_nodes() -> dict[str, dict[int, float]]:
    """Of one size over more and more nodes: collective -> nodes -> predicted / measured - 1."""
    found = {}
    for row in map(json.loads, OVER_NODES.read_text().splitlines()):
        groups = (
            comm_group(load_cluster(f"p5.48xlarge:{point['nodes']}"), ((point["nranks"], 1),))
            for point in row["data"]
        )
        errors = (_error(row["op"], *pair) for pair in zip(row["data"], groups, strict=True))
        found[row["op"]] = dict(zip((point["nodes"] for point in row["data"]), errors, strict=True))
    return found


def section_over_nodes() -> str:
    """The same in Markdown."""
    errors = over_nodes()
    nodes = sorted(next(iter(errors.values())))
    lines = ["| nodes | " + " | ".join(map(str, nodes)) + " |", "| --- |" + " ---: |" * len(nodes)]
    for op, found in errors.items():
        cells = (f"{100 * found[count]:+.0f} %" for count in nodes)
        lines.append(f"| {op.replace('_', '-')} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def errors_of(tables: Iterable[Judged], least: float = 0, most: float = float("inf")) -> list[float]:
    """Errors of all sizes in between, of all tables."""
    return [error for table in tables for size, error in table.errors if least <= size <= most]


def median_abs(errors: Sequence[float]) -> float | None:
    """Median of absolute values; None of none."""
    return statistics.median(map(abs, errors)) if errors else None


def recorded(tables: Sequence[Judged]) -> dict[str, float]:
    """The figures that must not grow."""
    figures = {}
    for split in ("fit", "report"):
        chosen = [table for table in tables if table.split == split]
        figures[f"collectives, {split}, median"] = median_abs(errors_of(chosen)) or 0.0
        figures[f"collectives, {split}, 4 to 128 MiB, median"] = median_abs(errors_of(chosen, *MIDDLE)) or 0.0
    return {name: round(value, 4) for name, value in figures.items()}


def section(tables: Sequence[Judged]) -> str:
    """The tables' errors in Markdown."""
    groups: dict[str, list[Judged]] = {}
    for table in tables:
        name = f"{table.row['system']}, {table.row['op'].replace('_', '-')} ({table.split})"
        groups.setdefault(name, []).append(table)
    for split in ("fit", "report"):
        groups[f"**all: {split}**"] = [table for table in tables if table.split == split]
    lines = ["| table | n | median | 4 to 128 MiB | bias |", "| --- | ---: | ---: | ---: | ---: |"]
    lines += [_line(name, group) for name, group in groups.items()]
    return "\n".join(lines) + "\n"


def _line(name: str, group: Sequence[Judged]) -> str:
    errors = errors_of(group)
    cells = [median_abs(errors), median_abs(errors_of(group, *MIDDLE))]
    shown = ["-" if cell is None else f"{100 * cell:.1f} %" for cell in cells]
    return f"| {name} | {len(errors)} | {shown[0]} | {shown[1]} | {100 * statistics.median(errors):+.1f} % |"


if __name__ == "__main__":
    print(section(judge()) + "\n" + section_over_nodes())

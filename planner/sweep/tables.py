"""A sweep as a flat table: one row a point, one column an input or a figure; units in the names."""

import csv
import io
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from planner.errors import InputError
from planner.sweep.records import Point, Sweep

INPUTS = ("model", "cluster", "devices", "nodes", "global_batch", "seq_len", "precision")

PLAN = (
    "data", "tensor", "pipeline", "context", "expert", "virtual_stages", "micro_batch", "zero_stage", "sharding",
    "recompute", "schedule",
)  # fmt: skip

ESTIMATE = (
    "step_time_s", "tokens_per_s", "tokens_per_s_per_device", "mfu", "hfu", "memory_bytes", "memory_limit_bytes",
    "bubble_fraction",
)  # fmt: skip

ECONOMICS = (
    "tokens", "time_to_train_s", "goodput", "expected_failures", "device_hours", "price_per_device_hour", "cost",
    "currency", "tokens_per_dollar", "power_w", "energy_j", "carbon_kg",
)  # fmt: skip

VERDICT = ("memory_headroom", "scaling_efficiency", "pareto", "status", "reason", "name", "key")


def rows(sweep: Sweep) -> list[dict[str, Any]]:
    """One flat mapping per point, all with the same columns; None where a point has no such figure."""
    varied = [name for name in sweep.axes if name not in INPUTS and name != "batch_tokens"]
    return [_row(point, varied) for point in sweep.points]


def _row(point: Point, varied: list[str]) -> dict[str, Any]:
    i = point.inputs
    extra: dict[str, Any] = {**i.job, **i.pins, **i.changes}
    # A pin and the plan's choice would share a name: the pin is what was asked.
    asked = {f"asked.{name}": extra.get(name) for name in varied}
    return {
        **{name: getattr(i, name) for name in INPUTS},
        **asked,
        **_fields(point.plan, PLAN),
        **_fields(point.estimate, ESTIMATE),
        **_fields(point.economics, ECONOMICS),
        **_fields(point, VERDICT),
    }


def _fields(record: object | None, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: None if record is None else getattr(record, name) for name in names}


def to_csv(sweep: Sweep) -> str:
    """The table as comma-separated values with a header; empty where a point has no figure."""
    table = rows(sweep)
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(table[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return buffer.getvalue()


def to_parquet(sweep: Sweep) -> bytes:
    """The table as a Parquet file; raises ``InputError`` where pyarrow is not installed."""
    _check_pyarrow()
    import pyarrow
    import pyarrow.parquet

    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(_uniform(rows(sweep))), buffer)
    return buffer.getvalue()


def _uniform(table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Columns that mix text and numbers (``2x`` and 1e9) as text: a Parquet column has one type."""
    mixed = {
        name
        for name in table[0]
        if len({isinstance(row[name], str) for row in table if row[name] is not None}) > 1
    }
    return [
        {name: str(value) if name in mixed and value is not None else value for name, value in row.items()}
        for row in table
    ]


def to_json(sweep: Sweep) -> str:
    """The documented JSON."""
    return sweep.to_json(indent=2) + "\n"


FORMATS: Mapping[str, Any] = {".json": to_json, ".csv": to_csv, ".parquet": to_parquet}
"""Suffix -> writer of the file's content, text or bytes."""


def check_format(path: Path) -> None:
    """Refuse a file whose suffix no format has, or whose package is missing; raises ``InputError``."""
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"{path}: write a sweep as one of {', '.join(FORMATS)}")
    if FORMATS[path.suffix.lower()] is to_parquet:
        _check_pyarrow()


def _check_pyarrow() -> None:
    if find_spec("pyarrow") is None:
        raise InputError("Parquet needs pyarrow: pip install 'meshwright[parquet]', or write .csv")


def content(sweep: Sweep, path: Path) -> str | bytes:
    """What a file of this name holds; raises ``InputError`` for an unknown suffix."""
    check_format(path)
    written: str | bytes = FORMATS[path.suffix.lower()](sweep)
    return written

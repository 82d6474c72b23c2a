"""The file that a calibration becomes: a cluster as every command takes it."""

import json
from collections.abc import Iterable, Mapping

from planner.calibration.fitting import Calibration

DIGITS = 6
"""Significant ones that are kept: more than any measurement has."""


def to_toml(calibration: Calibration) -> str:
    """TOML of a ``ChangedCluster``: base, changed constants, and how well each explains what was measured."""
    tables = [
        _table("changes", calibration.changes),
        *(_table(f"fitted.{_text(path)}", fit.model_dump()) for path, fit in calibration.fitted.items()),
        *(_table("lines", line.model_dump(), each=True) for line in calibration.lines),
    ]
    head = [
        "# Written by `meshwright calibrate`: give this file as CLUSTER, or FILE:NODES for more than one node.",
        f"# SI units, from {calibration.measurements} measurements; residuals are |predicted / measured - 1|.",
        f"base = {_text(calibration.base)}",
    ]
    return "\n".join(["\n".join(head), *tables]) + "\n"


def _table(name: str, fields: Mapping[str, object], each: bool = False) -> str:
    """One table; ``each`` makes it an element of an array of tables."""
    return "\n".join(["", f"[[{name}]]" if each else f"[{name}]", *_pairs(fields)])


def _pairs(fields: Mapping[str, object]) -> Iterable[str]:
    return (f"{key if key.isidentifier() else _text(key)} = {_value(value)}" for key, value in fields.items())


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.{DIGITS}g}"
    return str(value) if isinstance(value, int) else _text(str(value))


def _text(text: str) -> str:
    """A basic string: those of JSON are ones of TOML."""
    return json.dumps(text)

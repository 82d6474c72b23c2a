"""Reading runs and plans from files."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cluster_specs.errors import InputError, kind_of
from cluster_specs.texts import load_mapping, read_text
from planner.runs.record import parse_run, refuse_unknown_fields


def load_run(path: str | Path) -> dict[str, Any]:
    """A hand-written run (TOML, YAML or JSON) as a row for `plan_from_run`.

    Unknown fields are refused by name, and paths inside it are made relative to the file.
    """
    path = Path(path)
    return check_run(load_mapping(path), path)


def check_run(row: dict[str, Any], path: Path) -> dict[str, Any]:
    """``row`` with its paths resolved, if it is a run without unknown fields; else ``InputError``."""
    try:
        run = parse_run(row)
        refuse_unknown_fields(run)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    resolved = _beside({**row, "model": dict(run.model), "hardware": dict(run.hardware)}, path.parent)
    schedule = run.parallel.schedule
    if schedule is not None and schedule.lower().endswith(".csv"):
        resolved["parallel"] = {**dict(row["parallel"]), "schedule": read_schedule(path.parent / schedule)}
    return resolved


PATHS = (("model", "config"), ("hardware", "cluster"))
"""Fields that may be the path of another file."""


def _beside(row: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """A row with its paths relative to ``folder``, where such files are."""
    found = dict(row)
    if isinstance(found.get("hardware"), str):
        found["hardware"] = {"cluster": found["hardware"]}
    for section, key in PATHS:
        table = found.get(section)
        if isinstance(table, Mapping) and isinstance(table.get(key), str) and _is_file(folder / table[key]):
            found[section] = {**table, key: str(folder / table[key])}
    return found


def _is_file(path: Path) -> bool:
    """Whether there is such a file, or one of which this is ``file.toml:nodes``."""
    return path.exists() or Path(str(path).rpartition(":")[0]).is_file()


def read_schedule(path: Path) -> str:
    """The schedule in a CSV file, as PyTorch writes it; ``InputError`` where it is none."""
    from planner.pipeline.schedule import from_csv, to_csv

    text = read_text(path)
    try:
        return to_csv(from_csv(text))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def load_rows(path: str | Path) -> Iterator[dict[str, Any]]:
    """Rows of a JSON-lines file of measured runs, as `parse_rows` has them."""
    return parse_rows(read_text(Path(path)), str(path), Path(path).parent)


def parse_rows(text: str, name: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Rows of JSON lines of measured runs, their paths relative to ``folder``.

    ``InputError`` names the line that is broken, or says that there is none.
    """
    empty = True
    for where, row in json_lines(text, name):
        if not isinstance(row, dict):
            raise InputError(f"{where}: one object per line is needed, found {kind_of(row)}")
        empty = False
        yield _beside(row, folder)
    if empty:
        raise InputError(f"{name} is empty: one JSON object per line is needed")


def json_lines(text: str, name: str) -> Iterator[tuple[str, Any]]:
    """(where it is, value) of every line that is not blank; ``InputError`` names the line that is broken."""
    for number, line in enumerate(text.split("\n"), start=1):  # JSON's own texts may hold other ends of lines
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        try:
            yield where, json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where}: not valid JSON by itself: {error}") from error

"""Files in and out: plans, runs, and writing that leaves either the whole file or nothing."""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.errors import InputError

if TYPE_CHECKING:
    from planner.plans import Plan

STDIN = "-"


def write_files(files: Mapping[Path, str]) -> None:
    """Write all ``files`` or none: each to a temporary name beside its place, then renamed.

    What is there and is no ordinary file (a pipe, /dev/stdout) is written to as it is. Raises ``OSError`` (a
    full disk, a missing right) that names the file, after removing what was written.
    """
    written: list[tuple[Path, Path]] = []
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists() and not path.is_file():
                _write_in_place(path, text)
            else:
                written.append((_write_temporary(path, text), path))
        for temporary, path in written:
            temporary.replace(path)
    except BaseException:
        for temporary, _ in written:
            with suppress(OSError):
                temporary.unlink()
        raise


def _write_in_place(path: Path, text: str) -> None:
    if path.is_dir():
        raise InputError(f"{path} is a folder, not a file to write")
    with _named(path), path.open("w", encoding="utf-8") as stream:
        stream.write(text)


def _write_temporary(path: Path, text: str) -> Path:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with _named(path):
        try:
            with temporary.open("x", encoding="utf-8") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    return temporary


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Errors inside name ``path``, not the temporary name beside it."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


def read_plan(source: str) -> "tuple[Plan, tuple[str, ...]]":
    """The plan in a plan file or a run file (``-``: stdin), and what had to be assumed for a run."""
    from planner.api import read_plan as read
    from planner.runs.files import parse_mapping

    if source != STDIN:
        return read(source)
    return read(parse_mapping(sys.stdin.read(), ".json", "stdin"))


def read_schedule(name: str | None) -> str | None:
    """A schedule's name as it is; of a CSV file its text, which the plan then holds; ``InputError`` if it is none."""
    from planner.runs.files import read_schedule as read

    return read(Path(name)) if name is not None and name.lower().endswith(".csv") else name


def with_schedule(plan: "Plan", schedule: str | None) -> "Plan":
    """The plan under another schedule: a name, a CSV file, or automatic; as it is for None."""
    name = read_schedule(schedule)
    if name is None:
        return plan
    from planner.search import rescheduled

    return rescheduled(plan, name)


def print_json(answer: Mapping[str, Any]) -> None:
    """The answer on stdout, and nothing else."""
    sys.stdout.write(json.dumps(answer, indent=2, allow_nan=False) + "\n")

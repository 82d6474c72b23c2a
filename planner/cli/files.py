"""Files in and out: plans, runs, and writing that leaves either the whole file or nothing."""

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.errors import InputError

if TYPE_CHECKING:
    from planner.plans import Plan

STDIN = "-"


def write_files(files: Mapping[Path, str | bytes]) -> None:
    """Write all ``files`` or none: each to a temporary name beside its place, then renamed.

    What is there and is no ordinary file (a pipe, /dev/stdout) is written to as it is. Raises ``OSError`` (a
    full disk, a missing right) that names the file, after removing what was written.
    """
    written: list[tuple[Path, Path]] = []
    try:
        for path, content in files.items():
            _make_folder(path.parent)
            if path.exists() and not path.is_file():
                _write_in_place(path, content)
            else:
                written.append((_write_temporary(path, content), path))
        for temporary, path in written:
            temporary.replace(path)
    except BaseException:
        for temporary, _ in written:
            with suppress(OSError):
                temporary.unlink()
        raise


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise InputError(f"{error.filename} is a file, not a folder to write into") from error


def _write_in_place(path: Path, content: str | bytes) -> None:
    if path.is_dir():
        raise InputError(f"{path} is a folder, not a file to write")
    with _named(path), path.open("wb") as stream:
        stream.write(_encoded(content))


def _encoded(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content


def _write_temporary(path: Path, content: str | bytes) -> Path:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with _named(path):
        try:
            with temporary.open("xb") as stream:
                stream.write(_encoded(content))
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

    return read(source if source != STDIN else read_mapping(source))


def read_mapping(source: str) -> dict[str, Any]:
    """The table in a JSON, TOML or YAML file (``-``: JSON from stdin)."""
    from cluster_specs.texts import load_mapping, parse_mapping

    if source != STDIN:
        return load_mapping(Path(source))
    return parse_mapping(sys.stdin.read(), ".json", "stdin")


def read_rows(sources: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Measured runs of one JSON-lines file after the other (``-``: from stdin)."""
    from planner.runs.files import load_rows, parse_rows

    for source in sources:
        yield from load_rows(source) if source != STDIN else parse_rows(sys.stdin.read(), "stdin", Path())


def with_schedule(plan: "Plan", schedule: str | None) -> "Plan":
    """The plan under another schedule: a name, a CSV file, a function, or automatic; as it is for None."""
    if schedule is None:
        return plan
    from planner.runs.schedules import own_schedule
    from planner.search import rescheduled

    degrees = plan.plan
    numbers = (degrees.pipeline, degrees.virtual_stages, degrees.num_microbatches)
    return rescheduled(plan, own_schedule(schedule, lambda: numbers))


def print_json(answer: Mapping[str, Any]) -> None:
    """The answer on stdout, and nothing else."""
    sys.stdout.write(json.dumps(answer, indent=2, allow_nan=False) + "\n")

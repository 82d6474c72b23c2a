"""Finished points on disk, one line each, safe as soon as they are written.

A line is appended and flushed to the disk before the next point counts, so a sweep that is killed loses nothing that
was finished; a line that was cut off by the kill is dropped when the file is opened again.
"""

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final

from pydantic import ValidationError

from cluster_specs.record import first_problem
from planner.errors import InputError
from planner.sweep.answers import Answer

SCHEMA: Final = "meshwright/sweep-journal/1"


def _line(fields: Mapping[str, object]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


FIRST_LINE = _line({"schema": SCHEMA})


class Journal:
    """Answers by key, in a file of JSON lines; a context manager that holds the file for itself."""

    def __init__(self, path: Path) -> None:
        """Reads what is there.

        Raises ``InputError`` where the file is something else or in use, ``OSError`` where it cannot be written.
        """
        self.path = path
        if path.is_dir():
            raise InputError(f"{path} is a folder, not the file of a journal")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+b")
        try:
            self._lock()
            self.answers = self._read()
        except BaseException:
            self._file.close()
            raise

    def add(self, key: str, answer: Answer) -> None:
        """Keep an answer; it is on the disk when this returns."""
        self._write(_line({"key": key, "answer": answer.model_dump(mode="json", exclude_none=True)}))
        self.answers[key] = answer

    def __enter__(self) -> "Journal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{self.path} is in use by another sweep: give each its own file") from None

    def _read(self) -> dict[str, Answer]:
        self._file.seek(0)
        content = self._file.read()
        whole = content.rfind(b"\n") + 1
        lines = content[:whole].splitlines()
        ours = self._parsed(lines[0], 1).get("schema") == SCHEMA if lines else FIRST_LINE.startswith(content)
        if not ours:
            raise InputError(
                f"{self.path} is no journal of a sweep: expected schema {SCHEMA!r} in its first line"
            )
        answers = dict(self._entry(line, number) for number, line in enumerate(lines[1:], start=2))
        self._file.truncate(whole)  # only now, since what has no end of line may be any other file
        if not lines:
            self._write(FIRST_LINE)
        return answers

    def _entry(self, line: bytes, number: int) -> tuple[str, Answer]:
        fields = self._parsed(line, number)
        try:
            return str(fields["key"]), Answer.model_validate(fields["answer"])
        except KeyError as error:
            raise InputError(f"{self.path}, line {number}: {error} is missing") from None
        except ValidationError as error:
            raise InputError(f"{self.path}, line {number}: {first_problem(error)}") from error

    def _parsed(self, line: bytes, number: int) -> dict[str, object]:
        try:
            fields = json.loads(line)
        except ValueError:
            fields = None
        if not isinstance(fields, dict):
            raise InputError(
                f"{self.path}, line {number}: not a JSON object, so not a line of a sweep's journal"
            )
        return fields

    def _write(self, line: bytes) -> None:
        self._file.write(line)
        self._file.flush()
        os.fsync(self._file.fileno())

"""What a run leaves open: the choices made for it, kept to be listed."""

from typing import TypeVar

from planner.runs import vocabulary
from planner.runs.vocabulary import Table

T = TypeVar("T")


IGNORED = "ignored "
"""Begins the note on a field of a run that nobody reads."""


class Assumptions:
    """The choices made where a run does not say."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def default(self, field: str, value: T | None, usual: T) -> T:
        """``value``, or else the ``usual`` one, noted."""
        if value is not None:
            return value
        self.made.append(f"{field}={usual}")
        return usual

    def understand(self, field: str, text: str | None, table: Table, usual: str) -> str:
        """Our word for a published ``text``, noted where it is not quite the same."""
        if text is None:
            return self.default(field, None, usual)
        meaning = vocabulary.mean(table, field, text)
        if not meaning.exact:
            self.made.append(f"{field}={meaning.value} ({text})")
        return meaning.value

"""Errors about input; ``planner.errors`` draws the whole tree."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Bad input, in one sentence: what is wrong, where, what would be right."""


class UnknownName(InputError):
    """A name that no catalogue has."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        near = difflib.get_close_matches(name.lower(), [k.lower() for k in known], n=3, cutoff=0.5)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        super().__init__(f"unknown {kind} {name!r}{hint}")

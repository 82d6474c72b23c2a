"""Errors about input; ``planner.errors`` draws the whole tree."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Bad input, in one sentence: what is wrong, where, what would be right."""


FEW = 8
"""So many names are told where none is near."""


class UnknownName(InputError):
    """A name that no catalogue has; ``see`` says what to do where none that it has is near."""

    def __init__(self, kind: str, name: str, known: Iterable[str], see: str = "") -> None:
        names = list(known)
        near = difflib.get_close_matches(name.lower(), [k.lower() for k in names], n=3, cutoff=0.5)
        all_of_few = (
            f"; use one of {', '.join(names)}" if 0 < len(names) <= FEW else f"; {see}" if see else ""
        )
        hint = f"; did you mean {', '.join(near)}?" if near else all_of_few
        super().__init__(f"unknown {kind} {name!r}{hint}")

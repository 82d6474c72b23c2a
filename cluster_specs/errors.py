"""Errors about input; ``planner.errors`` draws the whole tree."""

import difflib
from collections.abc import Iterable, Mapping
from types import MappingProxyType


class InputError(ValueError):
    """Bad input, in one sentence: what is wrong, where, what would be right."""


KINDS: Mapping[type, str] = MappingProxyType(
    {
        type(None): "nothing (null)",
        bool: "a truth value",
        int: "a number",
        float: "a number",
        str: "a text",
        list: "a list",
        dict: "a table of keys",
    }
)
"""What TOML, YAML and JSON hold -> the word for it."""


def kind_of(value: object) -> str:
    """What was found in a file in place of something else, in words."""
    return KINDS.get(type(value), f"a {type(value).__name__}")


FEW = 8
"""So many names are told where none is near."""


class UnknownName(InputError):
    """A name that no catalogue has; ``see`` says what to do where none that it has is meant."""

    def __init__(self, kind: str, name: str, known: Iterable[str], see: str = "") -> None:
        names = list(dict.fromkeys(known))
        near = difflib.get_close_matches(name.lower(), [k.lower() for k in names], n=3, cutoff=0.5)
        all_of_few = (
            f"; use one of {', '.join(names)}" if 0 < len(names) <= FEW else f"; {see}" if see else ""
        )
        or_else = f" If not, {see}" if see else ""
        hint = f"; did you mean {', '.join(near)}?{or_else}" if near else all_of_few
        super().__init__(f"unknown {kind} {name!r}{hint}")

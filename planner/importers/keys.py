"""Reading a configuration key by key: what is never asked for is reported as unknown."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from planner.errors import InputError

T = TypeVar("T")

AUTO = "auto"
"""What the Trainer writes for a value that it fills in when it starts; here as good as absent."""


def _flatten(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


class Keys:
    """The keys of one configuration, tables joined by dots: ``zero_optimization.stage``.

    A value of null or ``"auto"`` counts as absent. Every method raises ``InputError`` that names file and key.
    """

    def __init__(self, data: Mapping[str, Any], source: str) -> None:
        self._values = dict(_flatten(data))
        self._asked: set[str] = set()
        self.source = source

    def get(self, key: str) -> Any:
        """Value of ``key``, or None."""
        self._asked.add(key)
        value = self._values.get(key)
        return None if value == AUTO else value

    def has(self, key: str) -> bool:
        """Whether ``key``, or anything in the table ``key``, is there."""
        return any(name == key or name.startswith(f"{key}.") for name in self._values)

    @property
    def has_auto(self) -> bool:
        """Whether any value is left to be filled in."""
        return AUTO in self._values.values()

    def fail(self, key: str, expected: str) -> InputError:
        """The error for a value that is not what it should be."""
        return InputError(f"{self.source}: {key} must be {expected}, found {self._values.get(key)!r}")

    def integer(self, key: str, least: int = 1) -> int | None:
        """A whole number of at least ``least``, or None."""
        value = self.get(key)
        if value is None:
            return None
        if isinstance(value, str) and re.fullmatch(r"-?\d+", value):
            value = int(value)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.fail(key, f"a whole number of at least {least}")
        return value

    def degree(self, key: str) -> int:
        """A whole number, 1 where it is absent."""
        return self.integer(key) or 1

    def number(self, key: str) -> float | None:
        """A positive number, or None."""
        value = self._number(key)
        if value is not None and value <= 0:
            raise self.fail(key, "a positive number")
        return value

    def share(self, key: str, default: float) -> float:
        """A number from 0 to 1, ``default`` where it is absent."""
        value = self._number(key)
        if value is not None and not 0 <= value <= 1:
            raise self.fail(key, "from 0 to 1")
        return default if value is None else value

    def _number(self, key: str) -> float | None:
        """A number, which files without types have as text."""
        value = self.get(key)
        if value is None:
            return None
        with suppress(TypeError, ValueError):
            if not isinstance(value, bool):
                return float(value)
        raise self.fail(key, "a number")

    def flag(self, key: str) -> bool:
        """A truth value, false where it is absent; the words of YAML and of shells are understood."""
        value = self.get(key)
        words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False, "": False}
        if isinstance(value, str) and value.lower() in words:
            return words[value.lower()]
        if value in (None, True, False, 0, 1):
            return bool(value)
        raise self.fail(key, "true or false")

    def word(self, key: str, meanings: Mapping[str, T], default: T) -> T:
        """Meaning of a word in ``meanings`` (any case), ``default`` where it is absent."""
        value = self.get(key)
        if value is None:
            return default
        for word, meaning in meanings.items():
            if str(value).lower() == word.lower():
                return meaning
        raise self.fail(key, "one of " + ", ".join(meanings))

    def ignore(self, *patterns: str) -> None:
        """Keys that change nothing which is modelled: data, logging, learning rate, ... (regular expressions)."""
        self._asked |= {key for key in self._values if any(re.fullmatch(p, key) for p in patterns)}

    def unknown(self) -> tuple[str, ...]:
        """Keys that nobody asked for, as they are written."""
        return tuple(key for key in self._values if key not in self._asked)

"""Arrays that several readers have elsewhere than they are made: moved once for all of them, as a plan has it."""

from collections.abc import Sequence
from typing import Any

from planner.tracing.layouts import Partition
from planner.tracing.sharded import ShardedProgram


class Copies:
    """Which values arrays are, which reader has a copy of what, and the copies that were made in a body."""

    def __init__(self, sharded: ShardedProgram) -> None:
        self.lies = {
            (copy.value, reader): copy.partition for copy in sharded.copies for reader in copy.readers
        }
        self.names: dict[int, tuple[Any, str]] = {}
        """Arrays by identity, with the values of the program that they are."""
        self.arrays: dict[str, Any] = {}
        """The other way."""
        self.made: dict[tuple[int, Partition], tuple[Any, Any]] = {}
        """Of an array, where it was brought."""

    def in_body(self) -> "Copies":
        """The same in a body of its own: what is made in it is known only there."""
        inside = object.__new__(Copies)
        inside.lies, inside.names, inside.arrays, inside.made = self.lies, self.names, self.arrays, {}
        return inside

    def note(self, arrays: Sequence[Any], names: Sequence[str]) -> None:
        """Which values arrays are; the first name of an array stays."""
        for array, name in zip(arrays, names, strict=True):
            self.names.setdefault(id(array), (array, name))
            self.arrays[name] = array

    def pinned(self, inside: Any, array: Any) -> None:
        """What the body of a loop calls an array from outside."""
        if id(array) in self.names:
            self.names.setdefault(id(inside), (inside, self.names[id(array)][1]))

    def name_of(self, array: Any) -> str:
        """The value that ``array`` is; empty where it is none."""
        return self.names.get(id(array), (array, ""))[1]

    def lying(self, array: Any, reader: str) -> Partition | None:
        """Where the copy of ``array`` is that an operator reads; None where it reads the array itself."""
        return self.lies.get((self.name_of(array), reader))

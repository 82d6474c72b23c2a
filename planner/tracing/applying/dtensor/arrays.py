"""Arrays of a graph that runs under layouts: where they are, or how they are made where they are wanted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from planner.tracing.applying.views import View


@dataclass(frozen=True)
class Array:
    """A value of the program; a view of another that is no operator of it; or what is made of numbers alone."""

    name: str
    shape: tuple[int, ...]
    held: Any = None
    """As a ``DTensor``."""
    seen: View | None = None
    """Where it is a view that is made for each reader, with its source as an `Array` and a function as its equation."""
    made: Callable[[Sequence[Any]], Any] | None = None
    """Placements -> the array: what needs no other array is made where it is wanted."""

    @property
    def ndim(self) -> int:
        """How many dims it has."""
        return len(self.shape)

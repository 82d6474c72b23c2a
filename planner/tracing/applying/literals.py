"""Numbers that are written in a function: a program has no values for them."""

from typing import Any, NamedTuple


class Known(NamedTuple):
    """Such a number, among operands; what a branch hands on in its place is an array."""

    number: Any


def plain(value: Any) -> Any:
    """An operand as JAX takes it."""
    return value.number if isinstance(value, Known) else value

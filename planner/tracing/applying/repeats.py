"""Equations that compute anew what another has computed of the same arrays.

In a cleaned program they are one operator. XLA would lay out the others as it likes, and make them twice.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from planner.tracing.applying.literals import Known
from planner.tracing.reading.jax_record import digest


class _Done(NamedTuple):
    """What an equation has made; its operands are held, so that nothing else has their identity."""

    operands: tuple[Any, ...]
    made: list[Any]


class Repeats:
    """What has been computed in a body, by what it is and what it is computed of."""

    def __init__(self) -> None:
        self.done: dict[tuple[Any, ...], _Done] = {}

    def made(self, equation: Any, title: str, operands: Sequence[Any]) -> list[Any] | None:
        """What an equal equation has made before."""
        found = self.done.get(_key(equation, title, operands))
        return None if found is None else found.made

    def note(self, equation: Any, title: str, operands: Sequence[Any], made: list[Any]) -> None:
        """Keep what an equation has made."""
        self.done.setdefault(_key(equation, title, operands), _Done(tuple(operands), made))


def _key(equation: Any, title: str, operands: Sequence[Any]) -> tuple[Any, ...]:
    """Numbers that are written in the function are compared by what they are, arrays by identity."""
    return (digest(equation, title), *(str(x.number) if isinstance(x, Known) else id(x) for x in operands))

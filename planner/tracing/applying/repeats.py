"""Equations that compute anew what another has computed of the same arrays.

In a cleaned program they are one operator. XLA would lay out the others as it likes, and make them twice.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from planner.tracing.applying.literals import Known, plain
from planner.tracing.reading.jax_record import digest


class _Done(NamedTuple):
    """What an equation has made; its operands are held, so that nothing else has their identity."""

    operands: tuple[Any, ...]
    made: list[Any]
    shared: bool


class Repeats:
    """What has been computed in a body, by what it is and what it is computed of."""

    def __init__(self) -> None:
        self.done: dict[tuple[Any, ...], _Done] = {}
        self.alike: dict[int, tuple[Any, Any]] = {}
        """Arrays that were made anew nevertheless, by identity, with the first that is equal."""

    def made(self, equation: Any, title: str, operands: Sequence[Any]) -> list[Any] | None:
        """What an equal equation has made before, if that is to be shared."""
        found = self.done.get(self._key(equation, title, operands))
        return found.made if found is not None and found.shared else None

    def note(self, equation: Any, title: str, operands: Sequence[Any], made: list[Any], shared: bool) -> None:
        """Keep what an equation has made: to be ``shared`` with equal ones, or only to know it as equal to theirs."""
        first = self.done.setdefault(
            self._key(equation, title, operands), _Done(tuple(operands), made, shared)
        )
        if first.made is not made:
            self.alike |= {id(mine): (mine, theirs) for mine, theirs in zip(made, first.made, strict=True)}

    def _key(self, equation: Any, title: str, operands: Sequence[Any]) -> tuple[Any, ...]:
        """Numbers that are written in the function are compared by what they are, arrays by identity."""
        return (digest(equation, title), *map(self._identity, operands))

    def _identity(self, operand: Any) -> str | int:
        import jax

        if isinstance(operand, Known) and not isinstance(operand.number, jax.core.Tracer):
            return str(operand.number)
        array = plain(operand)
        _, first = self.alike.get(id(array), (array, array))
        return id(first)

"""What a function makes of numbers alone: positions, masks, filters. No plan has it, as it is made where it is read.

Compilers may lay it out like any array. What they make number by number mostly needs no exchange so, and a mask of a
long sequence is best made in parts; of the rest, such as a product of positions, they would split what is made first,
and gather it. That, and what is small, is made whole by every device.
"""

from collections.abc import Callable, Sequence
from typing import Any

from planner.tracing.applying.literals import Known
from planner.tracing.reading.jax_rules import JAX_RULES

SMALL = 2**20
"""Bytes that every device makes for itself."""


class Numbers:
    """Arrays that depend on no input."""

    def __init__(self, whole: Callable[[Any], Any]) -> None:
        """``whole`` constrains an array to be whole on every device."""
        self._whole = whole
        self._known: dict[int, Any] = {}

    def are(self, equation: Any, operands: Sequence[Any]) -> bool:
        """Whether all that it reads are numbers of the function, or made of these."""
        known = (isinstance(x, Known) or id(x) in self._known for x in operands)
        return equation.primitive.name in JAX_RULES and all(known)

    def laid(self, equation: Any, arrays: Sequence[Any]) -> list[Any]:
        """What it reads or makes, where it needs it."""
        split = _one_by_one(equation)
        return [x if isinstance(x, Known) or (split and x.nbytes > SMALL) else self._whole(x) for x in arrays]

    def made(self, equation: Any, results: Sequence[Any]) -> list[Any]:
        """What it makes, which is known from now on."""
        found = self.laid(equation, results)
        self._known |= {id(x): x for x in found}
        return found


def _one_by_one(equation: Any) -> bool:
    """Whether each number that it makes is of one number of each operand."""
    read, made = ([tuple(v.aval.shape) for v in vs] for vs in (equation.invars, equation.outvars))
    rule = JAX_RULES[equation.primitive.name](
        equation.params, read, made, str(equation.outvars[0].aval.dtype)
    )
    return rule.kind in ("loop", "view") and not rule.whole and not rule.reductions

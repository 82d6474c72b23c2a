"""Conditions for ``--fail-if``: a name of the JSON answer, a comparison, a value.

``step_time_s > 10``, ``memory_bytes > 70 GiB``, ``fits == false``,
``summary.step_time.median_abs_error > 0.1``.
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from planner.cli.outcome import ThresholdMissed
from planner.errors import InputError, UnknownName

COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = MappingProxyType(
    {
        ">=": operator.ge,
        "<=": operator.le,
        "==": operator.eq,
        "!=": operator.ne,
        ">": operator.gt,
        "<": operator.lt,
    }
)

ROOTS = ("", "estimate", "plan", "summary")
"""Where a name is looked for, in this order: the whole answer, then its parts."""

_CONDITION = re.compile(r"\s*([\w.-]+)\s*(>=|<=|==|!=|>|<)\s*(.+?)\s*")
_WORDS: Mapping[str, bool] = {"true": True, "false": False}


def check_thresholds(answer: Mapping[str, Any], conditions: Sequence[str]) -> None:
    """Raise `ThresholdMissed` for the first of ``conditions`` that holds of ``answer``.

    Raises ``InputError`` for a condition that cannot be read, and for a name that the answer lacks or has no value for.
    """
    missed = [condition for condition in conditions if _holds(answer, condition)]
    if missed:
        raise ThresholdMissed(f"threshold missed: {'; '.join(missed)}")


def _holds(answer: Mapping[str, Any], condition: str) -> bool:
    match = _CONDITION.fullmatch(condition)
    if match is None:
        raise InputError(f"--fail-if {condition!r} is not a condition: write it as 'step_time_s > 10'")
    name, comparison, text = match.groups()
    found, wanted = find_value(answer, name), _value(text)
    if found is None:
        raise InputError(
            f"--fail-if {condition!r}: the answer has no value for {name}, so nothing can be said of it"
        )
    if isinstance(found, Mapping | Sequence) and not isinstance(found, str):
        raise InputError(f"--fail-if {condition!r}: {name} is not a single value")
    if isinstance(found, str) is not isinstance(wanted, str):
        raise InputError(f"--fail-if {condition!r} compares {found!r} with {text}")
    return COMPARISONS[comparison](found, wanted)


def find_value(answer: Mapping[str, Any], name: str) -> Any:
    """Value under a dotted name, in the answer or in its `ROOTS`; ``UnknownName`` suggests the nearest."""
    known: list[str] = []
    for root in ROOTS:
        part: Any = answer.get(root) if root else answer
        for key in name.split("."):
            if isinstance(part, Mapping):
                known += part
            part = part.get(key, _MISSING) if isinstance(part, Mapping) else _MISSING
        if part is not _MISSING:
            return part
    raise UnknownName("name in --fail-if", name, known)


_MISSING = object()


def _value(text: str) -> Any:
    from cluster_specs.units import parse_quantity

    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return float(text)
    except ValueError:
        pass
    return parse_quantity(text) if text[0] in "+-.0123456789" else text

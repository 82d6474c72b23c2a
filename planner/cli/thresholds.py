"""Conditions for ``--fail-if``: a name of the JSON answer, a comparison, a value.

``step_time_s > 10``, ``memory_bytes > 70 GiB``, ``mfu < 40%``, ``fits == false``,
``summary.step_time.median_abs_error > 0.1``.
"""

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, UnionType
from typing import TYPE_CHECKING, Any, NamedTuple, Union, get_args, get_origin

from planner.cli.outcome import ThresholdMissed
from planner.errors import InputError, UnknownName

if TYPE_CHECKING:
    from pydantic import BaseModel

    from cluster_specs.units import Unit

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

_CONDITION = re.compile(r"\s*([\w.-]+)\s*(>=|<=|==|!=|>|<)\s*(\S(?:.*\S)?)\s*")
_WORDS: Mapping[str, bool] = {"true": True, "false": False}
_UNITS: Mapping[str, "Unit | None"] = {"_bytes": "B", "_per_s": None, "_s": "s"}
"""End of a name -> the unit of its value, the first that applies."""

_SHARES = ("mfu", "hfu", "bubble_fraction", "margin_fraction")
"""Ends of names whose values are shares."""


class Condition(NamedTuple):
    """What ``--fail-if`` says, understood."""

    text: str
    name: str
    comparison: str
    value: Any


def read_condition(text: str) -> Condition:
    """The condition in ``text``; ``InputError`` where it is none, or where its value has no such unit."""
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise InputError(f"--fail-if {text!r} is not a condition: write it as 'step_time_s > 10'")
    name, comparison, value = match.groups()
    try:
        wanted = _value(value, name)
    except InputError as error:
        raise InputError(f"--fail-if {text!r}: {error}") from error
    if name.endswith(_SHARES) and isinstance(wanted, float) and wanted > 1:
        raise InputError(
            f"--fail-if {text!r}: {name} is a share, at most 100%"
            + ("" if value.endswith("%") else f": write {value}%, or {wanted / 100:g}")
        )
    return Condition(text, name, comparison, wanted)


def check_names(kind: "type[BaseModel]", conditions: Sequence[str], also: Sequence[str] = ()) -> None:
    """Refuse conditions on a name that no answer of ``kind`` has, before one is worked out; ``also`` are names beside
    its own. What a mapping holds is known with the answer alone.

    Raises ``InputError``, ``UnknownName`` with the nearest that it has.
    """
    for name in (read_condition(text).name for text in conditions):
        known = dict.fromkeys(also)
        parts = [kind, *(_field(kind, root, {}) for root in ROOTS[1:])]
        if name not in also and not any(_reaches(part, name.split("."), known) for part in parts):
            raise UnknownName("name in --fail-if", name, list(known), see="--json prints all that there are")


def _reaches(annotation: Any, keys: Sequence[str], known: dict[str, None]) -> bool:
    """Whether the keys, one inside the other, may lead somewhere; names that were come by are added to ``known``."""
    if not keys:
        return True
    if get_origin(annotation) is Mapping:
        return True
    if get_origin(annotation) in (Union, UnionType):
        return any(_reaches(choice, keys, known) for choice in get_args(annotation))
    found = _field(annotation, keys[0], known)
    return found is not None and _reaches(found, keys[1:], known)


def _field(kind: Any, name: str, known: dict[str, None]) -> Any:
    """Type of a record's field by the name that it is printed under; None where there is none."""
    if not hasattr(kind, "model_fields"):
        return None
    fields = {field.alias or own: field.annotation for own, field in kind.model_fields.items()}
    known.update(dict.fromkeys(fields))
    return fields.get(name)


def check_thresholds(answer: Mapping[str, Any], conditions: Sequence[str]) -> None:
    """Raise `ThresholdMissed` for those of ``conditions`` that hold of ``answer``.

    Raises ``InputError`` for a condition that cannot be read, and for a name that the answer lacks or has no value for.
    """
    read = map(read_condition, conditions)
    missed = [f"{each.text}: it is {_shown(answer, each.name)}" for each in read if _holds(answer, each)]
    if missed:
        raise ThresholdMissed(f"threshold missed: {'; '.join(missed)}")


def _shown(answer: Mapping[str, Any], name: str) -> str:
    """The value under a name, as a condition would be written."""
    from cluster_specs.units import GIB

    found = find_value(answer, name)
    if isinstance(found, bool) or not isinstance(found, int | float):
        return str(found).lower()
    if name.endswith(_SHARES):
        return f"{found:.1%}"
    if name.endswith("_bytes"):
        return f"{found / GIB:,.2f} GiB"
    return f"{found:.4g}" if isinstance(found, float) else f"{found:,}"


def _holds(answer: Mapping[str, Any], condition: Condition) -> bool:
    text, name, comparison, wanted = condition
    found = find_value(answer, name)
    if found is None:
        raise InputError(
            f"--fail-if {text!r}: the answer has no value for {name}, so nothing can be said of it"
        )
    if isinstance(found, Mapping | Sequence) and not isinstance(found, str):
        raise InputError(f"--fail-if {text!r}: {name} is not a single value")
    if isinstance(found, str) is not isinstance(wanted, str):
        raise InputError(f"--fail-if {text!r} compares {found!r} with {wanted}")
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
    raise UnknownName("name in --fail-if", name, known, see="--json prints all that there are")


_MISSING = object()


def _value(text: str, name: str) -> Any:
    from cluster_specs.units import parse_quantity

    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    number, parts = (text[:-1], 100) if text.endswith("%") else (text, 1)
    try:
        value = float(number) / parts
    except ValueError:
        pass
    else:
        if math.isnan(value):
            raise InputError("nothing compares with nan: write a number")
        return value
    if text[0] not in "+-.0123456789":
        return text
    return parse_quantity(text, next((unit for end, unit in _UNITS.items() if name.endswith(end)), None))

"""The base of every record in Meshwright: frozen, strict data."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from cluster_specs.errors import InputError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


class Record(BaseModel):
    """Immutable data, validated once at the edge; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy, without what was worked out of the fields and kept (``cached_property``): they may be others."""
        copied = super().model_copy(update=update, deep=deep)
        for name in copied.__dict__.keys() - type(self).model_fields.keys():
            del copied.__dict__[name]
        return copied


class Given(Record):
    """What a user gives: numbers are finite."""

    model_config = ConfigDict(allow_inf_nan=False)


RecordT = TypeVar("RecordT", bound=Record)


def validated(kind: type[RecordT], data: Any, where: str) -> RecordT:
    """Record of ``kind`` from plain ``data`` found in ``where``; raises ``InputError`` in one sentence."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise InputError(f"{where}: {first_problem(error)}") from error


PLAIN = {
    "missing": "is missing",
    "too_short": "has too few entries",
    "extra_forbidden": "is no field here",
    "model_type": "must be a table of fields",
    "dict_type": "must be a table of fields",
    "tuple_type": "must be a list",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "is too large a number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "string_type": "must be text",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "union_tag_not_found": "has no field that says of which kind it is",
}
"""Kinds of problems that a user would not know by what pydantic says of them."""

KINDS = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "dict": "a table of fields",
    "tuple": "a list",
}
"""What pydantic appends to the path of a field that may be of several kinds, once for each -> that kind."""


def first_problem(error: ValidationError) -> str:
    """First problem of a validation in one line: field, what is wrong, what was found, how many more."""
    return ": ".join(filter(None, located_problem(error)))


def located_problem(error: ValidationError) -> tuple[str, str]:
    """Dotted field of the first problem of a validation (empty for the whole), and what is wrong with it.

    Fields that are missing are told together.
    """
    first, *rest = error.errors(include_url=False)
    missing = [_dotted(each) for each in (first, *rest) if each["type"] == first["type"] == "missing"]
    if len(missing) > 1:
        return "", f"{', '.join(missing[:-1])} and {missing[-1]} are missing"
    message = PLAIN.get(first["type"]) or first["msg"].removeprefix("Value error, ")
    if _kind(first):
        alike = [each for each in (first, *rest) if _dotted(each) == _dotted(first)]
        message = f"must be {' or '.join(_kind(each) for each in alike)}"
        rest = [each for each in rest if each not in alike]
    scalar = first["type"] != "missing" and isinstance(first["input"], str | int | float | None)
    found = f", found {first['input']!r}" if scalar else ""
    more = f" (and {len(rest)} more)" if rest else ""
    return _dotted(first), f"{message.replace('Input should be', 'must be')}{found}{more}"


def _kind(problem: "ErrorDetails") -> str:
    """The kind that a field is not of, where it may be of several; empty elsewhere."""
    return KINDS.get(str(problem["loc"][-1]).partition("[")[0], "") if problem["loc"] else ""


def _dotted(problem: "ErrorDetails") -> str:
    field = problem["loc"][:-1] if _kind(problem) else problem["loc"]
    return ".".join(str(part) for part in field)

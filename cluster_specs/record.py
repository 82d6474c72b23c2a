"""The base of every record in Meshwright: frozen, strict data."""

from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from cluster_specs.errors import InputError


class Record(BaseModel):
    """Immutable data, validated once at the edge; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


RecordT = TypeVar("RecordT", bound=Record)


def validated(kind: type[RecordT], data: Any, where: str) -> RecordT:
    """Record of ``kind`` from plain ``data`` found in ``where``; raises ``InputError`` in one sentence."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise InputError(f"{where}: {first_problem(error)}") from error


PLAIN = {
    "missing": "is missing",
    "model_type": "Input should be a table of fields",
    "dict_type": "Input should be a table of fields",
}
"""Kinds of problems that a user would not know by what pydantic says of them."""


def first_problem(error: ValidationError) -> str:
    """First problem of a validation in one line: field, what is wrong, what was found, how many more."""
    first, *rest = error.errors(include_url=False)
    field = ".".join(str(part) for part in first["loc"])
    message = PLAIN.get(first["type"]) or first["msg"].removeprefix("Value error, ")
    scalar = first["type"] != "missing" and isinstance(first["input"], str | int | float | None)
    found = f", found {first['input']!r}" if scalar else ""
    more = f" (and {len(rest)} more)" if rest else ""
    return f"{field}: {message}{found}{more}" if field else f"{message}{found}{more}"

"""Dataclasses of options as the parameters of a command."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, get_type_hints

F = TypeVar("F", bound=Callable[..., Any])


def flatten(function: F) -> F:
    """``function`` with every dataclass parameter replaced by one parameter per field."""
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(function).parameters.values():
        group = groups.get(parameter.name)
        if group is None:
            parameters.append(
                parameter.replace(annotation=hints[parameter.name], kind=parameter.KEYWORD_ONLY)
            )
        else:
            parameters += _fields_as_parameters(group)

    @functools.wraps(function)
    def flat(**values: Any) -> Any:
        kwargs = dict(values)
        for name, group in groups.items():
            kwargs[name] = group(**{f.name: kwargs.pop(f.name) for f in dataclasses.fields(group)})
        return function(**kwargs)

    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    flat.__annotations__ = {p.name: p.annotation for p in parameters}
    del flat.__wrapped__
    return flat  # type: ignore[return-value]


def _fields_as_parameters(group: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=hints[field.name],
            default=inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default,
        )
        for field in dataclasses.fields(group)
    ]

"""A call of an ATen operator, as rules see it: every tensor replaced by its shape."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from planner.tracing.factors import Rule, Shape


class Call(NamedTuple):
    """One call of an ATen operator."""

    arguments: Mapping[str, Any]
    """By name, with the defaults of those that are not given; tensors as `Operand`."""
    inputs: Sequence[Shape]
    """Of all tensors among the arguments, in order."""
    outputs: Sequence[Shape]
    dtype: str
    """Of the first result."""

    def axes(self, name: str = "dim") -> list[int]:
        """The dims of the first tensor that an argument names, counted from the front; all where it names none."""
        rank = len(self.inputs[0])
        given = self.arguments.get(name)
        dims = [given] if isinstance(given, int) else given or range(rank)
        return [int(d) % rank for d in dims if rank]

    def axis(self) -> int:
        """The one dim that is worked along: the last where the operator always takes that."""
        return int(self.arguments.get("dim", -1)) % max(1, len(self.inputs[0]))


class Operand(NamedTuple):
    """A tensor among the arguments."""

    shape: Shape


TorchRule = Callable[[Call], Rule]


def kind_of(target: Any) -> str:
    """An operator's name, without overload; with the library that it is of, where that is not PyTorch's own."""
    library, _, name = str(getattr(target, "_schema", target)).partition("(")[0].partition("::")
    name = name.partition(".")[0]
    return name if library in ("aten", "meshwright") else f"{library}.{name}"


def arguments_of(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """What an operator is called with, by name, with the defaults of what is not given; nothing of other functions."""
    schema = getattr(target, "_schema", None)
    if schema is None:
        return {}
    defaults = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
    return defaults | dict(zip((a.name for a in schema.arguments), args, strict=False)) | dict(kwargs)


def leaves(tree: Any) -> list[Any]:
    """What mappings, tuples and lists hold, however nested, in order."""
    if isinstance(tree, Mapping):
        return [leaf for part in tree.values() for leaf in leaves(part)]
    if isinstance(tree, tuple | list):
        return [leaf for part in tree for leaf in leaves(part)]
    return [tree]

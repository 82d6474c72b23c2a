"""Arrays that are made of numbers alone, which each device makes as they are wanted."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from torch.distributed.tensor import distribute_tensor, full

from planner.tracing.reading.torch_calls import kind_of

NUMBERS: Mapping[str, int] = MappingProxyType(
    {
        "zeros": 0,
        "zeros_like": 0,
        "new_zeros": 0,
        "empty_like": 0,
        "new_empty": 0,
        "ones": 1,
        "ones_like": 1,
        "new_ones": 1,
    }
)
"""Operators that make an array of one number."""

PLACES: Mapping[str, int] = MappingProxyType({"full": 1, "full_like": 1, "new_full": 2})
"""Those that are told it, as which of their arguments."""


def number_of(node: Any) -> Any:
    """What every element is of what a node makes; None where they differ, or it is not written in the graph."""
    kind = kind_of(node.target)
    found = node.args[PLACES[kind]] if kind in PLACES else NUMBERS.get(kind)
    return None if hasattr(found, "op") else found


def maker_of(node: Any, mesh: Any, how: Mapping[str, Any], chance: bool) -> Callable[[Sequence[Any]], Any]:
    """Placements on ``mesh`` -> the array of a node; where it has numbers by ``chance``, those of the first device."""
    value, number = node.meta["val"], number_of(node)

    def make(places: Sequence[Any]) -> Any:
        if number is not None:
            return full(tuple(value.shape), number, dtype=value.dtype, device_mesh=mesh, placements=places)
        whole = node.target(*node.args, **how)
        return distribute_tensor(whole, mesh, places, src_data_rank=0 if chance else None)

    return make

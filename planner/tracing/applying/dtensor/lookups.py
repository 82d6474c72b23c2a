"""Rows picked from, or added to, an array whose rows are split: each device looks for those that it has.

What others have comes out as zeros, which are added up; ``DTensor`` masks them too, but over one axis only.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from planner.tracing.applying.dtensor.arrays import Array
from planner.tracing.applying.sites import Site
from planner.tracing.reading.torch_calls import leaves


class Lookup(NamedTuple):
    """An operator whose first operand has the rows, and how it runs on those of one device."""

    rows: Callable[[Sequence[Any]], int]
    """Its arguments -> the dim of the rows."""
    run: Callable[..., Any]
    """Rows, their positions, and the other arguments -> what it makes."""


def inside_of(index: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Places among the rows of this device, and which they are."""
    here = index - places[0]
    inside = (here >= 0) & (here < places.shape[0])
    return here.clamp(0, places.shape[0] - 1), inside


def _gather(table: Tensor, places: Tensor, dim: int, index: Tensor, *_: Any) -> Tensor:
    here, inside = inside_of(index, places)
    return torch.where(inside, table.gather(dim, here), 0)


def _embedding(table: Tensor, places: Tensor, index: Tensor, *_: Any) -> Tensor:
    here, inside = inside_of(index, places)
    return torch.where(inside[..., None], torch.nn.functional.embedding(here, table), 0)


def _scatter_add(table: Tensor, places: Tensor, dim: int, index: Tensor, values: Tensor) -> Tensor:
    here, inside = inside_of(index, places)
    return table.scatter_add(dim, here, torch.where(inside, values, 0))


def _index_put(table: Tensor, places: Tensor, indices: Sequence[Tensor], values: Tensor, *_: Any) -> Tensor:
    here, inside = inside_of(indices[0], places)
    shape = (*inside.shape, *(1 for _ in range(values.ndim - inside.ndim)))
    return table.index_put([here], torch.where(inside.reshape(shape), values, 0), accumulate=True)


def _along(given: Sequence[Any]) -> int:
    return int(given[1])


def _first(given: Sequence[Any]) -> int:
    return 0


LOOKUPS: Mapping[str, Lookup] = MappingProxyType(
    {
        "gather": Lookup(_along, _gather),
        "scatter_add": Lookup(_along, _scatter_add),
        "embedding": Lookup(_first, _embedding),
        "index_put": Lookup(_first, _index_put),
    }
)
"""By the operator's name."""


def split_rows(kind: str, node: Any, site: Site | None) -> tuple[int, tuple[str, ...]] | None:
    """The dim of the rows, and the axes that split it; None of an operator that is none, or has all its rows."""
    if kind not in LOOKUPS or site is None:
        return None
    if kind == "index_put" and (len(node.args[1]) > 1 or node.args[3:4] != (True,)):
        return None
    dim = LOOKUPS[kind].rows(node.args)
    axes = site.lies(site.reads[0])[dim]
    return (dim, axes) if axes and _by_rows(site, dim) else None


def _by_rows(site: Site, dim: int) -> bool:
    """Whether no index says which rows a device has."""
    rows = set(site.reads[0][dim])
    return not any(rows & {f for d in dims for f in d} for dims in site.reads[1:])


def look_up(
    runner: Any, title: str, kind: str, rows: tuple[int, tuple[str, ...]], given: Sequence[Any]
) -> Any:
    """A lookup whose rows are split, each device among its own."""
    dim, axes = rows
    table, *rest = given
    arrays = [x for x in leaves(rest) if isinstance(x, Array)]

    def look(local: Any, *others: Any) -> Any:
        *now, places = others
        left = iter(now)
        filled = torch.utils._pytree.tree_map(lambda x: next(left) if isinstance(x, Array) else x, rest)
        return LOOKUPS[kind].run(local, places, *filled)

    return runner.run(title, look, [table, *arrays, runner.positions(table.shape[dim], axes)], alone="yes")

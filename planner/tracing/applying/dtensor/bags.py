"""Rows of a table that are added up by bag, each device with the rows, the columns and the bags that it has.

Bags that are split, and not known to have equally many rows, need all rows' places in the table on every device: whose
they are is said by where bags begin.

Source of the arithmetic: the documentation of ``torch.nn.EmbeddingBag``.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import zeros

from planner.tracing.applying.dtensor.arrays import Array
from planner.tracing.applying.dtensor.lookups import inside_of
from planner.tracing.reading.torch_calls import arguments_of, kind_of

SUM, MEAN = 0, 1
"""``mode`` of bags."""


class Bags(NamedTuple):
    """How rows are added up, and what a device has of them."""

    runner: Any
    mean: bool
    each: int
    """Rows of every bag; 0: where bags begin says how many."""
    bags: int
    rows: int
    """Of the whole table."""
    own_bags: tuple[str, ...]
    """Axes that split the bags."""
    own_rows: tuple[str, ...]
    """Axes that split the rows of the table."""

    @property
    def uneven(self) -> bool:
        """Bags are split, and their rows lie anywhere."""
        return bool(self.own_bags) and not self.each

    def read(self, index: Array, starts: Array) -> tuple[list[Array], list[Array]]:
        """Operands as the program has them, and what comes after all others."""
        more = [self.runner.positions(self.rows, self.own_rows)] if self.own_rows else []
        if not self.uneven:
            return [index, starts], more
        whole = [Array("", x.shape, self.runner.lying(x, ((),))) for x in (index, starts)]
        stand_ins = [_nothing(self.runner, x.shape) for x in (index, starts)]
        return stand_ins, [*more, self.runner.positions(self.bags, self.own_bags), *whole]

    def of_rows(self, index: Tensor, starts: Tensor, rest: Sequence[Tensor]) -> "Rows":
        """Whose each row is, by what `read` gave."""
        own = None
        if self.uneven:
            *rest, own, index, starts = rest
        places = torch.arange(index.shape[0], device=index.device)
        of = places // self.each if self.each else torch.searchsorted(starts, places, right=True) - 1
        of, here = (of, torch.ones_like(of, dtype=torch.bool)) if own is None else inside_of(of, own)
        count = starts.shape[0] if own is None else own.shape[0]
        sizes = torch.zeros(count, dtype=torch.int64, device=of.device).index_add(0, of, here.long())
        if self.own_rows:
            index, inside = inside_of(index, rest[-1])
            here = here & inside
        return Rows(index, of, here, sizes.clamp(min=1)[:, None])


class Rows(NamedTuple):
    """What is added up, as a device counts it."""

    index: Tensor
    """Row of the table."""
    bag: Tensor
    here: Tensor
    """Whether the device has both."""
    sizes: Tensor
    """Of the device's bags; an empty one counts as one."""

    def masked(self, values: Tensor) -> Tensor:
        """``values`` of rows, zeros where they are another device's."""
        return torch.where(self.here[:, None], values, 0)


def forward(runner: Any, title: str, node: Any, given: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Sums or means by bag; nothing stands for what only other derivatives read."""
    how = arguments_of(node.target, given, named)
    table, index, starts, weights = (
        how[name] for name in ("weight", "indices", "offsets", "per_sample_weights")
    )
    bags = _bags(runner, f"{title}:0", node.args[2], table.shape[0], starts.shape[0], how)
    if bags is None or how["include_last_offset"]:
        return NotImplemented

    def add(table: Tensor, index: Tensor, starts: Tensor, *rest: Tensor) -> Tensor:
        rows = bags.of_rows(index, starts, rest)
        picked = rows.masked(table[rows.index])
        picked = picked if weights is None else picked * rest[0][:, None]
        made = picked.new_zeros((rows.sizes.shape[0], table.shape[1])).index_add(0, rows.bag, picked)
        return made / rows.sizes if bags.mean else made

    read, more = bags.read(index, starts)
    operands = [table, *read, *([] if weights is None else [weights]), *more]
    sums = runner.run(f"{title}:0", add, operands, "yes")
    return [sums, *(_nothing(runner, tuple(x.shape)) for x in node.meta["val"][1:])]


def of_table(runner: Any, title: str, node: Any, given: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """The gradient of the table."""
    how = arguments_of(node.target, given, named)
    gradient, index, starts, *others = given[:6]
    weights = how["per_sample_weights"]
    bags = _bags(runner, title, node.args[2], how["num_weights"], starts.shape[0], how, written=True)
    if bags is None:
        return NotImplemented

    def derive(of: Tensor, index: Tensor, starts: Tensor, *rest: Tensor) -> Tensor:
        rows = bags.of_rows(index, starts, rest)
        each = rows.masked((of / rows.sizes if bags.mean else of)[rows.bag])
        each = each if weights is None else each * rest[len(others)][:, None]
        return each.new_zeros(runner.shapes_here(title)[0]).index_add(0, rows.index, each)

    read, more = bags.read(index, starts)
    operands = [gradient, *read, *others, *([] if weights is None else [weights]), *more]
    return runner.run(title, derive, operands, "yes")


def _bags(
    runner: Any, title: str, starts: Any, rows: int, count: int, how: Mapping[str, Any], written: bool = False
) -> Bags | None:
    """None of what no device does alone: the largest of each bag, padding, weighed rows of bags that begin anywhere.

    ``written`` is the table, of a gradient; ``starts`` is the node that says where bags begin.
    """
    site = runner.site(title)
    if site is None or how["mode"] not in (SUM, MEAN) or how["padding_idx"] >= 0:
        return None
    table, bags = (site.writes[0], site.reads[0]) if written else (site.reads[0], site.writes[0])
    each = starts.args[2] if kind_of(starts.target) == "arange" and len(starts.args) == 3 else 0
    runner.at = title
    found = Bags(runner, how["mode"] == MEAN, each, count, rows, site.lies(bags)[0], site.lies(table)[0])
    return None if found.uneven and how["per_sample_weights"] is not None else found


def _nothing(runner: Any, shape: tuple[int, ...]) -> Array:
    def make(places: Sequence[Any]) -> Any:
        return zeros(shape, dtype=torch.int64, device_mesh=runner.mesh, placements=places)

    return Array("", shape, made=make)


BAGS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "_embedding_bag": forward,
        "_embedding_bag_forward_only": forward,
        "_embedding_bag_backward": of_table,
    }
)
"""By what operators are called in a program; ``NotImplemented`` where devices cannot do their part alone."""

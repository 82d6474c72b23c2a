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
from planner.tracing.reading.torch_calls import kind_of

SUM, MEAN = 0, 1
"""``mode`` of bags."""


class Bags(NamedTuple):
    """How rows are added up, and what a device has of them."""

    runner: Any
    mean: bool
    each: int
    """Rows of every bag; 0: where bags begin says how many."""
    number: int
    """Of bags."""
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
        return stand_ins, [*more, self.runner.positions(self.number, self.own_bags), *whole]

    def of_rows(self, index: Tensor, starts: Tensor, rest: Sequence[Tensor]) -> "Rows":
        """Whose each row is, by what `read` gave."""
        if self.uneven:
            *rest, own, index, starts = rest
        places = torch.arange(index.shape[0], device=index.device)
        of = places // self.each if self.each else torch.searchsorted(starts, places, right=True) - 1
        bags, here = starts.shape[0], torch.ones_like(of, dtype=torch.bool)
        if self.uneven:
            of, bags = of - own[0], own.shape[0]
            here = (of >= 0) & (of < bags)
            of = of.clamp(0, bags - 1)
        if self.own_rows:
            index, inside = inside_of(index, rest[-1])
            counted, here = here, here & inside
        else:
            counted = here
        counts = torch.zeros(bags, dtype=torch.int64, device=of.device).index_add(0, of, counted.long())
        return Rows(
            index, of, here, counts.clamp(min=1)[:, None] if self.mean else torch.ones_like(counts)[:, None]
        )


class Rows(NamedTuple):
    """What is added up, as a device counts it."""

    index: Tensor
    """Row of the table."""
    bag: Tensor
    here: Tensor
    """Whether the device has both."""
    counts: Tensor
    """By how much each bag is divided."""

    def masked(self, values: Tensor) -> Tensor:
        """``values`` of rows, zeros where they are another device's."""
        return torch.where(self.here[:, None], values, 0)


def forward(runner: Any, title: str, node: Any, given: Sequence[Any], how: Mapping[str, Any]) -> Any:
    """Sums or means by bag; nothing stands for what only other derivatives read."""
    table, index, starts, _, mode, _, weights, last, padding = _arguments(given, how, FORWARD)
    bags = _bags(runner, f"{title}:0", node.args[2], table.shape[0], starts.shape[0], mode)
    if bags is None or last or padding >= 0 or (weights is not None and bags.uneven):
        return NotImplemented

    def add(table: Tensor, index: Tensor, starts: Tensor, *rest: Tensor) -> Tensor:
        rows = bags.of_rows(index, starts, rest)
        picked = rows.masked(table[rows.index])
        picked = picked if weights is None else picked * rest[0][:, None]
        made = picked.new_zeros((rows.counts.shape[0], table.shape[1])).index_add(0, rows.bag, picked)
        return made / rows.counts if bags.mean else made

    read, more = bags.read(index, starts)
    operands = [table, *read, *([] if weights is None else [weights]), *more]
    sums = runner.run(f"{title}:0", add, operands, "yes")
    return [sums, *(_nothing(runner, tuple(x.shape)) for x in node.meta["val"][1:])]


def of_table(runner: Any, title: str, node: Any, given: Sequence[Any], how: Mapping[str, Any]) -> Any:
    """The gradient of the table."""
    gradient, index, starts, *others, rows, _, mode, _, weights, padding = _arguments(given, how, BACKWARD)
    bags = _bags(runner, title, node.args[2], rows, starts.shape[0], mode, written=True)
    if bags is None or padding >= 0 or (weights is not None and bags.uneven):
        return NotImplemented

    def derive(of: Tensor, index: Tensor, starts: Tensor, *rest: Tensor) -> Tensor:
        rows = bags.of_rows(index, starts, rest)
        each = rows.masked((of / rows.counts if bags.mean else of)[rows.bag])
        each = each if weights is None else each * rest[len(others)][:, None]
        return each.new_zeros(runner.shapes_here(title)[0]).index_add(0, rows.index, each)

    read, more = bags.read(index, starts)
    operands = [gradient, *read, *others, *([] if weights is None else [weights]), *more]
    return runner.run(title, derive, operands, "yes")


FORWARD: Mapping[str, Any] = MappingProxyType(
    {
        "weight": None, "indices": None, "offsets": None, "scale_grad_by_freq": False, "mode": SUM, "sparse": False,
        "per_sample_weights": None, "include_last_offset": False, "padding_idx": -1,
    }
)  # fmt: skip
BACKWARD: Mapping[str, Any] = MappingProxyType(
    {
        "grad": None, "indices": None, "offsets": None, "offset2bag": None, "bag_size": None, "maximum_indices": None,
        "num_weights": None, "scale_grad_by_freq": False, "mode": SUM, "sparse": False, "per_sample_weights": None,
        "padding_idx": -1,
    }
)  # fmt: skip
"""Arguments of the operators, with what they are where they are left out."""


def _arguments(given: Sequence[Any], how: Mapping[str, Any], names: Mapping[str, Any]) -> list[Any]:
    found = {**names, **dict(zip(names, given, strict=False)), **how}
    return [found[name] for name in names]


def _bags(
    runner: Any, title: str, starts: Any, rows: int, count: int, mode: int, written: bool = False
) -> Bags | None:
    """None where the largest of each bag is taken; ``written`` is the table, of a gradient."""
    site = runner.site(title)
    if site is None or mode not in (SUM, MEAN):
        return None
    table, bags = (site.writes[0], site.reads[0]) if written else (site.reads[0], site.writes[0])
    each = starts.args[2] if kind_of(starts.target) == "arange" and len(starts.args) == 3 else 0
    runner.at = title
    return Bags(runner, mode == MEAN, each, count, rows, site.lies(bags)[0], site.lies(table)[0])


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

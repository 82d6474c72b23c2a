"""Views of arrays: what wants one elsewhere moves what lies behind it, as priced, for all that read either."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from planner.tracing.cleaning.draft import Draft
from planner.tracing.cleaning.views import read_through
from planner.tracing.factors import Rule
from planner.tracing.layouts import Partition
from planner.tracing.program import Dims, Operation, elements


class View(NamedTuple):
    """A view, and what it shows."""

    array: Any
    equation: Any
    """What makes it of its source; None where that is said by ``loops`` alone (`order_of`)."""
    source: Any
    loops: Rule
    name: str = ""
    """Of one that some read as it lies; others read what it shows."""

    def behind(
        self, partition: Partition, sizes: Mapping[str, int], repeats: bool = False
    ) -> Partition | None:
        """How the source must lie for the view to lie so; None where no layout of it does.

        With ``repeats``, axes that split a dim along which the source is repeated are left out: the view is cut then.
        """
        split = split_of(self.loops.writes[0], partition)
        for factor in set(split.values()):
            if self.loops.sizes[factor] % elements(sizes[a] for a, f in split.items() if f == factor):
                return None
        found = partition_of(self.loops.reads[0], {a: split[a] for a in sizes if a in split})
        wanted = {axis for axes in partition for axis in axes}
        if repeats:
            there = {f for dim in self.loops.reads[0] for f in dim}
            wanted -= {a for a, f in split.items() if f not in there}
        return found if {axis for axes in found for axis in axes} == wanted else None


def through(view: View, shown: Callable[[Any], View | None]) -> Iterator[View]:
    """The view, and the same of what its source shows, if that is a view, and so on.

    A dim in between may have as its minor part what is split, so that it cannot say how both lie.
    """
    found: View | None = view
    while found is not None:
        yield found
        inner = shown(found.source)
        found = None if inner is None else _joined(found, inner)


def _joined(outer: View, inner: View) -> View | None:
    """A view of a view as one; None where their dims do not nest."""
    reader, behind = (Draft.of(_operation(view.loops)) for view in (outer, inner))
    if reader.whole or behind.whole or not read_through(reader, 0, behind):
        return None
    loops = Rule("view", tuple(reader.sizes), tuple(reader.reads), tuple(reader.writes))
    return outer._replace(equation=None, source=inner.source, loops=loops)


def _operation(loops: Rule) -> Operation:
    return Operation(name="view", primitive="view", inputs=("source",), outputs=("view",), **loops._asdict())


class Order(NamedTuple):
    """How a view is made of its source."""

    apart: list[int]
    """Sizes of the loops, as the source has them."""
    turned: list[int]
    """Which of these dims comes where."""
    new: list[int]
    """Places of loops that the source lacks, then."""
    repeated: list[int]
    """Sizes of all loops, as the view has them."""
    joined: list[int]
    """Its shape."""


def order_of(loops: Rule, sizes: Sequence[int]) -> Order:
    """Of a view whose loops have these ``sizes``, on one device or in all."""
    (reads,), (writes,) = loops.reads, loops.writes
    there, wanted = ([f for dim in dims for f in dim] for dims in (reads, writes))
    return Order(
        [sizes[f] for f in there],
        [there.index(f) for f in wanted if f in there],
        [place for place, f in enumerate(wanted) if f not in there],
        [sizes[f] for f in wanted],
        [elements(sizes[f] for f in dim) for dim in writes],
    )


def split_of(dims: Dims, partition: Partition) -> dict[str, int]:
    """Axis -> the loop that it splits, the major one of its dim."""
    return {axis: dim[0] for dim, axes in zip(dims, partition, strict=True) if dim for axis in axes}


def partition_of(dims: Dims, split: Mapping[str, int]) -> Partition:
    """How an array lies when loops are split so."""
    return tuple(tuple(axis for axis, f in split.items() if dim and dim[0] == f) for dim in dims)

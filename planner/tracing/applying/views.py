"""Views of arrays: what wants one elsewhere moves what lies behind it, as priced, for all that read either."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from planner.tracing.factors import Rule
from planner.tracing.layouts import Partition
from planner.tracing.program import Dims, elements


class View(NamedTuple):
    """A view, and what it shows."""

    array: Any
    equation: Any
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


def split_of(dims: Dims, partition: Partition) -> dict[str, int]:
    """Axis -> the loop that it splits, the major one of its dim."""
    return {axis: dim[0] for dim, axes in zip(dims, partition, strict=True) if dim for axis in axes}


def partition_of(dims: Dims, split: Mapping[str, int]) -> Partition:
    """How an array lies when loops are split so."""
    return tuple(tuple(axis for axis, f in split.items() if dim and dim[0] == f) for dim in dims)

"""Where arrays lie on their way from one layout to another, told to XLA so that it moves them as was priced."""

import math
from collections.abc import Iterator, Mapping, Sequence

from planner.tracing.layouts import Partition


def between(source: Partition, target: Partition, axes: Sequence[str]) -> Iterator[Partition]:
    """Where an array lies on its way from one layout to another, by the axes' names, outermost first.

    It is cut first and gathered last; axes leave for several dims in turn. XLA gathers the whole array unless it is
    told each place.
    """

    def place() -> Partition:
        return tuple(tuple(a for a in axes if at.get(a) == dim) for dim in range(len(source)))

    at, to = ({axis: dim for dim, named in enumerate(each) for axis in named} for each in (source, target))
    gathered = bool(at.keys() - to.keys())
    pairs: dict[tuple[int, int], list[str]] = {}
    for axis, dim in to.items():
        if at.get(axis, dim) != dim:
            pairs.setdefault((at[axis], dim), []).append(axis)
    if (gathered or pairs) and to.keys() - at.keys():
        at = to | at
        yield place()
    meet = len({dim for _, dim in pairs}) < len(pairs)  # inner axes leave first, outer ones arrive first
    order = sorted(pairs, key=lambda pair: max(map(axes.index, pairs[pair])), reverse=not meet)
    for pair in order if gathered else order[:-1]:
        at |= dict.fromkeys(pairs[pair], pair[1])
        yield place()


def fits(shape: Sequence[int], partition: Partition, mesh: Mapping[str, int]) -> bool:
    """Whether the axes of each dim divide it."""
    return all(
        size % math.prod(mesh[axis] for axis in named) == 0
        for size, named in zip(shape, partition, strict=True)
    )

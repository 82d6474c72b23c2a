"""Gradients of weights that a partitioner scatters: in rings, or along rows in chunks of one size."""

import math

from planner.evaluation.weights import Shape, WeightGroup
from planner.sharding.chunks import TILE_COLUMNS
from planner.sharding.partitioning import Padded, SlicePartitioner


def padded_gradients(
    partitioner: SlicePartitioner, group: WeightGroup, ranks: int, nearest: bool, width: float
) -> Padded:
    """Of all weights of ``group``, whose states ``ranks`` share without rings; ``nearest`` neighbours or not.

    ``width`` is that of an element of a gradient [bytes].
    """
    elements = [math.prod(_sizes(shape)) for shape in group.shapes]
    if not sum(elements):
        return Padded()
    each = (_padded(partitioner, shape, ranks, nearest, width) for shape in group.shapes)
    shares = (tuple(n * share for share in padded) for n, padded in zip(elements, each, strict=True))
    return Padded(*(sum(total) / sum(elements) for total in zip(*shares, strict=True)))


def unlike_parts(group: WeightGroup, ranks: int) -> float:
    """Share of the weights left where of those whose parts on ``ranks`` have one shape only one counts."""
    once = {_part(shape, ranks): math.prod(_sizes(shape)) for shape in group.shapes}
    everything = sum(math.prod(_sizes(shape)) for shape in group.shapes)
    return sum(once.values()) / everything if everything else 1.0


def _sizes(shape: Shape) -> tuple[float, ...]:
    return tuple(size for size, _ in shape)


def _split(shape: Shape, ranks: int) -> int:
    """The dim over which states lie: of those that divide, the largest whole one (`planner.exporters`); 0 if none."""
    fitting = [i for i, (size, _) in enumerate(shape) if size % ranks == 0]
    return min(fitting, key=lambda i: (shape[i][1], -shape[i][0]), default=0)


def _part(shape: Shape, ranks: int) -> tuple[float, ...]:
    split = _split(shape, ranks)
    return tuple(size / (ranks if i == split else 1) for i, (size, _) in enumerate(shape))


def _padded(partitioner: SlicePartitioner, shape: Shape, ranks: int, nearest: bool, width: float) -> Padded:
    """Of one weight: it lies in rows along the last dim but one, or the last where no part of it fills whole lanes.

    So does one whose other dim alone fills whole lanes, as `planner.evaluation.lookup` has it of tables.
    """
    split, last = _split(shape, ranks), len(shape) - 1
    part = _part(shape, ranks)[split] if shape else 0.0
    whole = part % TILE_COLUMNS == 0
    if last > 0 and split == last and not whole:
        return partitioner.scattered(part, shape[-2][0], ranks, nearest)
    if last > 0 and split == last:
        return partitioner.in_columns(math.prod(_sizes(shape)[:-1]), part, ranks, width)
    if last == 1 and whole and shape[last][0] % TILE_COLUMNS:
        return partitioner.in_columns(shape[last][0], part, ranks, width)
    if last > 0 and split == last - 1:
        return partitioner.scattered(part, shape[-1][0], ranks, nearest)
    return Padded()

"""The weights of a block on one device: those that are trained, and those that are frozen."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from planner.graph import Block, Op, Tensor
from planner.sharding.frozen import frozen_bytes
from planner.sharding.pricing import Pricer
from planner.sharding.spec import Strategy, input_spec

Shape = tuple[tuple[float, bool], ...]
"""Size of each dim of a weight on one device, those that its product contracts first, and whether it is a part."""


class WeightGroup(NamedTuple):
    """Weights whose gradients are summed over the same axes."""

    sync_axes: tuple[str, ...]
    elements: float
    """On one device, before any ZeRO sharding."""
    shapes: tuple["Shape", ...] = ()
    """Of each array of them there, where a compiler partitions programs."""


class FrozenGroup(NamedTuple):
    """Frozen weights of which ranks along the same axes have the same [bytes on one device]."""

    sync_axes: tuple[str, ...]
    data: float
    """Before any ZeRO sharding, which is that of trained weights."""
    scales: float
    """Constants of quantised weights, which are never sharded.

    Source: bitsandbytes-foundation/bitsandbytes ``nn/modules.py`` (``quant_state`` is an attribute, no parameter).
    """

    def times(self, count: float) -> "FrozenGroup":
        """``count`` of these."""
        return self._replace(data=count * self.data, scales=count * self.scales)


class Weights(NamedTuple):
    """Of one block, by the axes whose ranks have the same."""

    trained: tuple[WeightGroup, ...]
    frozen: tuple[FrozenGroup, ...] = ()


def weights_of(
    pricer: Pricer,
    block: Block,
    assignment: Mapping[str, Strategy],
    padded: Callable[[Tensor, Strategy], float],
) -> Weights:
    """Weights of ``block`` on one device; ``padded`` says how much longer one is stored than it is."""
    trained: dict[tuple[str, ...], float] = {}
    shapes: dict[tuple[str, ...], tuple[Shape, ...]] = {}
    partitioned = pricer.partitioned is not None
    frozen: dict[tuple[str, ...], FrozenGroup] = {}
    for op in block.ops:
        strategy = assignment[op.name]
        for axes, found in _shapes(pricer, block, op, strategy) if partitioned else ():
            shapes[axes] = (*shapes.get(axes, ()), found)
        for weight in (block.tensor[name] for name in op.weights):
            axes = pricer.sync_axes(weight, strategy)
            local = pricer.sizes.elements(weight, input_spec(pricer.graph, weight, strategy))
            local *= padded(weight, strategy)
            if weight.role == "weight":
                trained[axes] = trained.get(axes, 0.0) + local
                continue
            each = frozen_bytes(pricer.job, pricer.sizes, block, op, weight)
            before = frozen.get(axes, FrozenGroup(axes, 0.0, 0.0))
            data, scales = before.data + local * each.data, before.scales + local * each.scales
            frozen[axes] = FrozenGroup(axes, data, scales)
    groups = (WeightGroup(axes, elements, shapes.get(axes, ())) for axes, elements in trained.items())
    return Weights(tuple(groups), tuple(frozen.values()))


def _shapes(
    pricer: Pricer, block: Block, op: Op, strategy: Strategy
) -> Iterator[tuple[tuple[str, ...], Shape]]:
    """Of each array of weights of ``op`` that are trained, and the axes that their gradients are summed over."""
    arrays: dict[tuple[tuple[str, ...], str], list[Tensor]] = {}
    for weight in (block.tensor[name] for name in op.weights):
        if weight.role == "weight":
            axes = pricer.sync_axes(weight, strategy)
            arrays.setdefault((axes, weight.path or weight.name), []).append(weight)
    for (axes, _), weights in arrays.items():
        yield axes, _shape(pricer, block, op, weights, strategy)


def _shape(pricer: Pricer, block: Block, op: Op, weights: Sequence[Tensor], strategy: Strategy) -> Shape:
    """Of one array; several weights in it lie one after the other, along what they have apart from inputs."""
    read, made = ({d for n in names for d in block.tensor[n].dims} for names in (op.inputs, op.outputs))
    beside = (made - read) if len(weights) > 1 else set()
    common: Shape = ()
    columns, split = 0.0, False
    for weight in weights:
        shards = input_spec(pricer.graph, weight, strategy).shards
        local = {dim: pricer.sizes.local(dim, shards) for dim in sorted(weight.dims, key=made.__contains__)}
        parts = {dim: (size, size < pricer.sizes.full(dim)) for dim, size in local.items()}
        common = tuple(part for dim, part in parts.items() if dim not in beside)
        columns += math.prod(size for dim, size in local.items() if dim in beside)
        split = split or any(cut for dim, (_, cut) in parts.items() if dim in beside)
    return (*common, (columns, split)) if beside else common

"""The weights of a block on one device: those that are trained, and those that are frozen."""

from collections.abc import Callable, Mapping
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
    """Of each of them there, where a compiler partitions programs."""


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
        for weight in (block.tensor[name] for name in op.weights):
            axes = pricer.sync_axes(weight, strategy)
            local = pricer.sizes.elements(weight, input_spec(pricer.graph, weight, strategy))
            local *= padded(weight, strategy)
            if weight.role == "weight":
                trained[axes] = trained.get(axes, 0.0) + local
                if partitioned:
                    shapes[axes] = (*shapes.get(axes, ()), _shape(pricer, block, op, weight, strategy))
                continue
            each = frozen_bytes(pricer.job, pricer.sizes, block, op, weight)
            before = frozen.get(axes, FrozenGroup(axes, 0.0, 0.0))
            data, scales = before.data + local * each.data, before.scales + local * each.scales
            frozen[axes] = FrozenGroup(axes, data, scales)
    groups = (WeightGroup(axes, elements, shapes.get(axes, ())) for axes, elements in trained.items())
    return Weights(tuple(groups), tuple(frozen.values()))


def _shape(pricer: Pricer, block: Block, op: Op, weight: Tensor, strategy: Strategy) -> Shape:
    shards = input_spec(pricer.graph, weight, strategy).shards
    made = {dim for name in op.outputs for dim in block.tensor[name].dims}
    dims = sorted(weight.dims, key=lambda dim: dim in made)
    local = ((pricer.sizes.local(dim, shards), pricer.sizes.full(dim)) for dim in dims)
    return tuple((size, size < full) for size, full in local)

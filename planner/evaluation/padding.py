"""Parameters that are sharded one by one: each is padded along its rows to a multiple of the ranks."""

import math

from planner.evaluation.terms import Assignment
from planner.evaluation.weights import Weights, weights_of
from planner.graph import Block, Tensor
from planner.operators import INNER_DIMS
from planner.sharding.pricing import Pricer
from planner.sharding.spec import Strategy, input_spec


def padded_weights(pricer: Pricer, block: Block, assignment: Assignment, shard_degree: int) -> Weights:
    """Weights of ``block`` as stored over ``shard_degree`` ranks: ``ceil(rows / ranks) ranks`` rows each.

    Source: pytorch/pytorch ``torch/distributed/fsdp/_fully_shard/_fsdp_param.py``.
    """
    sizes = pricer.mesh.sizes
    degrees = tuple(sizes[axis] for axis in sizes if axis != "data")  # no weight is split over data ranks
    strategies = tuple(assignment[op.name] for op in block.ops if op.weights)
    key = ("padded", block.name, shard_degree, degrees, strategies)
    found: Weights | None = pricer.tables.get(key)
    if found is None:

        def padded(weight: Tensor, strategy: Strategy) -> float:
            rows = _rows(pricer, weight, strategy)
            return math.ceil(rows / shard_degree) * shard_degree / rows if rows else 1.0

        found = pricer.tables[key] = weights_of(pricer, block, assignment, padded)
    return found


def _rows(pricer: Pricer, weight: Tensor, strategy: Strategy) -> float:
    """Rows of a parameter on one device; 0 for stacked experts where these are sharded along another dim."""
    first, *rest = weight.dims or ("",)
    if not first:  # a number
        return 1.0
    if first == "experts" and not pricer.software.pads_experts:
        return 0.0
    heads = pricer.sizes.full(rest[0]) if len(rest) > 1 and rest[0] in INNER_DIMS else 1
    return pricer.sizes.local(first, input_spec(pricer.graph, weight, strategy).shards) * heads

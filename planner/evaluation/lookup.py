"""Tokens that ranks look up in each other's shards of an embedding table, by a partitioner, instead of gathering it.

Where each rank has some rows of the table, it looks up the tokens of all ranks and what is found is summed, each rank
keeping its own; the gradient of all of them is gathered, so that each rank adds up that of its rows. That is done where
what is looked up is smaller than the table. Where each has some columns, as the tensor axis splits the rows, ranks
exchange the columns of their tokens, there and back. A table that the head shares is gathered for it, as it was priced.

Source: openxla/xla ``xla/service/spmd/gather_scatter_handler.cc`` (trivially sliced and passed-through operand dims);
programs compiled for TPU topologies (jax 0.10.2, libtpu 0.0.52).
"""

import math
from collections.abc import Mapping

from cost_models.collectives import COLLECTIVES, wire_bytes
from planner.evaluation.stages import UnitCost
from planner.evaluation.states import Shards, shards_of
from planner.graph import Block
from planner.plans import Parallelism
from planner.sharding.partitioning import SlicePartitioner, slice_partitioner
from planner.sharding.pricing import Pricer


def with_lookup(unit: UnitCost, pricer: Pricer, block: Block, plan: Parallelism) -> UnitCost:
    """``unit`` of ``block`` as it is, or with exchanges in place of its table's gather and of its gradient's sum."""
    partitioner = slice_partitioner(pricer.software, pricer.mesh.cluster)
    tables = [op for op in block.ops if op.weights]
    if partitioner is None or plan.zero_stage < 3 or pricer.graph.tied:
        return unit
    if [op.kind for op in tables] != ["embedding"]:
        return unit
    table, found = block.tensor[tables[0].weights[0]], block.tensor[tables[0].outputs[0]]
    shards = shards_of(unit.block.weights[0], pricer.mesh, plan.shard_degree)
    width = pricer.element_bytes(found)
    found_bytes = width * math.prod(pricer.sizes.full(d) for d in found.dims) / shards.outer.size
    by_row = plan.tensor == 1 and pricer.graph.dims["vocab"] % shards.inner.size == 0
    if shards.inner.size == 1 or (by_row and found_bytes > width * pricer.graph.elements(table)):
        return unit
    exchanges = _by_row(found_bytes, shards, partitioner) if by_row else _by_column(found_bytes, shards)
    return _exchanging(unit, shards, exchanges)


def _by_row(
    found_bytes: float, shards: Shards, partitioner: SlicePartitioner
) -> tuple[tuple[str, float], ...]:
    summed = "all_reduce" if partitioner.sums_whole(shards.inner) else "reduce_scatter"
    return (summed, found_bytes), ("all_gather", found_bytes)


def _by_column(found_bytes: float, shards: Shards) -> tuple[tuple[str, float], ...]:
    own = found_bytes / shards.inner.size
    return ("all_to_all", own), ("all_to_all", own)


def _exchanging(unit: UnitCost, shards: Shards, exchanges: tuple[tuple[str, float], ...]) -> UnitCost:
    """``unit`` with a collective in the forward and one in the backward, by name and bytes of the whole array."""
    block, group = unit.block, shards.inner
    forward, backward = (COLLECTIVES[name](size, group).seconds for name, size in exchanges)
    sent = dict(block.sent_bytes)
    for name, size in exchanges:
        sent[name] = sent.get(name, 0.0) + wire_bytes(name, size, group.size)
    exchanged = block._replace(
        comm_forward=_with_data(block.comm_forward, forward),
        comm_backward=_with_data(block.comm_backward, backward),
        sent_bytes=sent,
    )
    kept = unit.sync._replace(gather=0, gather_bytes=0, reduce=0, reduce_bytes=0, whole_bytes=0)
    return unit._replace(block=exchanged, sync=kept)


def _with_data(seconds: Mapping[str, float], more: float) -> dict[str, float]:
    return {**seconds, "data": seconds.get("data", 0.0) + more}

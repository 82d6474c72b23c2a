"""Tensor ranks that share heads of keys and values, of which there are fewer than ranks.

Megatron Core cuts the joint projection into equal parts, so that no rank makes a whole head. Ranks gather all that they
made, put its parts side by side, and each takes the slice of its group. Backward the gradient of that slice is written
into zeros of the whole, whose parts are laid one behind the other and scattered.

Source: NVIDIA/Megatron-LM@2edffadb52 ``megatron/core/transformer/attention.py`` (``get_query_key_value_tensors``, where
``num_query_groups < world_size``) and ``megatron/core/tensor_parallel/mappings.py`` (``_gather_along_last_dim``,
``_reduce_scatter_along_last_dim``).
"""

from typing import TYPE_CHECKING

from cost_models.collectives import COLLECTIVES
from cost_models.compute import stream_seconds
from planner.graph import HEAD_DIMS, KV_HEAD_DIMS, Block, Op
from planner.models.adapter_steps import narrow_product
from planner.sharding.costs import Comm, OpCost
from planner.sharding.spec import Strategy, input_spec

if TYPE_CHECKING:
    from planner.sharding.pricing import Pricer


def with_shared_heads(pricer: "Pricer", block: Block, op: Op, strategy: Strategy, cost: OpCost) -> OpCost:
    """``cost`` of a projection of queries, keys and values whose tensor ranks are more than its key heads."""
    outputs = [block.tensor[name] for name in op.outputs]
    # Of an adapter's products the sum is what is shared.
    shares = pricer.software.gathers_few_heads and not narrow_product(op, block)
    if not shares or not _shares_heads(pricer, op, block, strategy):
        return cost
    others = tuple(split for split in strategy if split[0] != "tensor")
    whole = sum(pricer.tensor_bytes(t, input_spec(pricer.graph, t, others)) for t in outputs)
    group = whole / _kv_heads(pricer, op, block)
    device = pricer.mesh.cluster.device
    side_by_side = stream_seconds(2 * whole, device).seconds
    into_zeros = stream_seconds(whole + 2 * group, device).seconds
    return cost._replace(
        forward=cost.forward + side_by_side,
        backward_input=cost.backward_input + into_zeros + side_by_side,
        comm_forward=(*cost.comm_forward, _exposed(pricer, "all_gather", whole)),
        comm_backward=(*cost.comm_backward, _exposed(pricer, "reduce_scatter", whole)),
    )


def _exposed(pricer: "Pricer", collective: str, full_bytes: float) -> Comm:
    """Over tensor ranks, none of it hidden: Transformer Engine overlaps collectives of its own products only."""
    seconds = COLLECTIVES[collective](full_bytes, pricer.mesh.group(("tensor",))).seconds
    return pricer.comm(collective, ("tensor",), full_bytes)._replace(seconds=seconds)


def _shares_heads(pricer: "Pricer", op: Op, block: Block, strategy: Strategy) -> bool:
    splits = any(axis == "tensor" and "heads" in dim for axis, dim in strategy)
    made = {dim for name in op.outputs for dim in block.tensor[name].dims}
    together = bool(op.weights) and not made.isdisjoint(HEAD_DIMS)
    return splits and together and 0 < _kv_heads(pricer, op, block) < pricer.mesh.size("tensor")


def _kv_heads(pricer: "Pricer", op: Op, block: Block) -> int:
    """Heads of the keys that a projection makes; 0 where it makes none."""
    made = (dim for name in op.outputs for dim in block.tensor[name].dims)
    return next((pricer.graph.dims[dim] for dim in made if dim in KV_HEAD_DIMS), 0)

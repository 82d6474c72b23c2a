"""What tensor ranks exchange around the two products of an adapter.

Beside a product whose columns are split, the product down has parts of the rank, which are gathered before the product
up; its gradient is summed whole, of which each rank keeps its part. Beside one whose rows are split, what the product
down makes is summed whole, and the product up makes columns of the result, which are gathered, though ranks that share
the sequence then keep their own tokens alone, or exchanged. The way back is the same in reverse. Nothing of it is
hidden.

What the products read is there where the one beside them has gathered it, and its gradient is summed with that of this
one. Where gathers overlap products, as pieces that no one else gets, adapters gather and scatter by themselves.

Source: NVIDIA-NeMo/Megatron-Bridge@2afd2d34 ``src/megatron/bridge/peft/utils.py`` (``ParallelLinearAdapter.forward``,
``_All2AllHp2Sp``, ``get_adapter_attributes_from_linear``); NVIDIA/Megatron-LM
``megatron/core/tensor_parallel/layers.py`` (``ColumnParallelLinear``: ``allreduce_dgrad``), ``mappings.py``
(``_GatherFromModelParallelRegion``: gathers forward, which copies columns beside each other, parts backward;
``_ScatterToSequenceParallelRegion``: the reverse); NVIDIA/TransformerEngine
``transformer_engine/pytorch/module/layernorm_linear.py`` (``return_layernorm_output_gathered``: gradients are added
before they are scattered; a frozen weight gathers nothing again).
"""

from typing import TYPE_CHECKING

from cost_models.compute import stream_seconds
from planner.graph import TOKEN_DIMS, Block, Op, Tensor
from planner.models.adapter_steps import GATHERED, RANK, narrow_product
from planner.sharding.costs import Comm, EdgeCost
from planner.sharding.layouts import adapter_dim
from planner.sharding.resharding import Move, moves
from planner.sharding.spec import ShardingSpec, Strategy, gradient_of_input, gradient_of_output

if TYPE_CHECKING:
    from planner.sharding.pricing import Pricer

OVER_TENSOR = ("tensor",)


def is_of_adapter(pricer: "Pricer", block: Block, tensor: Tensor, reader: Op) -> bool:
    """Whether ``tensor`` is read by an adapter, or added by it, on a stack that splits adapters over tensor ranks."""
    if pricer.software.adapts != "products" or pricer.job.adapter is None:
        return False
    makers = [op for op in block.ops if tensor.name in op.outputs]
    added = any(narrow_product(op, block) == "up" for op in makers)
    return added or narrow_product(reader, block) is not None or GATHERED in reader.attributes


def thin_edge(
    pricer: "Pricer", block: Block, tensor: Tensor, reader: Op, source: ShardingSpec, consumer: Strategy
) -> EdgeCost:
    """Price ``tensor`` on its way to ``reader``, and its gradient back."""
    sizes, width = pricer.sizes, pricer.element_bytes(tensor)
    gradient = gradient_of_input(pricer.graph, tensor, consumer)
    forward = moves(sizes, tensor, source, gradient_of_output(gradient), width)
    backward = moves(sizes, tensor, gradient, gradient_of_output(source), width)
    if RANK in tensor.dims:
        backward = _each(backward, "reduce_scatter", "all_reduce")
    elif narrow_product(reader, block) is None and GATHERED not in reader.attributes:
        if not (pricer.job.adapter and pricer.job.adapter.a2a_experimental):
            ranks = pricer.mesh.size("tensor")
            forward, backward = (_each(way, "all_to_all", "all_gather", ranks) for way in (forward, backward))
    elif GATHERED in reader.attributes:
        forward, backward = _shared(pricer, block, tensor, reader, source, (forward, backward))
    there, back = (tuple(pricer.comm(*m, exposed=True) for m in way) for way in (forward, backward))
    if source.on("tensor") in TOKEN_DIMS:
        return EdgeCost(there, back)
    return EdgeCost(tuple(_side_by_side(pricer, m, c) for m, c in zip(forward, there, strict=True)), back)


def _side_by_side(pricer: "Pricer", move: Move, comm: Comm) -> Comm:
    """``comm`` with putting gathered columns, which come rank by rank, beside each other."""
    if (move.collective, move.axes) != ("all_gather", OVER_TENSOR):
        return comm
    copied = stream_seconds(2 * move.full_bytes, pricer.mesh.cluster.device).seconds
    return comm._replace(seconds=comm.seconds + copied)


def _each(way: tuple[Move, ...], found: str, meant: str, times: float = 1.0) -> tuple[Move, ...]:
    """``way`` with ``meant`` in place of ``found`` over tensor ranks, of an array so many times as large."""
    return tuple(
        Move(meant, m.axes, times * m.full_bytes) if (m.collective, m.axes) == (found, OVER_TENSOR) else m
        for m in way
    )


def _shared(
    pricer: "Pricer",
    block: Block,
    tensor: Tensor,
    reader: Op,
    source: ShardingSpec,
    ways: tuple[tuple[Move, ...], tuple[Move, ...]],
) -> tuple[tuple[Move, ...], tuple[Move, ...]]:
    """What is left of both ways where the product beside the adapter gathers for both.

    The gradient of what dropout left is a sum to be made, as that of what dropout read then is: it is made with that of
    the product beside it, or, where tensor ranks hold whole sequences, by itself.
    """
    forward, backward = (tuple(m for m in way if m.axes != OVER_TENSOR) for way in ways)
    maker = next((op for op in block.ops if tensor.name in op.outputs), None)
    if (maker is not None and GATHERED in maker.attributes) or source.on("tensor") in TOKEN_DIMS:
        return forward, backward
    if narrow_product(reader, block) or pricer.mesh.size("tensor") == 1:
        return ways
    down = next(op for op in block.ops if reader.outputs[0] in op.inputs)
    if adapter_dim(down, block, pricer.sizes, sequence_parallel=False) != RANK:
        return ways
    return forward, (*backward, Move("all_reduce", OVER_TENSOR, pricer.tensor_bytes(tensor, source)))

"""Frozen weights: how they are stored, and what products by them cost.

Source: bitsandbytes-foundation/bitsandbytes ``bitsandbytes/autograd/_functions.py`` (``MatMul4Bit``: forward and
backward each write the weight in the training type, then multiply).
"""

from collections.abc import Iterator

from cost_models.compute import stream_seconds
from cost_models.quantization import Quantized, quantized_bytes
from planner.flops import reduced_dims
from planner.graph import Block, Op, Tensor, trained_weights
from planner.operators import operator_rule
from planner.plans import Job
from planner.sharding.costs import OpCost
from planner.sharding.spec import Sizes, Strategy, input_spec
from planner.sharding.widths import DTYPE_BYTES


def frozen_bytes(job: Job, sizes: Sizes, block: Block, op: Op, weight: Tensor) -> Quantized:
    """What a frozen weight takes [bytes per element]: quantised if it is a linear module's of a layer."""
    adapter, graph = job.adapter, sizes.graph
    whole = Quantized(DTYPE_BYTES[job.weight_dtype], 0.0)
    if adapter is None or adapter.base is None or block.name in (graph.first, graph.last):
        return whole
    factor = operator_rule(op).arithmetic == "matmul" and set(reduced_dims(op, block)) & set(weight.dims)
    return quantized_bytes(adapter.base) if factor and weight.path.endswith(".weight") else whole


def _quantised(
    job: Job, sizes: Sizes, block: Block, op: Op, strategy: Strategy
) -> Iterator[tuple[float, Quantized]]:
    """Elements on one device, and bytes of each, of the quantised weights of ``op``."""
    for weight in (t for t in map(block.tensor.__getitem__, op.weights) if t.role == "frozen"):
        size = frozen_bytes(job, sizes, block, op, weight)
        if size.data < DTYPE_BYTES[job.precision]:
            yield sizes.elements(weight, input_spec(sizes.graph, weight, strategy)), size


def widened_bytes(job: Job, sizes: Sizes, block: Block, op: Op, strategy: Strategy) -> float:
    """The largest quantised weight of ``op`` as it is multiplied [bytes]; 0 where none is quantised."""
    width = DTYPE_BYTES[job.precision]
    return max((width * elements for elements, _ in _quantised(job, sizes, block, op, strategy)), default=0.0)


def spared(job: Job, sizes: Sizes, block: Block, op: Op, strategy: Strategy, cost: OpCost) -> OpCost:
    """``cost`` of ``op`` without gradients of frozen weights; quantised ones are read and widened in both directions.

    What reads nothing but data, as a frozen embedding, has no backward.
    """
    if not op.weights or trained_weights(op, block):
        return cost
    width = DTYPE_BYTES[job.precision]
    moved = sum(
        n * (size.data + size.scales + width) for n, size in _quantised(job, sizes, block, op, strategy)
    )
    seconds = stream_seconds(moved, sizes.mesh.cluster.device).seconds if moved else 0.0
    read = any(block.tensor[name].role == "activation" for name in op.inputs)
    backward = cost.backward_input + seconds if read else 0.0
    return cost._replace(forward=cost.forward + seconds, backward_input=backward, backward_weight=0.0)

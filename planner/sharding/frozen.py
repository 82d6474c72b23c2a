"""Frozen weights: how they are stored, and what products by them cost.

Weights in 8 bits that are multiplied so are not widened. Products of the backward read them transposed, which is
written each time where a device multiplies one layout alone. Weights in 16 bits that are multiplied in 8 have casts in
every layout that stay, as trained ones do.

Source: bitsandbytes-foundation/bitsandbytes ``bitsandbytes/autograd/_functions.py`` (``MatMul4Bit``: forward and
backward each write the weight in the training type, then multiply); NVIDIA/TransformerEngine
``transformer_engine/pytorch/module/layernorm_linear.py`` (``primary_weights_in_fp8``: ``weight.transpose``, kept only
where micro-batches are told apart), which NVIDIA/NeMo ``scripts/performance/llm/mlperf_lora_llama2_70b.py`` asks for
with ``fp8_param_gather`` and ``disable_parameter_transpose_cache``.
"""

from collections.abc import Iterator
from fnmatch import fnmatchcase

from cluster_specs.software import SoftwareSpec
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
        if size.data < DTYPE_BYTES[job.precision] and not multiplied_as_stored(job):
            yield sizes.elements(weight, input_spec(sizes.graph, weight, strategy)), size


def multiplied_as_stored(job: Job) -> bool:
    """Whether products of frozen weights read these as they are stored, in 8 bits."""
    return job.adapter is not None and job.adapter.base == job.precision == "fp8"


def _transposed(
    job: Job, sizes: Sizes, block: Block, op: Op, strategy: Strategy, software: SoftwareSpec
) -> float:
    """Bytes of transposing what the backward of ``op`` reads of frozen weights that are stored as multiplied."""
    device = sizes.mesh.cluster.device.name
    if not multiplied_as_stored(job) or any(fnmatchcase(device, p) for p in software.reads_either or ()):
        return 0.0
    weights = ((w, frozen_bytes(job, sizes, block, op, w)) for w in map(block.tensor.__getitem__, op.weights))
    stored = (w for w, size in weights if size.data < DTYPE_BYTES[job.precision])
    return sum(
        2 * quantized_bytes("fp8").data * sizes.elements(w, input_spec(sizes.graph, w, strategy))
        for w in stored
    )


def widened_bytes(job: Job, sizes: Sizes, block: Block, op: Op, strategy: Strategy) -> float:
    """The largest quantised weight of ``op`` as it is multiplied [bytes]; 0 where none is quantised."""
    width = DTYPE_BYTES[job.precision]
    return max((width * elements for elements, _ in _quantised(job, sizes, block, op, strategy)), default=0.0)


def spared(
    job: Job,
    sizes: Sizes,
    block: Block,
    op: Op,
    strategy: Strategy,
    cost: OpCost,
    software: SoftwareSpec,
) -> OpCost:
    """``cost`` of ``op`` without gradients of frozen weights; quantised ones are read and widened in both directions.

    What reads nothing but data, as a frozen embedding, has no backward.
    """
    if not op.weights or trained_weights(op, block):
        return cost
    width = DTYPE_BYTES[job.precision]
    moved = sum(
        n * (size.data + size.scales + width) for n, size in _quantised(job, sizes, block, op, strategy)
    )
    device = sizes.mesh.cluster.device
    seconds = stream_seconds(moved, device).seconds if moved else 0.0
    turned = _transposed(job, sizes, block, op, strategy, software)
    read = any(block.tensor[name].role == "activation" for name in op.inputs)
    backward = cost.backward_input + seconds if read else 0.0
    backward += stream_seconds(turned, device).seconds if read and turned else 0.0
    return cost._replace(forward=cost.forward + seconds, backward_input=backward, backward_weight=0.0)

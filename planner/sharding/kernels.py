"""What the kernels of a stack make of operators: how often they pass over memory, and which are one kernel together."""

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from cluster_specs.habits import ActivationKernels
from cluster_specs.software import SoftwareSpec
from cost_models.compute import cast_seconds, element_bytes, stream_seconds
from planner.graph import Block, Op, trained_weights
from planner.models.adapter_steps import ALONE
from planner.operators import ROUTING_KINDS, operator_rule
from planner.plans import Job
from planner.saving import weight_casts
from planner.sharding.costs import OpCost
from planner.sharding.spec import Strategy, input_spec
from planner.sharding.widths import DTYPE_BYTES

if TYPE_CHECKING:
    from planner.sharding.pricing import Pricer


WRITTEN_KINDS = frozenset({"gated_norm", "causal_conv"})
"""Kinds that are one kernel in any stack: a library's."""


def passes(software: SoftwareSpec, op: Op) -> tuple[float, float]:
    """Memory traffic of the operator over that of reading and writing once, forward and backward."""
    if op.kind == "cross_entropy":
        return software.loss_forward_passes, software.loss_backward_passes
    if op.kind in WRITTEN_KINDS:
        return 1.0, 1.0
    if "casts" in op.attributes:
        return float(op.attributes["casts"]), float(op.attributes["casts"])
    if "eager_passes" in op.attributes and (ALONE in op.attributes or not software.fused_elementwise):
        forward = float(op.attributes["eager_passes"])
        return forward, float(op.attributes.get("eager_backward_passes", forward))
    if "fused_passes" in op.attributes and software.fused_elementwise:
        return float(op.attributes["fused_passes"]), float(op.attributes["fused_backward_passes"])
    if "function" in op.attributes and not software.fused_elementwise:
        kernels = software.activation_kernels.get(str(op.attributes["function"]))
        if kernels is not None:
            return _activation_passes(kernels, len(op.inputs))
    found = software.routing_passes if op.kind in ROUTING_KINDS else software.elementwise_passes
    return found, found


def _activation_passes(kernels: ActivationKernels, inputs: int) -> tuple[float, float]:
    """Passes of an activation of several kernels; a gated one's product reads two arrays, and each gradient of it."""
    product = inputs > 1
    forward, backward = kernels.forward + 3 * product, kernels.backward + 6 * product
    return forward / (inputs + 1), backward / (2 * inputs + 1)


def fuses_experts(pricer: "Pricer") -> bool:
    """Whether experts' layers are fused kernels: of a stack that has them, where graphs hold whole steps.

    These need kernels that read on the device how many tokens each expert has.
    """
    job, device = pricer.job, pricer.mesh.cluster.device.name
    known = pricer.software.fused_experts.items()
    types = next((found for pattern, found in known if fnmatchcase(device, pattern)), ())
    return job.cuda_graphs and job.precision in types


def with_weight_casts(pricer: "Pricer", block: Block, op: Op, strategy: Strategy, cost: OpCost) -> OpCost:
    """``cost`` of a product under autocast, which casts its weights before it, and their gradients behind it."""
    casts = [block.tensor[name] for name in weight_casts(op)]
    if not casts:
        return cost
    elements = sum(pricer.sizes.elements(t, input_spec(pricer.graph, t, strategy)) for t in casts)
    moved = elements * (DTYPE_BYTES["fp32"] + DTYPE_BYTES[pricer.job.precision])
    seconds = stream_seconds(moved, pricer.mesh.cluster.device).seconds
    trained = seconds if trained_weights(op, block) else 0.0
    return cost._replace(forward=cost.forward + seconds, backward_weight=cost.backward_weight + trained)


def with_narrow_inputs(pricer: "Pricer", block: Block, op: Op, strategy: Strategy, cost: OpCost) -> OpCost:
    """``cost`` of a gated activation with the casts of what it keeps in 8 bits, and back for its backward.

    Source: NVIDIA/Megatron-LM@core_v0.16.1 ``megatron/core/fusions/fused_bias_swiglu.py`` (``fp8_input_store``): a
    kernel of PyTorch each, beside the activation's own.
    """
    if not narrows_inputs(pricer.job, op):
        return cost
    read = [block.tensor[name] for name in op.inputs]
    elements = sum(pricer.sizes.elements(t, input_spec(pricer.graph, t, strategy)) for t in read)
    moved = elements * (element_bytes("fp8") + DTYPE_BYTES[pricer.job.precision])
    seconds = stream_seconds(moved, pricer.mesh.cluster.device).seconds
    return cost._replace(forward=cost.forward + seconds, backward_input=cost.backward_input + seconds)


def narrows_inputs(job: Job, op: Op) -> bool:
    """Whether an operator keeps what it reads in 8 bits."""
    return job.narrow_gate_inputs and "activated_gate" in op.attributes


def in_one_kernel(pricer: "Pricer", block: Block, op: Op, strategy: Strategy, cost: OpCost) -> OpCost:
    """``cost`` of ``op`` where it is part of fused layers of experts, which make and cast activations as they multiply.

    The product before an activation writes it as the next one reads it, and the gradient of that product's input goes
    through the activation, and is cast, as it is made: neither passes over memory by itself.
    Source: NVIDIA/TransformerEngine@v2.16 ``transformer_engine/pytorch/ops/fused/forward_grouped_mlp.py`` and
    ``backward_grouped_mlp.py`` (``grouped_gemm_glu_wrapper_sm100``, ``grouped_gemm_dglu_wrapper_sm100``).
    """
    sizes, device, dtype = pricer.sizes, pricer.mesh.cluster.device, pricer.job.precision
    read, made = (
        [block.tensor[name] for name in names if "expert_ffn" in block.tensor[name].dims]
        for names in (op.inputs, op.outputs)
    )
    if not (read or made) or not fuses_experts(pricer):
        return cost
    if operator_rule(op).arithmetic != "matmul":
        return OpCost(0.0, 0.0, 0.0)
    cast = sum(sizes.elements(t, input_spec(pricer.graph, t, strategy)) for t in read)
    cast_back = sum(sizes.elements(t, pricer.output(block, op, t, strategy)) for t in made)
    return cost._replace(
        forward=cost.forward - cast_seconds(cast, device, dtype).seconds,
        backward_input=cost.backward_input - cast_seconds(cast_back, device, dtype).seconds,
    )


def with_biases(pricer: "Pricer", block: Block, op: Op, strategy: Strategy, cost: OpCost) -> OpCost:
    """``cost`` of a product with the gradient of its bias: a sum over tokens, which reads the gradient of what it made.

    The bias itself is added as the product is written, or by the kernel that reads it next. Stacks that sum as they
    multiply for the weights' gradient have no kernel for it (`SoftwareSpec.biases_in_products`).
    Source: pytorch/pytorch ``tools/autograd/derivatives.yaml`` (``addmm``); NVIDIA/Megatron-LM
    ``megatron/model/fused_bias_gelu.py``, whose gradient autograd sums to the bias's shape.
    """
    if op.inputs and "experts" in block.tensor[op.inputs[0]].dims:
        return _with_biases_of_experts(pricer, block, op, strategy, cost)
    if pricer.software.biases_in_products or operator_rule(op).arithmetic != "matmul":
        return cost
    made = [block.tensor[name] for name in op.outputs]
    trained = [frozenset(block.tensor[name].dims) for name in trained_weights(op, block)]
    biased = [t for t in made if any(dims <= set(t.dims) for dims in trained)]
    if not biased:
        return cost
    read = sum(pricer.tensor_bytes(t, pricer.output(block, op, t, strategy)) for t in biased)
    summed = stream_seconds(read, pricer.mesh.cluster.device).seconds
    return cost._replace(backward_weight=cost.backward_weight + summed)


def _with_biases_of_experts(
    pricer: "Pricer", block: Block, op: Op, strategy: Strategy, cost: OpCost
) -> OpCost:
    """``cost`` of a product of experts with what kernels of their own do with its bias, unless layers are fused.

    Experts that have biases are GPT-OSS's, whose gates are clamped as well: what the first product makes is copied once
    more, and what the second makes takes part in a sum in fp32.
    """
    biased = pricer.software.biased_experts
    made = [block.tensor[name] for name in op.outputs]
    biases = [name for name in op.weights if set(block.tensor[name].dims) <= set(made[0].dims)]
    if biased is None or not biases or fuses_experts(pricer):
        return cost
    elements = sum(pricer.sizes.elements(t, pricer.output(block, op, t, strategy)) for t in made)
    gates = "expert_ffn" in made[0].dims
    forward, backward = (
        (biased.gates_forward, biased.gates_backward)
        if gates
        else (biased.result_forward, biased.result_backward)
    )
    device = pricer.mesh.cluster.device
    return cost._replace(
        forward=cost.forward + stream_seconds(forward * elements, device).seconds,
        backward_input=cost.backward_input + stream_seconds(backward * elements, device).seconds,
    )

"""What the kernels of a stack keep for their backward beside the tensors of the graph."""

import math
from collections.abc import Collection, Iterator, Mapping

from cluster_specs.software import SoftwareSpec
from cost_models.compute import element_bytes
from planner.graph import HEAD_DIMS, KV_HEAD_DIMS, Block, Op, Tensor, trained_weights
from planner.operators import (
    INNER_DIMS,
    RECOMPUTE_POLICIES,
    SELECTIVE_POLICIES,
    UNWRAPPED_POLICIES,
    operator_rule,
    saved_tensors,
)
from planner.sharding.kernels import narrows_inputs
from planner.sharding.pricing import Pricer
from planner.sharding.routing import routing_kernels
from planner.sharding.widths import DTYPE_BYTES

RESIDUALS = ("statistics", "activated_gate", "log_sum_exp", "probabilities")
"""Attributes that name what an operator keeps for its own backward."""


def padding(pricer: Pricer, tensor: Tensor) -> float:
    """Bytes in memory over those of the elements: what is inside a head lies innermost, in whole lanes."""
    lanes, inner = pricer.mesh.cluster.device.lanes, tensor.dims[-1] if tensor.dims else ""
    if inner not in INNER_DIMS:
        return 1.0
    size = pricer.sizes.full(inner)
    return math.ceil(size / lanes) * lanes / size


def residuals(
    pricer: Pricer, block: Block, sizes: Mapping[str, float], sums: Mapping[str, float]
) -> dict[str, float]:
    """What the stack's kernels keep for their backward beyond the ``sizes`` of tensors, by the tensor [bytes].

    ``sums`` are sizes of those that are sums to be made between ranks; kernel by kernel, each rank weighs its part of
    what experts make (pytorch/torchtitan@8bc267dea ``torchtitan/models/common/moe.py``, whose result is summed).
    """
    software = pricer.software
    found: dict[str, float] = {}
    for op in block.ops:
        statistics, gate, log_sum_exp, probabilities = (str(op.attributes.get(key)) for key in RESIDUALS)
        if statistics in sizes:
            normed = block.tensor[op.inputs[0]]
            found[statistics] = (
                _of_norm(pricer, block, op) * sizes[normed.name] / pricer.element_bytes(normed)
            )
        arrays = _arrays(software, op)
        if arrays:
            # What is kept beside the input goes with the result, where that is made again; less of the input with it.
            held = op.outputs[0] if arrays > 0 else op.inputs[0]
            found[held] = arrays * sizes[held]
        if casts := float(op.attributes.get("casts", 0)):
            found[op.outputs[0]] = (casts - 1) * sizes[op.outputs[0]]
        if narrows_inputs(pricer.job, op):
            found |= {
                name: (element_bytes("fp8") / pricer.element_bytes(block.tensor[name]) - 1) * sizes[name]
                for name in op.inputs
                if name in sizes
            }
        if gate in sizes:
            found[gate] = (software.activation_residuals - 1) * sizes[gate]
        if log_sum_exp in sizes:
            made = block.tensor[op.outputs[0]]
            copies = software.attention_copies + _laid_out_again(pricer, op)
            found[log_sum_exp] = copies * sizes[made.name] / padding(pricer, made)
            found |= dict(_repeated_keys(pricer, block, op, sizes)) if software.modules == "litgpt" else {}
        if probabilities in sizes:
            element = pricer.element_bytes(block.tensor[probabilities])
            found[probabilities] = _of_softmax(pricer, op, element) * sizes[probabilities] / element
            found |= dict(_repeated_keys(pricer, block, op, sizes)) | dict(_cast(pricer, block, op, sizes))
        if op.kind == "combine":
            kernels, made_by_experts = routing_kernels(software, pricer.job), op.inputs[0]
            arrays = kernels.weighed if kernels else software.combine_residuals
            size = sums.get(made_by_experts, sizes[made_by_experts]) if kernels else sizes[made_by_experts]
            found[str(op.attributes["routing"])] = arrays * size
    return found | (_fused(pricer, block, sizes) if software.keeps_fused else {})


def _laid_out_again(pricer: Pricer, op: Op) -> bool:
    """Whether the product after a kernel of attention keeps a copy of its result.

    That has the layout of the queries: heads come first where these are joined of parts, for which PyTorch makes a new
    array, and not where they are views or sums of what a product made. So have results that are merged of steps over a
    split sequence, on all ranks but the last.

    Source: huggingface/transformers ``integrations/sdpa_attention.py`` (``transpose(1, 2).contiguous()``);
    pytorch/pytorch ``aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp`` (``empty_like`` of queries);
    ``torch/distributed/tensor/experimental/_context_parallel/_attention.py`` (``_partial_update``).
    """
    if pricer.mesh.size("context") > 1 and pricer.exchange == "gathered_ring":
        return True
    return _in_transformers(pricer, op, "joined")


def _in_transformers(pricer: Pricer, op: Op, what: str) -> bool:
    """Whether ``op`` does ``what`` transformers' modules do, and is one of these."""
    return pricer.software.modules == "transformers" and bool(op.attributes.get(what))


def _of_softmax(pricer: Pricer, op: Op, element: float) -> float:
    """Bytes kept for each probability beside the ``element`` that a product reads.

    ``narrow`` modules of transformers take a softmax in the training type, but not under autocast, which takes it in
    fp32. Where a share is dropped, a product reads what is left, not what the softmax made.

    Source: pytorch/pytorch ``aten/src/ATen/autocast_mode.h`` (``AT_FORALL_FP32_SET_OPT_DTYPE``: ``softmax``).
    """
    narrow = _in_transformers(pricer, op, "narrow") and not pricer.job.autocast
    beside = 0.0 if narrow else pricer.software.softmax_residuals
    return beside or (element if "mask" in op.attributes else 0.0)


def score_gradients(
    pricer: Pricer, block: Block, sizes: Mapping[str, float], residual: Mapping[str, float], op: Op
) -> float:
    """Gradients that attention which keeps its probabilities makes of them and of the scores [bytes]; else 0.

    Where a softmax is a kernel that keeps them once more, in its own type (``residual``), the gradients have that type,
    and those that a product read are gone. Masks of what is dropped have none.
    """
    if op.kind != "attention":
        return 0.0
    apart = (op.attributes.get(name) for name in ("score_cap", "mask"))
    softmax = {} if pricer.software.fused_elementwise else residual
    beside, made = (*op.inputs, *op.outputs, *apart), 0.0
    for name in operator_rule(op).saved(op, block, pricer.job.attention_kernel):
        if name not in beside and name in sizes:
            again = softmax.get(name, 0.0)
            made += 2 * again - sizes[name] if again else 2 * sizes[name]
    return made


def _repeated_keys(
    pricer: Pricer, block: Block, op: Op, sizes: Mapping[str, float]
) -> Iterator[tuple[str, float]]:
    """Keys and values of fewer heads, repeated for each query's head, beyond their own ``sizes`` [bytes].

    Source: huggingface/transformers ``repeat_kv`` of eager_attention_forward, whose results the products keep;
    Lightning-AI/litgpt@101e31d2 ``litgpt/model.py`` (``expand``, then ``reshape``), whose results any kernel keeps.
    """
    if pricer.software.modules:
        query, *others = (set(block.tensor[name].dims) for name in op.inputs[:3])
        for name, dims in zip(op.inputs[1:3], others, strict=True):
            many, few = query.intersection(HEAD_DIMS), dims.intersection(KV_HEAD_DIMS)
            if name in sizes and few:
                yield name, sizes[name] * (_heads(pricer, many) / _heads(pricer, few) - 1)


def _heads(pricer: Pricer, dims: Collection[str]) -> float:
    """Heads of all devices along the one of ``dims`` that a tensor has."""
    return math.prod(pricer.sizes.full(dim) for dim in dims)


def _cast(pricer: Pricer, block: Block, op: Op, sizes: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """Queries and keys in fp32 where plain attention multiplies these, beyond their own ``sizes`` [bytes].

    Autocast takes the products in the training type nevertheless.

    Source: huggingface/transformers 5.23.0 ``modeling_gpt_neo.py`` and ``modeling_gptj.py`` (``_attn``).
    """
    if _in_transformers(pricer, op, "wide_scores") and not pricer.job.autocast:
        for name in (n for n in op.inputs[:2] if n in sizes):
            yield name, sizes[name] * (DTYPE_BYTES["fp32"] / pricer.element_bytes(block.tensor[name]) - 1)


def _of_norm(pricer: Pricer, block: Block, op: Op) -> float:
    """Bytes per element that a norm keeps beside its input; what its weight multiplies may be in fp32.

    A frozen weight does not need that: it has no gradient.
    """
    if block.tensor[str(op.attributes["statistics"])].scale > 1:
        return pricer.software.layer_norm_residuals
    kept, element = pricer.software.norm_residuals, pricer.element_bytes(block.tensor[op.inputs[0]])
    if kept and op.weights and not trained_weights(op, block):
        return kept - element
    wider = DTYPE_BYTES["fp32"] - element
    return kept + wider if kept and op.attributes.get("wide") else kept


def listed_sums(
    pricer: Pricer, block: Block, policy: str, sizes: Mapping[str, float], sums: Mapping[str, float]
) -> float:
    """What a selective policy that stores what its list names has of ``sums`` beyond what the backward reads [bytes].

    Products are on the list, as they come, before their sum; so is what is scattered of these, but not what is summed
    whole. ``sizes`` are those of the tensors that are made of them.

    Source: pytorch/torchtitan ``torchtitan/distributed/activation_checkpoint.py``.
    """
    if not (pricer.software.stores_listed and policy in SELECTIVE_POLICIES):
        return 0.0
    kept = saved_tensors(block, policy, pricer.job.attention_kernel, stores_listed=True)
    keeps, more = RECOMPUTE_POLICIES[policy], 0.0
    for op in (op for op in block.ops if op.kind == "matmul"):
        for name in (name for name in op.outputs if name in sums):
            stored = sums[name] if keeps(block, op, name) else 0.0
            scattered = sizes[name] if sizes[name] < sums[name] else 0.0
            more += stored + scattered - (sizes[name] if name in kept else 0.0)
    return more


def sent_back(pricer: Pricer, block: Block, policy: str, sizes: Mapping[str, float]) -> dict[str, float]:
    """What a policy that wraps the block has for the gradient of experts' weights, kernel by kernel [bytes].

    Tokens as their experts sent them back, if the exchange is on its list; the array of `residuals` is made again.

    Source: pytorch/torchtitan ``torchtitan/distributed/activation_checkpoint.py`` (``all_to_all_single``).
    """
    if policy in UNWRAPPED_POLICIES or routing_kernels(pricer.software, pricer.job) is None:
        return {}
    keeps = RECOMPUTE_POLICIES[policy]
    return {
        str(op.attributes["routing"]): sizes[op.inputs[0]] if keeps(block, op, op.inputs[0]) else 0.0
        for op in block.ops
        if op.kind == "combine"
    }


def unread(software: SoftwareSpec, block: Block) -> frozenset[str]:
    """Inputs of activations that keep less than these."""
    return frozenset(op.inputs[0] for op in block.ops if _arrays(software, op) < 0)


def _arrays(software: SoftwareSpec, op: Op) -> float:
    """Where a share of its result is dropped, the next product does not keep this for it."""
    arrays = software.activation_arrays.get(str(op.attributes.get("function")), 0.0)
    return max(arrays, 0.0) if op.attributes.get("dropped") else arrays


def _fused(pricer: Pricer, block: Block, sizes: Mapping[str, float]) -> dict[str, float]:
    """Results of products by one parameter, or sums with them: parts that nothing reads stay with one that is kept."""
    kept = set(saved_tensors(block, "none", pricer.job.attention_kernel))
    found = {}
    for op in (op for op in block.ops if len(op.outputs) > 1 and op.kind in ("matmul", "add")):
        modules = {block.tensor[name].path.rpartition(".")[0] for name in op.weights}
        parts = [name for name in op.outputs if name in kept]
        if (op.kind == "add" or (len(modules) == 1 and all(modules))) and parts:
            found[parts[0]] = sum(sizes[name] for name in op.outputs if name not in kept)
    return found

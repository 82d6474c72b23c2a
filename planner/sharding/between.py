"""What products between activations cost: those of attention as one operator, and others by themselves."""

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from cluster_specs.cluster import DeviceSpec
from cost_models.attention import AttentionShape
from cost_models.compute import matmul_seconds, stream_seconds
from cost_models.constants import constants
from planner.errors import InputError
from planner.flops import reduced_dims, union_dims
from planner.graph import BATCH, HEAD_DIMS, KV_HEAD_DIMS, TOKEN_DIMS, Block, Op
from planner.sharding.context import EXCHANGES, Split
from planner.sharding.costs import OpCost
from planner.sharding.spec import Strategy, input_spec

if TYPE_CHECKING:
    from planner.sharding.pricing import Pricer


def product_cost(pricer: "Pricer", block: Block, op: Op, strategy: Strategy) -> OpCost:
    """A product of two activations: a batch of products over the dims that both have and the result keeps.

    Rows are the dims of the first alone, columns those of the second, depth what both have and the result lacks. The
    gradient of an operand is a product as large; data has none. What one operand sums by itself is part of the depth.
    """
    sizes = pricer.sizes
    left, right = (block.tensor[op.inputs[i]] for i in (0, -1))
    summed = set(reduced_dims(op, block))

    def local(dims: set[str]) -> float:
        return math.prod(sizes.local(d, strategy) for d in sorted(dims))

    every = set(union_dims((*op.inputs, *op.outputs), block)) - summed
    both = every & set(left.dims) & set(right.dims)
    grouped, depth = local(both), local(summed)
    rows, columns = local(every - set(right.dims)), local((every & set(right.dims)) - both)
    device, width = pricer.mesh.cluster.device, pricer.element_bytes(left)
    dtype = pricer.job.attention_dtype
    forward = matmul_seconds(rows, columns, depth, device, dtype, grouped, width).seconds
    of_left = matmul_seconds(rows, depth, columns, device, dtype, grouped, width).seconds
    of_right = matmul_seconds(depth, columns, rows, device, dtype, grouped, width).seconds
    backward = sum(seconds for t, seconds in ((left, of_left), (right, of_right)) if t.role == "activation")
    return OpCost(forward, backward, 0.0)


def attention_cost(pricer: "Pricer", block: Block, op: Op, strategy: Strategy) -> OpCost:
    """Attention as one operator; a split sequence exchanges keys and values over its axes.

    The masked triangle is dealt out evenly over the split (each rank holds an early and a late chunk), so a
    rank's work is the whole call's divided by the degree.
    """
    sizes, graph = pricer.sizes, pricer.graph
    query, key, value = (block.tensor[t] for t in op.inputs[:3])
    axes = tuple(a for a, dim in strategy if dim in query.dims and dim in TOKEN_DIMS)
    if axes[-1:] == ("context_expert",):
        axes = (*axes, "context")  # keys and values move between context ranks, whoever has which experts
    degree = math.prod(pricer.mesh.size(a) for a in axes)
    positions = str(op.attributes.get("q_dim", "")).split() or [d for d in query.dims if d in TOKEN_DIMS]
    heads = next((d for d in query.dims if d.startswith(HEAD_DIMS)), "")
    beside = [d for d in query.dims[:-1] if d not in (BATCH, *positions, heads)]
    if not heads and beside:
        dims = ", ".join(query.dims)
        raise InputError(
            f"block {block.name}, operator {op.name}: queries of attention need a dim heads: {dims}"
        )
    kv_heads = next((d for d in key.dims if d in KV_HEAD_DIMS), heads)
    shape = AttentionShape(
        batch=sizes.local(BATCH, strategy) / degree * math.prod(sizes.local(d, strategy) for d in beside),
        heads=sizes.local(heads, strategy) if heads else 1,
        q_len=math.prod(graph.dims[d] for d in positions),
        kv_len=graph.dims[str(op.attributes["kv_dim"])],
        qk_dim=graph.dims[query.dims[-1]],
        v_dim=graph.dims[value.dims[-1]],
        kv_heads=sizes.local(kv_heads, strategy) if kv_heads else 1,
        causal=bool(op.attributes.get("causal", False)),
        window=float(op.attributes.get("window", 0)) or None,
    )
    kernel: str = pricer.job.attention_kernel
    if kernel == "flash":
        shape = _in_chunks(shape, _computed_apart(op, pricer.mesh.cluster.device))
    if kernel == "plain":
        kernel = pricer.software.unfused_attention
    elif kernel == "flash" and _tiles(shape, pricer):
        kernel = "tiled"
    query_bytes, *kv_bytes = (
        pricer.tensor_bytes(t, input_spec(graph, t, strategy)) for t in (query, key, value)
    )
    split = Split(
        device=pricer.mesh.cluster.device,
        dtype=pricer.job.attention_dtype,
        comm=lambda collective, full_bytes: pricer.comm(collective, axes, full_bytes),
        keeps_gathered=pricer.software.saves_gathered_keys,
        scatters=_scatters(pricer, shape, degree),
        shape=shape,
        kernel=kernel,
        degree=degree,
        query_bytes=query_bytes,
        kv_bytes=sum(kv_bytes),
    )
    if degree == 1:
        found = OpCost(split.seconds(shape), split.seconds(shape, backward=True), 0.0)
    else:
        found = EXCHANGES[pricer.exchange](split)
    return _unpadded(split, found) if pricer.software.unpads and kernel == "flash" else found


def _scatters(pricer: "Pricer", shape: AttentionShape, degree: int) -> Literal["both", "one", "none"]:
    """Which of the gradients of keys and values are scattered rather than reduced whole."""
    if pricer.partitioned is None:
        return "both"
    one = pricer.partitioned.partitioner.scatters_heads(shape.kv_len / degree, shape.kv_heads, degree)
    return "one" if one else "none"


def _unpadded(split: Split, cost: OpCost) -> OpCost:
    """``cost`` with what takes the rows that a kernel gets, and puts its results back; backward the other way round."""
    facts = constants("kernels")["unpadding"]
    read = split.query_bytes + split.kv_bytes
    made = split.query_bytes * split.shape.v_dim / split.shape.qk_dim
    forward, backward = (
        stream_seconds(facts["take"] * taken + facts["put_back"] * put, split.device).seconds
        for taken, put in ((read, made), (made, read))
    )
    return cost._replace(forward=cost.forward + forward, backward_input=cost.backward_input + backward)


def _tiles(shape: AttentionShape, pricer: "Pricer") -> bool:
    """Whether the stack has no kernel for such heads on such devices, and a loop over tiles takes its place."""
    if pricer.mesh.cluster.device.kind == "gpu":
        return bool(pricer.software.tiles_attention) and pricer.job.attention != "native"
    whole = pricer.software.whole_heads
    return whole is not None and any(dim % whole for dim in (shape.qk_dim, shape.v_dim))


def _computed_apart(op: Op, device: DeviceSpec) -> float:
    """Tokens of a sequence that a fused kernel computes by themselves; 0: the whole.

    On TPUs it visits all blocks of which the mask of a layer shows anything, and hides the scores of other documents
    within them.

    Source: jax-ml/jax ``jax/experimental/pallas/ops/tpu/splash_attention/splash_attention_kernel.py`` (``should_run``
    comes of the mask's blocks; ``segment_ids`` are looked at in ``_apply_mask_and_soft_cap``).
    """
    parts = ("chunk",) if device.kind == "tpu" else ("chunk", "documents")
    return min((float(op.attributes[name]) for name in parts if op.attributes.get(name)), default=0.0)


def _in_chunks(shape: AttentionShape, chunk: float) -> AttentionShape:
    """A fused call where queries see keys of their own ``chunk`` of the sequence alone, each a sequence by itself."""
    if not 0 < chunk < shape.q_len or shape.q_len != shape.kv_len:
        return shape
    return replace(shape, batch=shape.batch * shape.q_len / chunk, q_len=chunk, kv_len=chunk)

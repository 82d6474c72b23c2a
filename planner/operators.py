"""What each kind of operator costs, may be split along, and keeps for its backward pass.

`OPERATORS` has one `OperatorRule` per kind; its FLOPs are counted by `planner.flops`, and kinds of class
``memory`` are priced by the bytes that they move.

`RECOMPUTE_POLICIES` says which intermediate results survive until the backward pass; `saved_tensors` and
`recomputed_ops` apply one to a block.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from planner.errors import Unsupported
from planner.flops import (
    AttentionKernel,
    Counting,
    OpFlops,
    attention_flops,
    conv_flops,
    keys_per_query,
    matmul_dims,
    matmul_flops,
    no_flops,
    product_flops,
    recurrence_flops,
    reduced_dims,
    scan_flops,
)
from planner.graph import HEAD_DIMS, KV_HEAD_DIMS, Block, Graph, Op
from planner.operator_dims import (
    INNER_DIMS,
    all_dims,
    channel_dims,
    no_dims,
    norm_dims,
    output_dims,
    query_dims,
    recurrence_dims,
    scan_dims,
)
from planner.saving import (
    named,
    saves_attention,
    saves_elementwise,
    saves_factors,
    saves_inputs,
    saves_listed,
    saves_loss,
    saves_mask,
    saves_normalised,
    saves_nothing,
    saves_routing,
    saves_steps,
    weight_casts,
)

__all__ = [
    "INNER_DIMS",
    "OPERATORS",
    "RECOMPUTE_POLICIES",
    "AttentionKernel",
    "Counting",
    "OpFlops",
    "OperatorRule",
    "backward_flops",
    "forward_flops",
    "keys_per_query",
    "matmul_dims",
    "model_flops",
    "op_flops",
    "operator_rule",
    "recompute_flops",
    "recomputed_ops",
    "recomputed_shares",
    "saved_tensors",
]

ArithmeticClass = Literal["matmul", "product", "recurrence", "scan", "attention", "memory"]


@dataclass(frozen=True, slots=True)
class OperatorRule:
    """Everything the planner knows about one kind of operator."""

    arithmetic: ArithmeticClass
    """What bounds it: matrix units (with weights, or between activations), kernels of attention or scans, or memory."""
    flops: Callable[[Op, Block, Graph, Counting], OpFlops]
    splittable: Callable[[Op, Block, Graph], tuple[str, ...]]
    """Dims that a mesh axis may split; a dim that follows another is listed as that one."""
    contracted: Callable[[Op, Block], tuple[str, ...]]
    """Dims whose split leaves partial sums in the outputs."""
    saved: Callable[[Op, Block, AttentionKernel], tuple[str, ...]]
    """Tensors that the backward pass reads."""


ROUTING_KINDS = frozenset({"dispatch", "combine"})
"""Kinds that exchange tokens between experts."""


OPERATORS: Mapping[str, OperatorRule] = MappingProxyType(
    {
        "matmul": OperatorRule("matmul", matmul_flops, all_dims, reduced_dims, saves_inputs),
        "conv": OperatorRule("matmul", conv_flops, channel_dims, reduced_dims, saves_inputs),
        "product": OperatorRule("product", product_flops, all_dims, reduced_dims, saves_factors),
        "recurrence": OperatorRule("recurrence", recurrence_flops, recurrence_dims, no_dims, saves_steps),
        "scan": OperatorRule("scan", scan_flops, scan_dims, no_dims, saves_listed),
        "attention": OperatorRule("attention", attention_flops, query_dims, no_dims, saves_attention),
        "norm": OperatorRule("memory", no_flops, norm_dims, no_dims, saves_normalised),
        "gated_norm": OperatorRule("memory", no_flops, norm_dims, no_dims, saves_listed),
        "causal_conv": OperatorRule("memory", no_flops, channel_dims, no_dims, saves_listed),
        "elementwise": OperatorRule("memory", no_flops, output_dims, no_dims, saves_elementwise),
        "add": OperatorRule("memory", no_flops, output_dims, no_dims, saves_mask),
        "view": OperatorRule("memory", no_flops, output_dims, no_dims, saves_nothing),
        "pool": OperatorRule("memory", no_flops, output_dims, no_dims, saves_elementwise),
        "embedding": OperatorRule("memory", no_flops, all_dims, reduced_dims, saves_inputs),
        "cross_entropy": OperatorRule("memory", no_flops, all_dims, reduced_dims, saves_loss),
        "dispatch": OperatorRule("memory", no_flops, output_dims, no_dims, saves_routing),
        "combine": OperatorRule("memory", no_flops, all_dims, reduced_dims, saves_routing),
    }
)
"""Rule of every kind of operator."""


def operator_rule(op: Op) -> OperatorRule:
    """Rule of ``op``.

    Raises:
        Unsupported: no rule for this kind.
    """
    try:
        return OPERATORS[op.kind]
    except KeyError:
        raise Unsupported(
            f"operator {op.name!r} has kind {op.kind!r}, which has no rule; known: {', '.join(OPERATORS)}"
        ) from None


def op_flops(op: Op, block: Block, graph: Graph, counting: Counting | None = None) -> OpFlops:
    """FLOPs of ``op`` on one sequence."""
    return operator_rule(op).flops(op, block, graph, counting or Counting())


MLP_DIMS = frozenset({"ffn", "expert_ffn", "shared_ffn"})
"""Widths of feed-forward layers."""

KeepsTensor = Callable[[Block, Op, str], bool]


def _is_listed(block: Block, op: Op, tensor: str) -> bool:
    if tensor in named(op, "probabilities", "mask"):
        return False  # batched products are on no list, as MaxText's of names or torchtitan's of aten.mm
    return operator_rule(op).arithmetic in ("matmul", "attention") or op.kind in ROUTING_KINDS


def _is_product(block: Block, op: Op, tensor: str) -> bool:
    return operator_rule(op).arithmetic == "matmul" or op.kind in ROUTING_KINDS


def is_in_mlp(block: Block, op: Op) -> bool:
    """Whether an operator makes or reads what is as wide as a feed-forward layer, or is of experts."""
    dims = {d for name in (*op.inputs, *op.outputs) for d in block.tensor[name].dims}
    return bool(dims & (MLP_DIMS | {"experts"}))


def _is_listed_outside_mlp(block: Block, op: Op, tensor: str) -> bool:
    return _is_listed(block, op, tensor) and not is_in_mlp(block, op)


def _is_read_by_attention(block: Block, op: Op, tensor: str) -> bool:
    return any(tensor in other.inputs for other in block.ops if other.kind == "attention")


def _is_projection(block: Block, op: Op, tensor: str) -> bool:
    around = operator_rule(op).arithmetic == "matmul" and not is_in_mlp(block, op)
    leaves = around and not {*HEAD_DIMS, *KV_HEAD_DIMS} & set(block.tensor[tensor].dims)
    return leaves or _is_read_by_attention(block, op, tensor)


def _is_every_second(block: Block, op: Op, tensor: str) -> bool:
    products = [o for o in block.ops if operator_rule(o).arithmetic == "matmul"]
    counted = [name for o in products if not _of_experts(block, o) for name in o.outputs]
    if op in products:
        return tensor in counted and counted.index(tensor) % 2 == 0
    return _is_listed(block, op, tensor)


def _is_not_from_latents(block: Block, op: Op, tensor: str) -> bool:
    latent = any("kv_lora" in made.dims for made in block.tensors)
    return not latent or op.kind == "attention" or "heads" not in block.tensor[tensor].dims


def _of_experts(block: Block, op: Op) -> bool:
    """Whether a product is the experts' or their router's."""
    return any("experts" in block.tensor[name].dims for name in op.outputs)


RECOMPUTE_POLICIES: Mapping[str, KeepsTensor] = MappingProxyType(
    {
        "none": lambda block, op, tensor: True,
        "full": lambda block, op, tensor: False,
        "selective": _is_listed,
        "products": _is_product,
        "mlp": _is_listed_outside_mlp,
        "projections": _is_projection,
        "heads": _is_read_by_attention,
        "alternate": _is_every_second,
        "alternate_local": lambda block, op, tensor: (
            op.kind not in ROUTING_KINDS and _is_every_second(block, op, tensor)
        ),
        "all_but_attention": lambda block, op, tensor: op.kind == "attention",
        "latent": _is_not_from_latents,
        "attention": lambda block, op, tensor: op.kind != "attention" or tensor in op.outputs,
    }
)
"""Policy -> whether a tensor made by an operator survives the forward pass (a block's inputs always do).

``none`` keeps everything; ``full`` only the block's inputs; ``selective`` the results of matrix products, of
attention and of expert routing (norms, rotary positions and activations are computed again); ``products``
drops the attention as well (jax ``dots_with_no_batch_dims_saveable``), ``mlp`` the feed-forward layer (MaxText
``save_dot_with_context_except_mlp``; of experts their router and exchange too, Megatron's ``moe``); ``projections``
keeps what attention reads and its result projected, ``heads`` the former (``save_dot_except_mlp``, ``save_qkv_proj``);
``alternate`` is selective with every second product computed again, and all of experts and their router, whose grouped
products are not on the list (pytorch/torchtitan, ``selective_ac_option = "op"``), ``alternate_local`` without the
exchange of tokens, too (its Qwen3 until March 2026, 114151ad), ``all_but_attention`` only results of attention, which
is all that a list of operators finds inside parts that are compiled by themselves, and beside products in fp4
(pytorch/pytorch ``torch/_functorch/partitioners.py``: ``_scaled_mm_v2`` is on none); ``latent`` keeps everything but
heads that are projected up from latents (Megatron's ``mla_up_proj``), ``attention`` everything but what is inside the
attention kernel (Korthikanti et al., arXiv:2205.05198, section 5; Megatron's ``core_attn``).
"""


UNWRAPPED_POLICIES = frozenset({"none", "attention", "latent"})
"""Policies under which no whole layer is wrapped to be computed again."""

SELECTIVE_POLICIES = frozenset(RECOMPUTE_POLICIES) - UNWRAPPED_POLICIES - {"full"}
"""Policies that list the kinds of results that are kept."""

WRAPPED_PARTS: Mapping[str, Callable[[Block, Op], bool]] = MappingProxyType(
    {"full": lambda block, op: True, "mlp": is_in_mlp}
)
"""Policy -> whether an operator is in the part of a layer that a checkpoint function has as its own."""


def _makers(block: Block, reads: Mapping[str, tuple[str, ...]]) -> dict[str, Op]:
    """Operator that makes each tensor; an auxiliary one is made by the first operator that reads it."""
    makers: dict[str, Op] = {}
    for op in block.ops:
        made = (*op.outputs, *(t for t in reads[op.name] if t not in op.inputs))
        makers |= {t: op for t in made if t not in makers and block.tensor[t].role == "activation"}
    return makers


def _retain(block: Block, policy: str, reads: Mapping[str, tuple[str, ...]]) -> tuple[set[str], set[str]]:
    """Tensors kept and operators repeated, given what each operator's backward ``reads``.

    Walks the block backwards: what is needed is kept, or made again from inputs that are then needed. What
    merely passes through the block is kept by the block that made it.
    """
    if policy not in RECOMPUTE_POLICIES:
        known = ", ".join(RECOMPUTE_POLICIES)
        raise Unsupported(f"recompute policy {policy!r} is unknown; use one of {known}")
    keeps = RECOMPUTE_POLICIES[policy]
    makers = _makers(block, reads)
    needed = {t for names in reads.values() for t in names}
    kept, repeated = set[str](), set[str]()
    for op in reversed(block.ops):
        casts = {t for t in weight_casts(op) if t in needed}
        kept |= casts if policy in UNWRAPPED_POLICIES else set()
        made = {t for t, maker in makers.items() if maker is op and t in needed} - casts
        survivors = {t for t in made if keeps(block, op, t)}
        kept |= survivors
        if made != survivors:
            repeated.add(op.name)
            needed.update(op.inputs)
    kept |= {t for t in needed if t not in makers and t not in block.outputs}
    return kept, repeated


def _reads(block: Block, kernel: AttentionKernel, fused: bool) -> dict[str, tuple[str, ...]]:
    extra = () if fused else ("activated_gate",)
    return {op.name: (*operator_rule(op).saved(op, block, kernel), *named(op, *extra)) for op in block.ops}


def saved_tensors(
    block: Block,
    policy: str,
    attention_kernel: AttentionKernel = "flash",
    *,
    fused_activation: bool = True,
    stores_listed: bool = False,
) -> tuple[str, ...]:
    """Names of the tensors kept from forward to backward, each once, in the block's order.

    Without ``fused_activation`` a gated MLP also keeps the activated gate, as separate kernels do. With
    ``stores_listed`` a selective policy keeps its results even where the backward does not read them.

    Raises:
        Unsupported: unknown policy, or an operator without a rule.
    """
    key = (policy, attention_kernel, fused_activation, stores_listed)
    if key not in block.saved:
        block.saved[key] = _saved_tensors(block, *key)
    return block.saved[key]


def _saved_tensors(
    block: Block, policy: str, kernel: AttentionKernel, fused: bool, stores_listed: bool
) -> tuple[str, ...]:
    kept, _ = _retain(block, policy, _reads(block, kernel, fused))
    if stores_listed and policy in SELECTIVE_POLICIES:
        keeps, compute = RECOMPUTE_POLICIES[policy], ("matmul", "attention")
        listed = (op for op in block.ops if operator_rule(op).arithmetic in compute)
        kept |= {t for op in listed for t in op.outputs if keeps(block, op, t)}
    return tuple(t.name for t in block.tensors if t.name in kept)


def recomputed_ops(block: Block, policy: str, attention_kernel: AttentionKernel = "flash") -> tuple[str, ...]:
    """Names of the operators that run again in the backward pass.

    Only those whose results are needed: like torch's early stop, the last product of a block is not among
    them unless a later operator reads its result.
    """
    _, repeated = _retain(block, policy, _reads(block, attention_kernel, fused=True))
    return tuple(op.name for op in block.ops if op.name in repeated)


def recomputed_shares(
    graph: Graph,
    block: Block,
    policy: str,
    attention_kernel: AttentionKernel = "flash",
    *,
    stops_early: bool = True,
) -> dict[str, float]:
    """Share of each operator of `recomputed_ops` that runs again: of products, only for results that were dropped.

    Without ``stops_early`` all of what the policy wraps runs again as it is, its last product too.
    """
    kept = set(saved_tensors(block, policy, attention_kernel))
    shares = dict.fromkeys(recomputed_ops(block, policy, attention_kernel), 1.0)
    for op in (op for op in block.ops if op.name in shares and operator_rule(op).arithmetic == "matmul"):
        made = {name: graph.elements(block.tensor[name]) for name in op.outputs}
        shares[op.name] = sum(size for name, size in made.items() if name not in kept) / sum(made.values())
    if not stops_early and policy in WRAPPED_PARTS:
        shares |= {op.name: 1.0 for op in block.ops if WRAPPED_PARTS[policy](block, op)}
    return shares


def _total(graph: Graph, counting: Counting, part: Callable[[OpFlops], float]) -> float:
    return sum(
        count * sum(part(op_flops(op, block, graph, counting)) for op in block.ops)
        for block, count in graph.instances()
    )


def forward_flops(graph: Graph, batch: int, counting: Counting | None = None) -> float:
    """FLOPs of the forward pass on ``batch`` sequences."""
    return batch * _total(graph, counting or Counting(), lambda f: f.forward)


def backward_flops(graph: Graph, batch: int, counting: Counting | None = None) -> float:
    """FLOPs of the backward pass on ``batch`` sequences, recomputation by a policy left out."""
    return batch * _total(graph, counting or Counting(), lambda f: f.backward)


def recompute_flops(
    graph: Graph, batch: int, again: Callable[[Block], Mapping[str, float]], counting: Counting | None = None
) -> float:
    """FLOPs that the layers repeat (the first and last block are not recomputed).

    ``again`` says of a block which share of its operators runs again: `recomputed_shares`.
    """
    total = 0.0
    for run in graph.layers:
        block = graph.block[run.block]
        shares = again(block)
        total += run.count * sum(
            shares[op.name] * op_flops(op, block, graph, counting).forward
            for op in block.ops
            if op.name in shares
        )
    return batch * total


def model_flops(graph: Graph, batch: int, causal: bool = True) -> float:
    """FLOPs that the model asks for, whatever the implementation: three times the forward pass.

    The numerator of MFU (Chowdhery et al., arXiv:2204.02311, appendix B): no recomputation by any kernel or
    policy; ``causal`` counts only the pairs of tokens that the mask lets through, and recurrences count as they are
    defined, not as chunks. Frozen weights have no gradient to
    compute: they count twice.
    """
    counting = Counting(causal, "plain", chunked=False)
    spared = batch * _total(graph, counting, lambda f: f.spared)
    return 3 * forward_flops(graph, batch, counting) - spared

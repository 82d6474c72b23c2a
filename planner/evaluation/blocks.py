"""Cost of one block under a rematerialisation policy, for one micro-batch on one device."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from cluster_specs.software import SoftwareSpec
from cost_models.collectives import wire_bytes
from planner.evaluation.casts import kept_shares
from planner.evaluation.compiled import CompiledBlock, compiled_block, written_over
from planner.evaluation.issuing import issue_seconds
from planner.evaluation.pacing import Paced, paced
from planner.evaluation.rematerialisation import rematerialised
from planner.evaluation.residuals import listed_sums, score_gradients, sent_back, unread
from planner.evaluation.terms import BlockTerms
from planner.evaluation.weights import FrozenGroup, WeightGroup
from planner.graph import Block, Op, trained_weights
from planner.operators import (
    UNWRAPPED_POLICIES,
    AttentionKernel,
    is_in_mlp,
    operator_rule,
    saved_tensors,
)
from planner.saving import weight_casts
from planner.sharding.costs import Comm
from planner.sharding.depths import depths
from planner.sharding.gathers import Lone, lone_gathers
from planner.sharding.partitioning import slice_partitioner
from planner.sharding.pricing import Pricer
from planner.sharding.routing import has_experts
from planner.sharding.spec import ShardingSpec
from planner.sharding.widths import DTYPE_BYTES

SUMS = ("reduce_scatter", "all_reduce")


class Midway(NamedTuple):
    """A block as its attention's backward runs: what is alive inside it, and gradients of weights behind it."""

    workspace_bytes: float = 0.0
    """Over what the block keeps, which may be more [bytes]."""
    made: float = 0.0
    """Share of its trained weights whose gradients are made."""


class BlockCost(NamedTuple):
    """A block under a rematerialisation policy: per micro-batch on one device [s, bytes]."""

    forward: float
    backward_input: float
    backward_weight: float
    recompute: float
    """Forward compute that the backward repeats."""
    comm_forward: Mapping[str, float]
    """Seconds of communication by the outermost axis it crosses."""
    comm_backward: Mapping[str, float]
    host_forward: float
    """Host time to issue the block's kernels and collectives, which bounds the device's from below."""
    host_backward: float
    paced: Paced
    """Time of host and device where one waits for the other."""
    ranks_forward: int
    """Ranks of every collective over the tensor axis, which may be checked one by one."""
    ranks_backward: int
    sent_bytes: Mapping[str, float]
    """Bytes sent by collective, forward and backward."""
    saved_bytes: float
    """Activations kept from forward to backward."""
    until_weight_bytes: float
    """What the weight gradients read: there between input and weight gradient, where these are passes apart."""
    workspace_bytes: float
    """Most that is alive for a moment inside the block: recomputed activations, gradients in flight."""
    beside_weights: float
    """The same inside operators with weights, whose gradients are made there, and not counted."""
    widest_bytes: float
    """Largest activation inside the block."""
    boundary_bytes: float
    """Output handed to the next block."""
    weights: tuple[WeightGroup, ...]
    """That are trained."""
    frozen: tuple[FrozenGroup, ...]
    elements: float
    """Of its trained weights, without padding."""
    tensors: int
    """Operators with weights, each of which frameworks keep as one."""
    largest_weight: float
    exit: ShardingSpec
    lone: Lone
    splits_loss: bool = False
    """Its loss is taken of parts of the words, one on each tensor rank."""
    midway: Midway = Midway()
    compiled: CompiledBlock = CompiledBlock()
    sums_in_ring: bool = False
    """A gradient of what it reads goes round tensor ranks as it is made."""


def _by_axis(comms: Iterable[Comm]) -> dict[str, float]:
    total: dict[str, float] = {}
    for comm in comms:
        total[comm.axes[-1]] = total.get(comm.axes[-1], 0.0) + comm.seconds
    return total


def _by_collective(comms: Iterable[Comm]) -> dict[str, float]:
    total: dict[str, float] = {}
    for comm in comms:
        total[comm.collective] = total.get(comm.collective, 0.0) + comm.sent_bytes
    return total


def _widest(block: Block, terms: BlockTerms) -> float:
    """Its largest activation, which no cast of a weight is [bytes]."""
    casts = {name for op in block.ops for name in weight_casts(op)}
    return max((size for name, size in terms.tensor_bytes.items() if name not in casts), default=0.0)


def _recomputed_bytes(pricer: Pricer, block: Block, terms: BlockTerms, ops: Sequence[Op] = ()) -> float:
    """What the backward of a block that is computed again has of its forward before it starts [bytes].

    Where a compiler fuses what it computes again, kernels keep nothing for themselves. Given ``ops``, what the
    backward of these reads.
    """
    kernel, software = pricer.job.attention_kernel, pricer.software
    fused = software.activation_residuals == 0 or software.fused_elementwise
    names = set(saved_tensors(block, "none", kernel, fused_activation=fused))
    if software.fused_products:
        names -= {name for op in block.ops if op.kind == "elementwise" for name in op.outputs}
    if ops:
        names &= {name for op in ops for name in operator_rule(op).saved(op, block, kernel)}
    own = _beside_compiled(block, terms, software) if software.fused_elementwise else terms.residual_bytes
    beside = 0.0 if software.fused_elementwise else _unread_residuals(block, terms, kernel)
    shares = kept_shares(pricer, block)
    return beside + sum(
        size * shares.get(name, 1.0) + own.get(name, 0.0)
        for name, size in terms.tensor_bytes.items()
        if name in names
    )


def _beside_compiled(block: Block, terms: BlockTerms, software: SoftwareSpec) -> Mapping[str, float]:
    """What kernels that go over routed tokens keep for themselves, compiled or not (`RoutingKernels`) [bytes]."""
    routed = [str(op.attributes["routing"]) for op in block.ops if op.kind == "combine"]
    return {name: terms.residual_bytes[name] for name in routed} if software.routing_kernels else {}


def _midway(pricer: Pricer, block: Block, terms: BlockTerms, saved: float) -> Midway:
    """The block, of which ``saved`` bytes are kept, at its last attention, or at experts' first product if more is
    there; nothing where it has no attention.

    Only stacks whose gradients come as they are made have such moments of their own.
    """
    places = [place for place, op in enumerate(block.ops) if op.kind == "attention"]
    if not places or pricer.software.gradient_life != "late":
        return Midway()
    experts = [place for place, op in enumerate(block.ops) if has_experts(op, block)]
    found = [_at(pricer, block, terms, saved, place) for place in (places[-1], *experts[:1])]
    every, width = _trained_elements(pricer, block, block.ops), DTYPE_BYTES[pricer.job.weight_dtype]
    return max(found, key=lambda midway: midway.workspace_bytes + midway.made * every * width)


def _at(pricer: Pricer, block: Block, terms: BlockTerms, saved: float, place: int) -> Midway:
    """The block in the backward of its operator at ``place``, whose own weights have their gradients in the end."""
    until, op = block.ops[: place + 1], block.ops[place]
    sizes = terms.tensor_bytes
    moving = sum(sizes.get(name, 0.0) for name in (*op.inputs, *op.outputs, *block.outputs[:1]))
    alive = _recomputed_bytes(pricer, block, terms, until)
    behind, every = (_trained_elements(pricer, block, ops) for ops in (block.ops[place:], block.ops))
    held = alive - saved + moving + _of_scores(pricer, block, terms, op)
    held += terms.ops[op.name].held_backward
    return Midway(held, behind / every if every else 0.0)


def _of_scores(pricer: Pricer, block: Block, terms: BlockTerms, op: Op) -> float:
    return score_gradients(pricer, block, terms.tensor_bytes, terms.residual_bytes, op)


def _trained_elements(pricer: Pricer, block: Block, ops: Iterable[Op]) -> float:
    names = (name for op in ops for name in trained_weights(op, block))
    return sum(pricer.graph.elements(block.tensor[name]) for name in names)


def _unread_residuals(block: Block, terms: BlockTerms, kernel: AttentionKernel) -> float:
    """What kernels keep for themselves beside results that no other backward reads [bytes]."""
    read = saved_tensors(block, "none", kernel, fused_activation=False)
    return sum(size for name, size in terms.residual_bytes.items() if name not in read)


def _gradients_in_flight(pricer: Pricer, block: Block, terms: BlockTerms, weighted: bool = False) -> float:
    """Most that one operator's backward reads and writes: gradients of its outputs and of its inputs [bytes].

    If ``weighted``, of those with weights.

    In feed-forward layers that go over a sequence part by part those of one part, beside sums over parts.

    A gated activation may write gradients of its inputs over these. Where gradients come as they are made, attention is
    not beside what the feed-forward layer keeps, which is done by then (`_midway`).
    """
    software, tiles = pricer.software, pricer.job.mlp_tiles
    sizes, sums = terms.tensor_bytes, _sums_over_tiles(pricer, block, terms)
    gates = (op for op in block.ops if software.gates_in_place and "activated_gate" in op.attributes)
    in_place = {name for op in gates for name in op.inputs}
    most = 0.0
    ops = (op for op in block.ops if not weighted or trained_weights(op, block))
    for op in (op for op in ops if op.kind != "attention" or software.gradient_life != "late"):
        made = sum(sizes.get(name, 0.0) for name in (*op.inputs, *op.outputs) if name not in in_place)
        made += _of_scores(pricer, block, terms, op)
        held = 0.0 if op.kind == "attention" else terms.ops[op.name].held_backward
        most = max(most, held + (made / tiles + sums if is_in_mlp(block, op) else made))
    return most


def _sums_over_tiles(pricer: Pricer, block: Block, terms: BlockTerms) -> float:
    """Gradients of a feed-forward layer's weights that wait until all its tiles have theirs, and one more [bytes].

    PyTorch's memory tracker: tiles save that much less.
    """
    if pricer.job.mlp_tiles == 1:
        return 0.0
    layer = (op for op in block.ops if is_in_mlp(block, op))
    share = _trained_elements(pricer, block, layer) / max(1.0, _trained_elements(pricer, block, block.ops))
    whole = share * sum(group.elements for group in terms.weights.trained)
    return (whole + terms.largest_weight) * DTYPE_BYTES[pricer.job.weight_dtype]


def _gathered_again(terms: BlockTerms) -> float:
    """The largest input of a product that the backward gathers once more [bytes]."""
    gathers = (comm for cost in terms.edges.values() for comm in cost.again)
    return max((comm.sent_bytes * comm.ranks / (comm.ranks - 1) for comm in gathers), default=0.0)


class _Summed(NamedTuple):
    """A gradient that products of one operator make and a partitioner sums over tensor ranks."""

    tensor: str
    comm: Comm
    rings: tuple[bool, ...]
    """Of each product, whether it has a ring of its own."""


def _summed_gradients(pricer: Pricer, block: Block, terms: BlockTerms) -> Iterator[_Summed]:
    partitioner = slice_partitioner(pricer.software, pricer.mesh.cluster)
    ops, ranks = {op.name: op for op in block.ops}, pricer.mesh.size("tensor")
    for edge, cost in terms.edges.items() if partitioner is not None else ():
        summed = [c for c in cost.backward if c.collective in SUMS and c.axes == ("tensor",)]
        if summed and edge.consumer in ops and partitioner is not None:
            width = pricer.element_bytes(block.tensor[edge.tensor])
            products = depths(pricer.graph, block, ops[edge.consumer], backward=True)
            rings = tuple(partitioner.rings(depth, width, ranks, nearest=True) for depth in products)
            yield _Summed(edge.tensor, summed[0], rings)


def _partial_sums(pricer: Pricer, block: Block, terms: BlockTerms) -> float:
    """Most that products of an operator make of its input's gradient, beyond its own size, before the sum [bytes].

    Where a partitioner makes them: whole, one for each product without a ring.
    """
    most = 0.0
    for tensor, comm, rings in _summed_gradients(pricer, block, terms):
        whole = len(rings) - sum(rings)
        made = whole * comm.sent_bytes / wire_bytes(comm.collective, 1.0, pricer.mesh.size("tensor"))
        most = max(most, made - terms.tensor_bytes[tensor])
    return most


def _sums_in_ring(pricer: Pricer, block: Block, terms: BlockTerms) -> bool:
    """Whether a gradient is scattered over tensor ranks in a ring beside its product."""
    found = _summed_gradients(pricer, block, terms)
    return any(comm.collective == "reduce_scatter" and any(rings) for _, comm, rings in found)


def _until_weight(block: Block, kept: Mapping[str, float], whole: Mapping[str, float]) -> float:
    """Inputs of products as they are ``kept``, each once, and the gradients of their outputs [bytes].

    Source: zero bubble, arXiv:2401.10241, section 2.3 and table 1.
    """
    products = [op for op in block.ops if op.weights and operator_rule(op).arithmetic == "matmul"]
    inputs = dict.fromkeys(name for op in products for name in op.inputs if name in kept)
    return sum(kept[name] for name in inputs) + sum(whole[name] for op in products for name in op.outputs)


def least_saved_bytes(pricer: Pricer, block: Block, policy: str) -> float:
    """What `block_cost` says is kept, were every kept tensor spread evenly: a bound for any assignment [bytes].

    Of one sequence, over all devices that share it.
    """
    repeated, kept, *_ = rematerialised(pricer, block, policy)
    shares = kept_shares(pricer, block, repeated) | dict.fromkeys(unread(pricer.software, block), 0.0)
    return sum(
        pricer.graph.elements(block.tensor[name])
        * pricer.element_bytes(block.tensor[name])
        * shares.get(name, 1.0)
        for name in kept
    )


def _saved_bytes(
    pricer: Pricer,
    block: Block,
    terms: BlockTerms,
    policy: str,
    sizes: Mapping[str, float],
    kept: Iterable[str],
) -> float:
    residual = {**terms.residual_bytes, **sent_back(pricer, block, policy, terms.tensor_bytes)}
    saved = sum(sizes[name] + residual.get(name, 0.0) for name in kept)
    unread = _unread_residuals(block, terms, pricer.job.attention_kernel)
    saved += unread if policy in UNWRAPPED_POLICIES else 0.0
    return saved + listed_sums(pricer, block, policy, sizes, terms.sums)


def left_gathered(block: BlockCost) -> float:
    """Elements of a layer that are surely gathered beside its workspace: less the last weight, and any in a ring."""
    everything = sum(group.elements for group in block.weights)
    if block.compiled == CompiledBlock():
        return everything
    return max(0.0, min(everything * (1 - block.lone.backward), everything - block.compiled.last_weight))


def block_cost(pricer: Pricer, block: Block, terms: BlockTerms, policy: str) -> BlockCost:
    """Apply a rematerialisation policy to priced terms.

    Full recomputation repeats the block's forward, communication included; where a stack stops early, but for what
    follows the last product. A partial policy repeats only its operators, whose inputs are kept. Operators that keep
    nothing for others are never repeated.
    """
    software = pricer.software
    repeated, kept, moved_again, exchanged = rematerialised(pricer, block, policy)
    shares = kept_shares(pricer, block, repeated)
    forward_comm = [c for cost in terms.ops.values() for c in cost.comm_forward]
    forward_comm += [c for cost in terms.edges.values() for c in cost.forward]
    backward_comm = [c for cost in terms.ops.values() for c in cost.comm_backward]
    backward_comm += [
        c
        for edge, cost in terms.edges.items()
        for c in cost.backwards(edge in moved_again, software.shares_gathers)
    ]
    backward_comm += [c for name in exchanged for c in terms.ops[name].comm_forward]
    host = issue_seconds(pricer, block, terms.experts, repeated, (len(forward_comm), len(backward_comm)))
    sizes = {n: b * shares.get(n, 1.0) for n, b in terms.tensor_bytes.items()}
    saved = _saved_bytes(pricer, block, terms, policy, sizes, kept)
    boundary = terms.tensor_bytes.get(block.outputs[0], 0.0) if block.outputs else 0.0
    there = max(0.0, _recomputed_bytes(pricer, block, terms) - saved) + boundary
    inside = there - written_over(block, terms, software, kept) + _gathered_again(terms)
    inside += _partial_sums(pricer, block, terms) + terms.widened_bytes
    return BlockCost(
        forward=sum(c.forward for c in terms.ops.values()),
        backward_input=sum(c.backward_input for c in terms.ops.values()),
        backward_weight=sum(c.backward_weight for c in terms.ops.values()),
        recompute=sum(share * terms.ops[name].forward for name, share in repeated.items()),
        comm_forward=_by_axis(forward_comm),
        comm_backward=_by_axis(backward_comm),
        host_forward=host[0],
        host_backward=host[1],
        paced=paced(pricer, block, terms, repeated),
        ranks_forward=sum(comm.ranks for comm in forward_comm),
        ranks_backward=sum(comm.ranks for comm in backward_comm),
        sent_bytes=_by_collective((*forward_comm, *backward_comm)),
        saved_bytes=saved,
        until_weight_bytes=_until_weight(block, sizes, terms.tensor_bytes),
        workspace_bytes=inside + _gradients_in_flight(pricer, block, terms),
        beside_weights=inside + _gradients_in_flight(pricer, block, terms, weighted=True),
        widest_bytes=_widest(block, terms),
        boundary_bytes=boundary,
        weights=terms.weights.trained,
        frozen=terms.weights.frozen,
        elements=sum(group.elements for group in terms.weights.trained),
        tensors=sum(bool(trained_weights(op, block)) for op in block.ops),
        largest_weight=terms.largest_weight,
        exit=terms.exit,
        splits_loss=any(terms.ops[o.name].comm_forward for o in block.ops if o.kind == "cross_entropy"),
        midway=_midway(pricer, block, terms, saved),
        compiled=compiled_block(pricer, block, terms, kept, there),
        sums_in_ring=_sums_in_ring(pricer, block, terms),
        lone=lone_gathers(pricer, block, repeated, {block.producer[name] for name in terms.sums}),
    )

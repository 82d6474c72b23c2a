"""Cost of one block under one assignment of strategies, for one micro-batch on one device."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from cluster_specs.software import SoftwareSpec
from planner.graph import Block, Op
from planner.operators import ROUTING_KINDS, AttentionKernel, operator_rule, recomputed_ops, saved_tensors
from planner.sharding.pricing import Comm, EdgeCost, OpCost, Pricer
from planner.sharding.spec import ShardingSpec, Strategy, carried, input_spec

Assignment = Mapping[str, Strategy]
"""Operator name -> strategy, for every operator of a block."""


class WeightGroup(NamedTuple):
    """Weights whose gradients are summed over the same axes."""

    sync_axes: tuple[str, ...]
    elements: float
    """On one device, before any ZeRO sharding."""


class Edge(NamedTuple):
    """A tensor on its way from ``producer`` (None: the block before) to ``consumer`` ("": the block after)."""

    producer: str | None
    tensor: str
    consumer: str


class BlockTerms(NamedTuple):
    """The priced terms of a block, before any policy: what the ILP minimises the sum of."""

    ops: Mapping[str, OpCost]
    edges: Mapping[Edge, EdgeCost]
    weights: tuple[WeightGroup, ...]
    tensor_bytes: Mapping[str, float]
    """Activations on one device, as they are kept."""
    exit: ShardingSpec
    """How the block's last output is left."""

    @property
    def seconds(self) -> float:
        """Forward and backward of one micro-batch, nothing recomputed or overlapped."""
        return sum(c.seconds for c in self.ops.values()) + sum(c.seconds for c in self.edges.values())


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
    peers_forward: int
    """Other ranks of every collective over the tensor axis, which may cost the host more."""
    peers_backward: int
    sent_bytes: Mapping[str, float]
    """Bytes sent by collective, forward and backward."""
    saved_bytes: float
    """Activations kept from forward to backward."""
    workspace_bytes: float
    """Most that is alive for a moment inside the block: recomputed activations, gradients in flight."""
    widest_bytes: float
    """Largest activation inside the block."""
    boundary_bytes: float
    """Output handed to the next block."""
    weights: tuple[WeightGroup, ...]
    exit: ShardingSpec


def edges_of(block: Block) -> tuple[Edge, ...]:
    """Every use of an activation; a block input comes from the block before (producer None)."""
    return tuple(
        Edge(block.producer.get(name), name, op.name)
        for op in block.ops
        for name in op.inputs
        if block.tensor[name].role == "activation"
    )


def exit_of(pricer: Pricer, block: Block, assignment: Assignment) -> ShardingSpec:
    """How ``block`` leaves its first output."""
    if not block.outputs:
        return ShardingSpec()
    name = block.outputs[0]
    maker = next(op for op in block.ops if name in op.outputs)
    return pricer.output(block, maker, block.tensor[name], assignment[maker.name])


def block_terms(
    pricer: Pricer,
    block: Block,
    assignment: Assignment,
    entry: ShardingSpec | None = None,
    leaves: ShardingSpec | None = None,
) -> BlockTerms:
    """Price every operator and edge of ``block``.

    ``entry`` is how the block before leaves its output, ``leaves`` how the block after wants it; None where
    the block follows itself, so that it receives what it leaves.
    """
    left = exit_of(pricer, block, assignment)
    entry = left if entry is None else entry
    specs = {name: carried(pricer.graph, block.tensor[name], entry) for name in block.inputs}
    ops: dict[str, OpCost] = {}
    weights: dict[tuple[str, ...], float] = {}
    for op in block.ops:
        strategy = assignment[op.name]
        ops[op.name] = pricer.op(block, op, strategy)
        for name in op.outputs:
            tensor = block.tensor[name]
            specs[name] = pricer.output(block, op, tensor, strategy)
        for name in op.weights:
            weight = block.tensor[name]
            axes = pricer.sync_axes(weight, strategy)
            local = pricer.sizes.elements(weight, input_spec(pricer.graph, weight, strategy))
            weights[axes] = weights.get(axes, 0.0) + local
    sizes = {name: _held_bytes(pricer, block, name, spec, assignment) for name, spec in specs.items()}
    sizes |= _auxiliary_bytes(pricer, block, assignment)
    if pricer.software.saves_gathered:
        _hold_gathered(pricer, block, assignment, sizes)
    edges = {
        edge: pricer.edge(block, edge.tensor, specs[edge.tensor], assignment[edge.consumer])
        for edge in edges_of(block)
    }
    if leaves is not None:
        name = block.outputs[0]
        wanted = carried(pricer.graph, block.tensor[name], leaves)
        edges[Edge(block.producer[name], name, "")] = pricer.transition(block.tensor[name], left, wanted)
    groups = tuple(WeightGroup(axes, elements) for axes, elements in weights.items())
    return BlockTerms(ops, edges, groups, sizes, left)


def _held_bytes(pricer: Pricer, block: Block, name: str, spec: ShardingSpec, assignment: Assignment) -> float:
    """A tensor as it is kept: as its producer leaves it, or, if that is a pending sum, as its first reader wants it."""
    tensor = block.tensor[name]
    reader = next((op for op in block.ops if name in op.inputs), None)
    if spec.partial and reader is not None:
        spec = input_spec(pricer.graph, tensor, assignment[reader.name])
    return pricer.tensor_bytes(tensor, spec)


def _hold_gathered(pricer: Pricer, block: Block, assignment: Assignment, sizes: dict[str, float]) -> None:
    """Raise ``sizes`` of the inputs of products to what the products read, after any gathering."""
    for op in (op for op in block.ops if operator_rule(op).arithmetic == "matmul"):
        for name in (n for n in op.inputs if n in sizes):
            tensor = block.tensor[name]
            read = pricer.tensor_bytes(tensor, input_spec(pricer.graph, tensor, assignment[op.name]))
            sizes[name] = max(sizes[name], read)


def _auxiliary_bytes(pricer: Pricer, block: Block, assignment: Assignment) -> dict[str, float]:
    """Tensors that live only between an operator's forward and backward: softmax statistics and the like."""
    found: dict[str, float] = {}
    for op in block.ops:
        gate = op.attributes.get("activated_gate")
        kept = operator_rule(op).saved(op, block, pricer.job.attention)
        for name in (*kept, str(gate)) if gate else kept:
            tensor = block.tensor[name]
            if (
                tensor.role == "activation"
                and name not in block.producer
                and name not in block.inputs
                or tensor.role == "input"
            ):
                found[name] = pricer.tensor_bytes(
                    tensor, input_spec(pricer.graph, tensor, assignment[op.name])
                )
    return found


def _by_axis(comms: Iterable[Comm]) -> dict[str, float]:
    total: dict[str, float] = {}
    for comm in comms:
        total[comm.axes[-1]] = total.get(comm.axes[-1], 0.0) + comm.seconds
    return total


def _keeps_fp8(pricer: Pricer) -> bool:
    return pricer.job.precision == "fp8" and pricer.software.saves_fp8


def _only_multiplied(block: Block, kernel: AttentionKernel) -> frozenset[str]:
    """Activations that the backward of products reads and no other: kept in 8 of 16 bits."""
    reads = {op.name: set(operator_rule(op).saved(op, block, kernel)) for op in block.ops}
    products = [op.name for op in block.ops if operator_rule(op).arithmetic == "matmul"]
    others = [reads[name] for name in reads if name not in products]
    return frozenset().union(*(reads[name] for name in products)).difference(*others)


def _host_seconds(software: SoftwareSpec, ops: Iterable[Op], comms: Sequence[Comm]) -> float:
    """Time in which the host issues operators and collectives, one after the other."""
    issue = (software.host_routing if op.kind in ROUTING_KINDS else software.host_operator for op in ops)
    return sum(issue) + software.host_collective * len(comms)


def block_cost(pricer: Pricer, block: Block, terms: BlockTerms, policy: str) -> BlockCost:
    """Apply a rematerialisation policy to priced terms.

    Full recomputation repeats the block's forward, communication included but for handing on its output; a
    partial policy repeats only its operators, whose inputs are kept. Operators that keep nothing for others are
    never repeated.
    """
    kernel, software = pricer.job.attention, pricer.software
    repeated = recomputed_ops(block, policy, kernel)
    fused = software.fused_activation
    kept = saved_tensors(block, policy, kernel, fused_activation=fused)
    only_multiplied = _only_multiplied(block, kernel) if _keeps_fp8(pricer) else frozenset()
    forward_comm = [c for cost in terms.ops.values() for c in cost.comm_forward]
    forward_comm += [c for cost in terms.edges.values() for c in cost.forward]
    backward_comm = [c for cost in terms.ops.values() for c in cost.comm_backward]
    backward_comm += [c for cost in terms.edges.values() for c in cost.backward]
    if policy == "full":
        backward_comm += [c for cost in terms.ops.values() for c in cost.comm_forward]
        backward_comm += [c for edge, cost in terms.edges.items() if edge.consumer for c in cost.forward]
    again = [op for op in block.ops if op.name in repeated]
    sent: dict[str, float] = {}
    for comm in (*forward_comm, *backward_comm):
        sent[comm.collective] = sent.get(comm.collective, 0.0) + comm.sent_bytes
    saved = sum(terms.tensor_bytes[name] * (0.5 if name in only_multiplied else 1) for name in kept)
    all_saved = saved_tensors(block, "none", kernel, fused_activation=fused)
    everything = sum(terms.tensor_bytes[name] for name in all_saved)
    widest = max(terms.tensor_bytes.values(), default=0.0)
    boundary = terms.tensor_bytes.get(block.outputs[0], 0.0) if block.outputs else 0.0
    return BlockCost(
        forward=sum(c.forward for c in terms.ops.values()),
        backward_input=sum(c.backward_input for c in terms.ops.values()),
        backward_weight=sum(c.backward_weight for c in terms.ops.values()),
        recompute=sum(terms.ops[name].forward for name in repeated),
        comm_forward=_by_axis(forward_comm),
        comm_backward=_by_axis(backward_comm),
        host_forward=_host_seconds(software, block.ops, forward_comm),
        host_backward=_host_seconds(software, (*block.ops, *block.ops, *again), backward_comm),
        peers_forward=sum(comm.peers for comm in forward_comm),
        peers_backward=sum(comm.peers for comm in backward_comm),
        sent_bytes=sent,
        saved_bytes=saved,
        workspace_bytes=max(0.0, everything - saved) + 2 * widest,
        widest_bytes=widest,
        boundary_bytes=boundary,
        weights=terms.weights,
        exit=terms.exit,
    )

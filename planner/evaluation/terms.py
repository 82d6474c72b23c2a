"""Prices of one block under one assignment of strategies, before any policy: operators, edges, weights, tensors."""

from collections.abc import Mapping
from typing import NamedTuple

from cost_models.memory import loss_chunks
from planner.evaluation.edges import Edge, edges_of
from planner.evaluation.residuals import padding, residuals
from planner.evaluation.weights import Weights, weights_of
from planner.graph import TOKEN_DIMS, Block, trained_weights
from planner.operators import operator_rule
from planner.sharding.costs import EdgeCost, OpCost
from planner.sharding.depths import is_product
from planner.sharding.frozen import widened_bytes
from planner.sharding.pricing import Pricer
from planner.sharding.routing import has_experts
from planner.sharding.spec import ShardingSpec, Strategy, carried, input_spec

Assignment = Mapping[str, Strategy]
"""Operator name -> strategy, for every operator of a block."""


class BlockTerms(NamedTuple):
    """The priced terms of a block, before any policy: what the ILP minimises the sum of."""

    ops: Mapping[str, OpCost]
    edges: Mapping[Edge, EdgeCost]
    weights: Weights
    largest_weight: float
    """Elements of the weight that has most, on one device."""
    last_weight: float
    """Elements there that the last product reads, whose backward is the first."""
    widened_bytes: float
    """The largest weight that is stored in fewer bits than it is multiplied in, as it is multiplied."""
    tensor_bytes: Mapping[str, float]
    """Activations on one device, as they are kept."""
    residual_bytes: Mapping[str, float]
    """What the kernels of the stack keep beyond that, by auxiliary tensor."""
    exit: ShardingSpec
    """How the block's last output is left."""
    sums: Mapping[str, float]
    """What is left as a sum to be made between ranks, on one of them before it is made."""
    experts: float
    """Those that a rank holds; none where the block has none."""

    @property
    def seconds(self) -> float:
        """Forward and backward of one micro-batch, nothing recomputed or overlapped."""
        return sum(c.seconds for c in self.ops.values()) + sum(c.seconds for c in self.edges.values())


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
    largest = last = widened = 0.0
    for op in block.ops:
        strategy = assignment[op.name]
        ops[op.name] = pricer.op(block, op, strategy)
        for name in op.outputs:
            tensor = block.tensor[name]
            specs[name] = pricer.output(block, op, tensor, strategy)
        weights = [block.tensor[name] for name in trained_weights(op, block)]
        local = [pricer.sizes.elements(w, input_spec(pricer.graph, w, strategy)) for w in weights]
        largest = max(largest, *local, 0.0)
        last = sum(local) if local and is_product(op) else last
        widened = max(widened, widened_bytes(pricer.job, pricer.sizes, block, op, strategy))
    sizes = {name: _held_bytes(pricer, block, name, spec, assignment) for name, spec in specs.items()}
    sizes |= _auxiliary_bytes(pricer, block, assignment)
    sizes = _in_chunks(pricer, block, sizes)
    _hold_gathered(pricer, block, assignment, sizes)
    if pricer.software.saves_gathered_keys and pricer.exchange == "all_gather":
        _hold_gathered_keys(pricer, block, assignment, sizes)
    readers = {op.name: op for op in block.ops}
    edges = {
        edge: pricer.edge(
            block, edge.tensor, readers[edge.consumer], specs[edge.tensor], assignment[edge.consumer]
        )
        for edge in edges_of(block)
    }
    if leaves is not None:
        name = block.outputs[0]
        wanted = carried(pricer.graph, block.tensor[name], leaves)
        edges[Edge(block.producer[name], name, "")] = pricer.transition(block.tensor[name], left, wanted)
    held = weights_of(pricer, block, assignment, lambda weight, strategy: 1.0)
    made = {name: spec for name, spec in specs.items() if name in block.producer}
    sums = {n: pricer.tensor_bytes(block.tensor[n], spec) for n, spec in made.items() if spec.partial}
    kept = residuals(pricer, block, sizes, sums)
    mixed = (assignment[op.name] for op in block.ops if has_experts(op, block))
    experts = max((pricer.sizes.local("experts", strategy) for strategy in mixed), default=0.0)
    return BlockTerms(ops, edges, held, largest, last, widened, sizes, kept, left, sums, experts)


def _held_bytes(pricer: Pricer, block: Block, name: str, spec: ShardingSpec, assignment: Assignment) -> float:
    """A tensor as it is kept: as its producer leaves it, or, if that is a pending sum, as its first reader wants it."""
    tensor = block.tensor[name]
    reader = next((op for op in block.ops if name in op.inputs), None)
    if spec.partial and reader is not None:
        spec = input_spec(pricer.graph, tensor, assignment[reader.name])
    return pricer.tensor_bytes(tensor, spec) * padding(pricer, tensor)


def _in_chunks(pricer: Pricer, block: Block, sizes: Mapping[str, float]) -> dict[str, float]:
    """``sizes`` under a fused loss, which never holds all logits."""
    dims = pricer.graph.dims
    if not pricer.job.fused_loss or "vocab" not in dims:
        return dict(sizes)
    chunks = loss_chunks(dims["vocab"], dims["hidden"])
    return {n: size / (chunks if "vocab" in block.tensor[n].dims else 1) for n, size in sizes.items()}


def _hold_gathered(pricer: Pricer, block: Block, assignment: Assignment, sizes: dict[str, float]) -> None:
    """Raise ``sizes`` of the inputs that products keep gathered to what they read."""
    for op in (op for op in block.ops if is_product(op) and pricer.keeps_gathered(block, op)):
        for name in (n for n in op.inputs if n in sizes):
            tensor = block.tensor[name]
            read = pricer.tensor_bytes(tensor, input_spec(pricer.graph, tensor, assignment[op.name]))
            sizes[name] = max(sizes[name], read)


def _hold_gathered_keys(
    pricer: Pricer, block: Block, assignment: Assignment, sizes: dict[str, float]
) -> None:
    """Raise ``sizes`` of keys and values to those of whole sequences, as attention reads them."""
    for op in (op for op in block.ops if op.kind == "attention"):
        whole = tuple(split for split in assignment[op.name] if split[1] not in TOKEN_DIMS)
        for name in (n for n in op.inputs[1:3] if n in sizes):
            tensor = block.tensor[name]
            read = pricer.tensor_bytes(tensor, input_spec(pricer.graph, tensor, whole))
            sizes[name] = max(sizes[name], read * padding(pricer, tensor))


def _auxiliary_bytes(pricer: Pricer, block: Block, assignment: Assignment) -> dict[str, float]:
    """Tensors that live only between an operator's forward and backward: softmax statistics and the like.

    And data, which an operator that runs again reads again.
    """
    found: dict[str, float] = {}
    for op in block.ops:
        gate = op.attributes.get("activated_gate")
        kept = (*op.inputs, *operator_rule(op).saved(op, block, pricer.job.attention_kernel))
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

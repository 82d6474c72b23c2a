"""Seconds and bytes of one operator under one strategy, and of one edge between two strategies.

Everything that prices a sharding goes through here: the evaluator sums these terms over a chosen assignment,
the ILP tabulates them over all strategies. The physics is asked of ``cost_models``; this module only turns
named dims into the numbers that it takes.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cluster_specs.habits import RoutingOperators
from cluster_specs.software import SoftwareSpec
from cost_models.collectives import COLLECTIVES, wire_bytes
from cost_models.compute import product_dtype, stream_seconds
from cost_models.routing import Groups, once_per_node
from planner.graph import BATCH, Block, Graph, Op, Tensor, trained_weights
from planner.models.adapter_steps import RANK, narrow_product
from planner.operators import operator_rule
from planner.plans import NARROW, Job
from planner.sharding.between import attention_cost, product_cost
from planner.sharding.costs import Comm, EdgeCost, OpCost
from planner.sharding.depths import copied_whole, depths, is_product
from planner.sharding.few_heads import with_shared_heads
from planner.sharding.frozen import spared
from planner.sharding.kernels import in_one_kernel, passes, with_biases, with_narrow_inputs, with_weight_casts
from planner.sharding.mesh import BATCH_AXES, EXPERT_AXES, INNER_AXES, Mesh
from planner.sharding.partitioning import Edges, edges_of
from planner.sharding.pinning import pins_gathered
from planner.sharding.products import matmul_cost, with_logits_again
from planner.sharding.resharding import Move, gathered_whole, moves, narrowed, splits_experts
from planner.sharding.routing import routed_otherwise, with_rows, with_scatters
from planner.sharding.scans import scan_cost
from planner.sharding.spec import (
    ShardingSpec,
    Sizes,
    Strategy,
    gradient_of_input,
    gradient_of_output,
    has_dim,
    input_spec,
    output_spec,
)
from planner.sharding.steps import recurrence_cost
from planner.sharding.thin import is_of_adapter, thin_edge
from planner.sharding.widths import DTYPE_BYTES, stored_bytes


@dataclass(frozen=True, slots=True)
class Pricer:
    """Prices operators and edges of ``graph`` on ``sizes.mesh`` for one micro-batch."""

    graph: Graph
    sizes: Sizes
    job: Job
    software: SoftwareSpec
    known: dict[tuple[object, ...], OpCost | EdgeCost] = field(default_factory=dict, repr=False)
    """Prices by value; pricers that differ only in how many ranks split the batch may share them."""
    tables: dict[tuple[object, ...], Any] = field(default_factory=dict, repr=False)
    """Whatever else is derived by value, shared likewise: tabulated prices, legal strategies, kept tensors."""
    _situations: dict[Strategy, tuple[object, ...]] = field(default_factory=dict, repr=False)
    _outputs: dict[tuple[str, str, str, Strategy], ShardingSpec] = field(default_factory=dict, repr=False)
    partitioned: Edges | None = field(init=False, repr=False)
    """What the stack's partitioner makes of scatters, where it has one."""

    def __post_init__(self) -> None:
        """Look at the slices once."""
        edges = edges_of(self.software, self.sizes, self.comm, self.element_bytes, self.tables)
        object.__setattr__(self, "partitioned", edges)

    @property
    def mesh(self) -> Mesh:
        """What is priced."""
        return self.sizes.mesh

    @property
    def exchange(self) -> str:
        """How keys and values of a split sequence are exchanged: as the job says, or by the stack's habit."""
        return self.job.context_exchange or self.software.context_exchange

    @property
    def routing_operators(self) -> RoutingOperators | None:
        """What the host issues for the exchange of tokens; None where the stack does not say."""
        way = "once_per_node" if self.job.token_exchange in ("deepep", "hybridep") else "all_to_all"
        return self.software.routing_operators.get(way)

    def element_bytes(self, tensor: Tensor) -> float:
        """Stored bytes per element of ``tensor``."""
        return stored_bytes(tensor, self.job.precision, self.software.modules)

    def tensor_bytes(self, tensor: Tensor, spec: ShardingSpec) -> float:
        """Bytes of ``tensor`` on one device."""
        return self.sizes.elements(tensor, spec) * self.element_bytes(tensor)

    def matmul_dtype(self, block: Block, left: Tensor, right: Tensor) -> str:
        """Rate at which a product of these tensors runs.

        Those of fp32 as `product_dtype` says. The head stays in bf16 in fp8 and fp4 jobs, as in Megatron Core
        (``output_layer`` is none of Transformer Engine's) and torchtitan (``filter_fqns`` leaves out ``output``), and
        so do adapters (`planner.models.adapters`).
        """
        if "fp32" not in (left.dtype, right.dtype) and self.job.precision != "fp32":
            wide = block.name == self.graph.last or RANK in (*left.dims, *right.dims)
            return "bf16" if wide and self.job.precision in NARROW else self.job.precision
        return product_dtype(self.mesh.cluster.device, "fp32")

    def comm(
        self,
        collective: str,
        axes: tuple[str, ...],
        full_bytes: float,
        routed: bool = False,
        exposed: bool = False,
    ) -> Comm:
        """One collective over ``axes``, priced by its group's links; of tensor and expert axes, what stays exposed."""
        if axes[-1] == "context_expert":  # what moves between experts, though on context ranks
            axes = (*axes, "expert")
        group = self.mesh.group(axes)
        hidden = 0.0 if exposed else self._hidden(axes, routed)
        seconds = COLLECTIVES[collective](full_bytes, group).seconds * (1 - hidden)
        copies = self.software.copies_gathered and axes[-1] == "tensor" and group.size > 1
        if copies and collective in ("all_gather", "reduce_scatter"):
            seconds += stream_seconds(2 * full_bytes, self.mesh.cluster.device).seconds
        ranks = group.size if axes[-1] == "tensor" and group.size > 1 else 0
        return Comm(collective, axes, seconds, wire_bytes(collective, full_bytes, group.size), ranks)

    def _hidden(self, axes: tuple[str, ...], routed: bool) -> float:
        """Share that computation hides; of what tensor ranks gather and sum of ``routed`` tokens, as of exchanges."""
        if routed or axes[-1] in EXPERT_AXES:
            return self.software.overlap_data if self.job.overlap_experts else self.software.overlap_expert
        return self.software.overlap_tensor if axes[-1] == "tensor" else 0.0

    def _moved(self, tensor: Tensor, move: Move, to_experts: bool = False) -> Comm:
        """One collective of a resharding of ``tensor``; routed tokens may go to each node once, or to all ranks."""
        routed, dims = "experts" in tensor.dims, self.graph.dims
        library = self.job.token_exchange
        copies = tensor.scale * dims.get("experts", 1) if routed else 1.0
        if library == "all_gather" and routed:
            move = gathered_whole(move, copies, self.mesh.group(move.axes).size, to_experts)
        if move.collective != "all_to_all" or library == "all_to_all" or library == "all_gather":
            return self.comm(*move, routed)
        groups = Groups(dims.get("expert_groups", 1), dims.get("chosen_groups", 1))
        in_turn = dims.get("experts") if self.job.expert_routing == "consecutive" else None
        time = once_per_node(move.full_bytes, self.mesh.group(move.axes), copies, groups, in_turn, library)
        return self.comm(*move)._replace(seconds=time.seconds * (1 - self._hidden(move.axes, routed)))

    def op(self, block: Block, op: Op, strategy: Strategy) -> OpCost:
        """Price ``op`` under ``strategy``. Raises ``Unsupported`` for a kind without a rule."""
        key = (block.name, op.name, *self.situation(strategy))
        found = self.known.get(key)
        if found is None:
            priced = _PRICES[operator_rule(op).arithmetic](self, block, op, strategy)
            priced = with_logits_again(self, block, op, strategy, priced)
            priced = spared(self.job, self.sizes, block, op, strategy, priced, self.software)
            priced = with_rows(self, block, op, strategy, with_scatters(self, block, op, strategy, priced))
            priced = with_shared_heads(self, block, op, strategy, priced)
            priced = with_weight_casts(self, block, op, strategy, priced)
            priced = with_narrow_inputs(self, block, op, strategy, priced)
            priced = with_biases(self, block, op, strategy, in_one_kernel(self, block, op, strategy, priced))
            added = priced.backward_weight + self._accumulation(block, op, strategy)
            found = self.known[key] = priced._replace(backward_weight=added)
        assert isinstance(found, OpCost)
        return found

    def _accumulation(self, block: Block, op: Op, strategy: Strategy) -> float:
        """Adding the gradients of the operator's weights to those of earlier micro-batches [s]."""
        each, trained = self.software.accumulated_bytes, trained_weights(op, block)
        if not each or not trained:
            return 0.0
        weights = (block.tensor[name] for name in trained)
        elements = sum(self.sizes.elements(w, input_spec(self.graph, w, strategy)) for w in weights)
        return stream_seconds(each * elements, self.mesh.cluster.device).seconds

    def edge(self, block: Block, name: str, reader: Op, source: ShardingSpec, consumer: Strategy) -> EdgeCost:
        """Price what lies between a producer's output ``source`` and the strategy ``consumer`` of its ``reader``."""
        keeps = not is_product(reader) or self.keeps_gathered(block, reader)
        alike = keeps and self.software.partitioner is None and not self.software.sums_apart
        alike = alike and self.job.adapter is None
        who = "" if alike else reader.name
        where = (*self.situation(source.shards), *self.situation(consumer))
        key = (block.name, name, who, keeps, source.partial, *where)
        found = self.known.get(key)
        if found is None:
            tensor = block.tensor[name]
            if is_of_adapter(self, block, tensor, reader):
                found = thin_edge(self, block, tensor, reader, source, consumer)
            else:
                found = self._edge(tensor, source, consumer, self.gathers_narrow(block))
            if not keeps:
                found = self._beside_gradients(block, reader, consumer, found)
            if self.partitioned:
                found = self.partitioned.beside(block, name, reader, found)
            found = self._summed_apart(block, reader, found)
            self.known[key] = found
        assert isinstance(found, EdgeCost)
        return found

    def pins_gathered(self, block: Block, product: Op) -> bool:
        """Whether programs of a stack that keeps split inputs pin gathered ones (`planner.exporters.jax`)."""
        pinned = pins_gathered(self.graph, block, product, self.mesh.size)
        return pinned and self.software.saves_gathered == "within blocks"

    def keeps_gathered(self, block: Block, product: Op) -> bool:
        """Whether ``product`` keeps its inputs as gathered over the tensor axis, not to gather them again.

        What is gathered for experts is the exchange's to gather, and theirs to keep. So is what an adapter reads.
        """
        if narrow_product(product, block) is not None:
            return True
        habit = self.software.saves_gathered
        if habit == "within blocks":
            return self.pins_gathered(block, product) or block.name in (self.graph.first, self.graph.last)
        return habit == "always" or "experts" in block.tensor[product.inputs[0]].dims

    def _beside_gradients(self, block: Block, product: Op, strategy: Strategy, moved: EdgeCost) -> EdgeCost:
        """The input of a product that does not keep it gathered: gathers once more, beside compute where a stack can.

        The gather runs while the gradient of the input is computed, the sum of that while the weights' is. Frozen
        weights need neither.

        Source: Korthikanti et al., arXiv:2205.05198, section 4.2.2.
        """
        trained = bool(trained_weights(product, block))
        gathers = (c for c in moved.forward if c.collective == "all_gather" and c.axes[-1] == "tensor")
        again = tuple(gathers) if trained else ()
        if not self.software.overlaps_gradients:
            return moved._replace(again=again)
        cost, slowdown = self.op(block, product, strategy), self.software.overlap_slowdown
        summed = (
            c.beside(cost.backward_weight, slowdown) if c.axes[-1] == "tensor" else c for c in moved.backward
        )
        gathered = (c.beside(cost.backward_input, slowdown) for c in again)
        return moved._replace(backward=tuple(summed), again=tuple(gathered))

    def _summed_apart(self, block: Block, product: Op, moved: EdgeCost) -> EdgeCost:
        """Every product of a module of its own sums its part of the input's gradient, where tensor ranks hold it whole.

        What is scattered is the sum of all parts, which is scattered where the input was gathered, unless every
        module gathers it: a compiler that sees the same gather thrice makes it once (``fx_graph_cse`` of
        pytorch/pytorch ``torch/_functorch/compile_utils.py``), but their gradients are not the same.
        """
        if product.name not in (self.software.sums_apart or ()):
            return moved
        modules = len(depths(self.graph, block, product, backward=True))
        apart = ("all_reduce", "reduce_scatter") if self.software.scatters_apart else ("all_reduce",)

        def times(sent: Comm) -> int:
            return modules if sent.collective in apart and sent.axes == ("tensor",) else 1

        return moved._replace(backward=tuple(c for c in moved.backward for _ in range(times(c))))

    def situation(self, strategy: Strategy) -> tuple[object, ...]:
        """What a price depends on: where data and expert ranks only split the batch, not how many they are."""
        found = self._situations.get(strategy)
        if found is None:
            found = self._situations[strategy] = self._situation_of(strategy)
        return found

    def _situation_of(self, strategy: Strategy) -> tuple[object, ...]:
        mesh, local = self.mesh, self.sizes.batch
        others: list[tuple[str, int, int]] = []
        for axis in BATCH_AXES:
            if (axis, BATCH) in strategy:
                local //= mesh.size(axis)
            elif mesh.size(axis) > 1:
                others.append((axis, mesh.size(axis), mesh.stride(axis)))
        kept = tuple(s for s in strategy if s[1] != BATCH or s[0] not in BATCH_AXES)
        return *(mesh.size(axis) for axis in INNER_AXES), *others, local, kept

    def gathers_narrow(self, block: Block) -> bool:
        """Whether tensor ranks gather what the block's products read, or its gradient, as they multiply it.

        Embedding and head are products of 16 bits.
        """
        narrow = self.software.gathers_narrow and self.job.precision in NARROW
        return narrow and block.name not in (self.graph.first, self.graph.last)

    def _edge(
        self, tensor: Tensor, source: ShardingSpec, consumer: Strategy, narrow: bool = False
    ) -> EdgeCost:
        gradient = gradient_of_input(self.graph, tensor, consumer)
        target = gradient_of_output(gradient)
        what = (tensor.dims, tensor.scale, tensor.dtype, source.partial, gradient.partial, narrow)
        key = (what, self.situation(source.shards), self.situation(target.shards))
        found: EdgeCost | None = self.tables.get(key)  # tensors of one shape move alike
        if found is None:
            width = self.element_bytes(tensor)
            forward = moves(self.sizes, tensor, source, target, width)
            backward: tuple[Move, ...] = ()
            if tensor.dtype not in ("int32", "bool"):
                backward = moves(self.sizes, tensor, gradient, gradient_of_output(source), width)
            if narrow and "experts" not in tensor.dims:
                forward, backward = narrowed(forward, width), narrowed(backward, width)
            found = self.tables[key] = EdgeCost(
                tuple(self._moved(tensor, m, splits_experts(target)) for m in forward),
                tuple(self._moved(tensor, m, splits_experts(source)) for m in backward),
            )
        return found

    def transition(self, tensor: Tensor, source: ShardingSpec, target: ShardingSpec) -> EdgeCost:
        """Price handing a tensor on between blocks: ``source`` to ``target``, and its gradient back."""
        width = self.element_bytes(tensor)
        forward = moves(self.sizes, tensor, source, target, width)
        backward = moves(self.sizes, tensor, target, gradient_of_output(source), width)
        there, back = (tuple(self._moved(tensor, m) for m in way) for way in (forward, backward))
        cost = EdgeCost(there, back)
        return self.partitioned.between(tensor, cost) if self.partitioned else cost

    def output(self, block: Block, op: Op, tensor: Tensor, strategy: Strategy) -> ShardingSpec:
        """How ``op`` leaves ``tensor``."""
        key = (block.name, op.name, tensor.name, strategy)
        if key not in self._outputs:
            cut = frozenset(operator_rule(op).contracted(op, block))
            self._outputs[key] = output_spec(self.graph, tensor, strategy, cut)
        return self._outputs[key]

    def sync_axes(self, weight: Tensor, strategy: Strategy) -> tuple[str, ...]:
        """Axes over which the weight's gradient is a pending sum: those that split a dim it lacks.

        Where a partitioner has tensor ranks make what they hold whole from parts of the sequence, that axis too.
        """
        ranks = self.mesh.size("tensor")
        whole = any(copied_whole(self.graph, d, ranks) for d in weight.dims) and self.partitioned is not None
        return tuple(
            a for a, dim in strategy if not has_dim(self.graph, weight, dim) or (whole and a == "tensor")
        )


def _memory_bound(pricer: Pricer, block: Block, op: Op, strategy: Strategy) -> OpCost:
    """An operator limited by memory traffic: it reads its inputs and weights and writes its outputs."""
    if op.kind == "view":
        return OpCost(0.0, 0.0, 0.0)
    if (routed := routed_otherwise(pricer, block, op, strategy)) is not None:
        return routed
    device = pricer.mesh.cluster.device

    def local(names: tuple[str, ...]) -> float:
        return sum(
            pricer.tensor_bytes(block.tensor[n], input_spec(pricer.graph, block.tensor[n], strategy))
            for n in names
        )

    weights = tuple(w for w in op.weights if op.kind != "embedding")
    read, written = local(op.inputs) + local(weights), local(op.outputs)
    forward_passes, backward_passes = passes(pricer.software, op)
    forward = stream_seconds((read + written) * forward_passes, device).seconds
    backward = stream_seconds((2 * read + written) * backward_passes, device).seconds
    comm = _softmax_over_split(pricer, block, op, strategy)
    return OpCost(forward, backward, 0.0, comm, ())


def _softmax_over_split(pricer: Pricer, block: Block, op: Op, strategy: Strategy) -> tuple[Comm, ...]:
    """Max, sum and picked logit of a loss over a split vocabulary: three fp32 numbers per token."""
    if op.kind != "cross_entropy":
        return ()
    split = tuple(a for a, dim in strategy if dim == "vocab")
    if not split:
        return ()
    logits = block.tensor[op.inputs[0]]
    tokens = math.prod(pricer.sizes.local(d, strategy) for d in logits.dims if d != "vocab")
    return (pricer.comm("all_reduce", split, 3 * DTYPE_BYTES["fp32"] * tokens),)


_PRICES: Mapping[str, Callable[[Pricer, Block, Op, Strategy], OpCost]] = {
    "matmul": matmul_cost,
    "product": product_cost,
    "recurrence": recurrence_cost,
    "scan": scan_cost,
    "attention": attention_cost,
    "memory": _memory_bound,
}

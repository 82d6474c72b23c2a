"""Weights, gradients and optimizer states under data parallelism: how they are sharded and kept in step.

A weight's states are sharded over the nearest ``shard_degree`` ranks among those that sum its gradient
(data, expert and context axes), and replicated over the rest: ZeRO and FSDP where the two are all and one,
hybrid sharding in between.

Source: Rajbhandari et al., ZeRO, arXiv:1910.02054; Zhao et al., PyTorch FSDP, arXiv:2304.11277.
"""

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from cluster_specs.software import SoftwareSpec
from cluster_specs.topology import CommGroup
from cost_models.collectives import COLLECTIVES, wire_bytes
from planner.evaluation.setting import Setting
from planner.evaluation.weights import FrozenGroup, WeightGroup
from planner.graph import Block, Graph
from planner.plans import Job, Parallelism
from planner.sharding.mesh import Mesh
from planner.sharding.partitioning import SlicePartitioner, copied_whole, slice_partitioner
from planner.sharding.widths import DTYPE_BYTES


def weight_bytes(job: Job) -> float:
    """Bytes per weight that the matrix products read."""
    return DTYPE_BYTES[job.precision]


def stored_weight_bytes(job: Job, software: SoftwareSpec) -> float:
    """Bytes per weight between steps: the training type, or masters that are cast where they are read."""
    masters = job.master_weights and not software.keeps_copy
    return DTYPE_BYTES["fp32"] if masters else weight_bytes(job)


def gradient_bytes(job: Job) -> float:
    """Bytes per gradient as it is accumulated."""
    return DTYPE_BYTES[job.grad_dtype if job.precision != "fp32" else "fp32"]


def reduced_type(job: Job, software: SoftwareSpec) -> str:
    """Type of gradients on the wire: the job's choice, or the stack's habit, whose 16 bits are those of the job."""
    if job.precision == "fp32":
        return "fp32"
    found = job.reduce_dtype or _fp16_type(job, software) or software.reduce_dtype
    return "fp16" if job.precision == "fp16" and found == "bf16" else found


def reduced_bytes(job: Job, software: SoftwareSpec) -> float:
    """Bytes per gradient on the wire."""
    return DTYPE_BYTES[reduced_type(job, software)]


def _fp16_type(job: Job, software: SoftwareSpec) -> str | None:
    return software.fp16_reduce_dtype if job.precision == "fp16" else None


def reduced_head_bytes(job: Job, software: SoftwareSpec) -> float:
    """Bytes per gradient of the last block on the wire: the job's choice, or the stack's habit."""
    if job.precision == "fp32" or job.reduce_dtype is not None:
        return reduced_bytes(job, software)
    return DTYPE_BYTES[_fp16_type(job, software) or software.head_reduce_dtype]


def copied_bytes(job: Job, software: SoftwareSpec) -> float:
    """Bytes per gradient that is summed over tensor ranks: as it is made, or as it is accumulated."""
    return weight_bytes(job) if software.gradient_life == "late" else reduced_bytes(job, software)


class WireWidths(NamedTuple):
    """Bytes per element on the wire."""

    weights: float
    """As they are read; as they are stored where they are gathered once they are stepped."""
    gradients: float
    copied: float
    """Of gradients that tensor ranks hold a part each of."""


def wire_widths(
    job: Job,
    software: SoftwareSpec,
    plan: Parallelism,
    last: bool = False,
    products: "Products | None" = None,
) -> WireWidths:
    """What the communication of a block's weights is in; of the ``last`` block, gradients can have their own type.

    ``products`` may read weights in a narrower type than they have.
    """
    reduced = reduced_head_bytes if last else reduced_bytes
    read = min(weight_bytes(job), products.width) if products else weight_bytes(job)
    as_stored = sums_whole(plan, software) or gathers_apart(plan, software)
    weights = stored_weight_bytes(job, software) if as_stored else read
    return WireWidths(weights, reduced(job, software), copied_bytes(job, software))


def sums_whole(plan: Parallelism, software: SoftwareSpec) -> bool:
    """Whether every rank gets the whole sum of gradients: it holds whole states, or the stack makes it so."""
    return plan.zero_stage == 0 or (plan.zero_stage == 1 and not software.scatters_gradients)


def reduces_after(plan: Parallelism, software: SoftwareSpec) -> bool:
    """Whether gradients of sharded states are summed whole, all at once after the last backward."""
    return plan.zero_stage > 0 and sums_whole(plan, software) and software.sums_copies != "always"


def lie_whole(plan: Parallelism, software: SoftwareSpec) -> bool:
    """Whether weights are whole between steps."""
    return plan.zero_stage < software.shards_weights_from


def gathers_stepped(plan: Parallelism, software: SoftwareSpec) -> bool:
    """Whether weights are gathered once a step, updated: they lie whole, or ZeRO-2 keeps them over a pipeline."""
    kept = lie_whole(plan, software) or (plan.zero_stage == 2 and plan.pipeline > 1)
    return plan.zero_stage > 0 and kept


def gathers_apart(plan: Parallelism, software: SoftwareSpec) -> bool:
    """Whether a compiler gathers updated weights into arrays of their own, as each rank steps its shards."""
    sharded = plan.zero_stage > 0 and plan.shard_degree > 1 and "weights" not in plan.offload
    return sharded and software.partitioner is not None and lie_whole(plan, software)


def slices_sums(plan: Parallelism, software: SoftwareSpec) -> bool:
    """Whether a compiler cuts each rank's shard from the whole sum of a gradient, of which nothing else stays."""
    return gathers_apart(plan, software) and sums_whole(plan, software)


STATE_AXES = ("context_expert", "context", "expert", "data")
"""Axes whose ranks hold the same weights, so that states can be sharded over them."""


class Sync(NamedTuple):
    """One rank's communication of some weights, each phase done once [s], and the bytes it sends."""

    gather: float = 0.0
    """All-gather of the sharded weights."""
    again: float = 0.0
    """The same before the backward, by the ranks that share the weights since the forward, where these are others."""
    reduce: float = 0.0
    """Reduce-scatter of gradients over the shard group, or all-reduce where they are summed whole."""
    replicate: float = 0.0
    """All-reduce over the replicas of a shard."""
    copy: float = 0.0
    """All-reduce over tensor ranks that hold a copy, and a part of its gradient."""
    reduce_alone: float = 0.0
    """Of ``reduce``, that beside which nothing runs."""
    replicate_alone: float = 0.0
    """Of ``replicate``."""
    fetch: float = 0.0
    """Bringing this rank's shard of weights from the host, where they are offloaded."""
    store: float = 0.0
    """Taking its shard of gradients there."""
    ring: float = 0.0
    """What rings of gathers take beyond ``gather``; those of sums are in ``reduce``."""
    unpack: float = 0.0
    """Sorting what was gathered by weights, by the stream that computes."""
    pack: float = 0.0
    """Sorting gradients by ranks."""
    gather_bytes: float = 0.0
    again_bytes: float = 0.0
    summed_bytes: float = 0.0
    """Sent for gathers that are made as sums of arrays that are zeros but for a rank's own part."""
    reduce_bytes: float = 0.0
    """Of gradients that are scattered."""
    whole_bytes: float = 0.0
    """Of gradients that are summed whole over the shard group."""
    ring_bytes: float = 0.0
    """As ``ring``."""
    reduce_ring_bytes: float = 0.0
    replicate_bytes: float = 0.0
    copy_bytes: float = 0.0

    def plus(self, other: "Sync") -> "Sync":
        """Both, one after the other."""
        return Sync(*(a + b for a, b in zip(self, other, strict=True)))

    def times(self, count: float) -> "Sync":
        """``count`` of these, one after the other."""
        return Sync(*(count * a for a in self))


class Shards(NamedTuple):
    """How one weight group is laid out."""

    inner: CommGroup
    """Ranks that share one copy of the states."""
    outer: CommGroup
    """Ranks that hold the same shard."""
    copies: CommGroup
    """Ranks of the tensor axis that hold the whole weight and each a part of its gradient."""


def shards_of(group: WeightGroup | FrozenGroup, mesh: Mesh, shard_degree: int) -> Shards:
    """Groups over which ``group`` is sharded, replicated and copied.

    Experts are already split over expert ranks, so their shard group is smaller by as many.
    """
    return _shards(group.sync_axes, mesh, shard_degree)


@lru_cache(maxsize=1 << 14)
def _shards(sync_axes: tuple[str, ...], mesh: Mesh, shard_degree: int) -> Shards:
    # Also those of one rank: where all data ranks are expert ranks, context ranks that hold the same experts are told
    # from those that share a sequence by them.
    axes = tuple(a for a in STATE_AXES if a in sync_axes or mesh.size(a) == 1)
    total = math.prod(mesh.size(a) for a in axes)
    split = math.prod(mesh.size(a) for a in STATE_AXES if a not in axes)
    inner, outer = mesh.inner_outer(axes, max(1, min(total, shard_degree // split)))
    return Shards(inner, outer, mesh.group(a for a in sync_axes if a not in STATE_AXES))


def secondary_of(group: WeightGroup | FrozenGroup, mesh: Mesh, degree: int) -> CommGroup:
    """Ranks that share ``group`` between forward and backward."""
    return shards_of(group, mesh, degree).inner


class Products(NamedTuple):
    """Products of weights as a partitioner sees them."""

    partitioner: SlicePartitioner
    tokens: float
    """That the gradient of a weight contracts, on all ranks; none where no product makes it."""
    of_expert: float
    """The same of an expert's weight, where experts are spread over ranks."""
    unlike: float
    """Share of the weights left where of those that have one shape only one counts."""
    small: float
    """Share of the weights in those that are gathered by a sum over all of a large slice."""
    nearest: bool
    """Nothing but the batch is split, so that neighbours share the states."""
    lone: bool
    """Tensor ranks have whole weights of lone heads, copies of whose shards they sum; those of vectors are whole."""
    sliced: bool
    """Sums of gradients over micro-batches are those of sharded states, though weights are whole, and no loop over
    layers is around the product: a rank keeps its part of each."""
    sums_alone: bool
    """Nothing runs beside sums inside a slice."""

    @property
    def width(self) -> float:
        """Most bytes per element of weights that products read."""
        return DTYPE_BYTES[self.partitioner.habits.product_dtype]

    def scatters(self, group: CommGroup) -> bool:
        """Whether a rank of ``group``, which has whole weights, gets its part of their gradients only."""
        return self.sliced and not self.partitioner.sums_whole(group)

    def ring(self, group: WeightGroup, width: float, shards: "Shards") -> bool:
        """Whether gradients of ``width`` bytes an element are summed in a ring: of shards and parts without copies."""
        depth = self.tokens if "expert" in group.sync_axes else self.of_expert
        rings = self.partitioner.rings(depth, width, shards.inner.size, self.nearest)
        return shards.outer.size == shards.copies.size == 1 and rings


def products_of(setting: Setting, plan: Parallelism, block: Block) -> Products | None:
    """Products of the block's weights, where the stack has a partitioner; an embedding has none."""
    partitioner = slice_partitioner(setting.software, setting.cluster)
    if partitioner is None:
        return None
    graph = setting.graph
    looks_up = any(op.kind == "embedding" for op in block.ops)
    tokens = 0.0 if looks_up else float(plan.micro_batch * plan.data * setting.job.seq_len)
    routed = (t.scale for t in block.tensor.values() if "experts" in t.dims)
    share = min(routed, default=1.0) if plan.expert > 1 else 1.0
    nearest = plan.tensor == plan.context == 1
    read = [block.tensor[name] for op in block.ops for name in op.weights]
    lone = any(copied_whole(graph, d, plan.tensor) for weight in read for d in weight.dims)
    widest = DTYPE_BYTES[partitioner.habits.product_dtype]
    most = partitioner.most_summed / min(weight_bytes(setting.job), widest)
    ends = block.name in (graph.first, graph.last)
    return Products(
        partitioner,
        tokens,
        share * tokens,
        _unlike(graph, block),
        _small(graph, block, most),
        nearest,
        lone,
        sliced=ends and plan.num_microbatches > 1 and slices_sums(plan, setting.software),
        sums_alone=bool(setting.software.sums_alone),
    )


def _small(graph: Graph, block: Block, most: float) -> float:
    """Share of the block's weights in those of no more than so many elements."""
    weights = [graph.elements(block.tensor[name]) for op in block.ops for name in op.weights]
    return sum(elements for elements in weights if elements <= most) / (sum(weights) or 1.0)


def _unlike(graph: Graph, block: Block) -> float:
    weights = [block.tensor[name] for op in block.ops for name in op.weights]
    once = {tuple(graph.dims[d] for d in w.dims): graph.elements(w) for w in weights}
    everything = sum(graph.elements(w) for w in weights)
    return sum(once.values()) / everything if everything else 1.0


def sync_of(
    groups: Iterable[WeightGroup],
    mesh: Mesh,
    plan: Parallelism,
    wire: WireWidths,
    whole: bool,
    products: Products | None = None,
) -> Sync:
    """Communication that keeps ``groups`` in step once; ``whole`` says that gradients are summed on every rank.

    ``products`` of a stack that partitions programs may have rings, and sums that are made whole.
    """
    total = Sync()
    for group in groups:
        shards = shards_of(group, mesh, plan.shard_degree if plan.zero_stage else 1)
        weights, gradients = group.elements * wire.weights, group.elements * wire.gradients
        phases = [("all_gather", weights, shards.inner, "gather")]
        if whole:
            everyone = shards_of(group, mesh, 1).outer
            scattered = products is not None and products.scatters(everyone)
            phases.append(("reduce_scatter" if scattered else "all_reduce", gradients, everyone, "reduce"))
        else:
            phases.append(("reduce_scatter", gradients, shards.inner, "reduce"))
            phases.append(("all_reduce", gradients / shards.inner.size, shards.outer, "replicate"))
        parts = shards.inner.size if products and products.lone and not whole else 1
        phases.append(("all_reduce", group.elements * wire.copied / parts, shards.copies, "copy"))
        if plan.secondary_degree is not None:
            phases.append(("all_gather", weights, secondary_of(group, mesh, plan.secondary_degree), "again"))
        if products and shards.inner.size > 1 and not whole:
            rings = products.ring(group, wire.gradients, shards)
            total = total.plus(_partitioned(weights, gradients, shards.inner, products, rings))
            phases = phases[2:]
        for phase in phases:
            if phase[2].size > 1:
                total = total.plus(_collective(*phase, alone=products is not None and products.sums_alone))
    return total


def _collective(name: str, full_bytes: float, group: CommGroup, phase: str, alone: bool = False) -> Sync:
    """One phase; ``alone``: of a program that runs nothing beside sums of gradients inside a slice."""
    seconds = COLLECTIVES[name](full_bytes, group).seconds
    sent = "whole" if (name, phase) == ("all_reduce", "reduce") else phase
    found = Sync()._replace(**{phase: seconds, f"{sent}_bytes": wire_bytes(name, full_bytes, group.size)})
    if not alone or any(level.kind == "dcn" for level in group.active_levels):
        return found
    return found._replace(reduce_alone=found.reduce, replicate_alone=found.replicate)


def _partitioned(weights: float, gradients: float, group: CommGroup, products: Products, rings: bool) -> Sync:
    """Gather of weights and scatter of gradients, in all, by a partitioner: in ``rings``, or summed whole."""
    partitioner = products.partitioner
    gather = _collective("all_gather", weights, group, "gather")
    if not rings:
        name = "all_reduce" if partitioner.sums_whole(group) else "reduce_scatter"
        small = products.small if partitioner.sums_gathers(group) else 0.0
        summed = _collective("all_reduce", small * weights, group, "gather")
        gather = gather.times(1 - small)
        gather = gather._replace(gather=gather.gather + summed.gather, summed_bytes=summed.gather_bytes)
        return gather.plus(_collective(name, gradients, group, "reduce", products.sums_alone))
    scatter = _collective("reduce_scatter", gradients, group, "reduce")
    further_gathered = partitioner.beyond("all_gather", group.size)
    further_summed = partitioner.beyond("reduce_scatter", group.size)
    further_summed *= products.unlike if partitioner.shares_zeros(group.size) else 1.0
    return gather.plus(scatter)._replace(
        reduce=(1 + further_summed) * scatter.reduce,
        reduce_ring_bytes=further_summed * scatter.reduce_bytes,
        ring=further_gathered * gather.gather,
        ring_bytes=further_gathered * gather.gather_bytes,
    )


def shards_frozen(plan: Parallelism, software: SoftwareSpec) -> bool:
    """Whether ranks share frozen weights, and gather them: where they share trained ones."""
    return plan.shard_degree > 1 and not lie_whole(plan, software)


def gathers_of(groups: Iterable[FrozenGroup], mesh: Mesh, plan: Parallelism, software: SoftwareSpec) -> Sync:
    """All that communicates frozen ``groups``: they are gathered as they are stored, and have no gradients."""
    total = Sync()
    for group in groups if shards_frozen(plan, software) else ():
        ranks = shards_of(group, mesh, plan.shard_degree).inner
        if ranks.size > 1:
            total = total.plus(_collective("all_gather", group.data, ranks, "gather"))
            if plan.secondary_degree is not None:
                others = secondary_of(group, mesh, plan.secondary_degree)
                total = total.plus(_collective("all_gather", group.data, others, "again"))
    return total


def frozen_weights(
    groups: Iterable[FrozenGroup], mesh: Mesh, plan: Parallelism, software: SoftwareSpec
) -> float:
    """Frozen ``groups`` as one rank holds them between uses [bytes]; all ranks have the constants of quantised ones."""
    degree = plan.shard_degree if shards_frozen(plan, software) else 1
    return sum(g.data / shards_of(g, mesh, degree).inner.size + g.scales for g in groups)


def sharded_elements(groups: Iterable[WeightGroup], mesh: Mesh, shard_degree: int) -> float:
    """Parameters of ``groups`` that one rank keeps states for, when sharded ``shard_degree`` ways."""
    return sum(g.elements / shards_of(g, mesh, shard_degree).inner.size for g in groups)

"""What keeps weights in step: gathers of shards, sums of gradients, and what a partitioner makes of these."""

import math
from collections.abc import Iterable
from typing import NamedTuple

from cluster_specs.software import SoftwareSpec
from cluster_specs.topology import CommGroup
from cost_models.collectives import COLLECTIVES, wire_bytes
from cost_models.compute import element_bytes
from cost_models.optimizers import optimizer_rule
from planner.evaluation.scatters import padded_gradients, unlike_parts
from planner.evaluation.setting import Setting
from planner.evaluation.states import (
    Shards,
    Sync,
    copied_bytes,
    gathers_apart,
    reduced_bytes,
    reduced_head_bytes,
    secondary_of,
    shards_frozen,
    shards_of,
    slices_sums,
    stored_weight_bytes,
    sums_whole,
    weight_bytes,
)
from planner.evaluation.weights import FrozenGroup, WeightGroup
from planner.graph import Block, Graph
from planner.plans import Job, Parallelism
from planner.sharding.depths import copied_whole
from planner.sharding.mesh import Mesh
from planner.sharding.partitioning import Padded, SlicePartitioner, slice_partitioner
from planner.sharding.widths import DTYPE_BYTES


class WireWidths(NamedTuple):
    """Bytes per element on the wire."""

    weights: float
    """As they are read; as they are stored where they are gathered once they are stepped."""
    gradients: float
    copied: float
    """Of gradients that tensor ranks hold a part each of."""
    narrow: float
    """Of weights that are cast before they are gathered; as the others where these are gathered as stored."""

    def gathered(self, group: WeightGroup) -> float:
        """Bytes of a group's weights as they are gathered."""
        return (group.elements - group.narrow) * self.weights + group.narrow * self.narrow


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
    narrow = weights if as_stored else min(weights, element_bytes("fp8"))
    return WireWidths(weights, reduced(job, software), copied_bytes(job, software), narrow)


class Products(NamedTuple):
    """Products of weights as a partitioner sees them."""

    partitioner: SlicePartitioner
    tokens: float
    """That the gradient of a weight contracts, on all ranks; none where no product makes it."""
    of_expert: float
    """The same of an expert's weight, where experts are spread over ranks."""
    small: float
    """Share of the weights in those that are gathered by a sum over all of a large slice."""
    nearest: bool
    """Nothing but the batch is split, so that neighbours share the states."""
    lone: bool
    """Tensor ranks have whole weights of lone heads, copies of whose shards they sum; those of vectors are whole."""
    sliced: bool
    """Nothing but the shard of each sum of gradients is read, though weights are whole: no loop over layers is around
    the product, and one over micro-batches adds up shards, or the optimizer reads the gradient once.

    Source: openxla/xla ``xla/service/collective_opt_utils.cc`` (``MatchReduceScatter``: of a sum with one user).
    """
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
        return shards.outer.size == shards.copies.size == group.alike == 1 and rings


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
    once = optimizer_rule(setting.job.optimizer).reads_gradient_once
    return Products(
        partitioner,
        tokens,
        share * tokens,
        _small(graph, block, most),
        nearest,
        lone,
        sliced=ends and (once or plan.num_microbatches > 1) and slices_sums(plan, setting.software),
        sums_alone=bool(setting.software.sums_alone),
    )


def _small(graph: Graph, block: Block, most: float) -> float:
    """Share of the block's weights in those of no more than so many elements."""
    weights = [graph.elements(block.tensor[name]) for op in block.ops for name in op.weights]
    return sum(elements for elements in weights if elements <= most) / (sum(weights) or 1.0)


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
        shards = shards_of(group, mesh, plan.state_shards)
        weights, gradients = wire.gathered(group), group.elements * wire.gradients
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
            if swaps(group, shards):
                total = total.plus(_swapped(group, wire, shards.inner, mesh, products))
            else:
                rings = products.ring(group, wire.gradients, shards)
                total = total.plus(_partitioned(group, wire, shards.inner, products, rings))
            phases = phases[2:]
        for phase in phases:
            if phase[2].size > 1:
                total = total.plus(phase_of(*phase, alone=products is not None and products.sums_alone))
    return total


def phase_of(name: str, full_bytes: float, group: CommGroup, phase: str, alone: bool = False) -> Sync:
    """One phase; ``alone``: of a program that runs nothing beside sums of gradients inside a slice.

    A sum over several slices is one inside each, and another of what is left between them, which runs beside others.
    Source: steps compiled for two slices of TPU v6e (``all-reduce`` in a slice, ``send`` and ``recv`` between them).
    """
    seconds = COLLECTIVES[name](full_bytes, group).seconds
    sent = "whole" if (name, phase) == ("all_reduce", "reduce") else phase
    found = Sync()._replace(**{phase: seconds, f"{sent}_bytes": wire_bytes(name, full_bytes, group.size)})
    if not alone:
        return found
    levels = tuple(level for level in group.active_levels if level.kind != "dcn")
    inside = CommGroup(math.prod(level.size for level in levels), levels)
    own = COLLECTIVES[name](full_bytes, inside).seconds if levels else 0.0
    return found._replace(reduce_alone=min(own, found.reduce), replicate_alone=min(own, found.replicate))


def _partitioned(
    weights_of: WeightGroup, wire: WireWidths, group: CommGroup, products: Products, rings: bool
) -> Sync:
    """Gather of weights and scatter of gradients, in all, by a partitioner: in ``rings``, in chunks, or summed whole.

    Rows that fill chunks go back to their ranks.
    """
    partitioner = products.partitioner
    weights, gradients = wire.gathered(weights_of), weights_of.elements * wire.gradients
    gather = phase_of("all_gather", weights, group, "gather")
    if not rings:
        whole = partitioner.sums_whole(group)
        name = "all_reduce" if whole else "reduce_scatter"
        small = products.small if partitioner.sums_gathers(group) else 0.0
        summed = phase_of("all_reduce", small * weights, group, "gather")
        gather = gather.times(1 - small)
        gather = gather._replace(gather=gather.gather + summed.gather, summed_bytes=summed.gather_bytes)
        padded = Padded()
        if not whole:
            padded = padded_gradients(partitioner, weights_of, group.size, products.nearest, wire.gradients)
        summed = phase_of(name, padded.scattered * gradients, group, "reduce", products.sums_alone)
        together = phase_of("all_reduce", padded.whole * gradients, group, "reduce", products.sums_alone)
        returned = padded.returned * gradients / group.size
        return gather.plus(summed).plus(together)._replace(returned_bytes=returned)
    scatter = phase_of("reduce_scatter", gradients, group, "reduce")
    further_gathered = partitioner.beyond("all_gather", group.size)
    further_summed = partitioner.beyond("reduce_scatter", group.size)
    further_summed *= unlike_parts(weights_of, group.size) if partitioner.shares_zeros(group.size) else 1.0
    return gather.plus(scatter)._replace(
        reduce=(1 + further_summed) * scatter.reduce,
        reduce_ring_bytes=further_summed * scatter.reduce_bytes,
        ring=further_gathered * gather.gather,
        ring_bytes=further_gathered * gather.gather_bytes,
    )


def swaps(group: WeightGroup, shards: Shards) -> bool:
    """Whether parts of weights change places between ranks that share states and tensor ranks that have the same."""
    shared = shards.inner.size > 1 and shards.outer.size == 1
    return shared and group.alike > 1 and group.alike % shards.inner.size == 0


def _swapped(
    weights_of: WeightGroup, wire: WireWidths, group: CommGroup, mesh: Mesh, products: Products
) -> Sync:
    """Weights that several tensor ranks have alike, as many as data ranks share the states, or a multiple of these.

    The partitioner takes the former for the latter: parts change places, tensor ranks gather them, and make some rows
    of the gradient each, which data ranks sum; sums change places again.

    Source: openxla/xla ``xla/service/spmd/dot_handler.cc`` (groups of partially replicated operands); products compiled
    for TPU v5e, over 2 and 4 data ranks and 2, 4 and 8 tensor ranks that are alike.
    """
    weights, gradients = wire.gathered(weights_of), weights_of.elements * wire.gradients
    among = mesh.inner_outer(("tensor",), weights_of.alike)[0]
    gather = phase_of("all_gather", weights, among, "gather")
    part = gradients / group.size
    summed = phase_of("all_reduce", part, group, "reduce", products.sums_alone)
    swapped = weights / weights_of.alike
    return gather.plus(summed)._replace(swapped_bytes=swapped, returned_bytes=part)


def gathers_of(groups: Iterable[FrozenGroup], mesh: Mesh, plan: Parallelism, software: SoftwareSpec) -> Sync:
    """All that communicates frozen ``groups``: they are gathered as they are stored, and have no gradients."""
    total = Sync()
    for group in groups if shards_frozen(plan, software) else ():
        ranks = shards_of(group, mesh, plan.shard_degree).inner
        if ranks.size > 1:
            total = total.plus(phase_of("all_gather", group.data, ranks, "gather"))
            if plan.secondary_degree is not None:
                others = secondary_of(group, mesh, plan.secondary_degree)
                total = total.plus(phase_of("all_gather", group.data, others, "again"))
    return total

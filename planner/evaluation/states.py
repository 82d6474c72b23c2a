"""Weights, gradients and optimizer states under data parallelism: how they are sharded and kept in step.

A weight's states are sharded over the nearest ``shard_degree`` ranks among those that sum its gradient
(data, expert and context axes), and replicated over the rest: ZeRO and FSDP where the two are all and one,
hybrid sharding in between.

Source: Rajbhandari et al., ZeRO, arXiv:1910.02054; Zhao et al., PyTorch FSDP, arXiv:2304.11277.
"""

import math
from collections.abc import Iterable
from functools import lru_cache
from operator import add
from typing import NamedTuple

from cluster_specs.software import SoftwareSpec
from cluster_specs.topology import CommGroup
from cost_models.memory import state_bytes
from cost_models.optimizers import optimizer_rule
from cost_models.roofline import element_bytes
from planner.evaluation.weights import FrozenGroup, WeightGroup, gathers_casts
from planner.plans import Job, Parallelism
from planner.sharding.mesh import Mesh
from planner.sharding.widths import DTYPE_BYTES


def weight_bytes(job: Job) -> float:
    """Bytes per weight that modules have."""
    return DTYPE_BYTES[job.weight_dtype]


def gathered_weight_bytes(job: Job, software: SoftwareSpec) -> float:
    """Bytes of a gathered weight: at most what a compiler's products read."""
    widest, partitioner = weight_bytes(job), software.partitioner
    return min(widest, DTYPE_BYTES[partitioner.product_dtype]) if partitioner is not None else widest


def least_gathered_bytes(job: Job, software: SoftwareSpec, widest: float) -> float:
    """Bytes of a gathered weight, surely: of ``widest``, or of 8 bits where those of products are gathered so."""
    return min(widest, element_bytes("fp8")) if gathers_casts(job, software) else widest


def stored_weight_bytes(job: Job, software: SoftwareSpec) -> float:
    """Bytes per weight between steps: the training type, or masters that are cast where they are read."""
    masters = job.master_weights and not software.keeps_copy
    return DTYPE_BYTES["fp32"] if masters else weight_bytes(job)


def saved_bytes(job: Job, software: SoftwareSpec) -> float:
    """Bytes of a parameter in a checkpoint: its weight, master weight and optimizer states, whichever the stack has."""
    states = state_bytes(
        1,
        job.precision,
        job.optimizer,
        job.master_weights,
        job.grad_dtype,
        keeps_copy=software.keeps_copy,
    )
    return states.total - states.gradients


def gradient_bytes(job: Job) -> float:
    """Bytes per gradient as it is accumulated."""
    return DTYPE_BYTES[job.grad_dtype if job.weight_dtype != "fp32" else "fp32"]


def reduced_type(job: Job, software: SoftwareSpec) -> str:
    """Type of gradients on the wire: the job's choice, or the stack's habit, whose 16 bits are those of the job."""
    if job.precision == "fp32":
        return "fp32"
    usual = "fp32" if job.autocast else _fp16_type(job, software) or software.reduce_dtype
    found = job.reduce_dtype or usual
    return "fp16" if job.precision == "fp16" and found == "bf16" else found


def reduced_bytes(job: Job, software: SoftwareSpec) -> float:
    """Bytes per gradient on the wire."""
    return DTYPE_BYTES[reduced_type(job, software)]


def summed_bytes(job: Job, software: SoftwareSpec) -> float:
    """Bytes per gradient of several micro-batches that waits whole for the last one.

    As on the wire (pytorch/pytorch ``torch/distributed/fsdp/_fully_shard/_fsdp_param.py``,
    ``to_accumulated_grad_if_needed``); that of a flat parameter as it is made (``torch/distributed/fsdp/
    _runtime_utils.py``, ``_post_backward_hook`` returns before it casts).
    """
    flat = software.joins_gradients and not software.pads_shards
    return weight_bytes(job) if flat else reduced_bytes(job, software)


def _fp16_type(job: Job, software: SoftwareSpec) -> str | None:
    return software.fp16_reduce_dtype if job.precision == "fp16" else None


def needs_no_room(job: Job, plan: Parallelism) -> bool:
    """Whether an update is in place, or the host's."""
    return optimizer_rule(job.optimizer).in_place or "optimizer" in plan.offload


def update_bytes(job: Job, plan: Parallelism, software: SoftwareSpec) -> float:
    """Temporaries of an update per weight that is stepped [bytes]."""
    if needs_no_room(job, plan):
        return 0.0
    stepped = DTYPE_BYTES["fp32"] if job.master_weights else weight_bytes(job)
    return software.optimizer_temporaries / DTYPE_BYTES["fp32"] * stepped


def reduced_head_bytes(job: Job, software: SoftwareSpec) -> float:
    """Bytes per gradient of the last block on the wire: the job's choice, or the stack's habit."""
    if job.weight_dtype == "fp32" or job.reduce_dtype is not None:
        return reduced_bytes(job, software)
    return DTYPE_BYTES[_fp16_type(job, software) or software.head_reduce_dtype]


def copied_bytes(job: Job, software: SoftwareSpec) -> float:
    """Bytes per gradient that is summed over tensor ranks: as it is made, or as it is accumulated."""
    return weight_bytes(job) if software.gradient_life == "late" else reduced_bytes(job, software)


def sums_whole(plan: Parallelism, software: SoftwareSpec) -> bool:
    """Whether every rank gets the whole sum of gradients: it holds whole states, or the stack makes it so."""
    return plan.zero_stage == 0 or (plan.zero_stage == 1 and not software.scatters_gradients)


def reduces_after(plan: Parallelism, software: SoftwareSpec) -> bool:
    """Whether gradients are summed whole, all at once after the last backward.

    Those of sharded states are, and all where a stack sums none beside the backward, as it flattens them into one
    buffer (NVIDIA/Megatron-LM v2.2 megatron/model/distributed.py allreduce_gradients).
    """
    at_once = plan.zero_stage > 0 or not software.overlap_data
    return at_once and sums_whole(plan, software) and software.sums_copies != "always"


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
    late: float = 0.0
    """Of ``gather``, what only the backward does (`planner.evaluation.few_tokens`)."""
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
    late_bytes: float = 0.0
    """As ``late``."""
    again_bytes: float = 0.0
    summed_bytes: float = 0.0
    """Sent for gathers that are made as sums of arrays that are zeros but for a rank's own part."""
    swapped_bytes: float = 0.0
    """Sent with each gather to ranks that have the same part of a weight."""
    reduce_bytes: float = 0.0
    """Of gradients that are scattered."""
    whole_bytes: float = 0.0
    """Of gradients that are summed whole over the shard group."""
    ring_bytes: float = 0.0
    """As ``ring``."""
    reduce_ring_bytes: float = 0.0
    returned_bytes: float = 0.0
    """Of gradients, in rows that are not a rank's own (`planner.sharding.chunks`), or to ranks that have the same."""
    replicate_bytes: float = 0.0
    copy_bytes: float = 0.0

    def plus(self, other: "Sync") -> "Sync":
        """Both, one after the other."""
        return Sync._make(map(add, self, other))

    def times(self, count: float) -> "Sync":
        """``count`` of these, one after the other."""
        return Sync._make([count * a for a in self])


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


def shards_frozen(plan: Parallelism, software: SoftwareSpec) -> bool:
    """Whether ranks share frozen weights, and gather them: where they share trained ones."""
    return plan.shard_degree > 1 and not lie_whole(plan, software)


def frozen_weights(
    groups: Iterable[FrozenGroup], mesh: Mesh, plan: Parallelism, software: SoftwareSpec
) -> float:
    """Frozen ``groups`` as one rank holds them between uses [bytes]; all ranks have the constants of quantised ones."""
    degree = plan.shard_degree if shards_frozen(plan, software) else 1
    return sum(g.data / shards_of(g, mesh, degree).inner.size + g.scales for g in groups)


def sharded_elements(groups: Iterable[WeightGroup], mesh: Mesh, shard_degree: int) -> float:
    """Parameters of ``groups`` that one rank keeps states for, when sharded ``shard_degree`` ways."""
    return sum(g.elements / shards_of(g, mesh, shard_degree).inner.size for g in groups)

"""Time of one pipeline stage for one micro-batch: compute, exposed communication, gathers of sharded weights."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from cluster_specs.software import SoftwareSpec
from planner.evaluation.blocks import BlockCost, WeightGroup
from planner.evaluation.states import Sync
from planner.plans import Parallelism

PARTS = ("compute", "recompute", "tensor", "context", "expert", "data", "overlap_slowdown")
"""Where the time of a stage goes; communication by the axis it crosses, and only what is exposed."""


class UnitCost(NamedTuple):
    """A block with what its weights' communication costs under the plan's ZeRO stage."""

    block: BlockCost
    sync: Sync


class StageCost(NamedTuple):
    """One stage for one micro-batch [s], in parts, and what it holds [bytes]."""

    forward: float
    backward_input: float
    backward_weight: float
    parts: Mapping[str, float]
    saved_bytes: float
    boundary_bytes: float
    workspace_bytes: float
    largest_unit: float
    """Elements of the largest block, the unit that a framework gathers at once."""
    weights: tuple[WeightGroup, ...]
    sync: Sync
    """All of the stage's weights, once."""
    sent_bytes: Mapping[str, float]
    """By collective, every micro-batch."""

    @property
    def seconds(self) -> float:
        """Forward and backward of one micro-batch."""
        return self.forward + self.backward_input + self.backward_weight


class _Pass(NamedTuple):
    """One direction through one block."""

    seconds: float
    exposed_data: float
    slowdown: float


def _overlapped(compute: float, other: float, hidden: float, software: SoftwareSpec) -> _Pass:
    """``hidden`` communication runs beside ``compute`` as far as it can and slows it; the rest is exposed."""
    beside = min(hidden, software.overlap_data * compute)
    slowdown = software.overlap_slowdown * beside
    return _Pass(compute + other + slowdown + hidden - beside, hidden - beside, slowdown)


def _offload_seconds(block: BlockCost, plan: Parallelism, host_bandwidth: float | None) -> float:
    """Time to move a block's kept activations to the host, or back; beside compute like a gather."""
    if "activations" not in plan.offload or host_bandwidth is None:
        return 0.0
    return block.saved_bytes / host_bandwidth


def gathers_weights(plan: Parallelism) -> tuple[bool, bool]:
    """Whether each micro-batch gathers weights (before forward, again before backward).

    ZeRO-3 frees them after each pass. ZeRO-2 as FSDP's SHARD_GRAD_OP keeps them from forward to backward;
    in a pipeline they stay for the whole step.
    """
    return plan.zero_stage == 3 or (plan.zero_stage == 2 and plan.pipeline == 1), plan.zero_stage == 3


def reduces_every_microbatch(plan: Parallelism) -> bool:
    """Whether gradients are reduce-scattered after every micro-batch: they are stored sharded."""
    return plan.zero_stage >= 2


def stage_cost(
    units: Iterable[tuple[UnitCost, int]], plan: Parallelism, software: SoftwareSpec, host_bandwidth: float | None
) -> StageCost:
    """Add up the blocks of one stage, each with its count."""
    parts = dict.fromkeys(PARTS, 0.0)
    forward = backward_input = backward_weight = 0.0
    saved = boundary = workspace = largest = 0.0
    weights: dict[tuple[str, ...], float] = {}
    total_sync = Sync()
    sent: dict[str, float] = {}
    gather_forward, gather_backward = gathers_weights(plan)
    first_gather = 0.0
    for (block, sync), count in units:
        comm_f, comm_b = block.comm_forward, block.comm_backward
        moved = _offload_seconds(block, plan, host_bandwidth)
        hidden_f = (sync.gather if gather_forward else 0.0) + moved
        hidden_b = (sync.gather if gather_backward else 0.0) + moved
        hidden_b += sync.reduce if reduces_every_microbatch(plan) else 0.0
        gradients = block.backward_input + block.backward_weight
        front = _overlapped(block.forward, sum(comm_f.values()), hidden_f, software)
        back = _overlapped(gradients + block.recompute, sum(comm_b.values()), hidden_b, software)
        forward += count * front.seconds
        share = block.backward_weight / gradients if gradients else 0.0
        weight_part = share * gradients
        backward_weight += count * weight_part
        backward_input += count * (back.seconds - weight_part)
        parts["compute"] += count * (block.forward + gradients)
        parts["recompute"] += count * block.recompute
        parts["data"] += count * (front.exposed_data + back.exposed_data)
        parts["overlap_slowdown"] += count * (front.slowdown + back.slowdown)
        for comm in (comm_f, comm_b):
            for axis, seconds in comm.items():
                parts[axis] = parts.get(axis, 0.0) + count * seconds
        saved += count * block.saved_bytes
        boundary = block.boundary_bytes or boundary
        workspace = max(workspace, block.workspace_bytes)
        elements = sum(g.elements for g in block.weights)
        largest = max(largest, elements)
        first_gather = first_gather or (sync.gather if gather_forward else 0.0)
        for group in block.weights:
            weights[group.sync_axes] = weights.get(group.sync_axes, 0.0) + count * group.elements
        total_sync += sync.times(count)
        for name, num_bytes in block.sent_bytes.items():
            sent[name] = sent.get(name, 0.0) + count * num_bytes
    parts["data"] += first_gather
    groups = tuple(WeightGroup(axes, elements) for axes, elements in weights.items())
    return StageCost(
        forward + first_gather, backward_input, backward_weight, parts, saved, boundary, workspace, largest,
        groups, total_sync, sent,
    )

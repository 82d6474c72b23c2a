"""Memory of one device over a step: what is alive at the three moments that can be the peak.

At the ``loss`` all activations in flight and the logits are alive; in ``backward`` the logits are gone and
layers are gathered, recomputed and their gradients wait to be reduced; in ``optimizer`` the activations are
gone and the optimizer's temporaries come. The largest is the peak; what the framework, the communicators and
the allocator's fragmentation add comes on top.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from cluster_specs.software import SoftwareSpec
from cost_models.memory import state_bytes
from planner.evaluation.blocks import WeightGroup
from planner.evaluation.setting import Setting, ranks_of
from planner.evaluation.stages import StageCost, gathers_weights
from planner.evaluation.states import sharded_elements
from planner.pipeline.dependencies import arranged, peak_bytes
from planner.pipeline.generators import is_written_out
from planner.plans import Job, Parallelism
from planner.sharding.mesh import Mesh
from planner.sharding.pricing import DTYPE_BYTES


class DeviceMemory(NamedTuple):
    """Bytes on one device."""

    components: Mapping[str, float]
    """Add up to what the driver reports."""
    tensors: float
    """Live tensors at the peak."""
    reserved: float
    """By the allocator: tensors and fragmentation."""
    phase: str

    @property
    def total(self) -> float:
        """As the driver reports it."""
        return sum(self.components.values())


def weight_bytes(job: Job) -> float:
    """Bytes per weight that the matrix products read."""
    return DTYPE_BYTES[job.precision]


def gradient_bytes(job: Job) -> float:
    """Bytes per gradient as it is accumulated."""
    return DTYPE_BYTES[job.grad_dtype if job.precision != "fp32" else "fp32"]


def reduced_bytes(job: Job, software: SoftwareSpec) -> float:
    """Bytes per gradient on the wire."""
    return DTYPE_BYTES["fp32" if job.precision == "fp32" else job.reduce_dtype or software.reduce_dtype]


def model_states(
    weights: Iterable[WeightGroup], job: Job, plan: Parallelism, mesh: Mesh, software: SoftwareSpec
) -> dict[str, float]:
    """Weights, master weights, gradients and optimizer states of one device, by component [bytes]."""
    groups = tuple(weights)
    whole = sum(g.elements for g in groups)
    shard = sharded_elements(groups, mesh, plan.shard_degree if plan.zero_stage else 1)
    states = state_bytes(
        whole,
        job.precision,
        job.optimizer,
        job.master_weights,
        job.grad_dtype,
        plan.zero_stage,
        max(1.0, whole / shard) if shard else 1.0,
        software.keeps_copy,
    )
    held = {
        "weights": states.weights,
        "master_weights": states.master,
        "gradients": states.gradients,
        "optimizer": states.optimizer,
    }
    if "optimizer" in plan.offload:
        held["optimizer"] = held["master_weights"] = 0.0
    return held


def resident_states(
    weights: Iterable[WeightGroup], job: Job, plan: Parallelism, mesh: Mesh, software: SoftwareSpec
) -> dict[str, float]:
    """The states that are there throughout the step: gradients only where they have memory of their own."""
    states = model_states(weights, job, plan, mesh, software)
    if software.gradient_life != "step":
        del states["gradients"]
    return states


def _ends_gathered(stages: Sequence[StageCost], software: SoftwareSpec) -> float:
    """Elements of embedding and head that stay gathered through loss and backward: both, or one at a time."""
    ends = [elements for stage in stages for elements in stage.end_units]
    return max(ends, default=0.0) if software.wraps_ends else sum(ends)


class Moment(NamedTuple):
    """What comes and goes at one moment of the step, by component [bytes]."""

    phase: str
    passing: dict[str, float]


def _at_loss(
    stages: Sequence[StageCost], job: Job, plan: Parallelism, software: SoftwareSpec
) -> dict[str, float]:
    """The end of the forward: logits and their loss, before any layer is gathered again."""
    gathered = 0.0
    if any(gathers_weights(plan)):
        gathered = _ends_gathered(stages, software) * weight_bytes(job)
    if plan.zero_stage == 2:
        gathered = sum(g.elements for stage in stages for g in stage.weights) * weight_bytes(job)
    return {"gathered_weights": gathered, "logits_and_loss": sum(stage.loss_bytes for stage in stages)}


def _at_backward(
    stages: Sequence[StageCost], job: Job, plan: Parallelism, software: SoftwareSpec
) -> dict[str, float]:
    """The first layers on the way back: gathered ahead, recomputed, their gradients not yet reduced."""
    largest, ends = max(stage.largest_unit for stage in stages), _ends_gathered(stages, software)
    gathered = buffers = 0.0
    if any(gathers_weights(plan)):
        gathered = (ends + (1 + software.prefetch_units) * largest) * weight_bytes(job)
    if plan.zero_stage == 2:
        gathered = sum(g.elements for stage in stages for g in stage.weights) * weight_bytes(job)
    if plan.zero_stage >= 2 and plan.shard_degree > 1:
        buffers = (largest + ends) * weight_bytes(job) + largest * reduced_bytes(job, software)
    elif plan.data * plan.context > 1:
        buffers = min(software.gradient_bucket, largest * reduced_bytes(job, software))
    workspace = max(stage.workspace_bytes for stage in stages)
    return {"gathered_weights": gathered, "gradient_buffers": buffers, "workspace": workspace}


def device_memory(
    stages: Sequence[StageCost],
    activations: float,
    job: Job,
    plan: Parallelism,
    mesh: Mesh,
    software: SoftwareSpec,
) -> DeviceMemory:
    """Memory of a rank that runs ``stages`` with ``activations`` bytes in flight at its fullest."""
    groups = [g for stage in stages for g in stage.weights]
    states = resident_states(groups, job, plan, mesh, software)
    gradients = {"gradients": model_states(groups, job, plan, mesh, software)["gradients"]}
    if "activations" in plan.offload:
        activations = min(activations, 2 * max(s.saved_bytes for s in stages))
    kept = {"activations": activations} | (gradients if plan.num_microbatches > 1 else {})
    backward = kept | (gradients if software.gradient_life == "backward" else {})
    shard = sharded_elements(groups, mesh, plan.shard_degree if plan.zero_stage else 1)
    moments = (
        Moment("backward", backward | _at_backward(stages, job, plan, software)),
        Moment("loss", kept | _at_loss(stages, job, plan, software)),
        Moment("optimizer", gradients | {"optimizer_temporaries": shard * software.optimizer_temporaries}),
    )
    fullest = max(moments, key=lambda moment: sum((states | moment.passing).values()))
    live = states | fullest.passing
    tensors = sum(live.values())
    fragmentation = software.fragmentation * (tensors - sum(states.values()))
    components = {
        **live,
        "fragmentation": fragmentation,
        "communicators": software.communicator * num_communicators(plan),
        "framework": software.context,
    }
    held = {name: size for name, size in components.items() if size > 0}
    return DeviceMemory(held, tensors, tensors + fragmentation, fullest.phase)


def num_communicators(plan: Parallelism) -> int:
    """Process groups of more than one rank that a framework makes for the plan."""
    degrees = [plan.tensor, plan.context, plan.expert, plan.pipeline, plan.data]
    if plan.replicate_degree > 1 and plan.shard_degree > 1:
        degrees.append(plan.replicate_degree)
    return sum(degree > 1 for degree in degrees)


def memory_by_rank(
    setting: Setting, plan: Parallelism, mesh: Mesh, stages: Sequence[StageCost]
) -> tuple[tuple[int, DeviceMemory], ...]:
    """Pipeline ranks with their memory; of ranks that run equal stages, the one that holds most."""
    saved = [s.saved_bytes for s in stages]
    held: Sequence[float] = (sum(saved),)
    if plan.pipeline > 1:
        order = arranged(plan.schedule, plan.pipeline, plan.virtual_stages, steady_microbatches(plan))
        held = peak_bytes(order, saved, [0.0] * len(saved))
    fullest: dict[tuple[int, ...], tuple[int, tuple[int, ...]]] = {}
    for rank, ss in enumerate(ranks_of(plan)):
        same = tuple(id(stages[s]) for s in ss)
        if same not in fullest or held[rank] > held[fullest[same][0]]:
            fullest[same] = (rank, ss)
    job, software = setting.job, setting.software
    return tuple(
        (rank, device_memory([stages[s] for s in ss], held[rank], job, plan, mesh, software))
        for rank, ss in fullest.values()
    )


def steady_microbatches(plan: Parallelism) -> int:
    """So many micro-batches that more would not raise the activations in flight.

    Schedules that alternate forward and backward fill up within their warm-up; GPipe and breadth-first hold all.
    """
    p, m = plan.pipeline, plan.num_microbatches
    # Interleaved rounds have m / (m // p) micro-batches; fewer of them must still be whole rounds.
    enough, step = 3 * p, math.lcm(p, m // max(1, m // p))
    if plan.schedule in ("gpipe", "breadth-first", "terapipe") or m <= enough + step:
        return m
    if is_written_out(plan.schedule):
        return m
    return enough + (m - enough) % step

"""Memory of one device over a step: what is alive at the two moments that can be the peak.

In ``backward`` all activations in flight are alive beside states and gathered weights; in ``optimizer`` the
activations are gone and the optimizer's temporaries come. The larger is the peak; what the framework, the
communicators and the allocator's fragmentation add comes on top.
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


def model_states(weights: Iterable[WeightGroup], job: Job, plan: Parallelism, mesh: Mesh) -> dict[str, float]:
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


def _passing(
    stages: Sequence[StageCost], job: Job, plan: Parallelism, software: SoftwareSpec
) -> dict[str, float]:
    """What comes and goes in forward and backward: gathered weights, unreduced gradients, buckets."""
    largest = max(stage.largest_unit for stage in stages)
    passing = {"gathered_weights": 0.0, "gradient_buffers": 0.0}
    if any(gathers_weights(plan)):
        units = 1 + software.prefetch_units
        passing["gathered_weights"] = units * largest * weight_bytes(job)
        if plan.zero_stage == 2:
            passing["gathered_weights"] = sum(
                sum(g.elements for g in stage.weights) for stage in stages
            ) * weight_bytes(job)
    if plan.zero_stage >= 2 and plan.shard_degree > 1:
        passing["gradient_buffers"] = largest * (weight_bytes(job) + reduced_bytes(job, software))
    elif plan.data * plan.context > 1:
        passing["gradient_buffers"] = min(software.gradient_bucket, largest * reduced_bytes(job, software))
    return passing


def device_memory(
    stages: Sequence[StageCost],
    activations: float,
    job: Job,
    plan: Parallelism,
    mesh: Mesh,
    software: SoftwareSpec,
) -> DeviceMemory:
    """Memory of a rank that runs ``stages`` with ``activations`` bytes in flight at its fullest."""
    states = model_states((g for stage in stages for g in stage.weights), job, plan, mesh)
    in_host = "activations" in plan.offload
    backward = {
        **states,
        **_passing(stages, job, plan, software),
        "activations": min(activations, 2 * max(s.saved_bytes for s in stages)) if in_host else activations,
        "workspace": max(stage.workspace_bytes for stage in stages),
    }
    shard = sum(
        sharded_elements(s.weights, mesh, plan.shard_degree if plan.zero_stage else 1) for s in stages
    )
    optimizer = {**states, "optimizer_temporaries": shard * software.optimizer_temporaries}
    at_backward, at_optimizer = sum(backward.values()), sum(optimizer.values())
    phase = "backward" if at_backward >= at_optimizer else "optimizer"
    live = backward if phase == "backward" else optimizer
    tensors = max(at_backward, at_optimizer)
    fragmentation = software.fragmentation * (tensors - sum(states.values()))
    communicators = software.communicator * num_communicators(plan)
    components = {
        **live,
        "fragmentation": fragmentation,
        "communicators": communicators,
        "framework": software.context,
    }
    return DeviceMemory(
        {k: v for k, v in components.items() if v > 0}, tensors, tensors + fragmentation, phase
    )


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
    return enough + (m - enough) % step

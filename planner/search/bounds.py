"""Optimistic bounds on time and memory, cheap enough for every candidate.

Both hold for any cut of the layers into stages and any of the searched schedules, so pruning by them loses nothing.
"""

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from cluster_specs.software import SoftwareSpec
from cost_models.memory import state_bytes
from planner.evaluation.blocks import least_saved_bytes
from planner.evaluation.evaluator import Evaluator
from planner.evaluation.host import states_on_host
from planner.evaluation.stages import StageCost
from planner.evaluation.states import weight_bytes
from planner.graph import Block, count_parameters
from planner.plans import Job
from planner.search.space import Candidate
from planner.sharding.pricing import Pricer


def pipeline_seconds(whole: StageCost, lightest: float, c: Candidate, splits_backward: bool) -> float:
    """Least makespan of the candidate's micro-batches [s]; ``whole`` is the model as one stage.

    With one stage on each rank, rank r works ``m w_r`` and stands still while the first micro-batch comes to
    it and the last one goes back: at least ``rho`` of the work of every rank before it. Solving
    ``m w_r + rho sum_(s<r) w_s <= M`` with equality for the largest total work W gives
    ``M >= rho W / (1 - (1 - rho / m)^p)``, whatever the split. With more stages on each rank only one layer of
    each earlier rank, ``lightest``, is certain to come before: ``M >= m W / p + (p - 1) / 2 lightest``.
    """
    p, m, work = c.pipeline, c.num_microbatches, whole.seconds
    if p == 1 or work <= 0:
        return m * work
    if c.virtual_stages > 1:
        return m * work / p + (p - 1) / 2 * lightest
    ramp = whole.forward if splits_backward else work
    rho = ramp / work
    return rho * work / -math.expm1(p * math.log1p(-min(rho / m, 1 - 1e-12)))


def least_pipeline(work: float, c: Candidate, alternates: bool) -> float:
    """The same from the seconds of ``work`` alone, which may be part of what the ranks do.

    ``alternates``: one stage on each rank, and a whole backward before the next stage's begins.
    """
    p, m = c.pipeline, c.num_microbatches
    if p == 1 or work <= 0 or not alternates:
        return m * work / p
    return work / -math.expm1(p * math.log1p(-min(1 / m, 1 - 1e-12)))


def fullest_rank(states: float, activations: float, c: Candidate) -> float:
    """Least bytes of the fullest rank, whatever the cut, of all ``states`` and one micro-batch's ``activations``.

    Rank r with a share n of the model holds ``n (S + f_r A)``, with ``f_r`` micro-batches in flight: ``p - r`` under
    1F1B and its kin, at least one. All shares fit in M only if ``M >= 1 / sum_r 1 / (S + f_r A)``.
    """
    in_flight = min(c.num_microbatches, c.pipeline) if c.schedule in ("1f1b", "interleaved") else 1
    return _fullest(states, activations, c.pipeline, in_flight)


@lru_cache(maxsize=1 << 14)
def _fullest(states: float, activations: float, pipeline: int, in_flight: int) -> float:
    """``in_flight`` micro-batches at most on any rank, one less on each rank from the end."""
    if states + activations <= 0:
        return 0.0
    return 1 / sum(1 / (states + min(in_flight, r) * activations) for r in range(1, pipeline + 1))


class Unavoidable(NamedTuple):
    """What no assignment and no policy avoids; splitting over tensor and context ranks divides it at best."""

    saved: Mapping[str, float]
    """Policy -> what all layers keep of one sequence [bytes]."""
    largest: float
    """The largest tensor that an operator makes for one sequence [bytes]."""
    experts: float
    """Parameters of experts."""
    others: float
    """All other parameters."""


def unavoidable(pricer: Pricer, policies: Iterable[str]) -> Unavoidable:
    """Read off the graph; the mesh of ``pricer`` does not matter."""
    graph = pricer.graph

    def num_bytes(block: Block, name: str) -> float:
        tensor = block.tensor[name]
        return graph.elements(tensor) * pricer.element_bytes(tensor)

    layers = [(block, count) for block, count in graph.instances() if block.name in graph.sequence]
    experts = sum(
        count * graph.elements(t)
        for block, count in layers
        for t in block.tensors
        if t.role == "weight" and {"experts", "expert_ffn"} <= set(t.dims)
    )
    return Unavoidable(
        saved={
            policy: sum(count * least_saved_bytes(pricer, b, policy) for b, count in layers)
            for policy in policies
        },
        largest=max((num_bytes(b, n) for b, _ in layers for op in b.ops for n in op.outputs), default=0.0),
        experts=experts,
        others=count_parameters(graph) - experts,
    )


def early_floor(c: Candidate, least: Unavoidable, job: Job, software: SoftwareSpec) -> float:
    """Least memory of the fullest rank [bytes], before anything is priced."""
    local = (least.others + least.experts / c.expert) / c.tensor
    states = state_bytes(
        local,
        job.precision,
        job.optimizer,
        job.master_weights,
        job.grad_dtype,
        c.zero_stage,
        c.shard_degree,
        keeps_copy=False,
    )
    gradients = states.gradients if software.gradient_life == "step" else 0.0
    held = 0.0 if "weights" in c.offload else states.weights + gradients
    held += 0.0 if "optimizer" in c.offload else states.master + states.optimizer
    share = c.micro_batch / (c.tensor * c.context)
    saved = 0.0 if "activations" in c.offload else share * least.saved[c.recompute]
    tensors = max(fullest_rank(held, saved, c), fullest_rank(0.0, saved, c) + share * least.largest)
    return tensors + overhead(c, software)


def least_on_host(c: Candidate, least: Unavoidable, evaluator: Evaluator) -> float:
    """Least that one node's devices keep on their host [bytes]: offloaded states, spread evenly."""
    local = (least.others + least.experts / c.expert) / (c.tensor * c.pipeline)
    elements = local / (c.shard_degree if c.zero_stage else 1)
    devices = min(evaluator.cluster.devices_per_node, c.data * c.tensor * c.pipeline * c.context)
    return devices * states_on_host(elements, evaluator.job, evaluator.software, c.offload)


def overhead(c: Candidate, software: SoftwareSpec) -> float:
    """What framework and communicators take beside tensors, at least [bytes]."""
    groups = sum(degree > 1 for degree in (c.tensor, c.context, c.expert, c.pipeline, c.data))
    return software.context + groups * software.communicator


def memory_floor(
    candidate: Candidate, whole: StageCost, largest_layer: float, job: Job, state_bytes: float
) -> float:
    """Least memory of the fullest rank [bytes]; ``state_bytes`` are those of one device's whole share."""
    gathered = largest_layer * weight_bytes(job) if candidate.zero_stage == 3 else 0.0
    saved = 0.0 if "activations" in candidate.offload else whole.saved_bytes
    return fullest_rank(state_bytes, saved, candidate) + gathered

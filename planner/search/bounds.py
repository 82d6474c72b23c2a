"""Optimistic bounds on time and memory, cheap enough for every candidate.

Both hold for any cut of the layers into stages and any of the searched schedules, so pruning by them loses nothing.
"""

import math

from planner.evaluation.memory import weight_bytes
from planner.evaluation.stages import StageCost
from planner.plans import Job
from planner.search.space import Candidate


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
    ramp = whole.forward if splits_backward else whole.forward + whole.backward_input
    rho = ramp / work
    return rho * work / -math.expm1(p * math.log1p(-min(rho / m, 1 - 1e-12)))


def memory_floor(
    candidate: Candidate, whole: StageCost, largest_layer: float, job: Job, state_bytes: float
) -> float:
    """Least memory of the fullest rank [bytes]: the mean over ranks of states and of activations in flight.

    ``state_bytes`` are all states of one device's whole share of the model. Rank r of ``p`` holds at least one
    micro-batch of what it runs; 1F1B and its kin hold ``p - r``, GPipe all.
    """
    p, m = candidate.pipeline, candidate.num_microbatches
    in_flight = 1.0
    if p > 1 and candidate.schedule in ("1f1b", "interleaved"):
        in_flight = sum(min(m, p - r) for r in range(p)) / p
    gathered = 0.0
    if candidate.zero_stage == 3:
        gathered = largest_layer * weight_bytes(job)
    saved = 0.0 if "activations" in candidate.offload else whole.saved_bytes
    return state_bytes / p + saved / p * in_flight + gathered

"""Does it fit: by what margin, where it is tightest, and the least change that makes it fit."""

from collections.abc import Mapping

from cluster_specs.cluster import ClusterSpec
from cluster_specs.record import Record
from cluster_specs.software import load_software
from cluster_specs.units import GIB
from planner.analysis.limits import largest_micro_batch, longest_sequence
from planner.analysis.questions import Progress, Question, answer, known
from planner.analysis.remedies import Remedy, remedies
from planner.evaluation.checkpoints import Checkpoints, checkpoints
from planner.models.model import Model
from planner.plans import Estimate, Job, MemoryMoment, Pins, Plan

SHARDED_FROM: Mapping[str, int] = {
    "optimizer": 1,
    "master_weights": 1,
    "cast_weights": 2,
    "gradients": 2,
    "copied_weights": 3,
    "kept_casts": 3,
    "weights": 3,
}
"""Component -> ZeRO stage from which data-parallel ranks share it; no stage shares the others."""


class FitReport(Record):
    """Whether a model fits on a cluster, and what to do about it."""

    fits: bool
    """The fullest device of the plan needs no more than the device has."""
    verdict: str
    """The answer in a sentence."""
    memory_bytes: float
    """Peak of the fullest device, as the driver reports it."""
    memory_limit_bytes: float
    margin_bytes: float
    """Free at the peak; negative where it does not fit."""
    margin_fraction: float
    """Of the device's memory."""
    tightest_rank: int
    """Pipeline rank of the fullest device."""
    tightest_phase: str
    """When its peak is: loss, head, backward or optimizer."""
    memory: Mapping[str, float]
    """Component -> bytes; adds up to ``memory_bytes``."""
    memory_over_step: tuple[MemoryMoment, ...] = ()
    """Live tensors at the moments of the step, in turn."""
    split_by_data_parallelism: tuple[str, ...]
    """Components that more data-parallel ranks would make smaller."""
    same_on_every_data_rank: tuple[str, ...]
    """Components that they would not."""
    largest_micro_batch: int | None
    """Sequences with which this plan still keeps the headroom free; None if none do."""
    longest_seq_len: int | None
    """Tokens, as above."""
    changes: tuple[Remedy, ...]
    """Single changes after which it fits, the least first; empty where it fits already."""
    checkpoints: Checkpoints | None = None
    """What saving and loading take; None where adapters are trained, or it is not known of the stack."""
    plan: Plan
    """The plan judged: the fastest that fits, or the one that needs least memory."""
    assumed: tuple[str, ...] = ()
    """What nobody said of the job."""


def fit(
    model: Model, cluster: ClusterSpec, job: Job, pins: Pins | None = None, progress: Progress | None = None
) -> FitReport:
    """Judge the pinned plan, or the best one that the pins leave open.

    Where even the least memory is too much, or more than the job's headroom allows, single changes are tried.
    Raises ``InputError`` for contradictory pins, ``Infeasible`` where no plan has the pinned degrees at all.
    """
    question = Question(model, cluster, job, pins or Pins())
    judged = answer(question, progress)
    estimate = known(judged)
    split, whole = sharded_components(judged, estimate)
    roomy = estimate.fits_with(job.memory_headroom)
    changes = () if roomy else remedies(question, judged, progress)
    return FitReport(
        fits=estimate.fits,
        verdict=_verdict(question, estimate, changes),
        memory_bytes=estimate.memory_bytes,
        memory_limit_bytes=estimate.memory_limit_bytes,
        margin_bytes=estimate.memory_limit_bytes - estimate.memory_bytes,
        margin_fraction=1 - estimate.memory_bytes / estimate.memory_limit_bytes,
        tightest_rank=estimate.fullest_stage,
        tightest_phase=estimate.peak_phase,
        memory=estimate.memory,
        memory_over_step=estimate.memory_over_step,
        split_by_data_parallelism=split,
        same_on_every_data_rank=whole,
        largest_micro_batch=largest_micro_batch(judged) if roomy else None,
        longest_seq_len=longest_sequence(judged) if roomy else None,
        changes=changes,
        checkpoints=checkpoints(judged),
        plan=judged,
    )


def sharded_components(answer: Plan, estimate: Estimate) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Components of the estimate that data-parallel ranks share under the plan's ZeRO stage, and the others.

    Masters that are all there is of the weights are whole with stage 1, as products read what comes of them.
    """
    stage = answer.plan.zero_stage if answer.plan.shard_degree > 1 else 0
    alone = {} if load_software(answer.job.stack).keeps_copy else {"master_weights": 2}
    shared_from = {**SHARDED_FROM, **alone}
    by_size = sorted(estimate.memory, key=lambda name: -estimate.memory[name])
    split = tuple(name for name in by_size if stage >= shared_from.get(name, stage + 1))
    return split, tuple(name for name in by_size if name not in split)


def _verdict(question: Question, estimate: Estimate, changes: tuple[Remedy, ...]) -> str:
    used, limit = estimate.memory_bytes / GIB, estimate.memory_limit_bytes / GIB
    share = f"{used:.1f} of {limit:.1f} GiB on the fullest device"
    if estimate.fits_with(question.job.memory_headroom):
        return f"It fits: {share}, {limit - used:.1f} GiB free."
    if used <= limit and not estimate.fits:
        host, has = estimate.host_bytes / GIB, (estimate.host_limit_bytes or 0.0) / GIB
        return f"It does not fit: what is offloaded takes {host:.0f} of {has:.0f} GiB of a node's host."
    headroom = f"{question.job.memory_headroom:.0%}"
    state = (
        f"It fits only just: {share}, less free than the headroom of {headroom}"
        if estimate.fits
        else f"It does not fit: {share}, {used - limit:.1f} GiB too much"
    )
    if not changes:
        return f"{state}. No single change that was tried helps; combine them."
    best = changes[0]
    effect = f"{best.memory_bytes / GIB:.1f} GiB, {best.time_cost_fraction:+.0%} time"
    return f"{state}. Least change: {best.change} ({effect})."

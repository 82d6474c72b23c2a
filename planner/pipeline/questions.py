"""Pipelines without a model: a schedule by any of its names on given times, and workers with different bounds."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from planner.errors import InputError
from planner.pipeline.asynchronous import ASYNCHRONOUS, run_asynchronously
from planner.pipeline.automatic import find_schedule
from planner.pipeline.generators import generate, is_written_out, schedule_label, stage_to_rank
from planner.pipeline.schedule import Schedule, from_csv
from planner.pipeline.simulator import StageTimes, simulate
from planner.pipeline.synchronisation import synchronise
from planner.pipeline.timeline import Timeline

AUTOMATIC = "automatic"
"""What stands for a schedule that is to be found."""


class PipelineQuestion(NamedTuple):
    """A pipeline in seconds; times are one for all stages (boundaries), or one for each."""

    schedule: str
    """A name, PyTorch's CSV, `AUTOMATIC` or one of `ASYNCHRONOUS`."""
    ranks: int
    virtual_stages: int
    microbatches: int
    forward: Sequence[float]
    backward_input: Sequence[float]
    backward_weight: Sequence[float]
    p2p: Sequence[float] = (0.0,)
    one_port: bool = False
    """A rank sends one result at a time, and receives one."""
    blocking: bool = False
    memory: Sequence[float] | None = None
    """Micro-batches that each rank can hold, for `AUTOMATIC`."""
    per_update: int = 1
    max_active: int | None = None


class PipelineAnswer(NamedTuple):
    """How it ran."""

    timeline: Timeline
    facts: dict[str, Any]
    """As JSON."""


def run(question: PipelineQuestion) -> PipelineAnswer:
    """Simulate the pipeline.

    Raises: UnknownName; InputError where numbers do not fit; Infeasible where the memory is too small; Deadlock.
    """
    if question.schedule in ASYNCHRONOUS:
        return _run_asynchronous(question)
    schedule = _schedule(question)
    times, p2p = _times(question, schedule.num_stages), _each("p2p", question.p2p, schedule.num_stages - 1)
    timeline = simulate(
        schedule, times, p2p, blocking=question.blocking, ports="rank" if question.one_port else "endless"
    )
    name = question.schedule if question.schedule == AUTOMATIC else schedule_label(question.schedule)
    facts = {
        "schedule": name,
        "makespan_s": timeline.makespan,
        "bubble_fraction": timeline.bubble_fraction,
        "steady_bubble_fraction": timeline.stage_bubble_fraction,
        "ranks": [
            {
                "rank": rank,
                "stages": list(schedule.stages_of(rank)),
                "busy_s": timeline.busy[rank],
                "fill_s": idle.fill,
                "waiting_s": idle.waiting,
                "drain_s": idle.drain,
                "in_flight": timeline.peak_in_flight[rank],
            }
            for rank, idle in enumerate(timeline.idle)
        ],
    }
    return PipelineAnswer(timeline, facts)


def _schedule(question: PipelineQuestion) -> Schedule:
    p, v, m = question.ranks, question.virtual_stages, question.microbatches
    if is_written_out(question.schedule):
        return from_csv(question.schedule)
    if question.schedule != AUTOMATIC:
        return generate(question.schedule, p, v, m)
    stages = p * v
    limits = _each("memory", question.memory or (float(m * v),), p)
    homes = stage_to_rank("interleaved", p, v)
    times, p2p = _times(question, stages), _each("p2p", question.p2p, stages - 1)
    return find_schedule(times, p2p, limits, m, homes=homes)


def _times(question: PipelineQuestion, stages: int) -> StageTimes:
    return StageTimes(
        _each("forward", question.forward, stages),
        _each("backward-input", question.backward_input, stages),
        _each("backward-weight", question.backward_weight, stages),
    )


def _each(name: str, numbers: Sequence[float], count: int) -> tuple[float, ...]:
    if len(numbers) not in (1, count):
        raise InputError(f"--{name} has {len(numbers)} numbers; give one, or one for each of {count}")
    return tuple(numbers) * (count if len(numbers) == 1 else 1)


def _run_asynchronous(question: PipelineQuestion) -> PipelineAnswer:
    if question.virtual_stages > 1:
        raise InputError(f"{question.schedule} has one stage on each rank, got {question.virtual_stages}")
    report = run_asynchronously(
        question.schedule,
        _times(question, question.ranks),
        question.microbatches,
        _each("p2p", question.p2p, question.ranks - 1),
        per_update=question.per_update,
        max_active=question.max_active,
    )
    facts = {
        "schedule": question.schedule,
        "makespan_s": report.timeline.makespan,
        "microbatches_per_s": report.throughput,
        "stages": [
            {"stage": s, "weight_versions": versions, "staleness": stale, "mismatched": mismatched}
            for s, (versions, stale, mismatched) in enumerate(
                zip(report.weight_versions, report.steady_staleness, report.mismatched, strict=True)
            )
        ],
    }
    return PipelineAnswer(report.timeline, facts)


def compare_bounds(
    means: Sequence[float],
    iterations: int,
    spread: float,
    exchange: float,
    bounds: Sequence[int | None],
    seed: int,
) -> list[dict[str, Any]]:
    """The same workers under every bound on staleness; None is without one.

    An iteration of worker w takes ``means[w]`` seconds times a draw from a lognormal distribution of mean 1 and
    standard deviation ``spread``. Raises InputError where times or bounds are negative.
    """
    width = np.log1p(spread**2)
    draws = np.random.default_rng(seed).lognormal(-width / 2, np.sqrt(width), (len(means), iterations))
    seconds = np.asarray(means, dtype=np.float64)[:, None] * draws
    rows = []
    for bound in bounds:
        report = synchronise(seconds, bound, exchange)
        rows.append(
            {
                "bound": bound,
                "iterations_per_s": report.throughput,
                "waiting_fraction": float(np.sum(report.waiting) / report.ends[:, -1].sum()),
                "mean_staleness": float(report.staleness.mean()),
                "max_staleness": int(report.staleness.max()),
            }
        )
    return rows

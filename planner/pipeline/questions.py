"""Pipelines without a model: a schedule by any of its names on given times, and workers with different bounds."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from planner.errors import Infeasible, InputError
from planner.pipeline.activations import Held
from planner.pipeline.asynchronous import ASYNCHRONOUS, AsyncReport, run_asynchronously
from planner.pipeline.automatic import Conditions, find_schedule
from planner.pipeline.dependencies import peak_bytes
from planner.pipeline.generators import generate, is_written_out, schedule_label, stage_to_rank
from planner.pipeline.schedule import Schedule, from_csv
from planner.pipeline.simulator import StageTimes, simulate
from planner.pipeline.synchronisation import synchronise
from planner.pipeline.timeline import Timeline
from planner.pipeline.trace import Counter
from planner.pipeline.waves import wave_homes

AUTOMATIC = "automatic"
"""What stands for a schedule that is to be found."""


USUAL_MICROBATCHES = 8
"""Of a step, where nobody says how many; of each rank where nothing is flushed, so that a steady state is seen."""


MOST_PASSES = 10**7
"""Of micro-batches through stages: so many take a minute and some GiB."""


def usual_microbatches(schedule: str, ranks: int, per_update: int | None) -> int:
    """How many micro-batches to simulate where nobody says."""
    several = max(ranks, per_update or 1) if schedule in ASYNCHRONOUS else 1
    return USUAL_MICROBATCHES * several


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
    """Micro-batches that each rank can hold; those on each of its stages count."""
    late: float = 1.0
    """Share of a micro-batch that stays from its input gradient until its weight gradient."""
    steady: bool = False
    """`AUTOMATIC` makes the longest span of a rank short, not the makespan."""
    per_update: int | None = None
    max_active: int | None = None

    @property
    def conditions(self) -> Conditions:
        """How it runs."""
        return Conditions(self.blocking, "rank" if self.one_port else "endless", self.steady)


class PipelineAnswer(NamedTuple):
    """How it ran."""

    timeline: Timeline
    facts: dict[str, Any]
    """As JSON."""
    held: Held
    """What a micro-batch keeps on each stage."""
    endless: AsyncReport | None = None
    """Where nothing is flushed."""

    def counters(self) -> Iterator[Counter]:
        """What is held over time."""
        yield Counter("activations", "micro-batches", self.timeline.memory_over_time(self.held))
        if self.endless is not None:
            yield Counter("weights", "versions", self.endless.versions_over_time())


def run(question: PipelineQuestion) -> PipelineAnswer:
    """Simulate the pipeline.

    Raises: UnknownName; InputError where numbers do not fit; Infeasible where the memory is too small; Deadlock.
    """
    _check(question)
    if question.schedule in ASYNCHRONOUS:
        return _run_asynchronous(question)
    schedule = _schedule(question)
    timeline = _timeline(question, schedule)
    held = _held(question, schedule.num_stages)
    peaks = peak_bytes(timeline.dependencies, held.until_input, held.until_weight)
    name = question.schedule if question.schedule == AUTOMATIC else schedule_label(question.schedule)
    if question.memory is not None:
        _check_room(name, peaks, _each("memory", question.memory, schedule.num_ranks))
    in_flight = timeline.peak_in_flight
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
                "in_flight": in_flight[rank],
                "held_microbatches": peaks[rank],
            }
            for rank, idle in enumerate(timeline.idle)
        ],
    }
    return PipelineAnswer(timeline, facts, held)


def _check(question: PipelineQuestion) -> None:
    """Refuse what would make no difference, and what would never end."""
    passes = question.ranks * question.virtual_stages * question.microbatches
    if passes > MOST_PASSES:
        raise InputError(
            f"{question.microbatches:,} micro-batches through {question.ranks * question.virtual_stages:,} stages are "
            f"more than the {MOST_PASSES:,} passes that are simulated; a steady state shows with far fewer"
        )
    name = question.schedule
    entry = ASYNCHRONOUS.get(name)
    given = (
        ("--steady", question.steady, name == AUTOMATIC, "the automatic schedule"),
        ("--memory", question.memory is not None, entry is None, "schedules that flush"),
        ("--kept-for-weights", question.late < 1, entry is None, "schedules that flush"),
        ("--per-update", question.per_update is not None, entry is not None, "pipelines that never flush"),
        ("--max-active", question.max_active is not None, entry is not None and entry.bounded, "ampnet"),
    )
    for option, is_given, applies, what in given:
        if is_given and not applies:
            label = name if entry or name == AUTOMATIC else schedule_label(name)
            raise InputError(f"{option} is for {what}; leave it out with schedule {label}")


def _check_room(name: str, peaks: Sequence[float], limits: Sequence[float]) -> None:
    for rank, (peak, limit) in enumerate(zip(peaks, limits, strict=True)):
        if peak > limit * (1 + 1e-9):
            raise Infeasible(
                f"schedule {name} holds {peak:g} micro-batches on rank {rank}, which has room for {limit:g}",
                "--schedule automatic, which keeps to --memory",
            )


def _schedule(question: PipelineQuestion) -> Schedule:
    p, v, m = question.ranks, question.virtual_stages, question.microbatches
    if is_written_out(question.schedule):
        return from_csv(question.schedule)
    if question.schedule != AUTOMATIC:
        return generate(question.schedule, p, v, m)
    stages = p * v
    limits = _each("memory", question.memory or (float(m * v),), p)
    times, p2p = _times(question, stages), _each("p2p", question.p2p, stages - 1)
    held, conditions = _held(question, stages), question.conditions
    found = [
        find_schedule(times, p2p, limits, m, held=held, homes=homes, conditions=conditions)
        for homes in dict.fromkeys((stage_to_rank("interleaved", p, v), wave_homes(p, stages)))
    ]
    return min(found, key=lambda schedule: conditions.length(_timeline(question, schedule)))


def _timeline(question: PipelineQuestion, schedule: Schedule) -> Timeline:
    blocking, ports, _ = question.conditions
    times, p2p = _times(question, schedule.num_stages), _each("p2p", question.p2p, schedule.num_stages - 1)
    return simulate(schedule, times, p2p, blocking=blocking, ports=ports)


def _held(question: PipelineQuestion, stages: int) -> Held:
    return Held((1 - question.late,) * stages, (question.late,) * stages)


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
        per_update=question.per_update or 1,
        max_active=question.max_active,
        blocking=question.blocking,
        ports=question.conditions.ports,
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
    return PipelineAnswer(report.timeline, facts, _held(question, question.ranks), report)


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

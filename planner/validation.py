"""Predictions against measured runs: errors per run, and what they add up to.

Errors are signed fractions, predicted / measured - 1, of step time and of memory. A run that cannot be
expressed or evaluated is skipped with the reason and counted, never dropped in silence.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from pydantic import Field, ValidationError

from cluster_specs.record import Record, first_problem
from cluster_specs.units import GIB
from planner.errors import InputError, PlannerError
from planner.plans import Estimate, Plan
from planner.runs.automatic import as_chosen
from planner.runs.printed import answer_of, printed_memory
from planner.runs.record import MeasuredSection, RunFile, parse_run
from planner.runs.step_times import measured_step_time
from planner.runs.unpublished import as_it_fits, as_its_flops_tell, as_its_memory_tells

MIN_RANKED = 4
"""Fewest runs of a group whose order is worth a correlation."""


MOST_PRINTED = 1.1
"""Most that is believed of a printed peak, over the device's memory: what is in GB by mistake is 7 % larger."""


class Prediction(Record):
    """What the estimate says, in the units in which runs are published."""

    step_time_s: float
    tokens_per_s_per_gpu: float
    mfu: float
    memory_gib_per_gpu: float
    """Of the kind that is printed: what the driver reports, or what the allocator has reserved."""
    tensor_gib_per_gpu: float
    """Of the pipeline rank that is printed."""
    fits: bool


class Row(Record):
    """One run: predicted, measured, and the errors of what was measured."""

    id: str
    predicted: Prediction | None = None
    measured: Mapping[str, Any] = {}
    step_time_error: float | None = None
    memory_error: float | None = None
    tensor_memory_error: float | None = None
    inside_interval: bool | None = None
    """The measured step time lies in the predicted 80 % interval."""
    assumed: tuple[str, ...] = ()
    skipped: str | None = None
    """Why there is no prediction."""


class ErrorStatistics(Record):
    """How wrong the predictions of one quantity are; None where nothing was measured."""

    n: int
    median_abs_error: float | None = None
    p90_abs_error: float | None = None
    bias: float | None = None
    """Median of the signed errors: above zero, we predict too much."""


class FitStatistics(Record):
    """Whether runs that ran are said to fit, and runs that crashed are not."""

    n: int
    accuracy: float | None = None
    ran: int = 0
    ran_but_said_not_to_fit: int = 0
    crashed: int = 0
    crashed_but_said_to_fit: int = 0
    """Runs crash for other reasons than memory too."""


class RankCorrelation(Record):
    """Spearman correlation of predicted and measured throughput per device."""

    series: Mapping[str, float] = {}
    """By series, where it has at least `MIN_RANKED` runs."""
    model_on_nodes: Mapping[str, float] = {}
    """By one model, batch and device count: the choice that a planner makes."""
    median_of_groups: float | None = None
    """Median over ``model_on_nodes``."""


class Summary(Record):
    """What all rows add up to."""

    step_time: ErrorStatistics
    memory: ErrorStatistics
    tensor_memory: ErrorStatistics
    fits: FitStatistics
    inside_interval: float | None = None
    """Share of measured step times inside the predicted interval."""
    by: Mapping[str, Mapping[str, Mapping[str, ErrorStatistics]]] = {}
    """Property of the run -> its value -> quantity -> statistics."""
    rank_correlation: RankCorrelation = RankCorrelation()
    skipped: int = 0

    @property
    def compared(self) -> bool:
        """Whether any run was held against a measurement, or against having run at all."""
        return any(part.n for part in (self.step_time, self.memory, self.tensor_memory, self.fits))


class ValidationReport(Record):
    """The documented JSON of ``validate``."""

    schema_version: Literal["meshwright/validation/1"] = Field(
        default="meshwright/validation/1", alias="schema"
    )
    rows: tuple[Row, ...]
    summary: Summary


class Scored(NamedTuple):
    """A row with the properties that it is grouped by."""

    row: Row
    properties: Mapping[str, str]
    group: str
    """Model, batch and devices: runs that are alternatives to each other."""
    measured_rate: float | None
    """Tokens per second and device."""


def validate(
    rows: Iterable[Mapping[str, Any]],
    evaluate: Callable[[Plan], Estimate] | None = None,
    progress: Callable[[str], None] | None = None,
) -> ValidationReport:
    """Predict every run and compare.

    ``evaluate`` is the evaluator to judge (the one of Meshwright by default); ``progress`` hears of each run.
    """
    if evaluate is None:
        from planner.evaluation import evaluate as shipped

        evaluate = shipped
    scored = []
    for number, row in enumerate(rows, start=1):
        if progress is not None:
            progress(f"run {number}")
        scored.append(_score(row, evaluate, number))
    return ValidationReport(rows=tuple(s.row for s in scored), summary=summarize(scored))


def _score(row: Mapping[str, Any], evaluate: Callable[[Plan], Estimate], number: int) -> Scored:
    name = str(row.get("id") or f"row {number}")
    measured = row.get("measured")
    measured = measured if isinstance(measured, Mapping) else {}
    try:
        run = parse_run(row)
        told = as_chosen(run, evaluate)
        told = as_its_flops_tell(run, told, measured_step_time(run, told.plan)[0], evaluate)
        told = as_its_memory_tells(run, told, evaluate)
        plan, estimate, assumed = as_it_fits(run, told, evaluate) if _ran(measured) else told
    except (InputError, PlannerError) as error:
        reason = str(error).removeprefix(f"run {row.get('id')}: ")
        return Scored(Row(id=name, measured=measured, skipped=reason), {}, "", None)
    except ValidationError as error:
        return Scored(Row(id=name, measured=measured, skipped=first_problem(error)), {}, "", None)
    except Exception as error:  # one run that breaks the evaluator must not hide the verdict on all others
        reason = f"internal error: {type(error).__name__}: {error}"
        return Scored(Row(id=name, measured=measured, skipped=reason), {}, "", None)
    return _compare(name, run, plan, estimate, assumed)


TOLD_BY_RUNNING = (
    "step_time_s",
    "tokens_per_s",
    "tokens_per_s_per_gpu",
    "tflops_per_gpu",
    "mfu",
    "memory_gib_per_gpu",
)
"""What a source can print of a run that ran only."""


def _ran(measured: Mapping[str, Any]) -> bool | None:
    """Whether a run ran: as its source says, or since it prints what only a run tells; None where it does neither."""
    if measured.get("ok") is not None:
        return bool(measured["ok"])
    return True if any(measured.get(name) is not None for name in TOLD_BY_RUNNING) else None


def _compare(name: str, run: RunFile, plan: Plan, estimate: Estimate, assumed: tuple[str, ...]) -> Scored:
    per_gpu = run.hardware.devices_per_chip or 1
    kind = printed_memory(run)
    predicted = Prediction(
        step_time_s=estimate.step_time_s,
        tokens_per_s_per_gpu=estimate.tokens_per_s_per_device * per_gpu,
        mfu=estimate.mfu,
        memory_gib_per_gpu=answer_of(kind, estimate) * per_gpu / GIB,
        tensor_gib_per_gpu=_printed_tensors(run, estimate) * per_gpu / GIB,
        fits=estimate.fits,
    )
    measured = run.measured or MeasuredSection()
    reserved = ("memory=reserved (as its source prints)",) if kind == "reserved" else ()
    step_time, how = measured_step_time(run, plan)
    memory, doubted = _measured_memory(measured, plan.cluster.device.memory * per_gpu / GIB)
    low, high = estimate.step_time_interval_s
    row = Row(
        id=name,
        predicted=predicted,
        measured=dict(measured),
        step_time_error=_error(estimate.step_time_s, step_time),
        memory_error=_error(predicted.memory_gib_per_gpu, memory),
        tensor_memory_error=_error(predicted.tensor_gib_per_gpu, measured.tensor_gib_per_gpu),
        inside_interval=None if step_time is None else low <= step_time <= high,
        assumed=(*assumed, *how, *doubted, *(reserved if memory else ())),
    )
    tokens = plan.job.global_batch * plan.job.seq_len
    rate = None if step_time is None else tokens / step_time / plan.cluster.num_devices
    job, devices = plan.job, plan.cluster.num_devices
    group = f"{plan.model.name} seq {job.seq_len} batch {job.global_batch} on {devices}"
    return Scored(row, _properties(run, plan), group, rate)


def _measured_memory(measured: MeasuredSection, most: float) -> tuple[float | None, tuple[str, ...]]:
    """What a run printed of its memory, unless its device has far less than that, ``most`` [GiB]; and a note if so."""
    printed = measured.memory_gib_per_gpu
    if printed is None or printed <= MOST_PRINTED * most:
        return printed, ()
    return None, (
        f"memory_gib_per_gpu {printed:g} is more than the {most:.1f} GiB of the device, and not compared: its unit may "
        "be another",
    )


def _printed_tensors(run: RunFile, estimate: Estimate) -> float:
    """Live tensors at the peak of the rank that the source prints [bytes]; of the fullest where nobody says which."""
    first = run.measured is not None and run.measured.tensor_rank == "first"
    known = estimate.first_tensor_bytes if first else None
    return estimate.tensor_bytes if known is None else known


def _properties(run: RunFile, plan: Plan) -> dict[str, str]:
    """What a user may want to filter by, to see how wrong it is on runs like theirs."""
    experts = run.model.model_extra or {}
    return {
        "series": run.series or "unknown",
        "quality": str(run.quality or "unknown"),
        "gpu": plan.cluster.device.name,
        "precision": plan.job.precision,
        "stack": plan.job.stack,
        "zero_stage": str(plan.plan.zero_stage),
        "recompute": plan.plan.recompute,
        "pipeline": plan.plan.schedule if plan.plan.pipeline > 1 else "no pipeline",
        "tensor": str(plan.plan.tensor),
        "devices": _magnitude(plan.cluster.num_devices),
        "kind": "moe" if experts.get("experts") else "dense",
    }


def _magnitude(devices: int) -> str:
    """Range of device counts, in powers of eight."""
    low = 8 ** int(math.log(devices, 8) + 1e-9)
    return f"{low}-{low * 8 - 1}"


def _error(predicted: float, measured: float | None) -> float | None:
    return None if measured is None else predicted / measured - 1


QUANTITIES: Mapping[str, Callable[[Row], float | None]] = {
    "step_time": lambda row: row.step_time_error,
    "memory": lambda row: row.memory_error,
    "tensor_memory": lambda row: row.tensor_memory_error,
}
"""What is scored -> its signed error."""


def summarize(scored: Sequence[Scored]) -> Summary:
    """Statistics over all rows, by property, and by rank."""
    groups: dict[str, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for item in scored:
        for key, value in item.properties.items():
            groups[key][value].append(item.row)
    rows = [item.row for item in scored]
    inside = [row.inside_interval for row in rows if row.inside_interval is not None]
    return Summary(
        **_statistics_by_quantity(rows),
        fits=_fit_statistics(rows),
        inside_interval=sum(inside) / len(inside) if inside else None,
        by={
            key: {value: _statistics_by_quantity(members) for value, members in sorted(values.items())}
            for key, values in groups.items()
        },
        rank_correlation=_rank_correlation(scored),
        skipped=sum(row.skipped is not None for row in rows),
    )


def _statistics_by_quantity(rows: Sequence[Row]) -> dict[str, ErrorStatistics]:
    return {
        name: error_statistics([e for row in rows if (e := of(row)) is not None])
        for name, of in QUANTITIES.items()
    }


def error_statistics(errors: Sequence[float]) -> ErrorStatistics:
    """Median and 90th percentile (linear interpolation) of ``|errors|``, and the median error as bias."""
    if not errors:
        return ErrorStatistics(n=0)
    sizes = sorted(abs(e) for e in errors)
    position = 0.9 * (len(sizes) - 1)
    below = math.floor(position)
    above = min(below + 1, len(sizes) - 1)
    return ErrorStatistics(
        n=len(sizes),
        median_abs_error=statistics.median(sizes),
        p90_abs_error=sizes[below] + (position - below) * (sizes[above] - sizes[below]),
        bias=statistics.median(errors),
    )


def _fit_statistics(rows: Sequence[Row]) -> FitStatistics:
    """A run that printed a time, a rate or its memory ran; one that said not ``ok`` crashed; others say nothing."""
    ran = crashed = wrong_ran = wrong_crashed = 0
    for row in rows:
        outcome = _ran(row.measured)
        if outcome is None and row.step_time_error is not None:
            outcome = True
        if row.predicted is None or outcome is None:
            continue
        if outcome:
            ran, wrong_ran = ran + 1, wrong_ran + (not row.predicted.fits)
        else:
            crashed, wrong_crashed = crashed + 1, wrong_crashed + row.predicted.fits
    n = ran + crashed
    return FitStatistics(
        n=n,
        accuracy=1 - (wrong_ran + wrong_crashed) / n if n else None,
        ran=ran,
        ran_but_said_not_to_fit=wrong_ran,
        crashed=crashed,
        crashed_but_said_to_fit=wrong_crashed,
    )


def _rank_correlation(scored: Sequence[Scored]) -> RankCorrelation:
    series: dict[str, list[tuple[float, float]]] = defaultdict(list)
    alternatives: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for item in scored:
        if item.row.predicted is None or item.measured_rate is None:
            continue
        pair = (item.row.predicted.tokens_per_s_per_gpu, item.measured_rate)
        series[item.properties["series"]].append(pair)
        alternatives[f"{item.properties['series']}: {item.group}"].append(pair)
    groups = _correlations(alternatives)
    return RankCorrelation(
        series=_correlations(series),
        model_on_nodes=groups,
        median_of_groups=statistics.median(groups.values()) if groups else None,
    )


def _correlations(groups: Mapping[str, Sequence[tuple[float, float]]]) -> dict[str, float]:
    found = {name: spearman(pairs) for name, pairs in sorted(groups.items()) if len(pairs) >= MIN_RANKED}
    return {name: value for name, value in found.items() if value is not None}


def spearman(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Correlation of the ranks of two columns, ties sharing their mean rank; None if one is constant."""
    first, second = (_ranks([pair[i] for pair in pairs]) for i in (0, 1))
    if len(set(first)) < 2 or len(set(second)) < 2:
        return None
    return statistics.correlation(first, second)


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for index in order[start : end + 1]:
            ranks[index] = (start + end) / 2
        start = end + 1
    return ranks

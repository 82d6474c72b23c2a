"""How far predictions are from measured runs, as tables."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cluster_specs.units import GIB, format_bytes, format_count, format_seconds
from planner.report.console import columns, heading
from planner.runs.assumptions import IGNORED
from planner.validation import ErrorStatistics, FitStatistics, Row, ValidationReport

GROUPED_BY = ("series", "gpu", "precision", "stack", "pipeline")
"""Properties shown; the JSON has all."""

SHOWN_REASONS = 8

WILD = 100.0
"""Errors from here on, of units mixed up, are not worth all their digits."""

SHOWN_RUNS = 20
"""Of more runs, those that are furthest off are shown."""


def validation_report(report: ValidationReport) -> RenderableType:
    """Each run where they are few, errors over all and by property of the run, and what was not used."""
    summary = report.summary
    overall = {
        "step time": summary.step_time,
        "memory": summary.memory,
        "live tensors": summary.tensor_memory,
    }
    parts: list[RenderableType] = [Text(_opening(report), style="bold"), *_runs(report.rows)]
    if any(statistics.n for statistics in overall.values()):
        parts += [heading("Errors"), _errors(overall, "quantity")]
    if summary.inside_interval is not None:
        parts.append(Text(f"{summary.inside_interval:.0%} of step times are inside the 80 % interval"))
    parts.append(Text(_fits(summary.fits)))
    for key in GROUPED_BY:
        groups = {value: quantities["step_time"] for value, quantities in summary.by.get(key, {}).items()}
        if any(statistics.n for statistics in groups.values()):
            parts += [heading(f"Step time by {key}"), _errors(groups, key)]
    rank = summary.rank_correlation
    if rank.median_of_groups is not None:
        parts += [
            heading("Order of alternatives"),
            Text(
                f"Spearman correlation of throughput, median over {len(rank.model_on_nodes)} groups of one "
                f"model and devices: {rank.median_of_groups:.2f}"
            ),
        ]
    return Group(*parts, *_unused(report))


def _opening(report: ValidationReport) -> str:
    done = len(report.rows) - report.summary.skipped
    return f"{format_count(len(report.rows), 'run')}: {done} predicted, {report.summary.skipped} skipped"


def _errors(groups: Mapping[str, ErrorStatistics], name: str) -> Table:
    table = columns(name, "runs", "median error", "90 % within", "bias", right="lrrrr")
    for group, statistics in groups.items():
        if statistics.n:
            table.add_row(
                group,
                str(statistics.n),
                _percent(statistics.median_abs_error),
                _percent(statistics.p90_abs_error),
                _percent(statistics.bias, sign=True),
            )
    return table


def _percent(value: float | None, sign: bool = False) -> str:
    if value is None:
        return "-"
    text = f"{value:.1%}" if abs(value) < WILD else f"{100 * value:.3g}%"
    return f"+{text}" if sign and value >= 0 else text


def _fits(fits: FitStatistics) -> str:
    if fits.accuracy is None:
        return "no run says whether it ran"
    parts = []
    if fits.ran:
        parts.append(f"{fits.ran_but_said_not_to_fit} of {fits.ran} that ran were said not to fit")
    if fits.crashed:
        parts.append(f"{fits.crashed_but_said_to_fit} of {fits.crashed} that crashed were said to fit")
    return (
        f"fits or not is right for {fits.accuracy:.1%} of {format_count(fits.n, 'run')}: {', '.join(parts)}"
    )


def _runs(rows: Sequence[Row]) -> list[RenderableType]:
    """What was predicted and measured of each run that was compared."""
    compared = [row for row in rows if _off(row) is not None]
    if not compared:
        return []
    title = "Runs"
    if len(compared) > SHOWN_RUNS:
        title = f"The {SHOWN_RUNS} of {len(compared)} runs that are furthest off"
        compared = sorted(compared, key=lambda row: -(_off(row) or 0.0))[:SHOWN_RUNS]
    table = columns("run", "step time", "measured", "error", "memory", "measured", "error", right="lrrrrrr")
    for row in compared:
        assert row.predicted is not None
        table.add_row(
            row.id,
            *_pair(row.predicted.step_time_s, row.step_time_error, format_seconds),
            *_pair(row.predicted.memory_gib_per_gpu * GIB, row.memory_error, format_bytes),
        )
    return [heading(title), table]


def _off(row: Row) -> float | None:
    """How far off a run is: in step time where that was measured, else in memory."""
    errors = (row.step_time_error, row.memory_error, row.tensor_memory_error)
    return next((abs(error) for error in errors if error is not None), None)


def _pair(predicted: float, error: float | None, text: Callable[[float], str]) -> tuple[str, str, str]:
    measured = "-" if error is None else text(predicted / (1 + error))
    return text(predicted), measured, _percent(error, sign=True)


def _unused(report: ValidationReport) -> list[RenderableType]:
    """Runs without a prediction or without a measurement, and fields that nobody reads."""
    parts: list[RenderableType] = []
    if report.summary.skipped:
        parts += [heading("Skipped"), _skipped(report)]
    silent = [
        row for row in report.rows if row.predicted and _off(row) is None and row.measured.get("ok") is None
    ]
    rated = [row.id for row in silent if row.measured.get("tflops_per_gpu") or row.measured.get("mfu")]
    if rated:
        parts.append(
            Text(
                f"\nA rate of FLOPs, but not what it counts, in {format_count(len(rated), 'run')}, such as {rated[0]}: "
                "a flops_convention says so (model FLOPs, causal attention)"
            )
        )
    nothing = [row.id for row in silent if row.id not in rated]
    if nothing:
        parts.append(
            Text(
                f"\nNothing measured to compare with in {format_count(len(nothing), 'run')}, such as {nothing[0]}"
            )
        )
    ignored = Counter(
        a.removeprefix(IGNORED) for r in report.rows for a in r.assumed if a.startswith(IGNORED)
    )
    if ignored:
        fields = ", ".join(f"{field} ({count})" for field, count in ignored.most_common(SHOWN_REASONS))
        parts.append(Text(f"\nFields that nobody reads, and in how many runs: {fields}"))
    return parts


def _skipped(report: ValidationReport) -> Table:
    """Reasons, with the first run of each."""
    skipped = [(row.skipped, row.id) for row in report.rows if row.skipped is not None]
    reasons, first = Counter(reason for reason, _ in skipped), dict(reversed(skipped))
    table = columns("runs", "first", "reason", right="rll")
    for reason, count in reasons.most_common(SHOWN_REASONS):
        table.add_row(str(count), first[reason], reason)
    if len(reasons) > SHOWN_REASONS:
        rest = sum(count for _, count in reasons.most_common()[SHOWN_REASONS:])
        table.add_row(str(rest), "", f"{len(reasons) - SHOWN_REASONS} other reasons, which --json has")
    return table

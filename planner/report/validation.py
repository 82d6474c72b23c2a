"""How far predictions are from measured runs, as tables."""

from collections import Counter
from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from planner.report.console import columns, heading
from planner.validation import ErrorStatistics, FitStatistics, ValidationReport

GROUPED_BY = ("series", "gpu", "precision", "stack", "pipeline")
"""Properties shown; the JSON has all."""

SHOWN_REASONS = 8


def validation_report(report: ValidationReport) -> RenderableType:
    """Errors over all runs, by property of the run, and what was skipped."""
    summary = report.summary
    overall = {
        "step time": summary.step_time,
        "memory": summary.memory,
        "live tensors": summary.tensor_memory,
    }
    parts: list[RenderableType] = [
        Text(_opening(report), style="bold"),
        heading("Errors"),
        _errors(overall, "quantity"),
    ]
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
    if summary.skipped:
        parts += [heading("Skipped"), _skipped(report)]
    return Group(*parts)


def _opening(report: ValidationReport) -> str:
    done = len(report.rows) - report.summary.skipped
    return f"{len(report.rows)} runs: {done} predicted, {report.summary.skipped} skipped"


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
    return f"{value:+.1%}" if sign else f"{value:.1%}"


def _fits(fits: FitStatistics) -> str:
    if fits.accuracy is None:
        return "no run says whether it ran"
    return (
        f"fits or not is right for {fits.accuracy:.1%} of {fits.n} runs: "
        f"{fits.ran_but_said_not_to_fit} of {fits.ran} that ran were said not to fit, "
        f"{fits.crashed_but_said_to_fit} of {fits.crashed} that crashed were said to fit"
    )


def _skipped(report: ValidationReport) -> Table:
    reasons = Counter(row.skipped for row in report.rows if row.skipped is not None)
    table = columns("runs", "reason", right="rl")
    for reason, count in reasons.most_common(SHOWN_REASONS):
        table.add_row(str(count), reason)
    if len(reasons) > SHOWN_REASONS:
        rest = sum(count for _, count in reasons.most_common()[SHOWN_REASONS:])
        table.add_row(str(rest), f"{len(reasons) - SHOWN_REASONS} other reasons")
    return table

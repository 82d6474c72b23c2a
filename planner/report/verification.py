"""What running or compiling a plan showed."""

from collections.abc import Callable, Mapping

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cluster_specs.units import format_bytes, format_seconds
from planner.report.console import columns, heading
from planner.verification.record import Check, Comparison, OperatorDifference, Verification

UNITS: Mapping[str, Callable[[float], str]] = {
    "bytes": format_bytes,
    "seconds": format_seconds,
    "count": lambda count: f"{count:,.0f}",
}


def verification_report(answer: Verification) -> RenderableType:
    """The verdict, then every check, the framework's numbers beside ours, and what the run does not show."""
    verdict = "Verified" if answer.passed else "NOT verified"
    parts: list[RenderableType] = [
        Text(f"{verdict} with {', '.join(answer.versions)}", style="bold"),
        Text(answer.what),
    ]
    if answer.checks:
        parts += [heading("Checks"), _checks(answer.checks)]
    if answer.comparisons:
        parts += [heading("Beside the prediction"), _comparisons(answer.comparisons)]
    if answer.operators:
        parts += [heading("Operators compiled otherwise than priced"), _operators(answer.operators)]
    return Group(*parts, *([heading("Mind")] if answer.notes else []), *map(Text, answer.notes))


def _checks(checks: tuple[Check, ...]) -> Table:
    table = columns("", "", "expected", "found", "apart", "limit", right="llrrrr")
    for c in checks:
        figures = (f"{c.expected:.8g}", f"{c.found:.8g}", f"{c.error:.1e}", f"{c.limit:.0e}")
        table.add_row("ok" if c.passed else "FAILED", c.name, *figures)
    return table


def _comparisons(comparisons: tuple[Comparison, ...]) -> Table:
    table = columns("", "predicted", "found", "error", right="lrrr")
    for c in comparisons:
        text_of = UNITS[c.unit]
        error = "" if c.error is None else f"{c.error:+.1%}"
        table.add_row(c.name, text_of(c.predicted), text_of(c.found), error)
    return table


def _operators(differing: tuple[OperatorDifference, ...]) -> Table:
    def spelled(exchanged: Mapping[str, float]) -> str:
        return ", ".join(f"{kind} {format_bytes(size)}" for kind, size in exchanged.items()) or "-"

    table = columns("", "priced", "compiled", right="lll")
    for d in differing:
        width = ", wider alone" if d.width_alone else ""
        table.add_row(d.operator or "(none)", spelled(d.priced), spelled(d.compiled) + width)
    return table

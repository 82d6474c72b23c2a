"""Search methods side by side."""

from rich.console import Group, RenderableType
from rich.text import Text

from cluster_specs.units import format_seconds
from planner.analysis.naming import short_name
from planner.report.console import columns
from planner.search.methods.comparison import MethodComparison, MethodResult


def methods_report(answer: MethodComparison) -> RenderableType:
    """A line for each method: its answer, how much slower than the best, and what it cost."""
    table = columns("method", "step time", "slower", "priced", "found after", "cpu", "plan", right="lrrrrrl")
    for result in answer.results:
        table.add_row(*_row(result))
    note = f"budget {answer.budget:,} plans, seed {answer.seed}; * stopped by the budget, ! proven best"
    return Group(table, Text(note, style="dim"))


def _row(result: MethodResult) -> tuple[str, ...]:
    priced = f"{result.evaluated:,}" + ("*" if result.limit else "")
    name = result.method + ("!" if result.proven and result.plan is not None else "")
    cpu = format_seconds(result.cpu_seconds)
    if result.plan is None or result.estimate is None or result.slower is None:
        return name, "-", "-", priced, "-", cpu, "nothing that was priced fits"
    return (
        name,
        format_seconds(result.estimate.step_time_s),
        f"{result.slower:.1%}",
        priced,
        f"{result.best_after:,}",
        cpu,
        short_name(result.plan),
    )

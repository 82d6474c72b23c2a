"""What to change in an existing configuration, beside what it says now."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from planner.report.comparisons import comparison_report
from planner.report.console import heading

if TYPE_CHECKING:
    from planner.analysis.advice import Advice
    from planner.importers.registry import Imported


def advice_report(imported: "Imported", advice: "Advice") -> RenderableType:
    """The verdict, what was assumed and not understood, then the configuration (A) and the better plan (B)."""
    parts: list[RenderableType] = [
        Text(f"{imported.format.description}, read for {advice.current.model.name}:"),
        Text(advice.verdict, style="bold"),
        *_listed("Assumed", imported.assumed),
        *_listed("Not understood", imported.unknown),
        *_listed("Beware", advice.best.warnings),
    ]
    if advice.best is not advice.current:
        parts += [Text(), comparison_report(advice.current, advice.best, advice.comparison)]
    return Group(*parts)


def _listed(title: str, lines: Iterable[str]) -> list[RenderableType]:
    found = list(lines)
    return [heading(title), *(Text(line) for line in found)] if found else []

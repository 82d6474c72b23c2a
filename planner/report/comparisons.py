"""Two plans side by side, and whether a model fits."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cluster_specs.units import format_bytes, format_seconds
from planner.plans import Estimate, Plan
from planner.report.console import columns, heading
from planner.report.plans import describe_choices, plan_report

FIGURES: Mapping[str, Callable[[Estimate], str]] = {
    "step time": lambda e: format_seconds(e.step_time_s),
    "tokens/s": lambda e: f"{e.tokens_per_s:,.0f}",
    "MFU": lambda e: f"{e.mfu:.1%}",
    "HFU": lambda e: f"{e.hfu:.1%}",
    "memory": lambda e: format_bytes(e.memory_bytes) + ("" if e.fits else ", DOES NOT FIT"),
    "bubble": lambda e: f"{e.bubble_fraction:.1%}",
}
"""Figures of an estimate that a comparison shows."""

SUFFIXES: Mapping[str, Callable[[float], str]] = {
    "_bytes": format_bytes,
    "_s": format_seconds,
    "_fraction": lambda share: f"{share:+.1%}",
}
"""Unit in a field's name -> how its number is printed."""

DIFFERENT = "~"


def comparison_report(first: Plan, second: Plan, answer: Any) -> RenderableType:
    """What two plans choose and give, the lines that differ marked, and what the comparison says of them."""
    parts: list[RenderableType] = [
        _side_by_side(dict(describe_choices(first)), dict(describe_choices(second)))
    ]
    if first.estimate is not None and second.estimate is not None:
        parts += [heading("Estimate"), _figures(first.estimate, second.estimate)]
        parts += [heading("Where the time goes"), _times(first.estimate, second.estimate)]
    return Group(*parts, *_remarks(answer))


def _side_by_side(first: Mapping[str, str], second: Mapping[str, str]) -> Table:
    table = columns("", "", "A", "B")
    for name in dict.fromkeys((*first, *second)):
        a, b = first.get(name, "-"), second.get(name, "-")
        table.add_row("" if a == b else DIFFERENT, name, a, b)
    return table


def _figures(first: Estimate, second: Estimate) -> Table:
    table = columns("", "A", "B", right="lrr")
    for name, text_of in FIGURES.items():
        table.add_row(name, text_of(first), text_of(second))
    return table


def _times(first: Estimate, second: Estimate) -> Table:
    table = columns("", "A", "B", "B - A", right="lrrr")
    for part in dict.fromkeys((*first.time, *second.time)):
        a, b = first.time.get(part, 0.0), second.time.get(part, 0.0)
        sign = "-" if b < a else "+"
        row = (format_seconds(a), format_seconds(b), sign + format_seconds(abs(b - a)))
        table.add_row(part.replace("_", " "), *row)
    return table


def fit_report(answer: Any) -> RenderableType:
    """Whether a model fits, by what margin and where it is tightest, and what would make it fit."""
    parts = [Text("It fits." if answer.fits else "It does NOT fit.", style="bold"), *_remarks(answer)]
    plan = getattr(answer, "plan", None)
    if isinstance(plan, Plan):
        parts += [Text(), plan_report(plan)]
    return Group(*parts)


def _remarks(answer: Any) -> Iterator[RenderableType]:
    """Numbers and words of a record, one below the other; records inside it have reports of their own."""
    table = columns("", "")
    for name, value in answer:
        text = _remark(name, value)
        if text and name != "fits":
            table.add_row(_label(name), text)
    if table.row_count:
        yield Text()
        yield table


def _label(name: str) -> str:
    unit = next((suffix for suffix in SUFFIXES if name.endswith(suffix)), "")
    return name.removesuffix(unit).replace("_", " ")


def _remark(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        unit = next((text_of for suffix, text_of in SUFFIXES.items() if name.endswith(suffix)), None)
        return unit(value) if unit is not None else f"{value:.4g}"
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return "\n".join(value)
    return value if isinstance(value, str) else ""

"""Two plans side by side."""

from collections.abc import Callable, Mapping
from typing import Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cluster_specs.units import format_bytes, format_seconds
from planner.analysis.comparison import Comparison
from planner.models.catalog import counted
from planner.plans import Estimate, Job, Plan
from planner.report.console import columns, heading
from planner.report.plans import describe_choices

FIGURES: Mapping[str, Callable[[Estimate], str]] = {
    "step time": lambda e: format_seconds(e.step_time_s),
    "MFU": lambda e: f"{e.mfu:.1%}",
    "HFU": lambda e: f"{e.hfu:.1%}",
    "memory": lambda e: format_bytes(e.memory_bytes) + ("" if e.fits else ", DOES NOT FIT"),
    "bubble": lambda e: f"{e.bubble_fraction:.1%}",
}
"""Figures of an estimate that a comparison shows, beside its throughput."""

DIFFERENT = "~"

PURPOSE = {"model", "cluster", *Job.model_fields} - {"adapter", "token_exchange", "memory_headroom"}
"""Names of differences that the phrases for a plan's choices leave to the heading of its own report; what a search left
free is no property of a plan."""

WORDS: Mapping[str, str] = {"True": "yes", "False": "no", "None": "usual"}


def comparison_report(first: Plan, second: Plan, answer: Comparison) -> RenderableType:
    """The verdict, then what two plans choose and give, the lines that differ marked."""
    parts: list[RenderableType] = [
        Text(answer.verdict, style="bold"),
        Text(),
        _side_by_side(_described(first, answer, "a"), _described(second, answer, "b")),
    ]
    a, b = first.estimate, second.estimate
    if a is not None and b is not None:
        parts += [heading("Estimate"), _figures(a, b, counted(first.model))]
        parts += [heading("Where the time goes"), _parts(a.time, b.time, format_seconds)]
        parts += [heading("Where the memory goes"), _parts(a.memory, b.memory, format_bytes)]
        parts += [
            heading("Sent by a device in a step"),
            _parts(a.communication, b.communication, format_bytes),
        ]
    return Group(*parts)


def _described(plan: Plan, answer: Comparison, side: Literal["a", "b"]) -> Mapping[str, str]:
    """What a plan is for, as far as the other is for something else, and all that it chooses."""
    unlike = (choice for choice in answer.choices if choice.name in PURPOSE)
    return {choice.name.replace("_", " "): _word(getattr(choice, side)) for choice in unlike} | dict(
        describe_choices(plan)
    )


def _word(value: str | float) -> str:
    return WORDS.get(value, value) if isinstance(value, str) else f"{value:,.12g}"


def _side_by_side(first: Mapping[str, str], second: Mapping[str, str]) -> Table:
    table = columns("", "", "A", "B")
    for name in dict.fromkeys((*first, *second)):
        a, b = first.get(name, "-"), second.get(name, "-")
        table.add_row("" if a == b else DIFFERENT, name, a, b)
    return table


def _figures(first: Estimate, second: Estimate, fed: str) -> Table:
    table = columns("", "A", "B", right="lrr")
    table.add_row(f"{fed}/s", f"{first.tokens_per_s:,.0f}", f"{second.tokens_per_s:,.0f}")
    for name, text_of in FIGURES.items():
        table.add_row(name, text_of(first), text_of(second))
    return table


def _parts(first: Mapping[str, float], second: Mapping[str, float], text_of: Callable[[float], str]) -> Table:
    table = columns("", "A", "B", "B - A", right="lrrr")
    for part in dict.fromkeys((*first, *second)):
        a, b = first.get(part, 0.0), second.get(part, 0.0)
        sign = "-" if b < a else "+"
        table.add_row(part.replace("_", " "), text_of(a), text_of(b), sign + text_of(abs(b - a)))
    return table

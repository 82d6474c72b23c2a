"""Pipelines without a model, workers and slices, as tables."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from cluster_specs.units import format_seconds
from planner.pipeline.questions import PipelineAnswer
from planner.pipeline.trace import to_text
from planner.report.console import columns
from planner.search.slicing import Slices

CHART_COLUMNS = 72


def pipeline_report(answer: PipelineAnswer, files: Sequence[str]) -> RenderableType:
    """The chart, and a line for each rank (or stage, where nothing is flushed)."""
    facts = answer.facts
    parts: list[RenderableType] = []
    if "stages" in facts:
        parts.append(
            Text(f"{facts['schedule']}: {facts['microbatches_per_s']:.4g} micro-batches/s once full")
        )
        table = columns("stage", "weight versions", "stale updates", "mismatched", right="rrrr")
        for row in facts["stages"]:
            table.add_row(*(str(value) for value in row.values()))
    else:
        parts.append(Text(to_text(answer.timeline, CHART_COLUMNS).rstrip("\n"), no_wrap=True))
        parts.append(
            Text(
                f"{facts['schedule']}: makespan {format_seconds(facts['makespan_s'])}, "
                f"{facts['bubble_fraction']:.2%} idle, {facts['steady_bubble_fraction']:.2%} over many steps"
            )
        )
        table = columns("rank", "busy", "fill", "waiting", "drain", "in flight", "held", right="rrrrrrr")
        for row in facts["ranks"]:
            times = (format_seconds(row[f"{name}_s"]) for name in ("busy", "fill", "waiting", "drain"))
            table.add_row(str(row["rank"]), *times, str(row["in_flight"]), f"{row['held_microbatches']:.4g}")
    parts.append(table)
    parts += [Text(f"wrote {name}") for name in files]
    return Group(*parts)


def bounds_report(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    """A line for each bound on staleness."""
    table = columns("synchronisation", "iterations/s", "waiting", "staleness", "at most", right="lrrrr")
    for row in rows:
        bound = row["bound"]
        name = "asynchronous (ASP)" if bound is None else f"stale by {bound} (SSP)" if bound else "bulk (BSP)"
        table.add_row(
            name,
            f"{row['iterations_per_s']:.4g}",
            f"{row['waiting_fraction']:.1%}",
            f"{row['mean_staleness']:.2f}",
            str(row["max_staleness"]),
        )
    return table


def slices_report(answer: Slices) -> RenderableType:
    """The slices, beside equal ones and none."""
    table = columns("slices", "latency", "tokens", right="rrl")
    table.add_row(
        str(len(answer.slices)), format_seconds(answer.latency_s), ", ".join(map(str, answer.slices))
    )
    table.add_row(str(answer.equal_slices), format_seconds(answer.equal_latency_s), "equal")
    table.add_row("1", format_seconds(answer.whole_latency_s), "whole sequence")
    return table

"""A step over time as one self-contained HTML page: who runs what, memory against the limit, where time is lost."""

import json
from html import escape
from pathlib import Path
from typing import Any

from cluster_specs.units import format_bytes, format_seconds
from planner.evaluation.timeline import StepTimeline
from planner.pipeline.schedule import Pass

TEMPLATE = Path(__file__).parent / "templates" / "timeline.html"

PASS_NAMES = {
    Pass.F: "forward",
    Pass.B: "backward",
    Pass.I: "input gradient",
    Pass.W: "weight gradient",
}

NANOSECONDS = 9
"""Digits after the point of a time in the page [s]."""


def timeline_page(step: StepTimeline, title: str) -> str:
    """The page; it needs no network."""
    replacements = {
        "{{title}}": escape(title),
        "{{summary}}": escape(_summary(step)),
        "{{table}}": _table(step),
        # "<" would let a name end the script element.
        "{{data}}": json.dumps(_data(step), separators=(",", ":")).replace("<", "\\u003c"),
    }
    page = TEMPLATE.read_text(encoding="utf-8")
    for mark, text in replacements.items():
        page = page.replace(mark, text)
    return page


def _summary(step: StepTimeline) -> str:
    timeline = step.timeline
    after = ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in step.after if seconds)
    return (
        f"Step {format_seconds(step.step_seconds)}: pipeline {format_seconds(timeline.makespan)}, of which "
        f"{timeline.bubble_fraction:.1%} idle on average{', then ' if after else ''}{after}. "
        f"{timeline.schedule.num_microbatches} micro-batches, {timeline.schedule.num_stages} stages, "
        f"{timeline.schedule.num_ranks} ranks."
    )


def _table(step: StepTimeline) -> str:
    """Bubble accounting, a row per rank."""
    timeline = step.timeline
    memory = step.memory_over_time()
    rows = []
    for rank, (busy, idle) in enumerate(zip(timeline.busy, timeline.idle, strict=True)):
        stages = ", ".join(map(str, timeline.schedule.stages_of(rank)))
        times = [format_seconds(seconds) for seconds in (busy, *idle)]
        share = f"{sum(idle) / timeline.makespan if timeline.makespan else 0.0:.1%}"
        peak = format_bytes(max(held for _, held in memory[rank]))
        flight = str(timeline.peak_in_flight[rank])
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in (stages, *times, share, flight, peak))
        rows.append(f'<tr><th scope="row">{rank}</th>{cells}</tr>')
    return "\n".join(rows)


def _data(step: StepTimeline) -> dict[str, Any]:
    timeline = step.timeline
    schedule = timeline.schedule
    hops = {(t.sender, t.action): (t.receiver, t.end - t.start) for t in timeline.transfers()}
    ranks = []
    for rank, (actions, starts, ends) in enumerate(
        zip(schedule.ranks, timeline.starts, timeline.ends, strict=True)
    ):
        rows = []
        for action, start, end in zip(actions, starts, ends, strict=True):
            receiver, seconds = hops.get((rank, action), (-1, 0.0))
            times = (round(moment, NANOSECONDS) for moment in (start, end, seconds))
            rows.append([action.stage, int(action.work), action.microbatch, *times, receiver])
        ranks.append(rows)
    return {
        "ranks": ranks,
        "passes": [[work.name, PASS_NAMES[work]] for work in Pass],
        "memory": [
            [[round(moment, NANOSECONDS), round(held)] for moment, held in steps]
            for steps in step.memory_over_time()
        ],
        "limit": step.memory_limit_bytes,
        "after": [[name, seconds] for name, seconds in step.after if seconds],
        "makespan": timeline.makespan,
        "step": step.step_seconds,
    }

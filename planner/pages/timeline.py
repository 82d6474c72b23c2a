"""A step over time as a page, or part of one: who runs what, memory against the limit, where time is lost."""

from collections.abc import Iterator
from typing import Any

from cluster_specs.units import format_bytes, format_seconds
from planner.evaluation.timeline import StepTimeline
from planner.pages.page import Table, data_script, document, inline_module, paragraph, table, template
from planner.pipeline.schedule import Pass

PASS_NAMES = {
    Pass.F: "forward",
    Pass.B: "backward",
    Pass.I: "input gradient",
    Pass.W: "weight gradient",
}

NANOSECONDS = 9
"""Digits after the point of a time in the page [s]."""


def timeline_page(step: StepTimeline, title: str) -> str:
    """The page of one step."""
    return document(title, [paragraph(summary(step)), drawing(step)], [drawing_data(step), drawing_script()])


def drawing(step: StepTimeline, most_actions: int | None = None) -> str:
    """Gantt chart, memory and bubble accounting as part of a page; `drawing_script` fills it."""
    until = _until(step, most_actions)
    note = (
        ""
        if until is None
        else f"The first {format_seconds(until)} of {format_seconds(step.step_seconds)} are drawn."
    )
    return template("timeline.html").format(table=table(_accounts(step)), note=note)


def drawing_data(step: StepTimeline, most_actions: int | None = None) -> str:
    """What there is to draw; of more than ``most_actions`` only the first."""
    return data_script("step", _data(step, _until(step, most_actions)))


def drawing_script() -> str:
    """What draws it."""
    return inline_module("timeline.js", "drawTimeline();")


def _until(step: StepTimeline, most_actions: int | None) -> float | None:
    """When the action after the last that is drawn starts [s]; None where all are."""
    starts = sorted(start for rank in step.timeline.starts for start in rank)
    return None if most_actions is None or len(starts) <= most_actions else starts[most_actions]


def summary(step: StepTimeline) -> str:
    """The step in two sentences."""
    timeline = step.timeline
    after = ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in step.after if seconds)
    return (
        f"Step {format_seconds(step.step_seconds)}: pipeline {format_seconds(timeline.makespan)}, of which "
        f"the busiest rank waits {timeline.busiest_bubble_fraction:.1%}, all of them {timeline.bubble_fraction:.1%} on "
        f"average{', then ' if after else ''}{after}. "
        f"{timeline.schedule.num_microbatches} micro-batches, {timeline.schedule.num_stages} stages, "
        f"{timeline.schedule.num_ranks} ranks."
    )


def _accounts(step: StepTimeline) -> Table:
    """Bubble accounting, a row per rank."""
    timeline = step.timeline
    memory, in_flight = step.memory_over_time(), timeline.peak_in_flight
    rows = []
    for rank, (busy, idle) in enumerate(zip(timeline.busy, timeline.idle, strict=True)):
        stages = ", ".join(map(str, timeline.schedule.stages_of(rank)))
        times = [format_seconds(seconds) for seconds in (busy, *idle)]
        share = f"{sum(idle) / timeline.makespan if timeline.makespan else 0.0:.1%}"
        peak = format_bytes(max(held for _, held in memory[rank]))
        rows.append((str(rank), stages, *times, share, str(in_flight[rank]), peak))
    head = ("rank", "stages", "at work", "filling", "waiting", "draining", "idle", "in flight", "peak memory")
    return Table(head, tuple(rows))


Kinds = dict[tuple[int, int, float, float, int], int]
"""Stage, pass, length [s], time to the next rank [s] and that rank (-1: none) -> number."""


def _data(step: StepTimeline, until: float | None) -> dict[str, Any]:
    timeline = step.timeline
    kinds: Kinds = {}
    end = step.step_seconds if until is None else until
    return {
        "ranks": list(_actions(step, until, kinds)),
        "kinds": list(kinds),
        "passes": [[work.name, PASS_NAMES[work]] for work in Pass],
        "memory": [
            [[round(moment, NANOSECONDS), round(held)] for moment, held in steps if moment <= end]
            for steps in step.memory_over_time()
        ],
        "limit": step.memory_limit_bytes,
        "reduces": [
            [round(moment, NANOSECONDS) for moment in span]
            for span in (step.reduces if until is None else ())
        ],
        "after": [[name, seconds] for name, seconds in step.after if seconds] if until is None else [],
        "makespan": round(min(timeline.makespan, end), NANOSECONDS),
        "step": end,
    }


def _actions(step: StepTimeline, until: float | None, kinds: Kinds) -> Iterator[list[tuple[int, int, float]]]:
    """By rank, of each action the kind, numbered in ``kinds``, the micro-batch and the start [s]."""
    timeline = step.timeline
    hops = {(t.sender, t.action): (t.end - t.start, t.receiver) for t in timeline.transfers()}
    for rank, row in enumerate(zip(timeline.schedule.ranks, timeline.starts, timeline.ends, strict=True)):
        actions = []
        for action, start, end in zip(*row, strict=True):
            if until is None or start < until:
                hop, receiver = hops.get((rank, action), (0.0, -1))
                lasts = round(end - start, NANOSECONDS), round(hop, NANOSECONDS)
                kind = kinds.setdefault((action.stage, int(action.work), *lasts, receiver), len(kinds))
                actions.append((kind, action.microbatch, round(start, NANOSECONDS)))
        yield actions

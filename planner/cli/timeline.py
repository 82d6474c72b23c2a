"""The command that draws one step of a plan over time."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli.commands import PlanArgument
from planner.cli.files import print_json, read_plan, with_schedule, write_files
from planner.cli.options import OutputOptions, ScheduleOption
from planner.cli.thresholds import check_thresholds

if TYPE_CHECKING:
    from planner.evaluation.timeline import StepTimeline
    from planner.plans import Plan

BESIDE_CHART = 24
"""Characters that stand left and right of a chart in text."""


def timeline(
    plan: PlanArgument,
    output: OutputOptions,
    trace: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write a trace for Perfetto or chrome://tracing.")
    ] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write a self-contained page.")] = None,
    text: Annotated[bool, typer.Option("--text", help="Print a chart, also when files are written.")] = False,
    schedule: ScheduleOption = None,
) -> None:
    """Draw one step of PLAN: what every rank runs when, its memory, and where it waits.

    meshwright timeline plan.json --html step.html
    """
    from planner.evaluation.evaluator import Evaluator
    from planner.evaluation.timeline import step_timeline

    described = with_schedule(read_plan(plan)[0], schedule)
    evaluator = Evaluator(described.model, described.cluster, described.job)
    step = step_timeline(evaluator, described.plan)
    files = _pictures(step, described, trace, html)
    write_files(files)
    answer = _answer(step, list(map(str, files)))
    if output.json:
        print_json(answer)
    else:
        if text or not files:
            typer.echo(_chart(step), nl=False)
        for name in answer["files"]:
            typer.echo(f"wrote {name}")
    check_thresholds(answer, output.fail_if or ())


def _pictures(step: "StepTimeline", plan: "Plan", trace: Path | None, html: Path | None) -> dict[Path, str]:
    from planner.analysis.naming import short_name
    from planner.pages.timeline import timeline_page
    from planner.pipeline.trace import Counter, to_chrome_trace

    files = {}
    if trace is not None:
        memory = Counter("memory", "bytes", step.memory_over_time())
        files[trace] = to_chrome_trace(step.timeline, [memory], step.beside())
    if html is not None:
        title = f"{plan.model.name} on {plan.cluster.name}: {short_name(plan.plan)}"
        files[html] = timeline_page(step, title)
    return files


def _chart(step: "StepTimeline") -> str:
    from planner.pipeline.trace import to_text

    columns = max(20, shutil.get_terminal_size().columns - BESIDE_CHART)
    return to_text(step.timeline, columns)


def _answer(step: "StepTimeline", files: list[str]) -> dict[str, Any]:
    drawn, memory = step.timeline, step.memory_over_time()
    in_flight = drawn.peak_in_flight
    return {
        "schema": "meshwright/timeline/1",
        "step_time_s": step.step_seconds,
        "makespan_s": drawn.makespan,
        "bubble_fraction": drawn.busiest_bubble_fraction,
        "idle_fraction": drawn.bubble_fraction,
        "after_s": dict(step.after),
        "memory_limit_bytes": step.memory_limit_bytes,
        "ranks": [
            {
                "rank": rank,
                "stages": drawn.schedule.stages_of(rank),
                "busy_s": drawn.busy[rank],
                "fill_s": idle.fill,
                "waiting_s": idle.waiting,
                "drain_s": idle.drain,
                "in_flight": in_flight[rank],
                "memory_bytes": max(held for _, held in memory[rank]),
            }
            for rank, idle in enumerate(drawn.idle)
        ],
        "files": files,
    }

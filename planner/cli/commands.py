"""Commands that make, judge and hand on plans."""

import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from planner.cli.catalogues import complete_clusters, complete_models, complete_targets
from planner.cli.files import print_json, read_plan, read_rows, with_schedule, write_files
from planner.cli.fitting import FitJobOptions
from planner.cli.imports import ImportOptions
from planner.cli.options import AdapterOptions, JobOptions, OutputOptions, PinOptions, ScheduleOption
from planner.cli.outcome import NO_PLAN
from planner.cli.progress import Progress
from planner.cli.thresholds import check_thresholds
from planner.errors import InputError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from planner.plans import Objective, Plan
    from planner.sweep.outlook import Outlook

ModelArgument = Annotated[
    str,
    typer.Argument(
        help="Shipped name, config.json or its folder, graph file, or FILE.py:NAME.",
        autocompletion=complete_models,
    ),
]
ClusterArgument = Annotated[
    str,
    typer.Argument(
        help="name:nodes (dgx-h100:16; 1x4: 4 devices of one), a TPU shape (tpu-v5p:4x4x8), or a file.",
        autocompletion=complete_clusters,
    ),
]
PlanArgument = Annotated[str, typer.Argument(help="A plan.json or a run file; - reads a plan from stdin.")]
LEAST_COLUMNS, MOST_COLUMNS = 40, 120
"""Of running text, whatever the terminal has."""

PlanFile = Annotated[Path | None, typer.Option("--output", "-o", help="Write the plan to this file.")]


def plan(
    model: ModelArgument,
    cluster: ClusterArgument,
    job: JobOptions,
    adapter: AdapterOptions,
    pins: PinOptions,
    output: OutputOptions,
    objective: Annotated[str, typer.Option(help="What to minimise: time, cost or devices.")] = "time",
    top: Annotated[int, typer.Option(help="How many plans to report, the best included.", min=1)] = 5,
    path: PlanFile = None,
) -> None:
    """Recommend how to train MODEL on CLUSTER.

    meshwright plan llama-3.1-70b dgx-h100:16 --global-batch 1024 --seq-len 8192
    """
    from planner import api
    from planner.plans import Plan

    output.expect(Plan)
    with Progress(output.quiet) as progress:
        loaded = api.load_model(model)
        given = job.to_job(loaded, cluster, adapter.to_adapter())
        found = api.plan(
            loaded,
            cluster,
            given,
            pins.to_pins(given.global_batch),
            objective=cast("Objective", objective),
            top=top,
            progress=_counted(progress),
        )
    if path is not None:
        write_files({path: found.to_json(indent=2) + "\n"})
    _answer_with_plan(found, (), output)


def fit(
    model: ModelArgument,
    cluster: ClusterArgument,
    job: FitJobOptions,
    adapter: AdapterOptions,
    pins: PinOptions,
    output: OutputOptions,
) -> None:
    """Say whether MODEL fits on CLUSTER, where it is tightest, and the least change that makes it fit.

    meshwright fit llama-2-7b dgx-a100-80g:1 --zero 2
    """
    from planner import api
    from planner.analysis.fitting import FitReport

    output.expect(FitReport, "schema")
    with Progress(output.quiet) as progress:
        loaded = api.load_model(model)
        whole, assumed = job.filled(loaded, cluster)
        given = whole.to_job(loaded, cluster, adapter.to_adapter())
        answer = api.fit(
            loaded, cluster, given, pins.to_pins(given.global_batch), progress=_counted(progress)
        )
        answer = answer.model_copy(update={"assumed": assumed})
    _warn(answer.plan.warnings, output)
    _answer({"schema": "meshwright/fit/1", **_dump(answer)}, output, lambda: _report("fit_report")(answer))
    if not answer.fits:
        raise SystemExit(NO_PLAN)


def evaluate(
    imports: ImportOptions,
    output: OutputOptions,
    run: Annotated[
        str | None, typer.Argument(help="A plan.json or a run file; - reads a plan from stdin.")
    ] = None,
    schedule: ScheduleOption = None,
    path: PlanFile = None,
) -> None:
    """Predict a plan, a hand-written run, or a framework's configuration: time, memory, utilisation.

    meshwright evaluate run.toml --fail-if 'memory_bytes > 70 GiB'
    """
    from planner.api import judged as judge

    described, assumed = imports.read(run)
    noted = tuple(f"assumed {choice}" for choice in assumed)
    described = with_schedule(described, schedule)
    judged = judge(described)
    judged = judged.model_copy(update={"warnings": (*judged.warnings, *noted)})
    if path is not None:
        write_files({path: judged.to_json(indent=2) + "\n"})
    _answer_with_plan(judged, assumed, output)


def validate(
    runs: Annotated[
        list[str],
        typer.Argument(help="Files of measured runs, one JSON object per line; - reads them from stdin."),
    ],
    output: OutputOptions,
    plot: Annotated[Path | None, typer.Option(help="Write a parity plot to this HTML file.")] = None,
) -> None:
    """Compare measured runs with what Meshwright predicts for them; exit 2 where none could be compared.

    meshwright validate runs.jsonl --fail-if 'step_time.median_abs_error > 0.1'
    """
    from planner.validation import ValidationReport
    from planner.validation import validate as compare_runs

    output.expect(ValidationReport)
    with Progress(output.quiet) as progress:
        answer = compare_runs(read_rows(runs), progress=progress)
    summary = answer.summary
    if plot is not None and summary.compared:
        from planner.pages.parity import parity_page

        write_files({plot: parity_page(answer)})
    _answer(_dump(answer), output, lambda: _report("validation_report")(answer))
    if not summary.compared:
        runs_in_all = len(answer.rows)
        others = ", the others have nothing measured" if summary.skipped < runs_in_all else ""
        raise InputError(
            f"nothing was compared: {summary.skipped} of {runs_in_all} runs were skipped{others}"
        )


def export(
    plan: PlanArgument,
    target: Annotated[
        str, typer.Option("--to", help="See `meshwright targets`.", autocompletion=complete_targets)
    ],
    output: OutputOptions,
    folder: Annotated[Path, typer.Option("--output", "-o", help="Folder to write into.")] = Path(),
    exact: Annotated[
        bool,
        typer.Option("--exact", help="Refuse what the target cannot express instead of coming near to it."),
    ] = False,
) -> None:
    """Write PLAN as the configuration of a training framework.

    meshwright export plan.json --to jax -o out/
    """
    from planner.api import judged
    from planner.exporters.registry import export as translate
    from planner.exporters.registry import nearest
    from planner.exporters.registry import notes as notes_of

    described = judged(read_plan(plan)[0])  # so that the files say what is predicted, by this version
    expressible = described if exact else nearest(described, target)
    changes = () if expressible is described else expressible.warnings[-1:]
    files = {folder / name: text for name, text in translate(expressible, target).items()}
    write_files(files)
    names = [str(path) for path in files]
    notes = list(notes_of(expressible, target))
    _warn((*changes, *notes), output)
    answer = {
        "schema": "meshwright/export/1",
        "target": target,
        "files": names,
        "changes": list(changes),
        "notes": notes,
    }
    _answer(answer, output, lambda: "\n".join(f"wrote {name}" for name in names))


def compare(
    first: Annotated[str, typer.Argument(metavar="A", help="A plan.json or a run file.")],
    second: Annotated[str, typer.Argument(metavar="B", help="Another.")],
    output: OutputOptions,
) -> None:
    """Say which of two plans is better, by how much, and why.

    meshwright compare mine.toml plan.json
    """
    from planner.analysis import compare as weigh
    from planner.api import judged

    a, b = judged(read_plan(first)[0]), judged(read_plan(second)[0])
    answer = weigh(a, b)
    _warn(answer.warnings, output)
    _answer(
        {"schema": "meshwright/comparison/1", **_dump(answer)},
        output,
        lambda: _report("comparison_report")(a, b, answer),
    )


def explain(
    plan: PlanArgument,
    output: OutputOptions,
    outlook: Annotated[
        bool,
        typer.Option(
            "--outlook", help="Search around the plan too: better hardware, other sizes, longer sequences."
        ),
    ] = False,
    jobs: Annotated[int, typer.Option("--jobs", help="Processes for --outlook.", min=1)] = 1,
) -> None:
    """Say why PLAN is as it is, what limits it, and what would change it.

    meshwright explain plan.json --outlook
    """
    from planner.analysis import explain as walk
    from planner.analysis.economics import economics
    from planner.analysis.guide import WIDTH
    from planner.analysis.sensitivity import next_bottleneck, sensitivity
    from planner.api import judged

    judged_plan = judged(read_plan(plan)[0])
    around = _outlook(judged_plan, jobs, output) if outlook else None
    columns = WIDTH if output.json else shutil.get_terminal_size().columns
    text = walk(judged_plan, min(max(LEAST_COLUMNS, columns), MOST_COLUMNS))
    text += "" if around is None else f"\n\n{_report('outlook_text')(around)}"
    bottleneck = next_bottleneck(judged_plan)
    answer = {
        "schema": "meshwright/explanation/1",
        "explanation": text,
        "sensitivity": [_dump(each) for each in sensitivity(judged_plan)],
        "next_bottleneck": None if bottleneck is None else _dump(bottleneck),
        "economics": _dump(economics(judged_plan)),
        "outlook": None if around is None else _dump(around),
    }
    _answer(answer, output, lambda: text)


def _outlook(plan: "Plan", jobs: int, output: OutputOptions) -> "Outlook":
    from planner.sweep.outlook import Work, outlook, question_of

    with Progress(output.quiet) as progress:
        work = Work(jobs, progress=lambda done, total: progress(f"{done} of {total} searches done"))
        return outlook(question_of(plan), work=work)


def _counted(progress: Progress) -> Callable[[int, int], None]:
    return lambda looked, total: progress(f"{looked:,} of {total:,} candidates looked at")


def _answer_with_plan(answer: "Plan", assumed: Sequence[str], output: OutputOptions) -> None:
    _warn([said for said in answer.warnings if said.removeprefix("assumed ") not in assumed], output)
    _answer(_dump(answer), output, lambda: _report("plan_report")(answer, assumed))


def _warn(warnings: Sequence[str], output: OutputOptions) -> None:
    """Say on stderr what a reader of the report should know; the JSON has it."""
    if not output.json and not output.quiet:
        sys.stderr.writelines(f"warning: {said}\n" for said in warnings)


def _answer(answer: dict[str, Any], output: OutputOptions, report: "Callable[[], RenderableType]") -> None:
    """Give the answer as JSON or as a report, then check the thresholds."""
    if output.json:
        print_json(answer)
    else:
        from planner.report.console import show

        show(report())
    check_thresholds(answer, output.fail_if or ())


def _dump(record: Any) -> dict[str, Any]:
    dumped: dict[str, Any] = record.model_dump(mode="json", by_alias=True)
    return dumped


def _report(name: str) -> "Callable[..., RenderableType]":
    from planner import report

    function: Callable[..., RenderableType] = getattr(report, name)
    return function

"""Commands for pipelines by themselves: schedules on given times, workers that wait for each other, token slices."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli.commands import ClusterArgument, ModelArgument
from planner.cli.files import print_json, write_files
from planner.cli.numbers import parse_numbers
from planner.cli.options import JobOptions, OutputOptions
from planner.cli.thresholds import check_thresholds

if TYPE_CHECKING:
    from rich.console import RenderableType

    from planner.pipeline.questions import PipelineAnswer

Room = Annotated[str | None, typer.Option(help="Micro-batches that a rank can hold: 4 or 4,4,3,2.")]
Kept = Annotated[
    float, typer.Option(help="Share of a micro-batch that its weight gradient needs.", min=0, max=1)
]
PerUpdate = Annotated[int | None, typer.Option(help="Micro-batches of an update (asynchronous).", min=1)]
OnePort = Annotated[
    bool, typer.Option("--one-port", help="A rank sends, and receives, one result at a time.")
]
Times = Annotated[str, typer.Option(help="Seconds, one for all stages or one for each: 1 or 1,1,2.")]
Microbatches = Annotated[
    int | None,
    typer.Option(help="Micro-batches of a step; unsaid 8, for each rank where none is flushed.", min=1),
]


def simulate(
    output: OutputOptions,
    schedule: Annotated[
        str,
        typer.Option(help="A name, FILE.csv, FILE.py:FUNCTION, automatic, pipedream, pipedream-2bw, ampnet."),
    ] = "1f1b",
    ranks: Annotated[int, typer.Option(help="Pipeline ranks.", min=1)] = 4,
    virtual_stages: Annotated[int, typer.Option(help="Stages on each rank.", min=1)] = 1,
    microbatches: Microbatches = None,
    forward: Times = "1",
    backward_input: Times = "1",
    backward_weight: Times = "1",
    p2p: Annotated[str, typer.Option(help="Seconds to pass a result on, for all boundaries or each.")] = "0",
    one_port: OnePort = False,
    blocking: Annotated[bool, typer.Option("--blocking", help="A rank waits until it has sent.")] = False,
    memory: Room = None,
    kept_for_weights: Kept = 1.0,
    steady: Annotated[bool, typer.Option("--steady", help="No barrier between steps (automatic).")] = False,
    per_update: PerUpdate = None,
    max_active: Annotated[int | None, typer.Option(help="Micro-batches in flight at most (ampnet).")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write the schedule as PyTorch's CSV.")] = None,
    trace: Annotated[Path | None, typer.Option("--output", "-o", help="Write a trace for Perfetto.")] = None,
) -> None:
    """Run a pipeline schedule on stage times: makespan, bubble, what is in flight, or how stale updates are.

    meshwright simulate --schedule zb-h1 --ranks 8 --microbatches 24 --forward 18.522 --backward-input 18.086
    """
    from planner.pipeline.questions import PipelineQuestion, run, usual_microbatches
    from planner.runs.schedules import own_schedule

    number = microbatches or usual_microbatches(schedule, ranks, per_update)
    question = PipelineQuestion(
        schedule=own_schedule(schedule, lambda: (ranks, virtual_stages, number), flushed=False),
        ranks=ranks,
        virtual_stages=virtual_stages,
        microbatches=number,
        forward=parse_numbers("--forward", forward),
        backward_input=parse_numbers("--backward-input", backward_input),
        backward_weight=parse_numbers("--backward-weight", backward_weight),
        p2p=parse_numbers("--p2p", p2p),
        one_port=one_port,
        blocking=blocking,
        memory=None if memory is None else parse_numbers("--memory", memory),
        late=kept_for_weights,
        steady=steady,
        per_update=per_update,
        max_active=max_active,
    )
    answer = run(question)
    files = _files(answer, csv, trace)
    write_files(files)
    dumped = {"schema": "meshwright/pipeline/1", **answer.facts, "files": list(map(str, files))}

    def report() -> "RenderableType":
        from planner.report.pipelines import pipeline_report

        return pipeline_report(answer, list(map(str, files)))

    _give(dumped, output, report)


def _files(answer: "PipelineAnswer", csv: Path | None, trace: Path | None) -> dict[Path, str]:
    files = {}
    if csv is not None:
        files[csv] = str(answer.timeline.schedule)
    if trace is not None:
        from planner.pipeline.trace import to_chrome_trace

        files[trace] = to_chrome_trace(answer.timeline, answer.counters())
    return files


def parameter_server(
    output: OutputOptions,
    seconds: Annotated[str, typer.Option(help="Of an iteration, one for all workers or one for each.")] = "1",
    workers: Annotated[int, typer.Option(help="Workers, where one time is given for all.", min=1)] = 8,
    iterations: Annotated[int, typer.Option(help="Of each worker.", min=1)] = 200,
    spread: Annotated[
        float, typer.Option(help="Standard deviation of an iteration over its mean.", min=0)
    ] = 0.1,
    exchange: Annotated[
        float, typer.Option(help="Seconds to hand in gradients and get weights.", min=0)
    ] = 0.0,
    bounds: Annotated[
        str, typer.Option(help="Bounds on staleness to compare; none is without.")
    ] = "0,1,3,none",
    seed: Annotated[int, typer.Option(help="Of the times.")] = 0,
) -> None:
    """Compare bulk-synchronous, stale-synchronous and asynchronous data parallelism with uneven workers.

    meshwright parameter-server --seconds 1,1,1,1.5 --spread 0.2
    """
    from planner.pipeline.questions import compare_bounds

    given = parse_numbers("--seconds", seconds)
    means = given if len(given) > 1 else given * workers
    rows = compare_bounds(means, iterations, spread, exchange, _bounds(bounds), seed)
    dumped = {"schema": "meshwright/parameter-server/1", "seed": seed, "bounds": rows}

    def report() -> "RenderableType":
        from planner.report.pipelines import bounds_report

        return bounds_report(rows)

    _give(dumped, output, report)


def _bounds(text: str) -> tuple[int | None, ...]:
    from planner.errors import InputError

    words = [word.strip() for word in text.split(",")]
    if not all(word == "none" or word.isdigit() for word in words):
        raise InputError(f"--bounds {text!r}: write whole numbers or none, such as 0,3,none")
    return tuple(None if word == "none" else int(word) for word in words)


def token_slices(
    model: ModelArgument,
    cluster: ClusterArgument,
    job: JobOptions,
    output: OutputOptions,
    pipeline: Annotated[int, typer.Option(help="Pipeline ranks.", min=1)],
    tensor: Annotated[int, typer.Option(help="Tensor-parallel degree.", min=1)] = 1,
    granularity: Annotated[int | None, typer.Option(help="Slices are multiples of so many tokens.")] = None,
) -> None:
    """Cut a sequence into the token slices that pass a pipeline fastest (TeraPipe).

    meshwright token-slices llama-3.1-8b dgx-h100:1 --global-batch 8 --seq-len 32768 --pipeline 8
    """
    from cluster_specs.catalog import load_cluster
    from planner.api import load_model
    from planner.search.slicing import sliced

    loaded = load_model(model)
    given = job.to_job(loaded, cluster)
    answer = sliced(loaded, load_cluster(cluster), given, pipeline, tensor, granularity)
    dumped = {"schema": "meshwright/token-slices/1", **answer._asdict()}

    def report() -> "RenderableType":
        from planner.report.pipelines import slices_report

        return slices_report(answer)

    _give(dumped, output, report)


def _give(answer: dict[str, Any], output: OutputOptions, report: "Callable[[], RenderableType]") -> None:
    if output.json:
        print_json(answer)
    else:
        from planner.report.console import show

        show(report())
    check_thresholds(answer, output.fail_if or ())

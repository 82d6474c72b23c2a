"""``what-if`` and ``size``: many plans at once, and what they cost."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from planner.cli.catalogues import complete_clusters, complete_models
from planner.cli.files import print_json, write_files
from planner.cli.numbers import number_option
from planner.cli.options import AdapterOptions, OutputOptions, PinOptions
from planner.cli.outcome import BAD_INPUT, NO_PLAN
from planner.cli.progress import Progress
from planner.cli.sweep_options import (
    RunningOptions,
    SweptJobOptions,
    TermsOptions,
    WantedOptions,
    takes_images,
    term,
    values_of,
)
from planner.cli.thresholds import check_thresholds
from planner.errors import InputError

if TYPE_CHECKING:
    from planner.plans import Objective
    from planner.sweep.grid import Axes
    from planner.sweep.records import Sweep
    from planner.sweep.sizing import Sizing


def what_if(
    models: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="Shipped name or file; several by commas.", autocompletion=complete_models
        ),
    ],
    clusters: Annotated[
        list[str],
        typer.Argument(
            metavar="CLUSTER...",
            help="Kinds (with --devices), or name:nodes.",
            autocompletion=complete_clusters,
        ),
    ],
    job: SweptJobOptions,
    adapter: AdapterOptions,
    pins: PinOptions,
    terms: TermsOptions,
    run: RunningOptions,
    output: OutputOptions,
    tokens: Annotated[float, term("--tokens", parser=number_option, help="To train on.")] = 1e12,
    objective: Annotated[str, typer.Option(help="What each plan minimises: time, cost or devices.")] = "time",
    threshold: Annotated[
        float, typer.Option(help="Scaling efficiency below which more devices stop paying.", min=0, max=1)
    ] = 0.9,
    path: Annotated[
        list[Path] | None,
        typer.Option("--output", "-o", help="Write the sweep: .json, .csv or .parquet; any number of times."),
    ] = None,
) -> None:
    """Sweep any inputs; every point is a full search for the best plan.

    meshwright what-if llama-3.1-70b dgx-h100 dgx-h200 --devices 64,128,256 --seq-len 8192 --batch 1024 --jobs 2
    """
    from planner.sweep.records import Sweep
    from planner.sweep.running import sweep
    from planner.sweep.tables import check_format, content

    output.expect(Sweep)
    for file in path or ():
        check_format(file)
    if not job.has_batch:
        raise InputError("give the global batch: --global-batch in sequences or --batch-tokens in tokens")
    axes = {"model": values_of(models, "MODEL"), "cluster": tuple(clusters), **job.to_axes(models.split(","))}
    fixed = adapted(adapter) | pinned(pins)
    with Progress(output.quiet) as progress:
        answer = sweep(
            axes,
            terms.to_terms(tokens),
            fixed=fixed,
            objective=cast("Objective", objective),
            **run.to_arguments(),
            threshold=threshold,
            progress=lambda done, total: progress(f"{done:,} of {total:,} searches done"),
        )
    write_files({file: content(answer, file) for file in path or ()})
    _answer(answer, "sweep_report", output)
    _end_without_plan(answer)


def size(
    wanted: WantedOptions,
    job: SweptJobOptions,
    adapter: AdapterOptions,
    pins: PinOptions,
    terms: TermsOptions,
    run: RunningOptions,
    output: OutputOptions,
    clusters: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CLUSTER",
            help="Kinds to choose from; every shipped one with a price if none is named.",
            autocompletion=complete_clusters,
        ),
    ] = None,
    most_devices: Annotated[int, typer.Option("--most-devices", help="Largest size to try.", min=1)] = 16384,
    path: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the chosen plan to this file.")
    ] = None,
) -> None:
    """Find the cheapest cluster and plan for a deadline and a budget, or the nearest miss, and say why.

    meshwright size --model llama-3.1-70b --tokens 15e12 --deadline 90d --budget 20e6 dgx-h100 dgx-h200
    """
    from planner.sweep.sizing import Sizing
    from planner.sweep.sizing import size as find

    output.expect(Sizing)
    name, amount, assumed = wanted.to_workload()
    fixed, usual = _single_job(job, name)
    fixed |= adapted(adapter) | pinned(pins)
    tokens = amount if wanted.samples is None else amount * fixed["seq_len"]
    with Progress(output.quiet) as progress:
        answer = find(
            name,
            terms.to_terms(tokens),
            wanted.to_goal(),
            job=fixed,
            clusters=tuple(clusters or ()),
            most_devices=most_devices,
            **run.to_arguments(),
            progress=lambda done, total: progress(f"{done:,} sizes tried, {total - done:,} kinds left"),
        )
    answer = answer.model_copy(update={"assumed": (*assumed, *usual)})
    if path is not None and answer.chosen is not None:
        write_files({path: _plan_text(answer, fixed)})
    _answer(answer, "sizing_report", output)
    if not answer.meets:
        raise SystemExit(NO_PLAN)


def _end_without_plan(answer: "Sweep") -> None:
    """End the program where no point of the sweep has a plan, as ``plan`` would."""
    found = {point.status for point in answer.points}
    if "planned" not in found:
        raise SystemExit(NO_PLAN if "infeasible" in found else BAD_INPUT)


def _answer(answer: "Sweep | Sizing", report: str, output: OutputOptions) -> None:
    """Give the answer as JSON or as a report, then check the thresholds."""
    dumped = answer.model_dump(mode="json", by_alias=True)
    if output.json:
        print_json(dumped)
    else:
        from planner.report import sweeps
        from planner.report.console import show

        show(getattr(sweeps, report)(answer))
    check_thresholds(dumped, output.fail_if or ())


USUAL_BATCH_TOKENS = 4 * 2**20
"""Of Llama 3's first stage (arXiv:2407.21783, section 3.4.1)."""

USUAL_BATCH_IMAGES = 256
"""Of the first ResNets (arXiv:1512.03385, section 3.4)."""


def adapted(adapter: AdapterOptions) -> dict[str, Any]:
    """The adapter as an input of every point, where there is one."""
    given = adapter.to_adapter()
    return {} if given is None else {"adapter": given}


def pinned(pins: PinOptions) -> dict[str, Any]:
    """The parts of the plan that all points have."""
    return {name: value for name, value in pins.to_pins().model_dump().items() if value is not None}


def _single_job(job: SweptJobOptions, model: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The one job that is sized, and what was assumed for it; ``InputError`` for several values."""
    axes, assumed, pictures = job.to_axes((model,)), [], takes_images(model)
    if job.seq_len is None and not pictures:
        assumed.append(f"sequences of {axes['seq_len'][0]} tokens")
    if not job.has_batch and pictures:
        axes["global_batch"] = (USUAL_BATCH_IMAGES,)
        assumed.append(f"a global batch of {USUAL_BATCH_IMAGES} images, as ResNets were first trained with")
    elif not job.has_batch:
        axes["batch_tokens"] = (USUAL_BATCH_TOKENS,)
        assumed.append(f"a global batch of {USUAL_BATCH_TOKENS} tokens, as Llama 3 began with")
    for name, values in axes.items():
        if len(values) > 1:
            raise InputError(f"size takes one value of {name}, found {len(values)}: sweep it with what-if")
    if "devices" in axes:
        raise InputError("size chooses the devices: leave out --devices, or set --most-devices")
    return {name: values[0] for name, values in axes.items()}, tuple(assumed)


def _plan_text(answer: "Sizing", fixed: dict[str, Any]) -> str:
    """The chosen point planned again, with the sharding of every operator."""
    from planner.sweep.answers import best
    from planner.sweep.grid import cells

    assert answer.chosen is not None
    chosen = answer.tried[answer.chosen].inputs
    axes: Axes = {"model": (answer.model,), "cluster": (chosen.cluster,), "devices": (chosen.devices,)}
    question = next(iter(cells(axes, fixed))).question
    assert question is not None
    return best(question, "time").to_json(indent=2) + "\n"

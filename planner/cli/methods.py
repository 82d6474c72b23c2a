"""The command that sets search methods side by side."""

from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli.commands import ClusterArgument, ModelArgument
from planner.cli.files import print_json
from planner.cli.options import JobOptions, OutputOptions, PinOptions
from planner.cli.progress import Progress
from planner.cli.thresholds import check_thresholds

if TYPE_CHECKING:
    from planner.search.methods.comparison import MethodComparison


def compare_methods(
    model: ModelArgument,
    cluster: ClusterArgument,
    job: JobOptions,
    pins: PinOptions,
    output: OutputOptions,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="exact, exhaustive, beam, annealing or learned; more than once. All, if not given."
        ),
    ] = None,
    budget: Annotated[int, typer.Option(help="Plans that a method may price (the exact one is free).")] = 500,
    seed: Annotated[int, typer.Option(help="Of the methods that draw at random.")] = 0,
) -> None:
    """Set the planner's search beside others on the same question: quality of the answer, and time to it.

    meshwright compare-methods llama-3.1-8b dgx-h100:4 --global-batch 256 --seq-len 4096
    """
    from cluster_specs.catalog import load_cluster
    from planner.api import load_model
    from planner.search.methods.comparison import METHODS
    from planner.search.methods.comparison import compare_methods as compare

    with Progress(output.quiet) as progress:
        loaded = load_model(model)
        given = job.to_job(loaded, cluster)
        answer = compare(
            loaded,
            load_cluster(cluster),
            given,
            pins.to_pins(given.global_batch),
            methods=tuple(method) if method else tuple(METHODS),
            budget=budget,
            seed=seed,
            progress=progress,
        )
    dumped = {"schema": "meshwright/methods/1", **answer.model_dump(mode="json")}
    if output.json:
        print_json(dumped)
    else:
        _show(answer)
    check_thresholds(dumped, output.fail_if or ())


def _show(answer: "MethodComparison") -> None:
    from planner.report.console import show
    from planner.report.methods import methods_report

    show(methods_report(answer))

"""The typer application: every command, under its title in the help."""

from collections.abc import Callable, Mapping
from typing import Annotated

import typer

from planner.cli import (
    calibrate,
    catalogues,
    commands,
    contest,
    imports,
    methods,
    pages,
    pipelines,
    programs,
    sweeps,
    timeline,
    verification,
)
from planner.cli.flattening import flatten
from planner.cli.outcome import guarded

app = typer.Typer(
    name="meshwright",
    help="Plan how to train a model on a cluster: parallelism, memory, time and cost.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

COMMANDS: Mapping[str, tuple[Callable[..., None], ...]] = {
    "Planning": (
        commands.plan,
        commands.fit,
        commands.evaluate,
        imports.advise,
        commands.export,
        verification.verify,
        programs.shard,
    ),
    "Understanding": (
        commands.explain,
        commands.compare,
        timeline.timeline,
        pages.report,
        pages.serve,
    ),
    "Capacity": (sweeps.what_if, sweeps.size),
    "Measurements": (commands.validate, calibrate.calibrate),
    "Pipelines by themselves": (pipelines.simulate, pipelines.parameter_server, pipelines.token_slices),
    "Methods": (methods.compare_methods, contest.solve_iopddl),
    "What is known": (
        catalogues.clusters,
        catalogues.models,
        catalogues.schedules,
        catalogues.stacks,
        catalogues.targets,
    ),
}
"""Title in the help -> commands, named as their functions."""

for _title, _functions in COMMANDS.items():
    for _function in _functions:
        app.command(_function.__name__.replace("_", "-"), rich_help_panel=_title)(guarded(flatten(_function)))


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"meshwright {version('meshwright')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Plan how to train a model on a cluster: parallelism, memory, time and cost."""

"""The command that runs or compiles a plan in its framework."""

from typing import Annotated

import typer

from planner.cli.commands import PlanArgument
from planner.cli.files import print_json, read_plan
from planner.cli.options import OutputOptions
from planner.cli.outcome import ThresholdMissed
from planner.cli.progress import Progress
from planner.cli.thresholds import check_thresholds


def verify(
    plan: PlanArgument,
    tool: Annotated[str, typer.Option("--with", help="jax, torch or xla-tpu.")],
    output: OutputOptions,
    python: Annotated[
        str | None, typer.Option("--python", help="Interpreter that has the framework (this one).")
    ] = None,
) -> None:
    """Run or compile PLAN in its framework, and compare with what was planned; exit 4 where a check fails.

    meshwright verify plan.json --with jax
    """
    from planner.verification.tools import verify as run

    described = read_plan(plan)[0]
    with Progress(output.quiet) as progress:
        progress(f"running {described.model.name} with {tool}")
        answer = run(described, tool, python)
    if output.json:
        print_json(answer.data())
    else:
        from planner.report import verification_report
        from planner.report.console import show

        show(verification_report(answer))
    check_thresholds(answer.data(), output.fail_if or ())
    if not answer.passed:
        raise ThresholdMissed(f"verification failed: {answer.failures()}")

"""The command that runs or compiles a plan in its framework."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli.commands import PlanArgument
from planner.cli.files import STDIN, print_json, read_mapping
from planner.cli.options import OutputOptions
from planner.cli.outcome import ThresholdMissed
from planner.cli.progress import Progress
from planner.cli.thresholds import check_thresholds
from planner.errors import InputError

if TYPE_CHECKING:
    from planner.verification.record import Verification


def verify(
    plan: PlanArgument,
    tool: Annotated[str, typer.Option("--with", help="jax, torch or xla-tpu.")],
    output: OutputOptions,
    python: Annotated[
        str | None, typer.Option("--python", help="Interpreter that has the framework (this one).")
    ] = None,
    function: Annotated[
        str, typer.Option("--function", help="Of a sharded program: FILE.py:NAME, if the file does not say.")
    ] = "",
    devices: Annotated[
        int | None,
        typer.Option(
            "--devices",
            help="Of a sharded program: most simulated devices to run on (JAX 64, PyTorch 8).",
            min=1,
        ),
    ] = None,
) -> None:
    """Run or compile PLAN in its framework, and compare with what was planned; exit 4 where a check fails.

    PLAN may be a sharded program (`meshwright shard ... -o`): its function runs under its layouts.

    meshwright verify plan.json --with jax
    """
    data = read_mapping(plan)
    with Progress(output.quiet) as progress:
        progress(f"running {plan} with {tool}")
        if str(data.get("schema", "")).startswith("meshwright/sharding/"):
            answer = _verify_program(data, plan, tool, python, function, devices)
        elif function or devices is not None:
            raise InputError(f"--function and --devices are for sharded programs; {plan} is a plan")
        else:
            answer = _verify_plan(plan, data, tool, python)
    if output.json:
        print_json(answer.data())
    else:
        from planner.report import verification_report
        from planner.report.console import show

        show(verification_report(answer))
    check_thresholds(answer.data(), output.fail_if or ())
    if not answer.passed:
        raise ThresholdMissed(f"verification failed: {answer.failures()}")


def _verify_plan(source: str, data: Mapping[str, Any], tool: str, python: str | None) -> "Verification":
    from planner.api import read_plan
    from planner.verification.tools import verify as run

    return run(read_plan(data if source == STDIN else source).plan, tool, python)


def _verify_program(
    data: Mapping[str, Any], source: str, tool: str, python: str | None, function: str, devices: int | None
) -> "Verification":
    from cluster_specs.record import validated
    from planner.tracing.sharded import ShardedProgram
    from planner.verification.with_program import FRAMEWORKS, verify_program

    if tool not in FRAMEWORKS:
        raise InputError(f"{source} is a sharded program: it is verified --with jax or torch, not {tool}")
    sharded = validated(ShardedProgram, data, source)
    return verify_program(sharded, function, python, devices, tool)

"""``solve-iopddl``: problems of the public contest on intra-operator parallelism."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli.files import print_json
from planner.cli.options import OutputOptions
from planner.cli.thresholds import check_thresholds

if TYPE_CHECKING:
    from planner.intra_op.contest import ContestSolution
    from planner.intra_op.iopddl import ContestProblem


GRACE = 1.0
"""What a limit may be missed by without a word [s]."""


def solve_iopddl(
    file: Annotated[Path, typer.Argument(help="A problem of the contest: JSON, or JSON in gzip.")],
    output: OutputOptions,
    seconds: Annotated[
        float, typer.Option("--seconds", help="Wall time to stay within, reading included.", min=0.0)
    ] = 300.0,
) -> None:
    """Solve a problem of the ASPLOS / EuroSys 2025 contest on intra-operator parallelism.

    meshwright solve-iopddl asplos-2025-iopddl-A.json.gz --seconds 120

    Ctrl-C ends it with the best choice found so far, and exit code 130.
    """
    start = time.monotonic()
    from planner.intra_op.contest import solve_contest_problem
    from planner.intra_op.iopddl import read_contest_problem

    problem = read_contest_problem(file)
    solution = solve_contest_problem(problem, start + seconds)
    took = time.monotonic() - start
    answer = _answer(problem, solution, took)
    if took > seconds + GRACE and not output.quiet:
        sys.stderr.write(
            f"warning: it took {took:.0f} s, not {seconds:g}: to read and to choose once needs that\n"
        )
    if output.json:
        print_json(answer)
    else:
        sys.stdout.write(_report(answer))
    if solution.interrupted:
        raise KeyboardInterrupt
    check_thresholds(answer, output.fail_if or ())


def _answer(problem: "ContestProblem", solution: "ContestSolution", seconds: float) -> dict[str, Any]:
    return {
        "schema": "meshwright/iopddl/1",
        "name": problem.name,
        "assignment": list(solution.choice),
        "cost": solution.cost,
        "lower_bound": solution.lower_bound,
        "gap": solution.gap,
        "proven": solution.cost == solution.lower_bound,
        "usage_peak": problem.peak(solution.choice),
        "usage_limit": problem.usage_limit,
        "seconds": round(seconds, 3),
        "interrupted": solution.interrupted,
    }


def _report(answer: dict[str, Any]) -> str:
    limit = "no limit" if answer["usage_limit"] is None else f"{answer['usage_limit']:,} bytes"
    lines = {
        "problem": answer["name"] or "(no name)",
        "assignment": answer["assignment"],
        "cost": f"{answer['cost']:,}",
        "lower bound": f"{answer['lower_bound']:,}" + (" (proven optimal)" if answer["proven"] else ""),
        "gap": f"{answer['gap']:.4%}",
        "peak usage": f"{answer['usage_peak']:,} bytes of {limit}",
        "time": f"{answer['seconds']:.1f} s",
    }
    return "".join(f"{name + ':':<13}{value}\n" for name, value in lines.items())

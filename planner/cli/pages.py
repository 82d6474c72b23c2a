"""The command that writes a page to read and hand on."""

from pathlib import Path
from typing import Annotated

import typer

from planner.cli.commands import PlanArgument
from planner.cli.files import print_json, read_plan, write_files
from planner.cli.options import OutputOptions
from planner.cli.thresholds import check_thresholds


def report(
    plan: PlanArgument,
    output: OutputOptions,
    path: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("report.html"),
) -> None:
    """Write a self-contained page about PLAN: what to run, where time and memory go, what it rests on.

    meshwright report plan.json -o report.html
    """
    from planner.api import judged
    from planner.pages.plan import plan_content, plan_page

    described, assumed = read_plan(plan)
    answer = judged(described)
    content = plan_content(answer, assumed)
    write_files({path: plan_page(content)})
    figures = [figure.key for figure in content.figures]
    facts = {"schema": "meshwright/report/1", "files": [str(path)], "figures": figures}
    if output.json:
        print_json(facts)
    else:
        typer.echo(f"wrote {path}")
    check_thresholds({**facts, "estimate": answer.model_dump(mode="json")["estimate"]}, output.fail_if or ())

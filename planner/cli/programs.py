"""``shard``: layouts for a program that was traced from a framework."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli.files import print_json, write_files
from planner.cli.options import OutputOptions
from planner.cli.thresholds import check_thresholds
from planner.errors import InputError

if TYPE_CHECKING:
    from planner.tracing.program import Program


@dataclass(frozen=True, slots=True)
class TracingOptions:
    """How FILE.py:NAME becomes a program."""

    replicate_unknown: Annotated[
        bool,
        typer.Option("--replicate-unknown", help="Compute operators without a rule alike on every device."),
    ] = False
    trips: Annotated[
        int | None, typer.Option("--trips", help="How often loops run that end on a condition.", min=1)
    ] = None
    rule: Annotated[
        list[str] | None,
        typer.Option("--rule", help="Loops of a kernel, as 'name=i k, k j -> i j; sum k'; may be repeated."),
    ] = None
    gradient: Annotated[
        bool,
        typer.Option("--gradient", help="Add the backward pass of a PyTorch module that returns its loss."),
    ] = False
    optimizer: Annotated[
        str,
        typer.Option(
            "--optimizer", help="Add its step too, with its states: a class of torch.optim, as AdamW."
        ),
    ] = ""
    python: Annotated[
        str | None,
        typer.Option("--python", help="Interpreter that has JAX or PyTorch, for FILE.py:NAME (this one)."),
    ] = None


def shard(
    program: Annotated[
        str,
        typer.Argument(
            help="A program: JSON of from_jax(...) or from_torch(...); or FILE.py:NAME, a tuple of a JAX function "
            "and its arguments, or of a PyTorch module and its inputs, or a function that returns one."
        ),
    ],
    cluster: Annotated[str, typer.Argument(help="name:nodes, or a file.")],
    tracing: TracingOptions,
    output: OutputOptions,
    mesh: Annotated[
        str | None,
        typer.Option("--mesh", help="Axes, outermost first, as data=4,model=8. Left out: nodes, devices."),
    ] = None,
    memory_limit: Annotated[
        str | None, typer.Option("--memory-limit", help="For the arrays on one device, as '60 GiB'.")
    ] = None,
    optimizer_share: Annotated[
        float,
        typer.Option(
            "--optimizer-share", help="Bytes that an optimizer keeps per byte of parameters.", min=0.0
        ),
    ] = 0.0,
    seconds: Annotated[float, typer.Option("--seconds", help="Wall time for the solver.", min=0.0)] = 60.0,
    out: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the sharded program here.")
    ] = None,
) -> None:
    """Choose how every array of a traced program lies on a mesh.

    meshwright shard step.json dgx-h100:2 --mesh data=4,model=4 -o sharded.json

    meshwright shard train.py:example dgx-h100:1 -o sharded.json; meshwright verify sharded.json --with jax
    """
    from cluster_specs.units import parse_quantity
    from planner.report.sharding import sharding_report
    from planner.tracing.solving.shard import shard as choose

    read = _program(program, tracing)
    limit = None if memory_limit is None else parse_quantity(memory_limit, "B")
    answer = choose(
        read,
        cluster,
        None if mesh is None else _axes(mesh),
        memory_limit=limit,
        optimizer_share=optimizer_share,
        seconds=seconds,
    )
    data = answer.model_dump(mode="json", by_alias=True)
    if out is not None:
        write_files({out: answer.to_json(indent=2) + "\n"})
    if output.json:
        print_json(data)
    else:
        sys.stdout.write("".join(f"{line}\n" for line in sharding_report(answer)))
    check_thresholds(data, output.fail_if or ())


def _program(source: str, tracing: TracingOptions) -> "Program":
    """The program in a file, or of a function."""
    from cluster_specs.record import validated
    from cluster_specs.texts import load_mapping
    from planner.tracing.program import Program

    if ".py:" in source:
        from planner.verification.with_program import trace_function

        rules = _rules(tracing.rule or ())
        return trace_function(
            source,
            tracing.python,
            tracing.replicate_unknown,
            tracing.trips,
            rules,
            tracing.gradient,
            tracing.optimizer,
        )
    if tracing.gradient or tracing.optimizer:
        option = "optimizer" if tracing.optimizer else "gradient"
        raise InputError(f"--{option}: {source} is traced already; trace FILE.py:NAME with it")
    return validated(Program, load_mapping(Path(source), ".json"), source)


def _rules(texts: Sequence[str]) -> dict[str, str]:
    """``name=i k, k j -> i j`` by name."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, rule = text.partition("=")
        if not equals or not name.strip():
            raise InputError(f"--rule {text!r}: write the kernel's name before its loops, as name=i j -> i j")
        found[name.strip()] = rule.strip()
    return found


def _axes(text: str) -> dict[str, int]:
    """``data=4,model=8`` as sizes by name."""
    found: dict[str, int] = {}
    for part in text.split(","):
        name, _, size = part.partition("=")
        if not name.strip().isidentifier() or not size.strip().isdigit() or name.strip() in found:
            raise InputError(
                f"--mesh {text!r}: {part!r} is no axis; write names and sizes, as data=4,model=8"
            )
        found[name.strip()] = int(size)
    return found

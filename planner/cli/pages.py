"""Commands for a browser: a page to read and hand on, and a server that answers while one turns the knobs."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from planner.cli.files import print_json, read_mapping, write_files
from planner.cli.options import OutputOptions
from planner.cli.thresholds import check_thresholds
from planner.errors import InputError


def report(
    source: Annotated[
        str,
        typer.Argument(metavar="PLAN|SWEEP", help="A plan.json, a run file or a sweep.json; - reads stdin."),
    ],
    output: OutputOptions,
    path: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("report.html"),
    tokens: Annotated[
        float | None, typer.Option(help="Of the training run that PLAN is for: 1e12 unless given.")
    ] = None,
) -> None:
    """Write a self-contained page about a plan or a sweep: what to do, why, and what that rests on.

    meshwright report plan.json -o report.html
    """
    from planner.sweep.records import SCHEMA

    data = read_mapping(source)
    if data.get("schema") != SCHEMA:
        page, facts = _plan_page(data, source, tokens)
    elif tokens is None:
        page, facts = _sweep_page(data, source)
    else:
        raise InputError("--tokens: a sweep says for itself how many tokens it is about")
    write_files({path: page})
    answer = {"schema": "meshwright/report/1", "files": [str(path)], **facts}
    if output.json:
        print_json(answer)
    else:
        typer.echo(f"wrote {path}")
    check_thresholds(answer, output.fail_if or ())


def _plan_page(data: Mapping[str, Any], source: str, tokens: float | None) -> tuple[str, dict[str, Any]]:
    """The page, and what of it other programs may read."""
    from cluster_specs.record import validated
    from planner.analysis.economics import Terms
    from planner.api import judged, read_plan
    from planner.pages.plan import plan_content, plan_page

    described = read_plan(source if "schema" not in data and source != "-" else data)
    answer = judged(described.plan)
    terms = validated(Terms, {} if tokens is None else {"tokens": tokens}, "--tokens")
    content = plan_content(answer, described.assumed, terms)
    return plan_page(content), {
        "figures": [figure.key for figure in content.figures],
        "estimate": answer.model_dump(mode="json")["estimate"],
    }


def _sweep_page(data: Mapping[str, Any], source: str) -> tuple[str, dict[str, Any]]:
    from cluster_specs.record import validated
    from planner.pages.sweep import sweep_content, sweep_page
    from planner.sweep.records import Sweep

    content = sweep_content(validated(Sweep, data, source))
    return sweep_page(content), {"figures": [figure.key for figure in content.figures]}


LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def serve(
    output: OutputOptions,
    host: Annotated[
        str, typer.Option(help="Address to listen on; only this machine by default.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)
    ] = 8642,
    cache: Annotated[
        Path | None,
        typer.Option(help="Keep plans in this folder instead of the usual one for caches of this user."),
    ] = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Keep no plans between runs.")] = False,
    ahead: Annotated[
        bool, typer.Option(help="Plan what is likely to be asked next while nobody waits.")
    ] = True,
) -> None:
    """Plan in the browser: a form, and the page of its answer, until interrupted.

    meshwright serve
    """
    import socket

    from planner.server.listening import listen

    if no_cache and cache is not None:
        raise InputError("--cache and --no-cache contradict each other: give one")
    folder = cache or (None if no_cache else _usual_folder(output.quiet))
    if host not in LOOPBACK and not output.quiet:
        sys.stderr.write(f"warning: whoever reaches {host} can ask this server, without a password\n")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family) as listener:
        name = f"[{host}]" if ":" in host else host
        url = f"http://{name}:{listener.getsockname()[1]}/"
        answer = {"schema": "meshwright/serve/1", "url": url}
        check_thresholds(answer, output.fail_if or ())
        if output.json:
            print_json(answer)
        else:
            typer.echo(f"serving {url} until interrupted")
        sys.stdout.flush()
        listen(listener, host, folder, ahead)


def _usual_folder(quiet: bool) -> Path | None:
    """The user's folder for plans; None, and a warning, where it cannot be made."""
    from planner.server.keeping import usual_folder

    try:
        folder = usual_folder()
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:
        if not quiet:
            sys.stderr.write(f"warning: plans are not kept between runs: {error}\n")
        return None
    return folder

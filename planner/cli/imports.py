"""Configurations that people already have, as input: ``evaluate --from`` and ``advise``."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli.catalogues import complete_clusters, complete_models
from planner.cli.files import print_json, read_plan, write_files
from planner.cli.options import OutputOptions
from planner.cli.progress import Progress
from planner.cli.thresholds import check_thresholds
from planner.errors import InputError

if TYPE_CHECKING:
    from planner.analysis.advice import Advice
    from planner.importers.registry import Imported
    from planner.plans import Plan

PANEL = "Import: an existing configuration of a training framework"


def _import(*names: str, help: str, **kwargs: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=PANEL, **kwargs)


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """A framework's file, and what it leaves open."""

    source: Annotated[
        Path | None,
        _import(
            "--from",
            help="accelerate.yaml, deepspeed.json, megatron_args.sh, torchtitan.toml, maxtext.yml, ...",
        ),
    ] = None
    model: Annotated[
        str | None, _import("--model", help="What it trains.", autocompletion=complete_models)
    ] = None
    cluster: Annotated[
        str | None, _import("--cluster", help="Where it runs.", autocompletion=complete_clusters)
    ] = None
    format: Annotated[
        str | None, _import("--format", help="Its format, where the file does not show it.")
    ] = None
    global_batch: Annotated[int | None, _import("--global-batch", help="Sequences per step.", min=1)] = None
    seq_len: Annotated[int | None, _import("--seq-len", help="Tokens per sequence.", min=1)] = None
    micro_batch: Annotated[
        int | None, _import("--micro-batch", help="Sequences per micro-batch and rank.", min=1)
    ] = None

    def read(self, run: str | None) -> "tuple[Plan, tuple[str, ...]]":
        """The plan of ``run`` or of ``--from``, and what was assumed; ``InputError`` for both or neither."""
        if (run is None) == (self.source is None):
            raise InputError("give either a plan or run file, or --from FILE --model M --cluster C")
        if run is not None:
            self._refuse_beside(run)
            return read_plan(run)
        imported = self.imported()
        return imported.plan, imported.assumed

    def _refuse_beside(self, run: str) -> None:
        """A plan or run file says all of this itself: an option that would be ignored is refused."""
        given = [f"--{f.name.replace('_', '-')}" for f in fields(self) if getattr(self, f.name) is not None]
        if given:
            verb = "goes" if len(given) == 1 else "go"
            raise InputError(
                f"{', '.join(given)} {verb} with --from FILE and not with {run}, which says what it trains and "
                "where; change it there"
            )

    def imported(self) -> "Imported":
        """The configuration as a plan; ``InputError`` where an option is missing."""
        from cluster_specs.catalog import load_cluster
        from planner.api import load_model
        from planner.importers.registry import import_plan
        from planner.importers.settings import Given

        if self.source is None or self.model is None or self.cluster is None:
            raise InputError("an existing configuration needs --from FILE, --model M and --cluster C")
        given = Given(self.global_batch, self.seq_len, self.micro_batch)
        return import_plan(
            self.source, load_model(self.model), load_cluster(self.cluster), given, self.format
        )


def advise(
    imports: ImportOptions,
    output: OutputOptions,
    folder: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the better configuration into this folder.")
    ] = None,
) -> None:
    """Say what to change in an existing configuration, and what that would gain.

    meshwright advise --from deepspeed.json --model llama-3.1-8b --cluster dgx-h100:2 --seq-len 4096
    """
    from planner.analysis.advice import Advice
    from planner.analysis.advice import advise as weigh

    output.expect(Advice, "schema", "format", "assumed", "unknown")
    imported = imports.imported()
    with Progress(output.quiet) as progress:
        advice = weigh(
            imported, lambda looked, total: progress(f"{looked:,} of {total:,} candidates looked at")
        )
    if folder is not None:
        from planner.exporters.registry import export

        write_files({folder / name: text for name, text in export(advice.best, advice.target).items()})
    answer = _answer(imported, advice)
    if output.json:
        print_json(answer)
    else:
        from planner.report.console import show
        from planner.report.importing import advice_report

        show(advice_report(imported, advice))
    check_thresholds(answer, output.fail_if or ())


def _answer(imported: "Imported", advice: "Advice") -> dict[str, Any]:
    return {
        "schema": "meshwright/advice/1",
        "format": imported.format.name,
        "assumed": list(imported.assumed),
        "unknown": list(imported.unknown),
        **advice.model_dump(mode="json", by_alias=True),
    }

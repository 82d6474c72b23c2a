"""Commands that list what is known, with sources, and shell completion from the same lists."""

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

import typer

from planner.cli.files import print_json
from planner.cli.options import OutputOptions
from planner.cli.thresholds import check_thresholds
from planner.errors import UnknownName

NameArgument = Annotated[str | None, typer.Argument(help="Show one of them in full.")]


class Catalogue(NamedTuple):
    """A list of named things and how to look at one."""

    kind: str
    columns: tuple[str, ...]
    """Fields of an entry that the list shows."""
    entries: Callable[[], Mapping[str, Mapping[str, Any]]]
    """Name -> fields, in the order of the list."""
    details: Callable[[str], Mapping[str, Any]] | None = None
    """Everything about one name, where the list does not hold it."""


def _fields(record: Any) -> dict[str, Any]:
    """Plain fields of a record, a named tuple or a dataclass; functions are left out."""
    if hasattr(record, "model_dump"):
        dumped: dict[str, Any] = record.model_dump(mode="json")
        return dumped
    names = getattr(record, "_fields", None) or getattr(record, "__dataclass_fields__", {})
    values = {name: getattr(record, name) for name in names}
    return {name: value for name, value in values.items() if not callable(value)}


def _clusters() -> dict[str, dict[str, Any]]:
    from cluster_specs.catalog import list_clusters

    return {entry.name: _fields(entry) for entry in list_clusters()}


def _cluster(name: str) -> dict[str, Any]:
    from cluster_specs.catalog import load_cluster

    return _fields(load_cluster(name))


def _models() -> dict[str, dict[str, Any]]:
    from planner.models.catalog import list_models

    return {name: _model(name) for name in list_models()}


def _model(name: str) -> dict[str, Any]:
    from planner.api import load_model

    return _fields(load_model(name))


def _schedules() -> dict[str, dict[str, Any]]:
    from planner.pipeline.asynchronous import ASYNCHRONOUS
    from planner.pipeline.generators import SCHEDULES

    flushed = {name: {**_fields(entry), "asynchronous": False} for name, entry in SCHEDULES.items()}
    return flushed | {name: {**_fields(entry), "asynchronous": True} for name, entry in ASYNCHRONOUS.items()}


def _schedule(name: str) -> Mapping[str, Any]:
    from planner.pipeline.generators import schedule_entry

    entries = _schedules()
    # Whatever else a schedule is called, and what comes close, is said there.
    return entries[name] if name in entries else _fields(schedule_entry(name))


def _stacks() -> dict[str, dict[str, Any]]:
    from cluster_specs.software import list_software

    return {entry.name: _habits(entry) for entry in list_software()}


def _stack(name: str) -> dict[str, Any]:
    from cluster_specs.software import load_software

    return _habits(load_software(name))


def _habits(software: Any) -> dict[str, Any]:
    """Fields of a stack; what has no limit is the text ``inf``, as JSON has no such number."""
    return {key: "inf" if value == math.inf else value for key, value in _fields(software).items()}


def _targets() -> dict[str, dict[str, Any]]:
    from planner.exporters.registry import EXPORTERS
    from planner.exporters.stacks import RUNS_AS

    return {name: {**_fields(entry), "stack": RUNS_AS[name][0]} for name, entry in EXPORTERS.items()}


CLUSTERS = Catalogue("cluster", ("device", "devices_per_node", "summary"), _clusters, _cluster)
MODELS = Catalogue("model", ("family", "architecture", "parameters"), _models, _model)
SCHEDULES = Catalogue("schedule", ("description", "source"), _schedules, _schedule)
STACKS = Catalogue("stack", ("runs_on", "splits", "summary"), _stacks, _stack)
TARGETS = Catalogue("target", ("stack", "description"), _targets)


def clusters(output: OutputOptions, name: NameArgument = None) -> None:
    """List the shipped clusters, or show one (NAME:NODES) with its sources."""
    _show(CLUSTERS, name, output)


def models(output: OutputOptions, name: NameArgument = None) -> None:
    """List the shipped models, or show one with its configuration."""
    _show(MODELS, name, output)


def schedules(output: OutputOptions, name: NameArgument = None) -> None:
    """List the pipeline schedules, and the asynchronous pipelines that `simulate` runs."""
    _show(SCHEDULES, name, output)


def stacks(output: OutputOptions, name: NameArgument = None) -> None:
    """List the software whose habits --stack takes, or show one with its sources."""
    _show(STACKS, name, output)


def targets(output: OutputOptions, name: NameArgument = None) -> None:
    """List the frameworks that `export` can write for, and the --stack to plan with for each."""
    _show(TARGETS, name, output)


def _show(catalogue: Catalogue, name: str | None, output: OutputOptions) -> None:
    answer: dict[str, Any] = {"schema": f"meshwright/{catalogue.kind}s/1"}
    if name is None:
        answer[f"{catalogue.kind}s"] = {key: dict(fields) for key, fields in catalogue.entries().items()}
    else:
        answer = {"schema": f"meshwright/{catalogue.kind}/1", "name": name, **_one(catalogue, name)}
    if output.json:
        print_json(answer)
    else:
        from planner.report import catalogue_report, fields_report
        from planner.report.console import show

        show(
            catalogue_report(answer[f"{catalogue.kind}s"], catalogue.columns)
            if name is None
            else fields_report(answer)
        )
    check_thresholds(answer, output.fail_if or ())


def _one(catalogue: Catalogue, name: str) -> Mapping[str, Any]:
    if catalogue.details is not None:
        return catalogue.details(name)
    entries = catalogue.entries()
    if name not in entries:
        raise UnknownName(catalogue.kind, name, entries, see=f"`meshwright {catalogue.kind}s` lists them")
    return entries[name]


def complete_models(incomplete: str) -> list[str]:
    """Shipped models that begin as typed."""
    from planner.models.catalog import list_models

    return [name for name in list_models() if name.startswith(incomplete)]


def complete_clusters(incomplete: str) -> list[str]:
    """Shipped clusters that begin as typed."""
    return [name for name in _clusters() if name.startswith(incomplete)]


def complete_targets(incomplete: str) -> list[str]:
    """Export targets that begin as typed."""
    return [name for name in _targets() if name.startswith(incomplete)]

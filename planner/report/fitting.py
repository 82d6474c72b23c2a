"""Whether a model fits, where it is tightest, and what would make it fit."""

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cluster_specs.units import format_bytes, format_count, format_seconds
from planner.analysis.fitting import FitReport
from planner.analysis.remedies import Remedy
from planner.models.catalog import counted
from planner.report.console import columns, heading
from planner.report.plans import plan_report


def fit_report(answer: FitReport) -> RenderableType:
    """The verdict, what it rests on, the changes that help, and the plan that was judged."""
    facts = columns("", "")
    for name, text in _facts(answer):
        facts.add_row(name, text)
    parts: list[RenderableType] = [Text(answer.verdict, style="bold"), Text(), facts]
    if answer.changes:
        parts += [
            heading("Any one of these makes it fit"),
            _changes(answer.changes, counted(answer.plan.model)),
        ]
    if answer.checkpoints is not None:
        title = f"Saving and loading {format_bytes(answer.checkpoints.written_bytes)} of states"
        parts += [heading(title), _ways(answer)]
    return Group(*parts, heading("The plan judged"), plan_report(answer.plan))


def _facts(answer: FitReport) -> Iterator[tuple[str, str]]:
    fed = counted(answer.plan.model)
    inputs = "sequence" if fed == "tokens" else fed.removesuffix("s")
    yield "margin", f"{format_bytes(answer.margin_bytes)} ({answer.margin_fraction:+.1%})"
    yield "tightest", f"pipeline rank {answer.tightest_rank}, in the {answer.tightest_phase} pass"
    yield "split by data parallelism", _listed(answer.split_by_data_parallelism)
    yield "same on every data rank", _listed(answer.same_on_every_data_rank)
    if answer.assumed:
        yield "assumed", "; ".join(answer.assumed)
    if answer.largest_micro_batch is not None:
        yield "largest micro-batch", f"{format_count(answer.largest_micro_batch, inputs)} with this plan"
    if answer.longest_seq_len is not None and fed == "tokens":
        yield "longest sequence", f"{answer.longest_seq_len} tokens with this plan"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(name.replace("_", " ") for name in names) or "nothing"


def _ways(answer: FitReport) -> Table:
    hosts = "a node's host" if answer.plan.cluster.torus is None else "a slice's hosts"
    table = columns("", "", "device", hosts, "", right="llrrl")
    for way in answer.checkpoints.ways if answer.checkpoints else ():
        sizes = format_bytes(way.device_bytes), format_bytes(way.host_bytes)
        table.add_row(way.does, way.way, *sizes, "" if way.fits else "too much")
    return table


def _changes(changes: Sequence[Remedy], fed: str) -> Table:
    table = columns("change", "memory", "step time", f"time per {fed[:-1]}", right="lrrr")
    for change in changes:
        time = (format_seconds(change.step_time_s), f"{change.time_cost_fraction:+.1%}")
        table.add_row(change.change, format_bytes(change.memory_bytes), *time)
    return table

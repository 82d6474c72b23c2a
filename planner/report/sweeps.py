"""A sweep as a table: one line a point, the Pareto front marked, then what it rests on."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cluster_specs.units import format_count, format_duration, format_seconds
from planner.analysis.economics import Economics
from planner.analysis.guide import wrapped
from planner.analysis.sensitivity import WORTH_NAMING
from planner.plans import Estimate
from planner.report.console import columns, heading
from planner.search.space import NO_PIPELINES
from planner.sweep.outlook import Outlook, Size
from planner.sweep.records import Knee, Point, Sweep
from planner.sweep.sizing import Sizing

FRONT, RECOMMENDED = "*", ">"
"""Marks of points that no other beats in everything, and of those recommended."""

FOLDING: Mapping[str, int] = {"model": 6, "cluster": 6, "plan": 9}
"""Columns that may take several lines, and their least width."""

SHORT: Mapping[str, str] = {"devices": "dev.", "global_batch": "batch", "batch_tokens": "tokens"}
"""Inputs whose names are too long for a column."""

PLACE: Mapping[str, Callable[[Point], object]] = {
    "model": lambda p: p.inputs.model,
    "cluster": lambda p: p.inputs.cluster,
    "devices": lambda p: p.inputs.devices,
    "batch_tokens": lambda p: p.inputs.global_batch * p.inputs.seq_len,
    "global_batch": lambda p: p.inputs.global_batch,
    "seq_len": lambda p: p.inputs.seq_len,
    "precision": lambda p: p.inputs.precision,
}

FIGURES: Mapping[str, Callable[[Estimate, Economics], str]] = {
    "step": lambda e, _: format_seconds(e.step_time_s),
    "free": lambda e, _: f"{1 - e.memory_bytes / e.memory_limit_bytes:.0%}",
    "train": lambda _, c: format_duration(c.time_to_train_s),
    "cost": lambda _, c: format_money(c.cost),
}


def format_money(amount: float | None) -> str:
    """``1.25M``; ``-`` where it is not known."""
    if amount is None:
        return "-"
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if amount >= size:
            return f"{amount / size:,.3g}{letter}"
    return f"{amount:,.3g}"


def sweep_report(sweep: Sweep) -> RenderableType:
    """All points, where scaling stops paying, what is recommended, and what was assumed."""
    failed = [point for point in sweep.points if point.status != "planned"]
    planned = len(sweep.points) - len(failed)
    counts = format_count(len(sweep.points), "point"), f"{planned} with a plan"
    searches = f"{sweep.searches} search" + ("" if sweep.searches == 1 else "es")
    parts: list[RenderableType] = [
        Text(", ".join((*counts, searches)), style="bold"),
        Text(),
        _points(sweep),
        Text(
            f"{FRONT} no other point is as good in time, cost, memory headroom and devices; {RECOMMENDED} the "
            "fastest of those near the least cost",
            style="dim",
        ),
    ]
    if sweep.knees:
        parts += [
            heading("Where more devices stop paying"),
            *(Text(_knee(knee, _varied(sweep))) for knee in sweep.knees),
        ]
    if sweep.recommended:
        parts += [
            heading("What a tenth better hardware would save"),
            *(Text(line) for line in _levers(sweep)),
        ]
    if failed:
        parts += [heading("No plan"), *(Text(line) for line in _reasons(failed))]
    parts += [heading("Assumed"), *(Text(line) for line in _assumed(sweep))]
    return Group(*parts)


def _points(sweep: Sweep) -> Table:
    return points_table(sweep.points, _varied(sweep), sweep.recommended)


def _varied(sweep: Sweep) -> Sequence[str]:
    """Inputs that set points apart, and those that every table shows."""
    always = ("cluster", "devices")
    return [name for name, values in sweep.axes.items() if len(values) > 1 or name in always]


def points_table(points: Sequence[Point], varied: Sequence[str], chosen: Sequence[int]) -> Table:
    """One line a point: the inputs ``varied``, the plan and its figures; ``chosen`` ones marked."""
    names = ["", *(SHORT.get(name, name.replace("_", " ")) for name in varied), *FIGURES, "eff.", "plan"]
    table = columns(*names, right="l" + "r" * (len(varied) + len(FIGURES) + 1))
    for column in table.columns:
        column.no_wrap = column.header not in FOLDING
        column.min_width = FOLDING.get(str(column.header))
    for i, point in enumerate(points):
        mark = RECOMMENDED if i in chosen else FRONT if point.pareto else ""
        table.add_row(mark, *(_input(point, name) for name in varied), *_outcome(point))
    return table


def _input(point: Point, name: str) -> str:
    if name in PLACE:
        return str(PLACE[name](point))
    given = {**point.inputs.job, **point.inputs.pins, **point.inputs.changes}
    return str(given.get(name, "free"))


def _outcome(point: Point) -> Sequence[str]:
    if point.estimate is None or point.economics is None:
        return (*("" for _ in FIGURES), "", point.status)
    figures = (text_of(point.estimate, point.economics) for text_of in FIGURES.values())
    share = point.scaling_efficiency
    return (*figures, "" if share is None else f"{share:.0%}", point.name or "")


def _knee(knee: Knee, varied: Sequence[str]) -> str:
    what = _label(knee.series, varied)
    if knee.first_devices_below is None:
        return f"{what}: {knee.threshold:.0%} efficiency holds up to {knee.last_devices_above} devices"
    return (
        f"{what}: below {knee.threshold:.0%} efficiency at {knee.first_devices_below} devices "
        f"(last above: {knee.last_devices_above})"
    )


def _label(inputs: Mapping[str, Any], varied: Sequence[str]) -> str:
    """What sets a point or a series apart: the cluster, and whatever else varies."""
    given = {**inputs.get("job", {}), **inputs.get("pins", {}), **inputs.get("changes", {}), **inputs}
    named = [
        f"{name.replace('_', ' ')} {given[name]}" for name in varied if name in given and name != "cluster"
    ]
    return ", ".join([str(given["cluster"]), *named])


def _levers(sweep: Sweep) -> Iterator[str]:
    for point in (sweep.points[i] for i in sweep.recommended):
        worth = [each for each in point.sensitivity if each.time_saved_fraction >= WORTH_NAMING]
        saved = ", ".join(f"{each.number} {each.time_saved_fraction:.1%}" for each in worth)
        yield f"{_label(point.inputs.model_dump(), _varied(sweep))}: {saved}"


def _reasons(failed: Sequence[Point]) -> Iterator[str]:
    """Each reason once for a kind of cluster, with the numbers of devices that have it."""
    found: dict[tuple[str, str], dict[int, None]] = {}
    for p in failed:
        found.setdefault((p.inputs.cluster, p.reason or ""), {})[p.inputs.devices] = None
    for (cluster, reason), counts in found.items():
        *others, last = map(int, counts)
        yield f"{cluster}, {''.join(f'{n}, ' for n in others)}{format_count(last, 'device')}: {reason}"


def _unsearched(sweep: Sweep) -> Iterator[str]:
    """How many plans may be much slower than one with a pipeline, which is looked at unasked for time alone."""
    if sweep.objective == "time":
        return
    found = (p.optimality for p in sweep.points if p.inputs.nodes > 1)
    number = sum(NO_PIPELINES in each.left_out for each in found if each is not None)
    if number:
        yield (
            f"without pipelines: {format_count(number, 'point')} of several nodes, as the model is small for a "
            "scale-up domain; on slow links one may be much faster: `what-if --pipeline` sweeps it"
        )


def _assumed(sweep: Sweep) -> Iterator[str]:
    currencies = sorted({point.economics.currency for point in sweep.points if point.economics})
    prices = f"; {sweep.terms.price_kind} prices in {', '.join(currencies)}" if currencies else ""
    yield f"{sweep.terms.tokens:.3g} tokens{prices}"
    priced = [point.economics.assumed for point in sweep.points if point.economics is not None]
    every = dict.fromkeys(item for assumed in priced for item in assumed.items())
    common = [(name, text) for name, text in every if all(text == assumed.get(name) for assumed in priced)]
    yield from (f"{name}: {text}" for name, text in common)
    if len(common) < len(every):
        yield "what differs between points is in --json, with its source"
    yield from sweep.warnings
    yield from _unsearched(sweep)


def sizing_report(answer: Sizing) -> RenderableType:
    """The verdict, what was tried for it, and what was not and why."""
    chosen = () if answer.chosen is None else (answer.chosen,)
    failed = [point for point in answer.tried if point.status != "planned"]
    parts: list[RenderableType] = [
        Text(answer.verdict, style="bold"),
        Text(),
        points_table(answer.tried, ("cluster", "devices"), chosen),
    ]
    if failed:
        parts += [heading("No plan"), *(Text(line) for line in _reasons(failed))]
    if answer.skipped:
        parts += [heading("Not tried"), *(Text(f"{kind}: {why}") for kind, why in answer.skipped.items())]
    parts += [heading("Assumed"), *(Text(line) for line in answer.assumed)]
    if answer.chosen is not None and (priced := answer.tried[answer.chosen].economics) is not None:
        parts += [Text(f"{name}: {text}") for name, text in priced.assumed.items()]
        parts += [Text(said) for said in answer.tried[answer.chosen].warnings]
    return Group(*parts)


def _efficiency(size: Size) -> str:
    if size.efficiency is not None:
        return f"{size.efficiency:.0%}"
    return "does not fit" if size.divides else "the batch does not divide"


def outlook_text(answer: Outlook) -> str:
    """What lies around a plan, as plain text."""
    saved = ", ".join(f"{each.number} {each.time_saved_fraction:.1%}" for each in answer.replanned)
    sizes = ", ".join(f"{size.devices}: {_efficiency(size)}" for size in answer.sizes)
    limit = answer.devices_below_threshold
    falls = f"below {answer.threshold:.0%} at {limit}" if limit else f"nowhere below {answer.threshold:.0%}"
    fits = answer.smallest_devices or "none of these"
    sentences = (
        f"Each a tenth better and planned anew, this much of the step would be saved: {saved}.",
        f"Efficiency by devices: {sizes}; {falls}. Smallest that fits: {fits}.",
        f"Longest sequence that fits with some plan: {answer.longest_seq_len or 'none'} tokens, by doubling.",
    )
    lines = [line for each in sentences for line in wrapped(each)]
    return "\n".join(["What would change it", *lines])

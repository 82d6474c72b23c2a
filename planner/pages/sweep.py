"""The page of a sweep, for who decides: what is recommended, what it would cost to differ, and every point."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import NamedTuple

from cluster_specs.units import format_duration
from planner.pages import page
from planner.pages.charts import Row, chart_data, chart_scripts
from planner.pages.sweep_figures import asked, place, points_table, said, sweep_figures, sweep_rows, varied
from planner.report.sweeps import format_money
from planner.sweep.records import Knee, Point, Sweep

MOST_VALUES = 6
"""Of a default that differs between points, so many are spelt out."""

MOST_CARDS = 8
"""Recommended points that are shown large."""

MOST_LINES = 100
"""Points that are listed without being asked for."""


class Content(NamedTuple):
    """What is on the page, before it is HTML."""

    sweep: Sweep
    rows: tuple[Row, ...]
    figures: tuple[page.Figure, ...]


def sweep_content(sweep: Sweep) -> Content:
    """Everything that the page of ``sweep`` shows."""
    rows = sweep_rows(sweep)
    return Content(sweep, tuple(rows), tuple(sweep_figures(sweep, rows)))


def sweep_page(content: Content) -> str:
    """The page, self-contained."""
    sweep, rows, drawn = content
    body = [
        page.paragraph(_counts(sweep)),
        *_recommended(sweep),
        _filters(sweep, rows),
        page.figures(drawn),
        page.heading("Every point"),
        _points(sweep, rows),
        *_without(sweep.points),
        *_knees(sweep.knees),
        *_foundations(sweep),
    ]
    scripts = [chart_data(drawn, rows), *chart_scripts()]
    return page.document(_title(sweep), body, scripts)


def _title(sweep: Sweep) -> str:
    models = ", ".join(dict.fromkeys(point.inputs.model for point in sweep.points))
    clusters = ", ".join(dict.fromkeys(point.inputs.cluster for point in sweep.points))
    return f"What if: {models} on {clusters}"


def _counts(sweep: Sweep) -> str:
    planned = sum(point.status == "planned" for point in sweep.points)
    inputs = ", ".join(name.replace("_", " ") for name in varied(sweep)) or "nothing"
    return (
        f"{len(sweep.points)} points, {planned} with a plan; varied: {inputs}. Every point is the plan that a full "
        f"search found best in {sweep.objective}. Times and costs are for {page.count(sweep.terms.tokens)} tokens."
    )


def _recommended(sweep: Sweep) -> Iterator[str]:
    chosen = [sweep.points[number] for number in sweep.recommended]
    if not chosen:
        return
    yield page.heading("Recommended")
    more = f" {len(chosen) - MOST_CARDS} more are in the table." if len(chosen) > MOST_CARDS else ""
    yield page.paragraph(f"The fastest of those near the least cost.{more}", "note")
    yield page.cards(_card(sweep, point) for point in chosen[:MOST_CARDS])


def _card(sweep: Sweep, point: Point) -> tuple[str, str, str]:
    money = point.economics
    assert money is not None
    inputs = [said(name, asked(point, name)) for name in varied(sweep) if name not in ("cluster", "devices")]
    where = ", ".join([place(point), *inputs])
    spent = f", {format_money(money.cost)} {money.currency}" if money.cost is not None else ""
    share = "" if point.memory_headroom is None else f"; {point.memory_headroom:.0%} of memory free"
    return where, f"{format_duration(money.time_to_train_s)}{spent}", f"{point.name}{share}"


def _filters(sweep: Sweep, rows: Sequence[Row]) -> str:
    choices = [
        _choice(name, list(dict.fromkeys(row[f"asked:{name}"] for row in rows))) for name in varied(sweep)
    ]
    if not choices:
        return ""
    return (
        f'<form class="filters" aria-label="Show only">{"".join(choices)}'
        f'<output class="shown" aria-live="polite">{len(rows)} of {len(rows)} shown</output></form>'
    )


def _choice(name: str, values: Sequence[str]) -> str:
    options = "".join(f'<option value="{escape(value)}">{escape(value)}</option>' for value in values)
    return (
        f'<label>{escape(name.replace("_", " "))}<select name="asked:{escape(name)}" autocomplete="off">'
        f'<option value="">all</option>{options}</select></label>'
    )


def _points(sweep: Sweep, rows: Sequence[Row]) -> str:
    """The table of all points, folded where it is long."""
    written = page.table(points_table(sweep, rows))
    if len(rows) <= MOST_LINES:
        return written
    return f"<details><summary>All {len(rows):,} points</summary>{written}</details>"


def _without(points: Sequence[Point]) -> Iterator[str]:
    """Points that have no plan, and why."""
    reasons = [(place(p), p.reason or "") for p in points if p.status != "planned"]
    if reasons:
        yield page.heading("No plan")
        yield page.table(page.Table(("point", "why"), tuple(dict.fromkeys(reasons)), prose=True))


def _knees(knees: Sequence[Knee]) -> Iterator[str]:
    if not knees:
        return
    yield page.heading("Where more devices stop paying")
    rows = tuple(
        (
            _series(knee.series),
            f"{knee.threshold:.0%}",
            "-" if knee.last_devices_above is None else str(knee.last_devices_above),
            "not in this sweep" if knee.first_devices_below is None else str(knee.first_devices_below),
        )
        for knee in knees
    )
    yield page.table(page.Table(("series", "efficiency", "up to devices", "below from devices"), rows))


def _series(inputs: Mapping[str, object]) -> str:
    known = [str(value) for name, value in inputs.items() if name in ("model", "cluster", "precision")]
    changes = inputs.get("changes")
    return ", ".join(
        [*known, *(f"{n} {v}" for n, v in changes.items())] if isinstance(changes, Mapping) else known
    )


def _foundations(sweep: Sweep) -> Iterator[str]:
    """What all points take for granted, with its source, and what is not known."""
    yield page.heading("Assumptions and sources")
    yield page.paragraph(f"Prices are {sweep.terms.price_kind}.")
    yield page.facts(_assumed(sweep))
    yield from page.sentences(sweep.warnings)


def _assumed(sweep: Sweep) -> Iterator[tuple[str, str]]:
    """Default -> its value and source; where points differ, every one with a point that has it."""
    found: dict[str, dict[str, str]] = {}
    for point in sweep.points:
        for name, text in point.economics.assumed.items() if point.economics else ():
            found.setdefault(name, {}).setdefault(text, place(point))
    for name, texts in found.items():
        spelt = list(texts) if len(texts) == 1 else [f"{text} [{where}]" for text, where in texts.items()]
        more = [f"and {len(spelt) - MOST_VALUES} more"] if len(spelt) > MOST_VALUES else []
        yield name.replace("_", " "), "; ".join([*spelt[:MOST_VALUES], *more])

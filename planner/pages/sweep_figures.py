"""The figures of a sweep: what is worth its money, how it scales, what room is left. All share the rows of the page."""

from collections.abc import Mapping, Sequence

from cluster_specs.units import format_bytes, format_count, format_duration, format_seconds
from planner.pages.charts import (
    COLOURS,
    PLOT,
    SHAPES,
    Row,
    Spec,
    bars_height,
    chart,
    device_counts,
    logarithmic,
    name,
    quantity,
    tips,
)
from planner.pages.page import Figure, Table, count
from planner.report.sweeps import PLACE, format_money
from planner.sweep.records import Point, Sweep

DAY = 86400.0
"""[s]"""

MOST_EXPLAINED = 4
"""Recommended points whose sensitivity is drawn."""

VERDICTS = ("recommended", "on the front", "beaten")

FACTS = {
    "": "label",
    "plan": "plan",
    "step time": "step",
    "time to train": "train",
    "cost": "money",
    "memory": "memory",
    "MFU": "mfu",
    "efficiency": "share",
}
"""What pointing at a point shows: title -> field."""


def varied(sweep: Sweep) -> tuple[str, ...]:
    """Inputs that have more than one value."""
    return tuple(name for name, values in sweep.axes.items() if len(values) > 1)


def asked(point: Point, name: str) -> str:
    """Value of an input of a point, in words."""
    if name in PLACE:
        return str(PLACE[name](point))
    given = {**point.inputs.job, **point.inputs.pins, **point.inputs.changes}
    return str(given.get(name, "free"))


def place(point: Point) -> str:
    """Where a point trains."""
    return f"{format_count(point.inputs.devices, 'device')} of {point.inputs.cluster}"


def sweep_rows(sweep: Sweep) -> list[Row]:
    """A row for every point, in their order; figures are None where there is no plan.

    Inputs by which a reader may filter are text under ``asked:<name>``.
    """
    names = varied(sweep)
    rows = [_row(sweep, number, names) for number in range(len(sweep.points))]
    crowded = len({row["series"] for row in rows}) > len(COLOURS)
    return [{**row, "hue": row["cluster"] if crowded else row["series"]} for row in rows]


def _row(sweep: Sweep, number: int, names: Sequence[str]) -> dict[str, object]:
    point = sweep.points[number]
    inputs = {name: asked(point, name) for name in names}
    series = ", ".join(said(name, value) for name, value in inputs.items() if name != "devices")
    return {
        **{f"asked:{name}": value for name, value in inputs.items()},
        "label": f"{point.inputs.model} on {place(point)}" + (f" ({series})" if series else ""),
        "series": series or point.inputs.cluster,
        "cluster": point.inputs.cluster,
        "devices": point.inputs.devices,
        "plan": point.name or "",
        **_figures(point),
        "verdict": VERDICTS[0 if number in sweep.recommended else 1 if point.pareto else 2],
    }


def said(name: str, value: str) -> str:
    """A value that says what it is."""
    return value if name in ("model", "cluster", "precision") else f"{name.replace('_', ' ')} {value}"


def _figures(point: Point) -> dict[str, object]:
    estimate, money = point.estimate, point.economics
    if estimate is None or money is None:
        return dict.fromkeys(("days", "cost", "rate", "efficiency", "used", *list(FACTS.values())[2:]))
    share = point.scaling_efficiency
    return {
        "days": money.time_to_train_s / DAY,
        "cost": money.cost,
        "rate": estimate.tokens_per_s,
        "efficiency": share,
        "used": estimate.memory_bytes / estimate.memory_limit_bytes,
        "step": format_seconds(estimate.step_time_s),
        "train": format_duration(money.time_to_train_s),
        "money": "-" if money.cost is None else f"{format_money(money.cost)} {money.currency}",
        "memory": f"{format_bytes(estimate.memory_bytes)} of {format_bytes(estimate.memory_limit_bytes)}",
        "mfu": f"{estimate.mfu:.1%}",
        "share": "-" if share is None else f"{share:.0%}",
    }


def sweep_figures(sweep: Sweep, rows: Sequence[Row]) -> list[Figure]:
    """The figures that this sweep has points for."""
    planned = [row for row in rows if row["days"] is not None]
    if not planned:
        return []
    found = [_front_figure(sweep, rows)]
    if len({row["devices"] for row in planned}) > 1:
        found += [_throughput_figure(rows), _efficiency_figure(rows)]
    found.append(_memory_figure(rows))
    explained = [number for number in sweep.recommended if sweep.points[number].sensitivity]
    if explained:
        found.append(
            _sensitivity_figure(sweep, [(rows[number], sweep.points[number]) for number in explained])
        )
    return found


def points_table(sweep: Sweep, rows: Sequence[Row]) -> Table:
    """Every point of the sweep, as its inputs and figures; rows as in the data of the page."""
    names = varied(sweep) or ("cluster", "devices")
    fields = ("plan", "step", "mfu", "memory", "train", "money", "share")
    head = (*(name.replace("_", " ") for name in names), *HEADS, "verdict")
    lines = tuple(
        (
            *(asked(point, name) for name in names),
            *(str(row[field]) if row[field] is not None else "" for field in fields),
            str(row["verdict"]) if point.estimate else point.status,
        )
        for point, row in zip(sweep.points, rows, strict=True)
    )
    return Table(head, lines, numbered=True)


HEADS = ("plan", "step", "MFU", "memory", "time to train", "cost", "efficiency")


def _table(rows: Sequence[Row], fields: Mapping[str, str]) -> Table:
    """Some columns of the rows, title -> field."""
    lines = tuple(
        tuple("" if row[field] is None else str(row[field]) for field in fields.values()) for row in rows
    )
    return Table(tuple(fields), lines, numbered=True)


def _front_figure(sweep: Sweep, rows: Sequence[Row]) -> Figure:
    priced = any(row["cost"] is not None for row in rows)
    field, axis = ("cost", "cost") if priced else ("devices", "devices")
    currency = next((p.economics.currency for p in sweep.points if p.economics), "")
    x = logarithmic("days", f"time for {count(sweep.terms.tokens)} tokens [days]", rows)
    y = logarithmic(field, f"{axis} [{currency}]" if priced else axis, rows)
    shape = {
        "field": "verdict",
        "type": "nominal",
        "scale": {"domain": VERDICTS, "range": SHAPES[: len(VERDICTS)]},
        "legend": {"orient": "top"},
    }
    faint = {"condition": {"test": "datum.verdict === 'beaten'", "value": 0.45}, "value": 1}
    encoding = {"x": x, "y": y, **_coloured(rows), "shape": shape, "opacity": faint, "tooltip": tips(FACTS)}
    return Figure(
        "front",
        "Time against money" if priced else "Time against devices",
        "Left is sooner, lower is less. On the front: no other point is as good in time, cost, memory and devices.",
        chart(PLOT, {"mark": {"type": "point", "size": 110}, "encoding": encoding}, valid=("days", field)),
        _table(rows, {"point": "label", "time to train": "train", "cost": "money", "verdict": "verdict"}),
    )


def _coloured(rows: Sequence[Row]) -> Spec:
    """Colours that stay when rows are filtered away."""
    hues = list(dict.fromkeys(str(row["hue"]) for row in rows if row["days"] is not None))
    return {"color": {"field": "hue", "type": "nominal", "scale": {"domain": hues, "range": COLOURS}}}


def _over_devices(rows: Sequence[Row], y: Spec, valid: str, *more: Spec) -> Spec:
    """A line with points for each series."""
    x = device_counts([int(row["devices"]) for row in rows if row[valid] is not None])
    place = {"x": x, "y": y, **_coloured(rows), "detail": {"field": "series", "type": "nominal"}}
    return chart(
        PLOT,
        *more,
        {"mark": "line", "encoding": place},
        {"mark": "point", "encoding": {**place, "tooltip": tips(FACTS)}},
        valid=(valid,),
    )


def _throughput_figure(rows: Sequence[Row]) -> Figure:
    return Figure(
        "throughput",
        "Throughput by devices",
        "Every point is planned anew for its number of devices.",
        _over_devices(rows, logarithmic("rate", "tokens/s", rows), "rate"),
        _table(rows, {"point": "label", "step time": "step", "MFU": "mfu"}),
    )


def _efficiency_figure(rows: Sequence[Row]) -> Figure:
    y = _share("efficiency", "scaling efficiency", rows)
    return Figure(
        "efficiency",
        "Scaling efficiency",
        "Tokens/s per device over the best of this and the smaller sizes of the same series.",
        _over_devices(rows, y, "efficiency"),
        _table(rows, {"point": "label", "efficiency": "share"}),
    )


def _memory_figure(rows: Sequence[Row]) -> Figure:
    y = _share("used", "share of device memory", rows)
    full: Spec = {
        "mark": {"type": "rule", "strokeDash": [5, 3], "size": 2, "color": "var(--limit)"},
        "encoding": {"y": {"datum": 1}},
    }
    return Figure(
        "headroom",
        "Memory of the fullest device",
        "At its peak; the dashed line is all that a device has.",
        _over_devices(rows, y, "used", full),
        _table(rows, {"point": "label", "memory": "memory"}),
    )


def _sensitivity_figure(sweep: Sweep, explained: Sequence[tuple[Row, Point]]) -> Figure:
    """Of recommended points; not filtered, as it has rows of its own."""
    bars: list[Row] = [
        {
            "point": str(row["label"]),
            "number": each.number.replace("-", " "),
            "what": each.what,
            "saved": each.time_saved_fraction,
            "text": f"{each.time_saved_fraction:.1%}",
        }
        for row, point in explained[:MOST_EXPLAINED]
        for each in point.sensitivity
    ]
    points = list(dict.fromkeys(str(bar["point"]) for bar in bars))
    encoding: Spec = {
        "y": name("number", axis={"title": None, "domain": False, "ticks": False}),
        "yOffset": {"field": "point", "sort": None},
        "x": quantity("saved", "share of the step saved", axis={"format": ".1~%"}),
        "color": {
            "field": "point",
            "type": "nominal",
            "scale": {"domain": points, "range": COLOURS},
            "legend": {"columns": 1, "labelLimit": 400},
        },
        "tooltip": tips({"": "point", "number": "what", "saved": "text"}),
    }
    return Figure(
        "sensitivity",
        "What better hardware would save",
        "Share of the step of recommended points saved if one number were a tenth better, with the plan unchanged.",
        chart(bars_height(len(bars)), {"mark": "bar", "encoding": encoding}, data=bars),
        Table(
            ("point", "number", "saved"),
            tuple((str(b["point"]), str(b["what"]), str(b["text"])) for b in bars),
        ),
    )


def _share(field: str, title: str, rows: Sequence[Row]) -> Spec:
    """An axis from nothing to the whole, or beyond where that is reached."""
    top = max(1.05, *(float(row[field]) for row in rows if row[field] is not None))
    return quantity(field, title, scale={"domain": [0, top]}, axis={"format": ".0%"})

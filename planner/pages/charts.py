"""Charts as Vega-Lite specifications, and the library that draws them, carried inside the page.

Colours are the style sheet's variables, so that a chart follows light, dark and print like the text around it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final

from planner.errors import InputError
from planner.pages.page import Figure, data_script, inline_module

Spec = dict[str, Any]
Row = Mapping[str, Any]

VEGA_LITE: Final = "6.4"
"""Version of Vega-Lite that the specifications are written for."""

SCHEMA: Final = "https://vega.github.io/schema/vega-lite/v6.json"

NOTICE: Final = "/* Vega, Vega-Lite and Vega-Embed (vega.github.io), BSD 3-Clause License. */\n"

COLOURS: Final = tuple(f"var(--c{number})" for number in range(10))

SHAPES: Final = ("diamond", "circle", "square", "triangle-up", "cross", "triangle-down")

BAR: Final = 24
"""Height of a bar and the gap below it, in pixels."""

MANY: Final = 16
"""More bars than this are ``THIN``."""

THIN: Final = 14
"""As `BAR`, with just enough room for a name."""

NUDGE: Final = 1.01
"""Factor that makes an axis of a single value as long as it has to be."""

PLOT: Final = 300
"""Height of a chart with two axes, in pixels."""

CONFIG: Final[Spec] = {
    "background": None,
    "autosize": {"type": "fit-x", "contains": "padding", "resize": True},
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "range": {"category": COLOURS},
    "axis": {
        **dict.fromkeys(("labelColor", "titleColor"), "var(--soft)"),
        **dict.fromkeys(("gridColor", "domainColor", "tickColor"), "var(--line)"),
        "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal", "labelLimit": 260,
    },
    "legend": {
        "labelColor": "var(--ink)", "titleColor": "var(--soft)", "labelFontSize": 12, "orient": "bottom", "title": None,
        "symbolBaseFillColor": "var(--soft)", "symbolBaseStrokeColor": "var(--soft)",
    },
    "text": {"color": "var(--ink)", "fontSize": 12},
    "rule": {"color": "var(--soft)"},
    "point": {"filled": True, "size": 70, "opacity": 1},
    "bar": {"color": "var(--c0)"},
    "line": {"color": "var(--c0)"},
}  # fmt: skip


@cache
def chart_library() -> str:
    """Vega, Vega-Lite and Vega-Embed as the text of one module script, which sets ``window.vegaEmbed``.

    Raises ``InputError`` where the package that carries them is not installed.
    """
    try:
        import vl_convert
    except ImportError:
        raise InputError(
            "charts need the package vl-convert-python: pip install 'meshwright[report]'"
        ) from None
    return NOTICE + str(vl_convert.javascript_bundle(vl_version=VEGA_LITE))


def chart_data(figures: Iterable[Figure], rows: Sequence[Row] = ()) -> str:
    """The specifications of the page's charts, and the ``rows`` that filtered ones share."""
    specs = {figure.key: figure.chart for figure in figures}
    return data_script("charts", {"specs": specs, "rows": rows})


def chart_scripts() -> list[str]:
    """The library, and what draws the charts of the page with it."""
    return [
        f'<script type="module">{chart_library()}</script>',
        inline_module("charts.js", "await drawCharts();"),
    ]


def chart(height: int, *layers: Spec, data: Sequence[Row] | None = None, valid: Sequence[str] = ()) -> Spec:
    """Layers over the same data (None: the rows of the page) with ``valid`` fields, as wide as there is room."""
    source = {"name": "rows"} if data is None else {"values": list(data)}
    present = [{"filter": f"isValid(datum.{field})"} for field in valid]
    return {
        "$schema": SCHEMA,
        "width": "container",
        "height": height,
        "data": source,
        "transform": present,
        "layer": list(layers),
        "config": CONFIG,
    }


def bars_height(count: int) -> int:
    """Height of ``count`` horizontal bars."""
    return (BAR if count <= MANY else THIN) * max(1, count)


def quantity(field: str, title: str | None, **more: Any) -> Spec:
    """A number on an axis."""
    return {"field": field, "type": "quantitative", "title": title, **more}


def logarithmic(field: str, title: str, rows: Sequence[Row]) -> Spec:
    """A logarithmic axis from the least to the greatest value among ``rows``."""
    values = [row[field] for row in rows if row[field] is not None]
    low, high = min(values, default=1.0), max(values, default=10.0)
    axis = {"values": _ticks(low, high), "format": "~s"}
    scale = {
        "type": "log",
        "domain": [low, high * NUDGE if low == high else high],
        "nice": False,
        "padding": 16,
    }
    return quantity(field, title, scale=scale, axis=axis)


STEPS: Final = (
    (1.0, 2.0, 5.0),
    (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0),
    tuple(1 + tenth / 10 for tenth in range(90)),
)
"""Ticks in a decade: a few, or more where the axis is shorter than that."""


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers from ``low`` to ``high``."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found: list[float] = []
    for steps in STEPS:
        found = [tick for d in decades for step in steps if low <= (tick := step * 10.0**d) <= high]
        if len(found) > 2:
            break
    return found


def device_counts(counts: Iterable[int]) -> Spec:
    """The axis of ``devices``: each count a tick, doublings equally far."""
    ticks = sorted(set(counts))
    domain = [ticks[0], ticks[-1] * NUDGE if len(ticks) == 1 else ticks[-1]]
    scale = {"type": "log", "base": 2, "domain": domain, "nice": False, "padding": 24}
    axis = {"values": ticks, "format": ",d", "grid": False, "labelOverlap": True}
    return quantity("devices", "devices", scale=scale, axis=axis)


def name(field: str, title: str | None = None, **more: Any) -> Spec:
    """Words on an axis, in the order of the data."""
    return {"field": field, "type": "nominal", "title": title, "sort": None, **more}


def tips(fields: Mapping[str, str]) -> list[Spec]:
    """What pointing at a mark shows: title of a line -> field with its text."""
    return [{"field": field, "type": "nominal", "title": title} for title, field in fields.items()]


def kinds(*values: str) -> Spec:
    """Colour and shape by ``kind``, with one legend for both."""
    same: Spec = {"field": "kind", "type": "nominal"}
    return {
        "color": {**same, "scale": {"domain": values, "range": COLOURS[: len(values)]}},
        "shape": {**same, "scale": {"domain": values, "range": SHAPES[: len(values)]}},
    }


def labelled_bars(rows: Sequence[Row], title: str, **axis: Any) -> Spec:
    """Horizontal bars of ``value``, named by ``name``, with their ``text`` at the end."""
    y = name("name", axis={"title": None, "domain": False, "ticks": False})
    room = 1.4 * max((row["value"] for row in rows), default=1.0)
    encoding = {
        "y": y,
        "x": quantity("value", title, scale={"domain": [0, room]}, **axis),
        "tooltip": tips({"": "name", title: "text"}),
    }
    text = {"type": "text", "align": "left", "dx": 5}
    return chart(
        bars_height(len(rows)),
        {"mark": "bar", "encoding": encoding},
        {"mark": text, "encoding": {**encoding, "text": {"field": "text"}}},
        data=rows,
    )

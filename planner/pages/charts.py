"""Charts as Vega-Lite specifications, and the library that draws them, carried inside the page.

Colours are the style sheet's variables, so that a chart follows light, dark and print like the text around it.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final

from planner.errors import InputError
from planner.pages.page import Figure, data_script, template

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
        "columns": {"expr": "max(1, floor(width / 170))"},
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
    drawing = template("charts.js").replace("export ", "")
    return [
        f'<script type="module">{chart_library()}</script>',
        f'<script type="module">\n{drawing}\nawait drawCharts();\n</script>',
    ]


def chart(height: int | None, *layers: Spec, data: Sequence[Row] | None = None) -> Spec:
    """Layers over the same data (None: the rows of the page), as wide as there is room."""
    source = {"name": "rows"} if data is None else {"values": list(data)}
    size = {} if height is None else {"height": height}
    return {
        "$schema": SCHEMA,
        "width": "container",
        "data": source,
        "layer": list(layers),
        "config": CONFIG,
        **size,
    }


def bars_height(count: int) -> int:
    """Height of ``count`` horizontal bars."""
    return BAR * max(1, count)


def quantity(field: str, title: str | None, **more: Any) -> Spec:
    """A number on an axis."""
    return {"field": field, "type": "quantitative", "title": title, **more}


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
    room = 1.25 * max((row["value"] for row in rows), default=1.0)
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

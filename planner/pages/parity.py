"""Measured against predicted step times, as a page."""

from typing import NamedTuple

from planner.pages.charts import Spec, chart, chart_data, chart_scripts, logarithmic, tips
from planner.pages.page import Figure, Table, document, figure, paragraph
from planner.validation import Row, ValidationReport

TITLE = "Step time: measured and predicted"

BAND = 0.2
"""Relative error of the band drawn around the diagonal."""

SIZE = 560
"""Height of the plot, in pixels."""


class Point(NamedTuple):
    """One run in the plot."""

    name: str
    measured: float
    predicted: float


def parity_page(report: ValidationReport) -> str:
    """Step time measured and predicted [s] on logarithmic axes, and a band of error."""
    points = [point for row in report.rows if (point := _point(row)) is not None]
    if not points:
        return document(TITLE, [paragraph("No run could be predicted: nothing to show.")])
    content = parity_figure(points, report)
    return document(TITLE, [figure(content)], [chart_data([content]), *chart_scripts()])


def parity_figure(points: list[Point], report: ValidationReport) -> Figure:
    """A point for every run that could be predicted."""
    statistics = report.summary.step_time
    caption = (
        f"{len(points)} runs; median error {statistics.median_abs_error:.1%}, "
        f"90 % within {statistics.p90_abs_error:.1%}; band: {BAND:.0%}"
    )
    table = (
        (name, f"{measured:.4g}", f"{predicted:.4g}", f"{predicted / measured - 1:+.1%}")
        for name, measured, predicted in points
    )
    head = ("run", "measured [s]", "predicted [s]", "error")
    return Figure("parity", "Runs", caption, _chart(points), Table(head, tuple(table)), wide=True)


def _point(row: Row) -> Point | None:
    if row.predicted is None or row.step_time_error is None:
        return None
    predicted = row.predicted.step_time_s
    return Point(row.id, predicted / (1 + row.step_time_error), predicted)


def _chart(points: list[Point]) -> Spec:
    values = [value for point in points for value in point[1:]]
    ends = [min(values), max(values)]
    diagonal = [{"x": end, "y": end, "low": end / (1 + BAND), "high": end * (1 + BAND)} for end in ends]
    reach = [{"x": row["x"], "y": row[side]} for row in diagonal for side in ("low", "high")]
    x, y = logarithmic("x", "measured step time [s]", reach), logarithmic("y", "predicted [s]", reach)
    runs = [
        {
            "run": point.name,
            "x": point.measured,
            "y": point.predicted,
            "measured": f"{point.measured:.4g} s",
            "predicted": f"{point.predicted:.4g} s",
        }
        for point in points
    ]
    facts = tips({"": "run", "measured": "measured", "predicted": "predicted"})
    band: Spec = {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}}
    ideal, place = {"values": diagonal}, {"x": x, "y": y}
    return chart(
        SIZE,
        {"data": ideal, "mark": {"type": "area", "opacity": 0.15}, "encoding": band},
        {"data": ideal, "mark": {"type": "line", "color": "var(--soft)"}, "encoding": place},
        {
            "mark": {"type": "point", "opacity": 0.6, "color": "var(--c0)"},
            "encoding": {**place, "tooltip": facts},
        },
        data=runs,
    )

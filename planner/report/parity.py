"""Measured against predicted, as one self-contained HTML page with an SVG."""

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from planner.validation import Row, ValidationReport

SIZE, MARGIN = 640, 60
"""Side of the plot and its margins, in pixels."""
BAND = 0.2
"""Relative error of the band drawn around the diagonal."""

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>body{{font:14px system-ui,sans-serif;margin:2em}} .axis{{stroke:#888}} .grid{{stroke:#ddd}}
.ideal{{stroke:#333}} .band{{fill:#cde;opacity:.5}} .run{{fill:#06c;opacity:.5}}
.run:hover{{fill:#c30;opacity:1}} text{{font-size:12px;fill:#444}}</style></head>
<body><h1>{title}</h1><p>{caption}</p>
{svg}
</body></html>
"""


class Point(NamedTuple):
    """One run in the plot."""

    name: str
    measured: float
    predicted: float


def parity_plot(report: ValidationReport) -> str:
    """HTML page: step time measured and predicted [s] on logarithmic axes, and a band of error."""
    points = [point for row in report.rows if (point := _point(row)) is not None]
    statistics = report.summary.step_time
    caption = f"{len(points)} runs; nothing to show"
    if points and statistics.median_abs_error is not None:
        caption = (
            f"{len(points)} runs; median error {statistics.median_abs_error:.1%}, "
            f"90 % within {statistics.p90_abs_error:.1%}; band: {BAND:.0%}"
        )
    svg = "\n".join(_svg(points)) if points else ""
    return PAGE.format(title="Step time: measured and predicted", caption=escape(caption), svg=svg)


def _point(row: Row) -> Point | None:
    if row.predicted is None or row.step_time_error is None:
        return None
    predicted = row.predicted.step_time_s
    return Point(row.id, predicted / (1 + row.step_time_error), predicted)


class Axes(NamedTuple):
    """Both axes: the same powers of ten of seconds."""

    low: int
    high: int

    def x(self, seconds: float) -> float:
        """Pixels from the left."""
        share = (math.log10(seconds) - self.low) / (self.high - self.low)
        return round(MARGIN + share * (SIZE - 2 * MARGIN), 1)

    def y(self, seconds: float) -> float:
        """Pixels from the top."""
        return round(SIZE - self.x(seconds), 1)

    def line(self, factor: float) -> tuple[str, str]:
        """Ends of the line predicted = ``factor`` x measured."""
        first, last = 10.0**self.low, 10.0**self.high
        return (f"{self.x(first)},{self.y(first * factor)}", f"{self.x(last)},{self.y(last * factor)}")


def _svg(points: Sequence[Point]) -> Iterator[str]:
    values = [value for point in points for value in point[1:]]
    low = math.floor(math.log10(min(values)))
    axes = Axes(low, max(low + 1, math.ceil(math.log10(max(values)))))
    yield f'<svg viewBox="0 0 {SIZE} {SIZE}" width="{SIZE}" height="{SIZE}" role="img">'
    yield from _grid(axes)
    inner = SIZE - 2 * MARGIN
    yield f'<clipPath id="area"><rect x="{MARGIN}" y="{MARGIN}" width="{inner}" height="{inner}"/></clipPath>'
    above, below = axes.line(1 + BAND), axes.line(1 / (1 + BAND))
    corners = " ".join((*above, *reversed(below)))
    yield f'<polygon class="band" clip-path="url(#area)" points="{corners}"/>'
    yield f'<polyline class="ideal" points="{" ".join(axes.line(1.0))}"/>'
    for name, measured, predicted in points:
        tip = f"{escape(name)}: measured {measured:.4g} s, predicted {predicted:.4g} s"
        place = f'cx="{axes.x(measured)}" cy="{axes.y(predicted)}"'
        yield f'<circle class="run" {place} r="3"><title>{tip}</title></circle>'
    yield "</svg>"


def _grid(axes: Axes) -> Iterator[str]:
    start, end = MARGIN, SIZE - MARGIN
    for power in range(axes.low, axes.high + 1):
        tick = 10.0**power
        x, y = axes.x(tick), axes.y(tick)
        yield f'<path class="grid" d="M{x} {start}V{end}M{start} {y}H{end}"/>'
        yield f'<text x="{x}" y="{end + 18}" text-anchor="middle">{tick:g}</text>'
        yield f'<text x="{start - 8}" y="{y + 4}" text-anchor="end">{tick:g}</text>'
    middle = SIZE / 2
    yield f'<text x="{middle}" y="{SIZE - 16}" text-anchor="middle">measured step time [s]</text>'
    turned = f'transform="rotate(-90 16 {middle})"'
    yield f'<text x="16" y="{middle}" text-anchor="middle" {turned}>predicted [s]</text>'

"""The report of a calibration: constants before and after, with what they leave unexplained."""

from rich.console import Group, RenderableType
from rich.text import Text

from cluster_specs.units import format_bandwidth, format_seconds
from planner.calibration.fitting import Calibration
from planner.report.console import columns, heading


def calibration_report(found: Calibration, files: tuple[str, ...]) -> RenderableType:
    """Tables of constants and of lines; ``files`` are those that were written.

    A residual is the median of ``|predicted / measured - 1|`` over the ``n`` samples, beside it the worst.
    """
    parts: list[RenderableType] = [
        Text(f"{found.base}, from {found.measurements:,} measurements"),
        heading("Constants"),
        _constants(found),
    ]
    if found.lines:
        parts += [heading("Collectives as latency + bytes / bandwidth"), _lines(found)]
    parts += [Text(""), *(Text(f"wrote {name}") for name in files)]
    return Group(*parts)


def _constants(found: Calibration) -> RenderableType:
    table = columns("field", "was", "is", "n", "residual", "worst", right="lrrrrr")
    for path, value in found.changes.items():
        fit = found.fitted[path]
        table.add_row(
            path,
            _value(path, found.before[path]),
            _value(path, value),
            str(fit.samples),
            f"{100 * fit.median_residual:.1f} %",
            f"{100 * fit.worst_residual:.1f} %",
        )
    return table


def _value(path: str, value: float) -> str:
    return format_seconds(value) if path.endswith(("latency", "launch")) else f"{value:.3g}"


def _lines(found: Calibration) -> RenderableType:
    table = columns(
        "collective", "algorithm", "ranks", "nodes", "latency", "bus bandwidth", "n", "residual",
        right="llrrrrrr",
    )  # fmt: skip
    for line in found.lines:
        table.add_row(
            line.collective,
            line.algorithm,
            str(line.ranks),
            str(line.nodes),
            format_seconds(line.latency),
            format_bandwidth(line.bus_bandwidth),
            str(line.samples),
            f"{100 * line.median_residual:.1f} %",
        )
    return table

"""How docs/accuracy.md writes numbers and tables."""

from collections.abc import Iterable, Sequence
from typing import Any


def percent(value: float | None, signed: bool = False) -> str:
    """``12.3 %``."""
    return "-" if value is None else f"{100 * value:{'+' if signed else ''}.1f} %"


def table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table, numbers to the right."""
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, rule, *lines)) + "\n"


def error_cells(found: Any) -> list[str]:
    """Cells of the median, the 90th percentile and the bias of errors."""
    return [percent(found.median_abs_error), percent(found.p90_abs_error), percent(found.bias, signed=True)]

"""Printing reports: on a terminal with colour and blocks, elsewhere as plain ASCII but for names."""

import sys
from io import StringIO
from typing import TextIO

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

BAR_WIDTH = 24
"""Characters of a full bar."""

_ASCII = str.maketrans(
    {"→": "->", "–": "-", "—": "-", "×": "x", "±": "+-", "µ": "u", "≤": "<=", "≥": ">=", "…": "..."}
)


class Bar:
    """A share of a whole as a horizontal bar: blocks on a terminal, ``#`` elsewhere."""

    def __init__(
        self, share: float, width: int = BAR_WIDTH, style: str = "cyan", frame: bool = False
    ) -> None:
        self.filled = round(min(1.0, max(0.0, share)) * width)
        self.width = width
        self.style = style
        self.frame = frame

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        size = self.width + (2 if self.frame else 0)
        return Measurement(size, size)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        plain = options.ascii_only or not console.is_terminal
        full, empty = ("#", "." if self.frame else " ") if plain else ("█", "░" if self.frame else " ")
        left, right = ("[", "]") if self.frame and plain else ("", "")
        yield Segment(left + full * self.filled, Style.parse(self.style))
        yield Segment(empty * (self.width - self.filled) + right)


def heading(text: str) -> Text:
    """The title of a part of a report, after an empty line."""
    return Text(f"\n{text}", style="bold")


def columns(*names: str, right: str = "") -> Table:
    """A table without lines; columns whose letter in ``right`` is ``r`` are aligned right."""
    table = Table(box=None, show_header=any(names), pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name, side in zip(names, right.ljust(len(names), "l"), strict=False):
        table.add_column(name, justify="right" if side == "r" else "left", overflow="fold")
    return table


def show(renderable: RenderableType, stream: TextIO | None = None) -> None:
    """Print a report on ``stream`` (stdout); width from ``COLUMNS``, colour by ``NO_COLOR``."""
    stream = stream or sys.stdout
    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    if console.is_terminal and not console.options.ascii_only:
        console.print(renderable)
    else:
        stream.write(to_text(renderable, console.width, stream.encoding or "ascii"))


def to_text(renderable: RenderableType, width: int = 100, encoding: str = "ascii") -> str:
    """A report as plain text of at most ``width`` columns, ASCII but for names that ``encoding`` has."""
    buffer = StringIO()
    console = Console(
        file=buffer,
        width=width,
        color_system=None,
        force_terminal=False,
        highlight=False,
        markup=False,
        emoji=False,
    )
    console.print(renderable)
    lines = (line.rstrip() for line in buffer.getvalue().translate(_ASCII).splitlines())
    return "".join(f"{line}\n" for line in lines).encode(encoding, "replace").decode(encoding)


__all__ = ["Bar", "Group", "columns", "heading", "show", "to_text"]

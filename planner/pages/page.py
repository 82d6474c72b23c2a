"""The frame that all pages share: one HTML document with its styles, scripts and data inside."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

TEMPLATES = Path(__file__).parent / "templates"

POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
"""Content security policy of a page: what it holds itself, and nothing from anywhere else."""

DOCUMENT = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>
{style}</style>
</head>
<body>
<main>
<h1>{title}</h1>
{body}
</main>
{scripts}
</body>
</html>
"""


class Table(NamedTuple):
    """Cells as text; the first of a row is its header."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    prose: bool = False
    """Cells are words to read, not numbers to compare."""
    numbered: bool = False
    """Rows are those of the page's data, in the same order, so that filters find them."""


class Figure(NamedTuple):
    """A chart, what to see in it, and the same as a table."""

    key: str
    title: str
    caption: str
    chart: Mapping[str, Any]
    """Vega-Lite specification; its data may be ``{"name": "rows"}``, the rows of the page."""
    table: Table
    wide: bool = False
    """Over the full width of the page."""


def template(name: str) -> str:
    """Text of a file that pages are made of."""
    return (TEMPLATES / name).read_text(encoding="utf-8")


def document(title: str, body: Iterable[str], scripts: Iterable[str] = ()) -> str:
    """A whole page: ``body`` and ``scripts`` are HTML."""
    return DOCUMENT.format(
        policy=POLICY,
        title=escape(title),
        style=template("page.css"),
        body="\n".join(body),
        scripts="\n".join(scripts),
    )


def data_script(key: str, data: Any) -> str:
    """Data for the scripts of a page; no text in it can end the element."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return f'<script type="application/json" id="{key}">{text}</script>'


def inline_module(name: str, call: str) -> str:
    """A script of ours inside the page, and what is called once it is there."""
    return f'<script type="module">\n{template(name).replace("export ", "")}{call}\n</script>'


def count(number: float) -> str:
    """A large number in few letters: ``1e12``, ``1.5e13``."""
    return f"{number:.3g}".replace("e+", "e")


def heading(text: str) -> str:
    """The title of a section."""
    return f"<h2>{escape(text)}</h2>"


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph of plain text."""
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def sentences(texts: Iterable[str]) -> Iterator[str]:
    """A paragraph for each, begun and ended as a sentence."""
    return (paragraph(f"{text[:1].upper()}{text[1:].rstrip('.')}.") for text in texts)


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Names and what they are, as a list."""
    lines = (f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in pairs)
    return f'<dl class="facts">{"".join(lines)}</dl>'


def cards(entries: Iterable[tuple[str, str, str]]) -> str:
    """The few numbers that matter most: name, value, and what it means."""
    boxes = (
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(remark)}</small></dd></div>"
        for name, value, remark in entries
    )
    return f'<dl class="cards">{"".join(boxes)}</dl>'


def table(content: Table) -> str:
    """A table that scrolls sideways where it is too wide."""
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in content.head)
    kind = ' class="text"' if content.prose else ""
    rows = "\n".join(_rows(content.rows, content.numbered))
    return (
        f'<div class="scroll" tabindex="0"><table{kind}><thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{rows}\n</tbody></table></div>"
    )


def _rows(rows: Sequence[Sequence[str]], numbered: bool) -> Iterator[str]:
    for number, (first, *rest) in enumerate(rows):
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in rest)
        mark = f' data-row="{number}"' if numbered else ""
        yield f'<tr{mark}><th scope="row">{escape(first)}</th>{cells}</tr>'


def figure(content: Figure) -> str:
    """A chart with title, caption and the table behind it."""
    key, name = escape(content.key), escape(content.title)
    wide = ' class="wide"' if content.wide else ""
    return (
        f'<figure id="{key}"{wide}><h2>{name}</h2><p>{escape(content.caption)}</p>\n'
        f'<div class="chart" data-chart="{key}" aria-label="{name}"></div>\n'
        f"<details><summary>The same as a table</summary>{table(content.table)}</details></figure>"
    )


def figures(contents: Iterable[Figure]) -> str:
    """Figures side by side where there is room."""
    return f'<div class="figures">{"".join(map(figure, contents))}</div>'

"""The page of a step: complete without a network, and in a real browser where one is installed."""

import json
import re
import struct
import zlib
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from browser import Page, browser_page, find_browser

from planner.evaluation.timeline import StepTimeline
from planner.pipeline.activations import Held
from planner.pipeline.generators import generate
from planner.pipeline.simulator import StageTimes, simulate
from planner.report.timeline_page import timeline_page

GIB = 2.0**30
TITLE = "a <model> & its plan"


def step_of(name: str = "zb-h1", p: int = 4, v: int = 1, m: int = 8) -> StepTimeline:
    times = StageTimes.uniform(p * v, 0.010, 0.012, 0.008)
    return StepTimeline(
        timeline=simulate(generate(name, p, v, m), times, 0.001),
        after=(("data", 0.0), ("optimizer", 0.020)),
        held=Held((1.0 * GIB,) * p * v, (2.0 * GIB,) * p * v),
        resident_bytes=(10 * GIB,) * p,
        optimizer_bytes=(5 * GIB,) * p,
        memory_limit_bytes=80 * GIB,
    )


def data_of(page: str) -> dict[str, list[list[list[float]]]]:
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', page)
    assert match
    loaded: dict[str, list[list[list[float]]]] = json.loads(match[1])
    return loaded


def test_the_page_holds_every_action() -> None:
    step = step_of()
    data = data_of(timeline_page(step, TITLE))
    for rows, actions, starts in zip(
        data["ranks"], step.timeline.schedule.ranks, step.timeline.starts, strict=True
    ):
        assert [tuple(row[:3]) for row in rows] == [tuple(action) for action in actions]
        assert [row[3] for row in rows] == pytest.approx(starts, abs=1e-9)
    assert data["step"] == pytest.approx(step.step_seconds)
    assert max(held for _, held in data["memory"][0]) == max(held for _, held in step.memory_over_time()[0])


def test_nothing_is_fetched_and_text_is_escaped() -> None:
    page = timeline_page(step_of(), TITLE)
    assert "<title>a &lt;model&gt; &amp; its plan</title>" in page
    assert "{{" not in page

    class Sources(HTMLParser):
        found: list[str | None] = []

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.found += [value for name, value in attrs if name in ("src", "href")]

    sources = Sources()
    sources.feed(page)
    assert sources.found == ["data:,"]


def test_the_table_accounts_for_every_rank() -> None:
    page = timeline_page(step_of(), TITLE)
    rows = re.findall(r'<tr><th scope="row">(\d)</th>(.*?)</tr>', page)
    assert [rank for rank, _ in rows] == ["0", "1", "2", "3"]
    first = re.findall("<td>(.*?)</td>", rows[0][1])
    assert first[:3] == ["0", "240 ms", "0 s"]  # stage 0; 8 x 30 ms of work; it does not wait to start
    assert first[-2:] == ["4", "22 GiB"]  # in flight, 10 + 4 x 3 GiB


# In a browser ----------------------------------------------------------------------------------------------

needs_browser = pytest.mark.skipif(find_browser() is None, reason="no Chromium is installed")


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    browser = find_browser()
    assert browser
    with browser_page(browser, tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def opened(tab: Page, tmp_path: Path) -> Page:
    file = tmp_path / "step.html"
    file.write_text(timeline_page(step_of(), TITLE), encoding="utf-8")
    tab.open(file)
    return tab


def middle_of(page: Page, selector: str, number: int = 0) -> tuple[float, float]:
    script = (
        f"(() => {{ const box = document.querySelectorAll({selector!r})[{number}].getBoundingClientRect();"
        "return [box.x + box.width / 2, box.y + box.height / 2]; })()"
    )
    x, y = page.evaluate(script)
    return x, y


@needs_browser
def test_it_loads_offline_without_complaint(opened: Page) -> None:
    assert opened.evaluate("document.title") == TITLE
    assert opened.evaluate("document.querySelectorAll('#gantt rect.F').length") == 4 * 8
    assert opened.evaluate("document.querySelectorAll('#gantt rect.W').length") == 4 * 8
    assert opened.evaluate("document.querySelectorAll('#memory path.held').length") == 4
    assert opened.evaluate("document.querySelectorAll('#memory line.limit').length") == 4
    assert opened.complaints() == []


@needs_browser
def test_pointing_at_an_action_shows_its_facts(opened: Page) -> None:
    opened.point(*middle_of(opened, "#gantt rect.F", 2))
    tip = opened.evaluate("document.getElementById('tip').textContent").splitlines()
    assert tip == [
        "rank 0 at 25.000 ms",
        "0F2: forward of micro-batch 2, stage 0",
        "starts 20.000 ms, takes 10.000 ms",
        "then 1.000 ms to rank 1",
        "memory 19.00 GiB of 80.00 GiB",
    ]
    assert opened.evaluate("getComputedStyle(document.getElementById('tip')).display") == "block"
    # The same micro-batch elsewhere: F, I and W on four ranks.
    assert opened.evaluate("document.querySelectorAll('#gantt rect.same').length") == 12
    opened.point(*middle_of(opened, "h1"))
    assert opened.evaluate("getComputedStyle(document.getElementById('tip')).display") == "none"
    opened.point(*middle_of(opened, "#memory path.held", 1))
    assert "GiB of 80.00 GiB" in opened.evaluate("document.getElementById('tip').textContent")
    assert opened.complaints() == []


@needs_browser
def test_idle_time_and_what_follows_the_pipeline_have_facts_too(opened: Page) -> None:
    x, y = middle_of(opened, "#gantt rect.F", 0)
    below = middle_of(opened, "#gantt rect.lane", 3)[1]
    opened.point(x, below)
    assert "idle for 33.000 ms" in opened.evaluate("document.getElementById('tip').textContent")
    opened.point(*middle_of(opened, "#gantt rect.after", 0))
    assert "optimizer: 20.000 ms" in opened.evaluate("document.getElementById('tip').textContent")


@needs_browser
def test_the_wheel_zooms_and_the_button_goes_back(opened: Page) -> None:
    wide = "document.querySelector('#gantt rect.F').getBoundingClientRect().width"
    before = opened.evaluate(wide)
    x, y = middle_of(opened, "#gantt rect.F", 0)
    x -= before / 2 - 0.01  # what is at the pointer stays there: the start of the step
    for _ in range(3):
        opened.point(x, y, "mouseWheel", deltaX=0, deltaY=-100)
    assert opened.evaluate(wide) == pytest.approx(before / 0.8**3, rel=0.02)
    opened.evaluate("document.getElementById('whole').click()")
    assert opened.evaluate(wide) == pytest.approx(before, rel=0.01)
    assert opened.complaints() == []


@needs_browser
@pytest.mark.parametrize("dark", [False, True])
def test_a_screenshot_has_the_bars(tab: Page, tmp_path: Path, dark: bool) -> None:
    file = tmp_path / "step.html"
    file.write_text(timeline_page(step_of(), TITLE), encoding="utf-8")
    tab.open(file, dark=dark)
    colours = Counter(pixels(tab.screenshot("#gantt")))
    lane = (0x1C, 0x22, 0x2B) if dark else (0xF3, 0xF5, 0xF8)
    assert colours[lane] > 10_000
    bars = (
        {"F": (0x5A, 0x9B, 0xF0), "W": (0xE0, 0xA8, 0x3E)}
        if dark
        else {"F": (0x3B, 0x7D, 0xD8), "W": (0xC9, 0x8A, 0x1B)}
    )
    work = step_of().timeline.makespan + 0.020
    lanes = 26 * (1280 - 2 * 32 - 64)
    for name, seconds in (("F", 0.010), ("W", 0.008)):
        share = 4 * 8 * seconds / work * lanes
        assert colours[bars[name]] == pytest.approx(share, rel=0.2)  # labels and outlines take a little


@needs_browser
def test_ten_thousand_actions_are_drawn_at_once(tab: Page, tmp_path: Path) -> None:
    """Narrow actions are merged, so that the page stays quick."""
    file = tmp_path / "large.html"
    file.write_text(timeline_page(step_of("1f1b", 8, 1, 640), TITLE), encoding="utf-8")
    tab.open(file)
    assert 8 < tab.evaluate("document.querySelectorAll('#gantt rect').length") < 8 * 1400
    assert (
        tab.evaluate("(() => { const t = performance.now(); draw(); return performance.now() - t; })()")
        < 1000
    )
    assert tab.complaints() == []


def pixels(png: bytes) -> Iterator[tuple[int, int, int]]:
    """Colours of an 8-bit RGB or RGBA image without interlacing."""
    width, height, _, kind = struct.unpack(">IIBB", png[16:26])
    size = {2: 3, 6: 4}[kind]
    chunks, at = b"", 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        chunks += png[at + 8 : at + 8 + length] if png[at + 4 : at + 8] == b"IDAT" else b""
        at += length + 12
    raw, line = zlib.decompress(chunks), bytes(width * size)
    for row in range(height):
        start = row * (width * size + 1)
        line = unfilter(raw[start], raw[start + 1 : start + 1 + width * size], line, size)
        for x in range(0, width * size, size):
            yield line[x], line[x + 1], line[x + 2]


def unfilter(kind: int, row: bytes, above: bytes, size: int) -> bytes:
    """One line of a PNG: each byte is the difference from its left, upper, mean or Paeth neighbour."""
    out = bytearray(row)
    for x in range(len(out)):
        left = out[x - size] if x >= size else 0
        corner = above[x - size] if x >= size else 0
        out[x] = (
            out[x] + (0, left, above[x], (left + above[x]) // 2, paeth(left, above[x], corner))[kind]
        ) % 256
    return bytes(out)


def paeth(left: int, above: int, corner: int) -> int:
    return min((left, above, corner), key=lambda near: abs(left + above - corner - near))

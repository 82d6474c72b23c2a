"""The page of a step: complete without a network, and in a real browser where one is installed."""

import json
import re
from collections import Counter
from typing import Any

import pytest
from browser import Page, Show, needs_browser
from reading import fetched, pixels

from planner.evaluation.timeline import StepTimeline
from planner.pages.timeline import drawing, drawing_data, timeline_page
from planner.pipeline.activations import Held
from planner.pipeline.generators import generate
from planner.pipeline.simulator import StageTimes, simulate

GIB = 2.0**30
TITLE = "a <model> & its plan"


def step_of(name: str = "zb-h1", p: int = 4, v: int = 1, m: int = 8) -> StepTimeline:
    times = StageTimes.uniform(p * v, 0.010, 0.012, 0.008)
    ran = simulate(generate(name, p, v, m), times, 0.001)
    return StepTimeline(
        timeline=ran,
        after=(("data", 0.004), ("optimizer", 0.020)),
        held=Held((1.0 * GIB,) * p * v, (2.0 * GIB,) * p * v),
        resident_bytes=(10 * GIB,) * p,
        optimizer_bytes=(5 * GIB,) * p,
        memory_limit_bytes=80 * GIB,
        reduces=tuple((row[-1], row[-1] + 0.004) for row in ran.ends),
    )


def data_of(page: str) -> dict[str, Any]:
    match = re.search(r'<script type="application/json" id="step">(.*?)</script>', page)
    assert match
    loaded: dict[str, Any] = json.loads(match[1])
    return loaded


def test_the_page_holds_every_action() -> None:
    step = step_of()
    data = data_of(timeline_page(step, TITLE))
    for rows, actions, starts in zip(
        data["ranks"], step.timeline.schedule.ranks, step.timeline.starts, strict=True
    ):
        drawn = [(*data["kinds"][kind][:2], microbatch) for kind, microbatch, _ in rows]
        assert drawn == [tuple(action) for action in actions]
        assert [start for _, _, start in rows] == pytest.approx(starts, abs=1e-9)
        lengths = [data["kinds"][kind][2] for kind, _, _ in rows]
        assert {round(length, 6) for length in lengths} == {0.010, 0.012, 0.008}
    assert data["step"] == pytest.approx(step.step_seconds)
    assert max(held for _, held in data["memory"][0]) == max(held for _, held in step.memory_over_time()[0])


def test_of_many_actions_the_first_are_drawn() -> None:
    step = step_of()
    whole, part = data_of(timeline_page(step, TITLE)), data_of(drawing_data(step, 40))
    assert 40 <= sum(map(len, part["ranks"])) <= 44
    assert part["ranks"] == [
        rows[: len(first)] for rows, first in zip(whole["ranks"], part["ranks"], strict=True)
    ]
    assert part["step"] < whole["step"]
    assert part["after"] == []
    assert "are drawn" in drawing(step, 40)
    assert "are drawn" not in drawing(step)


def test_nothing_is_fetched_and_text_is_escaped() -> None:
    page = timeline_page(step_of(), TITLE)
    assert "<title>a &lt;model&gt; &amp; its plan</title>" in page
    assert "{{" not in page
    assert fetched(page) == ["data:,"]


def test_the_table_accounts_for_every_rank() -> None:
    page = timeline_page(step_of(), TITLE)
    rows = re.findall(r'<tr><th scope="row">(\d)</th>(.*?)</tr>', page)
    assert [rank for rank, _ in rows] == ["0", "1", "2", "3"]
    first = re.findall("<td>(.*?)</td>", rows[0][1])
    assert first[:3] == ["0", "240 ms", "0 s"]  # stage 0; 8 x 30 ms of work; it does not wait to start
    assert first[-2:] == ["4", "22 GiB"]  # in flight, 10 + 4 x 3 GiB


# In a browser ----------------------------------------------------------------------------------------------


@pytest.fixture
def opened(show: Show) -> Page:
    return show(timeline_page(step_of(), TITLE))


@needs_browser
def test_it_loads_offline_without_complaint(opened: Page) -> None:
    assert opened.evaluate("document.title") == TITLE
    assert opened.count("#gantt rect.F") == 4 * 8
    assert opened.count("#gantt rect.W") == 4 * 8
    assert opened.count("#memory path.held") == 4
    assert opened.count("#memory line.limit") == 4
    assert opened.complaints() == []


@needs_browser
def test_pointing_at_an_action_shows_its_facts(opened: Page) -> None:
    opened.point(*opened.middle_of("#gantt rect.F", 2))
    tip = opened.text("#tip").splitlines()
    assert tip == [
        "rank 0 at 25.000 ms",
        "0F2: forward of micro-batch 2, stage 0",
        "starts 20.000 ms, takes 10.000 ms",
        "then 1.000 ms to rank 1",
        "memory 19.00 GiB of 80.00 GiB",
    ]
    assert opened.evaluate("getComputedStyle(document.getElementById('tip')).display") == "block"
    # The same micro-batch elsewhere: F, I and W on four ranks.
    assert opened.count("#gantt rect.same") == 12
    opened.point(*opened.middle_of("h1"))
    assert opened.evaluate("getComputedStyle(document.getElementById('tip')).display") == "none"
    opened.point(*opened.middle_of("#memory path.held", 1))
    assert "GiB of 80.00 GiB" in opened.text("#tip")
    assert opened.complaints() == []


@needs_browser
def test_idle_time_and_what_follows_the_pipeline_have_facts_too(opened: Page) -> None:
    x, y = opened.middle_of("#gantt rect.F", 0)
    below = opened.middle_of("#gantt rect.lane", 3)[1]
    opened.point(x, below)
    assert "idle for 33.000 ms" in opened.text("#tip")
    opened.point(*opened.middle_of("#gantt rect.after", 1))
    assert "optimizer: 20.000 ms" in opened.text("#tip")


@needs_browser
def test_gradients_that_are_exchanged_while_others_drain_are_drawn(opened: Page) -> None:
    step = step_of()
    first, last = step.timeline.ends[1][-1], step.timeline.makespan
    assert first + 0.004 < last  # rank 1 is done before the step is
    lane = opened.evaluate("document.querySelector('#gantt rect.lane').getBoundingClientRect().toJSON()")
    _, y = opened.middle_of("#gantt rect.lane", 1)
    opened.point(lane["x"] + (first + 0.002) / step.step_seconds * lane["width"], y)
    assert opened.text("#tip").splitlines()[2] == "data: 4.000 ms"


@needs_browser
def test_the_wheel_zooms_and_the_button_goes_back(opened: Page) -> None:
    wide = "document.querySelector('#gantt rect.F').getBoundingClientRect().width"
    before = opened.evaluate(wide)
    x, y = opened.middle_of("#gantt rect.F", 0)
    x -= before / 2 - 0.01  # what is at the pointer stays there: the start of the step
    for _ in range(3):
        opened.point(x, y, "mouseWheel", deltaX=0, deltaY=-100)
    assert opened.evaluate(wide) == pytest.approx(before / 0.8**3, rel=0.02)
    opened.evaluate("document.getElementById('whole').click()")
    assert opened.evaluate(wide) == pytest.approx(before, rel=0.01)
    assert opened.complaints() == []


@needs_browser
def test_keys_do_what_wheel_and_drag_do(opened: Page) -> None:
    ticks = "[...document.querySelectorAll('#gantt text')].map(text => text.textContent).join()"
    whole = opened.evaluate(ticks)
    opened.evaluate("document.getElementById('gantt').focus()")
    seen = [whole]
    for key in ("+", "ArrowRight", "ArrowLeft", "-"):
        opened.call("Input.dispatchKeyEvent", type="keyDown", key=key)
        seen.append(opened.evaluate(ticks))
        assert seen[-1] != seen[-2]
    assert seen[1] == seen[3]
    assert seen[4] == whole
    for key in ("+", "Home"):
        opened.call("Input.dispatchKeyEvent", type="keyDown", key=key)
    assert opened.evaluate(ticks) == whole


@needs_browser
@pytest.mark.parametrize("dark", [False, True])
def test_a_screenshot_has_the_bars(show: Show, dark: bool) -> None:
    page = show(timeline_page(step_of(), TITLE), dark=dark)
    colours = Counter(pixels(page.screenshot("#gantt")))
    lane = (0x1C, 0x22, 0x2B) if dark else (0xF3, 0xF5, 0xF8)
    assert colours[lane] > 10_000
    bars = (
        {"F": (0x5A, 0x9B, 0xF0), "W": (0xE0, 0xA8, 0x3E)}
        if dark
        else {"F": (0x3F, 0x82, 0xDE), "W": (0xBF, 0x82, 0x18)}
    )
    work = step_of().step_seconds
    lanes = 26 * page.evaluate("document.querySelector('#gantt rect.lane').width.baseVal.value")
    for name, seconds in (("F", 0.010), ("W", 0.008)):
        share = 4 * 8 * seconds / work * lanes
        assert colours[bars[name]] == pytest.approx(share, rel=0.2)  # labels and outlines take a little


@needs_browser
def test_ten_thousand_actions_are_drawn_at_once(show: Show) -> None:
    """Narrow actions are merged, so that the page stays quick."""
    page = show(timeline_page(step_of("1f1b", 8, 1, 640), TITLE))
    assert 8 < page.count("#gantt rect") < 8 * 1400
    again = "const t = performance.now(); dispatchEvent(new Event('resize')); return performance.now() - t;"
    assert page.evaluate(f"(() => {{ {again} }})()") < 1000
    assert page.complaints() == []

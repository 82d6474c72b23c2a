"""The page of a plan: everything a reader needs, drawn in a real browser where one is installed."""

import re
from collections import Counter

import pytest
from browser import Page, Show, needs_browser
from reading import fetched, pixels

from planner import api
from planner.errors import InputError
from planner.pages.plan import Content, plan_content, plan_page
from planner.plans import Parallelism, Plan

pytest.importorskip("vl_convert")

FIGURES = ["memory-by-rank", "time", "sensitivity", "roofline", "scaling", "contenders"]

MOST_BYTES = 5e6
"""Of a page that is to be mailed."""


@pytest.fixture(scope="module")
def content() -> Content:
    found = api.plan("llama-3.2-1b", "dgx-h100:2", global_batch=64, seq_len=2048, pipeline=4)
    return plan_content(found, ("micro_batch=1",))


@pytest.fixture(scope="module")
def page(content: Content) -> str:
    return plan_page(content)


def test_it_says_what_to_run_and_what_that_rests_on(page: str, content: Content) -> None:
    text = re.sub(r"<[^>]+>", " ", page[page.index("<main>") : page.index("</main>")])
    plan = content.plan
    assert plan.estimate is not None
    for fact in (
        "llama-3.2-1b on dgx-h100:2 (16 devices)",
        "It fits",
        f"{plan.estimate.mfu:.1%}",
        "pipeline 4",
        plan.explanation,
        "so assumed: micro_batch=1",
        *plan.cluster.sources.values(),
    ):
        assert " ".join(fact.split()) in " ".join(text.split()).replace("&#x27;", "'").replace("&quot;", '"')


def test_every_figure_has_a_table(page: str, content: Content) -> None:
    assert [figure.key for figure in content.figures] == FIGURES
    for figure in content.figures:
        assert len(figure.table.rows) >= 1
        assert {len(row) for row in figure.table.rows} == {len(figure.table.head)}


def test_memory_and_time_add_up(content: Content) -> None:
    estimate = content.plan.estimate
    assert estimate is not None
    bars = {figure.key: figure.chart["data"]["values"] for figure in content.figures}
    assert sum(bar["value"] for bar in bars["time"]) == pytest.approx(estimate.step_time_s)
    by_rank = Counter[str]()
    for bar in bars["memory-by-rank"]:
        by_rank[bar["rank"]] += bar["gib"]
    assert len(by_rank) == 4
    assert max(by_rank.values()) * 2**30 == pytest.approx(estimate.memory_bytes)


def test_it_is_one_file_that_is_small_enough_to_mail(page: str) -> None:
    assert len(page.encode()) < MOST_BYTES
    assert fetched(page) == ["data:,"]
    assert "default-src 'none'" in page


def test_the_same_plan_gives_the_same_bytes(page: str, content: Content) -> None:
    assert plan_page(plan_content(content.plan, content.assumed)) == page


def test_one_device_and_no_alternatives(plan: Plan) -> None:
    single = api.judged(
        api.plan("llama-3.2-1b", "dgx-h100:1", global_batch=8, seq_len=512, tensor=1, pipeline=1, top=1)
    )
    content = plan_content(single)
    assert "contenders" not in [figure.key for figure in content.figures]
    assert 'id="gantt"' not in plan_page(content)


def test_a_plan_that_does_not_fit_says_so() -> None:
    tight = api.plan("llama-3.2-1b", "dgx-h100:1", global_batch=64, seq_len=2048)
    choice = Parallelism(data=8, micro_batch=8, num_microbatches=1, recompute="none")
    job = tight.job.model_copy(update={"seq_len": 32768})
    large = api.judged(
        tight.model_copy(update={"plan": choice, "job": job, "alternatives": (), "optimality": None})
    )
    page = plan_page(plan_content(large))
    assert "It does not fit" in page


def test_a_plan_without_an_estimate_is_refused(plan: Plan) -> None:
    with pytest.raises(InputError, match="no estimate"):
        plan_content(plan.model_copy(update={"estimate": None}))


# In a browser ----------------------------------------------------------------------------------------------


@needs_browser
@pytest.mark.parametrize(("dark", "width"), [(False, 1280), (True, 1280), (False, 420)])
def test_it_loads_offline_and_every_figure_has_marks(show: Show, page: str, dark: bool, width: int) -> None:
    opened = show(page, dark=dark, width=width)
    assert opened.complaints() == []
    for key in FIGURES:
        assert opened.count(f"#{key} svg [role=graphics-symbol]") > 0, key
    assert opened.count("#gantt rect.F") > 0
    assert opened.evaluate("document.documentElement.scrollWidth") <= width


@needs_browser
def test_pointing_at_a_bar_shows_its_facts(show: Show, page: str) -> None:
    opened = show(page)
    opened.point(*opened.middle_of("#time .mark-rect path"))
    opened.wait_for("document.querySelector('#vg-tooltip-element.visible') !== null")
    assert "compute" in opened.text("#vg-tooltip-element")


@needs_browser
def test_tables_open_from_the_keyboard(show: Show, page: str) -> None:
    opened = show(page)
    opened.evaluate("document.querySelector('#memory-by-rank summary').focus()")
    for kind in ("keyDown", "keyUp"):
        opened.call(
            "Input.dispatchKeyEvent",
            type=kind,
            key="Enter",
            code="Enter",
            text="\r",
            windowsVirtualKeyCode=13,
        )
    assert opened.evaluate("document.querySelector('#memory-by-rank details').open")
    assert (
        opened.evaluate("document.querySelector('#memory-by-rank table').getBoundingClientRect().height") > 0
    )


@needs_browser
@pytest.mark.parametrize("dark", [False, True])
def test_a_screenshot_has_the_bars_in_the_colours_of_the_scheme(show: Show, page: str, dark: bool) -> None:
    opened = show(page, dark=dark)
    colours = Counter(pixels(opened.screenshot("#time .chart")))
    back, bar = ((0x14, 0x18, 0x1F), (0x6E, 0xA3, 0xE8)) if dark else ((0xFF,) * 3, (0x3B, 0x6F, 0xB6))
    assert colours.most_common(1)[0][0] == back
    assert colours[bar] > 2_000


@needs_browser
def test_it_prints_in_black_on_white(show: Show, page: str) -> None:
    opened: Page = show(page, dark=True)
    pdf = opened.call("Page.printToPDF", printBackground=True)["data"]
    assert len(pdf) > 50_000
    opened.call("Emulation.setEmulatedMedia", media="print", features=[])
    assert opened.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    opened.call("Emulation.setEmulatedMedia", media="", features=[])

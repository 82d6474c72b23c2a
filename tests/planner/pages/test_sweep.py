"""The page of a sweep: every point in the data, the charts and the table, and filters that hold them together."""

import json
import re

import pytest
from browser import Page, Show, needs_browser
from reading import fetched

from planner.pages.sweep import Content, sweep_content, sweep_page
from planner.sweep.running import sweep

pytest.importorskip("vl_convert")


@pytest.fixture(scope="module")
def content() -> Content:
    axes = {
        "model": ["llama-3.2-1b"],
        "cluster": ["dgx-h100", "dgx-a100-80g"],
        "devices": [8, 16],
        "seq_len": [1024],
        "global_batch": [64],
        "precision": ["bf16", "fp8"],
    }
    return sweep_content(sweep(axes))


@pytest.fixture(scope="module")
def page(content: Content) -> str:
    return sweep_page(content)


def test_rows_are_the_points_in_their_order(content: Content) -> None:
    points = content.sweep.points
    assert len(content.rows) == len(points) == 8
    for row, point in zip(content.rows, points, strict=True):
        assert row["asked:cluster"] == point.inputs.cluster
        assert row["asked:precision"] == point.inputs.precision
        assert "asked:model" not in row  # not varied
        if point.estimate is None:
            assert row["days"] is None
        else:
            assert point.economics is not None
            assert row["rate"] == point.estimate.tokens_per_s
            assert row["days"] * 86400 == pytest.approx(point.economics.time_to_train_s)
            assert row["cost"] == point.economics.cost


def test_what_has_no_plan_says_why(page: str, content: Content) -> None:
    reasons = {point.reason for point in content.sweep.points if point.reason}
    assert len(reasons) == 1  # an A100 has no fp8
    assert "No plan" in page
    assert "has no fp8 rate" in page


def test_every_number_of_the_page_has_its_source(page: str, content: Content) -> None:
    for point in content.sweep.points:
        for text in point.economics.assumed.values() if point.economics else ():
            assert text.split(":")[-1] in page.replace("&#x27;", "'").replace("&amp;", "&")
    assert fetched(page) == ["data:,"]


def test_filters_are_what_was_varied(page: str) -> None:
    assert re.findall(r'<select name="asked:(\w+)"', page) == ["cluster", "devices", "precision"]
    script = re.search(r'id="charts">(.*?)</script>', page)
    assert script
    assert len(json.loads(script[1])["rows"]) == 8


def test_a_sweep_without_any_plan_has_a_page_too() -> None:
    axes = {
        "model": ["llama-3.1-405b"],
        "cluster": ["dgx-h100"],
        "devices": [8],
        "seq_len": [8192],
        "global_batch": [64],
    }
    nothing = sweep_content(sweep(axes))
    assert nothing.figures == ()
    page = sweep_page(nothing)
    assert "1 points, 0 with a plan" in page
    assert "No plan" in page


def test_a_long_sweep_folds_its_table_and_counts_what_it_leaves_out(content: Content) -> None:
    sweep = content.sweep
    long = sweep.model_copy(
        update={"points": sweep.points * 20, "recommended": tuple(n for n in range(160) if n % 8 == 0)}
    )
    page = sweep_page(sweep_content(long))
    assert "<summary>All 160 points</summary>" in page
    assert "12 more are in the table" in page
    assert page.count("<summary>All") == 1


# In a browser ----------------------------------------------------------------------------------------------


def test_recommended_points_say_what_their_time_hangs_on(content: Content) -> None:
    figure = next(figure for figure in content.figures if figure.key == "sensitivity")
    bars = figure.chart["data"]["values"]
    for number in content.sweep.recommended:
        point = content.sweep.points[number]
        saved = {bar["what"]: bar["saved"] for bar in bars if bar["point"] == content.rows[number]["label"]}
        assert saved == {each.what: each.time_saved_fraction for each in point.sensitivity}


FIGURES = ("front", "throughput", "efficiency", "headroom")


def choose(page: Page, name: str, value: str) -> None:
    page.evaluate(
        f"(() => {{ const select = document.querySelector('select[name=\"asked:{name}\"]');"
        f"select.value = {value!r}; select.dispatchEvent(new Event('change')); }})()"
    )


def points(page: Page, figure: str) -> int:
    return page.count(f"#{figure} .mark-symbol.role-mark path")


@needs_browser
@pytest.mark.parametrize(("dark", "width"), [(False, 1280), (True, 420)])
def test_every_figure_has_a_mark_for_every_plan(show: Show, page: str, dark: bool, width: int) -> None:
    opened = show(page, dark=dark, width=width)
    assert opened.complaints() == []
    assert [points(opened, figure) for figure in FIGURES] == [6, 6, 6, 6]
    assert opened.evaluate("document.documentElement.scrollWidth") <= width


@needs_browser
def test_filters_keep_charts_and_tables_together(show: Show, page: str) -> None:
    opened = show(page)
    shown = "#front ~ * tr[data-row]:not([hidden]), table tr[data-row]:not([hidden])"
    every = opened.count(shown)
    choose(opened, "precision", "fp8")
    opened.wait_for("document.querySelector('.shown').textContent === '4 of 8 shown'")
    opened.wait_for("document.querySelectorAll('#headroom .mark-symbol.role-mark path').length === 2")
    assert [points(opened, figure) for figure in FIGURES] == [2, 2, 2, 2]
    assert opened.count(shown) == every / 2
    choose(opened, "cluster", "dgx-a100-80g")
    opened.wait_for("document.querySelectorAll('#headroom .mark-symbol.role-mark path').length === 0")
    choose(opened, "cluster", "")
    choose(opened, "precision", "")
    opened.wait_for("document.querySelectorAll('#headroom .mark-symbol.role-mark path').length === 6")
    assert opened.count(shown) == every
    assert opened.complaints() == []


@needs_browser
def test_symbols_of_legends_can_be_seen_in_the_dark(show: Show, page: str) -> None:
    opened = show(page, dark=True)
    fills = opened.evaluate(
        "[...document.querySelectorAll('#front .role-legend-symbol path')].map(p => getComputedStyle(p).fill)"
    )
    assert len(fills) == 3 + 3  # verdicts, and series that have a plan
    assert "rgb(0, 0, 0)" not in fills

"""The page of measured and predicted step times."""

import pytest
from browser import Show, needs_browser

from planner.pages.parity import parity_page
from planner.validation import Prediction, Row, Scored, ValidationReport, summarize

pytest.importorskip("vl_convert")


def report_of(seconds: list[float]) -> ValidationReport:
    rows = [
        Row(
            id=f"run<{i}>",
            predicted=Prediction(
                step_time_s=1.1 * measured,
                tokens_per_s_per_gpu=1,
                mfu=0.4,
                memory_gib_per_gpu=10,
                tensor_gib_per_gpu=9,
                fits=True,
            ),
            step_time_error=0.1,
        )
        for i, measured in enumerate(seconds)
    ]
    scored = [Scored(row, {"series": "one"}, "group", None) for row in rows]
    scored.append(Scored(Row(id="odd", skipped="precision 'int8-AQT' has no equivalent here"), {}, "", None))
    return ValidationReport(rows=tuple(s.row for s in scored), summary=summarize(scored))


def test_every_run_has_a_row() -> None:
    page = parity_page(report_of([1.0, 10.0, 100.0]))
    assert "3 runs; median error 10.0%" in page
    assert page.count("run&lt;") == 3
    assert "+10.0%" in page


def test_without_runs_there_is_a_page_that_says_so() -> None:
    assert "nothing to show" in parity_page(report_of([]))


@needs_browser
def test_points_lie_above_the_diagonal(show: Show) -> None:
    page = show(parity_page(report_of([1.0, 10.0, 100.0])))
    centres = page.evaluate(
        "[...document.querySelectorAll('#parity .mark-symbol path')].map(path => "
        "{ const box = path.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; })"
    )
    assert len(centres) == 3
    # Ten times the seconds is as far on both axes, in their own scale.
    (x0, y0), (x1, y1), (x2, y2) = centres
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.5)
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.5)
    assert page.count("#parity .mark-line path") == 1
    assert page.complaints() == []

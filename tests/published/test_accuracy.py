"""Errors on published runs do not grow beyond those recorded by ``benchmarks/accuracy.py``."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import accuracy
import intervals
import judging
import pytest
import stalls
import versions

from planner import validation

HERE = Path(__file__).parent
RECORDED: dict[str, float] = json.loads((HERE / "errors.json").read_text())
SLACK = 0.01
"""Absolute; a change that costs more on any figure has to say why and record it anew."""


@pytest.fixture(scope="module")
def measured() -> tuple[dict[str, Any], dict[str, Any]]:
    """Every file's verdicts and report."""
    judged, reports = {}, {}
    for name in (*judging.RUNS, *judging.LIVE):
        judged[name], reports[name] = judging.judge(name)
    return judged, reports


def test_errors_do_not_grow(measured: tuple[dict[str, Any], dict[str, Any]]) -> None:
    judged, reports = measured
    now = accuracy.recorded(judged, reports)
    assert now.keys() == RECORDED.keys()
    worse = {name: (RECORDED[name], value) for name, value in now.items() if value > RECORDED[name] + SLACK}
    assert not worse


def test_what_is_written_is_what_is_measured(measured: tuple[dict[str, Any], dict[str, Any]]) -> None:
    stale = [path.name for path, text in accuracy.written(*measured).items() if path.read_text() != text]
    assert not stale, "run python benchmarks/accuracy.py"


def test_no_series_is_in_both_splits(measured: tuple[dict[str, Any], dict[str, Any]]) -> None:
    judged, _ = measured
    splits: dict[str, set[str]] = {}
    for rows in judged.values():
        for row in rows:
            splits.setdefault(row.series, set()).add((row.split, row.mixture))
    both = {series for series, found in splits.items() if len({split for split, _ in found}) > 1}
    assert both <= judging.MOVED_SERIES | judging.MOVED_DENSE
    assert all(
        splits[series] == {("fit", series in judging.MOVED_SERIES), ("report", series in judging.MOVED_DENSE)}
        for series in both
    )
    assert splits.keys() >= judging.FIT_SERIES | judging.INTERVAL_SERIES


def test_every_second_series_of_mixtures_was_moved(measured: tuple[dict[str, Any], dict[str, Any]]) -> None:
    judged, _ = measured
    timed = {
        row.series
        for name in judging.RUNS
        for row in judged[name]
        if row.mixture and row.row.step_time_error is not None and row.series not in judging.FIT_SERIES
    }
    assert [series for series in sorted(timed) if series in judging.MIXTURE_SERIES] == list(
        judging.MIXTURE_SERIES
    )


def test_the_model_beats_a_constant_mfu_where_nothing_was_fitted(
    measured: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    judged, _ = measured
    rows = [r for name in judging.RUNS for r in judged[name] if r.split == "report"]
    ours = [abs(r.row.step_time_error) for r in rows if r.row.step_time_error is not None]
    peer = [abs(r.baseline_error) for r in rows if r.baseline_error is not None]
    assert len(ours) == len(peer) > 150
    assert sorted(ours)[len(ours) // 2] < sorted(peer)[len(peer) // 2] / 2


def test_most_measurements_lie_inside_the_interval(
    measured: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    judged, _ = measured
    rows = [r for name in judging.RUNS for r in judged[name] if r.split == "report"]
    share = judging.inside(rows)
    assert 0.7 < share < 0.95


def test_stalls_are_found_and_explain_the_order(measured: tuple[dict[str, Any], dict[str, Any]]) -> None:
    judged, _ = measured
    stalled, found = stalls.orders(judged["sweep_h100"])
    everything, beforehand, steady, ceiling = found.values()
    assert 0 < stalled < len(judged["sweep_h100"]) / 3
    assert beforehand.median < min(everything.median, ceiling.median)
    assert everything.median < steady.median


def test_versions_are_what_misorders_the_sweep(measured: tuple[dict[str, Any], dict[str, Any]]) -> None:
    judged, _ = measured
    runs = versions.versions_of(judged["sweep_h100"])
    found, ours = versions.attainable(runs), stalls.groups(judged["sweep_h100"])
    assert len(found) == 13
    assert all(0 < share < 0.2 for share in versions.shares(runs).values())
    assert min(group.told for group in found.values()) > 0.98
    assert min(ours[name][0].spearman or 0.0 for name in found) < 0.9
    assert sum((ours[name][0].spearman or 0.0) >= group.tenth - 0.005 for name, group in found.items()) >= 11


def test_an_order_without_versions_is_lost_to_repeats_alone() -> None:
    def runs(slower: float | None, measured: float = 1.0) -> list[versions.Versions]:
        return [
            versions.Versions(("m", 1), "s", 2.0**n, slower and slower * 2.0**n, measured * 2.0**n)
            for n in range(8)
        ]

    known = versions.attainable(runs(None))["m", 1]
    assert known.tenth == known.median == known.told == pytest.approx(1.0)  # doublings are no matter of 4 %
    assert versions.shares(runs(100.0, measured=1.1)) == {"s": 0.0}
    assert versions.shares(runs(100.0, measured=90.0)) == {"s": 1.0}
    half = [*runs(100.0, measured=1.0)[:4], *runs(100.0, measured=100.0)[4:]]
    assert versions.attainable(half)["m", 1].tenth < 0.9


def test_a_stall_is_a_micro_batch_slower_than_a_larger_one() -> None:
    def run(micro_batch: int, seconds: float, stages: int = 1) -> stalls.Run:
        return stalls.Run(("m", 2), ("m", 1, True, True), stages, micro_batch, 8, seconds, seconds, seconds)

    steady, larger, stalled = run(1, 8.0), run(2, 15.0), run(1, 80.0)
    assert stalls.without_stall([steady, larger, stalled]) == [8.0, 15.0, 8.0]
    assert stalls.without_stall([larger, run(4, 31.0)]) == [15.0, 31.0]


def test_a_stall_is_a_pipeline_slower_than_a_longer_one() -> None:
    def run(stages: int, seconds: float) -> stalls.Run:
        return stalls.Run(("m", 2), ("m", 1, True, True), stages, 1, 8, seconds, seconds, seconds)

    assert stalls.without_stall([run(4, 2.0), run(2, 9.0)]) == [2.0, 4.0]
    assert stalls.without_stall([run(4, 2.0), run(2, 7.9), run(8, 9.0)]) == [2.0, 7.9, 9.0]


def test_leaving_a_series_out_takes_away_what_the_others_err_by() -> None:
    def row(series: str, error: float) -> judging.Judged:
        verdict = judging.Row(id=series, step_time_error=error)
        return judging.Judged(verdict, series, "h100", judging.split_of(series, False), {})

    found = judging.left_out(
        [row("llm-foundry", 0.1), row("torchtitan", 0.21), row("NeMo perf summary", 0.331)]
    )
    pairs = {series: [(run.error, run.without) for run in runs] for series, runs in found.items()}
    assert pairs["llm-foundry"] == [pytest.approx((0.1, 1.1 / 1.21 - 1))]
    assert pairs["torchtitan"] == [pytest.approx((0.21, 0.1))]


def test_ends_hold_the_share_of_sources_and_of_those_not_seen() -> None:
    def source(*errors: float) -> list[judging.LeftOut]:
        return [left_out_by(error) for error in errors]

    found = [source(0.1), source(0.2, 0.4), source(0.3), source(0.05, 0.06, 0.07), source(-0.2)]
    off = intervals.spread_over(found)
    assert off.faster == pytest.approx(0.3)  # 4.5 of five sources took no less than 1 / 1.3: half of one did
    assert off.slower == pytest.approx(0.25)  # one took 1 / 0.8
    assert intervals.spread_over(found, unseen=1).faster == pytest.approx(0.4)  # 4.95 of five and a half
    with pytest.raises(ValueError, match="no runs"):
        intervals.spread_over(found[:4], unseen=1)


def test_a_series_is_held_to_what_the_others_differ_by() -> None:
    fit = {
        name: [left_out_by(0.1), left_out_by(-0.1)]
        for name in ("llm-foundry", "torchtitan", "vTrain single-node", "Alpa OSDI22", "Zero-bubble PP")
    }
    new = [left_out_by(0.2, "report"), left_out_by(-0.05, "report")]
    series = fit | {"BLOOM topology study": [left_out_by(0.3)], "new": new}
    held = intervals.held(series, unseen=1)
    assert held["BLOOM topology study"] == [False]  # the five others give 0.1
    assert held["llm-foundry"] == [True, True]
    assert held["new"] == [True, True]  # 5.85 of six need the one that errs by 0.3
    between, within = intervals.spreads([series["new"], series["BLOOM topology study"]])
    assert between == pytest.approx(0.3)
    assert within == pytest.approx((1.2 / 0.95) ** 0.5 - 1)


def left_out_by(error: float, split: str = "fit") -> judging.LeftOut:
    """A run that is predicted to take longer than it did."""
    predicted = validation.Prediction(
        step_time_s=1 + error,
        tokens_per_s_per_gpu=1,
        mfu=0.5,
        memory_gib_per_gpu=1,
        tensor_gib_per_gpu=1,
        fits=True,
    )
    row = judging.Row(id="run", predicted=predicted, step_time_error=error)
    plan: Any = SimpleNamespace(job=SimpleNamespace(stack="nemo"))
    return judging.LeftOut(judging.Judged(row, "s", "h100", split, {"model": {}}, plan=plan), error, error)


def test_intervals_are_those_of_sources_left_out(measured: tuple[dict[str, Any], dict[str, Any]]) -> None:
    judged, _ = measured
    derived = intervals.widths(row for name in judging.RUNS for row in judged[name])
    for kind, off in derived.items():
        assert intervals.shipped()[kind] == pytest.approx(off, abs=0.01)


def test_intervals_hold_for_series_that_they_were_not_derived_from(
    measured: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    judged, _ = measured
    kinds = intervals.of_kinds(row for name in judging.RUNS for row in judged[name])
    # Of twelve series of mixtures one standard error is 12 %.
    for kind, fewest, least, most in (("dense", 40, 0.75, 0.9), ("experts", 9, 0.68, 0.92)):
        held = intervals.held(kinds[kind], intervals.UNSEEN[kind])
        report = [held[name] for name in intervals.of_split(kinds[kind], "report")]
        assert len(report) > fewest
        assert least < sum(sum(runs) / len(runs) for runs in report) / len(report) < most

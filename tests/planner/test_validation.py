"""Validation: errors and statistics against numbers worked by hand and against independent definitions."""

import itertools
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import Infeasible
from planner.plans import Estimate, Plan
from planner.runs import parse_run, plan_from_run
from planner.runs.files import load_rows
from planner.runs.step_times import measured_step_time
from planner.validation import error_statistics, spearman, validate

DATA = Path(__file__).parents[1] / "data" / "runs_sample.jsonl"
ROWS: dict[str, dict[str, Any]] = {row["id"]: row for row in load_rows(DATA)}
GIB = 2.0**30


@pytest.fixture
def evaluator(estimate: Estimate) -> Any:
    """An evaluator that says 12.5 s and 60 GiB of every plan."""

    def evaluate(plan: Plan) -> Estimate:
        return estimate

    return evaluate


def row(step_time: float | None = None, **measured: Any) -> dict[str, Any]:
    """The first sweep row with other measurements."""
    return {**ROWS["us-0001"], "measured": {"step_time_s": step_time, **measured}}


def test_errors_are_predicted_over_measured_minus_one(evaluator: Any) -> None:
    report = validate([row(10.0, memory_gib_per_gpu=50.0, tensor_gib_per_gpu=110.0)], evaluator)
    (result,) = report.rows
    assert result.step_time_error == pytest.approx(0.25)
    assert result.memory_error == pytest.approx(0.2)
    assert result.tensor_memory_error == pytest.approx(-0.5)
    assert result.predicted is not None
    assert result.predicted.memory_gib_per_gpu == 60.0


KINDS: dict[str, tuple[dict[str, Any], dict[str, Any], float]] = {
    "unknown source": ({}, {}, 60),
    "torchtitan": ({"series": "torchtitan", "source": "pytorch/torchtitan"}, {}, 50),
    "as the run says": ({}, {"memory_kind": "reserved"}, 50),
    "as the run says of a known source": ({"series": "torchtitan"}, {"memory_kind": "used"}, 60),
}
"""Row, what else was measured, and the answer in GiB that a printed peak is compared with."""


@pytest.mark.parametrize("case", KINDS)
def test_printed_memory_is_compared_with_the_answer_of_its_kind(case: str, estimate: Estimate) -> None:
    fields, measured, answer = KINDS[case]
    told = estimate.model_copy(update={"memory_bytes": 60 * GIB, "reserved_bytes": 50 * GIB})
    run = {**row(10.0, memory_gib_per_gpu=40.0, **measured), **fields}
    (result,) = validate([run], lambda plan: told).rows
    assert result.memory_error == pytest.approx(answer / 40 - 1)
    assert ("memory=reserved (as its source prints)" in result.assumed) is (answer == 50)


@pytest.mark.parametrize(("rank", "answer"), [("first", 40), ("fullest", 55), (None, 55)])
def test_a_peak_of_rank_0_is_compared_with_the_first_rank(
    rank: str | None, answer: float, estimate: Estimate
) -> None:
    told = estimate.model_copy(update={"tensor_bytes": 55 * GIB, "first_tensor_bytes": 40 * GIB})
    said = {} if rank is None else {"tensor_rank": rank}
    (result,) = validate([row(10.0, tensor_gib_per_gpu=50.0, **said)], lambda plan: told).rows
    assert result.tensor_memory_error == pytest.approx(answer / 50 - 1)
    assert not any("tensor_rank" in text for text in result.assumed)


def test_what_was_not_measured_is_not_scored(evaluator: Any) -> None:
    (result,) = validate([row(10.0)], evaluator).rows
    assert (result.memory_error, result.tensor_memory_error, result.skipped) == (None, None, None)


@pytest.mark.parametrize(("measured", "inside"), [(9.9, False), (10.0, True), (15.6, True), (15.7, False)])
def test_inside_interval(evaluator: Any, measured: float, inside: bool) -> None:
    report = validate([row(measured)], evaluator)
    assert report.rows[0].inside_interval is inside
    assert report.summary.inside_interval == float(inside)


def test_step_time_follows_from_tokens_per_second() -> None:
    """256 sequences of 4096 tokens on 8 devices."""
    for measured in ({"tokens_per_s": 104857.6}, {"tokens_per_s_per_gpu": 13107.2}):
        run = parse_run({**ROWS["us-0001"], "measured": measured})
        assert measured_step_time(run, plan_from_run(run)[0])[0] == pytest.approx(10.0)
    named = parse_run(
        {**ROWS["us-0001"], "hardware": "dgx-h100:1", "measured": {"tokens_per_s_per_gpu": 13107.2}}
    )
    assert measured_step_time(named, plan_from_run(named)[0])[0] == pytest.approx(10.0)
    silent = parse_run({**ROWS["us-0001"], "measured": {"mfu": 0.5}})
    assert measured_step_time(silent, plan_from_run(silent)[0]) == (None, ())


@pytest.mark.parametrize(("rate", "said"), [(13107.2, False), (12000.0, False), (1310.72, True)])
def test_figures_of_one_run_that_contradict_each_other_are_said(
    evaluator: Any, rate: float, said: bool
) -> None:
    (scored,) = validate([row(10.0, tokens_per_s_per_gpu=rate)], evaluator).rows
    told = "tokens_per_s_per_gpu says 100 s a step of 1048576 tokens, which contradicts step_time_s, 10 s"
    assert any(note.startswith(told) for note in scored.assumed) is said
    assert scored.step_time_error == pytest.approx(0.25)


@pytest.mark.parametrize("mfu", [41.0, 1.01, -0.4])
def test_a_utilisation_that_is_no_share_is_refused(evaluator: Any, mfu: float) -> None:
    (scored,) = validate([row(10.0, mfu=mfu)], evaluator).rows
    assert scored.skipped == (
        f"measured.mfu: must be a share of the peak, above 0 and at most 1 (0.4, not 40), found {mfu}"
    )


@pytest.mark.parametrize(("gib", "compared"), [(80.0, True), (50_000.0, False)])
def test_memory_that_no_device_has_is_not_compared(evaluator: Any, gib: float, compared: bool) -> None:
    """50 GiB in MiB; a device of 80 GB has a little less than 80 GiB, and sources mix up the two."""
    (result,) = validate([row(10.0, memory_gib_per_gpu=gib)], evaluator).rows
    assert (result.memory_error is not None) is compared
    assert any("its unit may be another" in note for note in result.assumed) is not compared


def test_fits_counts_runs_that_ran_and_runs_that_crashed(evaluator: Any, estimate: Estimate) -> None:
    fits = validate([row(10.0), row(None, ok=False), row(None)], evaluator).summary.fits
    assert (fits.n, fits.ran, fits.crashed, fits.crashed_but_said_to_fit, fits.accuracy) == (2, 1, 1, 1, 0.5)
    full = estimate.model_copy(update={"fits": False})
    fits = validate([row(10.0), row(None, ok=False)], lambda plan: full).summary.fits
    assert (fits.ran_but_said_not_to_fit, fits.crashed_but_said_to_fit, fits.accuracy) == (1, 0, 0.5)


def test_skipped_rows_are_counted_with_their_reason(evaluator: Any) -> None:
    def choosy(plan: Plan) -> Estimate:
        if plan.plan.data == 8:
            raise Infeasible("too large")
        return evaluator(plan)  # type: ignore[no-any-return]

    broken = {**ROWS["us-0001"], "parallel": {**ROWS["us-0001"]["parallel"], "dp": "many"}}
    report = validate(
        [row(10.0), ROWS["bloom/036-80L-h13824-a64-dp8tp8pp10-mbs4-gb2048-fp16"], broken], choosy
    )
    assert report.summary.skipped == 3
    reasons = [result.skipped or "" for result in report.rows]
    assert reasons[0] == "too large"
    assert "640 devices" in reasons[1]
    assert "parallel.dp" in reasons[2]
    assert report.summary.step_time.n == 0


def test_one_broken_estimate_does_not_hide_the_others(evaluator: Any) -> None:
    def fragile(plan: Plan) -> Estimate:
        return evaluator(plan) if plan.plan.data == 8 else 1 / 0  # type: ignore[return-value]

    report = validate([row(10.0), {**ROWS["vtrain/single-0000"]}], fragile)
    assert report.summary.step_time.n == 1
    assert "ZeroDivisionError" in (report.rows[1].skipped or "")


JUNK: tuple[Any, ...] = (None, True, 0, -3, 2.5, 10**9, float("nan"), "", "junk", [], ["x"], {}, {"a": 1})
SECTIONS = ("model", "hardware", "parallel", "measured")
FIELDS = [*SECTIONS, *(f"{section}.{key}" for section in SECTIONS for key in ROWS["us-0001"][section])]


@pytest.mark.parametrize("field", [*FIELDS, "id", "series", "notes", "quality", "something else"])
def test_any_value_of_any_field_is_evaluated_or_refused_with_a_reason(evaluator: Any, field: str) -> None:
    section, _, key = field.partition(".")
    base = ROWS["us-0001"]
    rows = [{**base, section: {**base[section], key: junk} if key else junk} for junk in JUNK]
    report = validate(rows, evaluator)
    assert len(report.rows) == len(JUNK)
    for result in report.rows:
        assert (result.predicted is None) == bool(result.skipped)
        assert "internal error" not in (result.skipped or "")
        assert "\n" not in (result.skipped or "")


def test_groups_partition_the_runs(evaluator: Any) -> None:
    report = validate(ROWS.values(), evaluator)
    for key, groups in report.summary.by.items():
        assert sum(group["step_time"].n for group in groups.values()) == report.summary.step_time.n, key
    assert report.summary.by["series"]["nanotron-sweep"]["memory"].n == 1


def test_json_has_the_documented_keys(evaluator: Any) -> None:
    report = validate([row(10.0)], evaluator).model_dump(mode="json", by_alias=True)
    assert set(report) == {"schema", "rows", "summary"}
    assert {"id", "predicted", "measured", "step_time_error", "memory_error", "tensor_memory_error"} < set(
        report["rows"][0]
    )
    assert {"inside_interval", "assumed", "skipped"} < set(report["rows"][0])
    assert set(report["rows"][0]["predicted"]) == {
        "step_time_s",
        "tokens_per_s_per_gpu",
        "mfu",
        "memory_gib_per_gpu",
        "tensor_gib_per_gpu",
        "fits",
    }
    assert {"step_time", "memory", "tensor_memory", "fits", "by", "rank_correlation", "skipped"} <= set(
        report["summary"]
    )
    assert set(report["summary"]["step_time"]) == {"n", "median_abs_error", "p90_abs_error", "bias"}
    json.dumps(report, allow_nan=False)


def test_progress_hears_of_every_run(evaluator: Any) -> None:
    heard: list[str] = []
    validate([row(1.0), row(2.0)], evaluator, progress=heard.append)
    assert heard == ["run 1", "run 2"]


def test_alternatives_are_ranked_within_their_group(estimate: Estimate) -> None:
    """Four micro-batches of one model on 8 devices: predicted in order, then in reverse."""

    def variant(micro_batch: int) -> Mapping[str, Any]:
        parallel = {**ROWS["us-0001"]["parallel"], "micro_batch": micro_batch}
        return {**row(100.0 / micro_batch), "parallel": parallel}

    def evaluate(sign: int, plan: Plan) -> Estimate:
        speed = 1000.0 * plan.plan.micro_batch**sign
        return estimate.model_copy(update={"tokens_per_s_per_device": speed})

    rows = [variant(b) for b in (1, 2, 4, 8)]
    for sign in (1, -1):
        rank = validate(rows, lambda plan, sign=sign: evaluate(sign, plan)).summary.rank_correlation
        assert list(rank.model_on_nodes.values()) == [pytest.approx(sign)]
        assert rank.median_of_groups == pytest.approx(sign)
        assert rank.series == {"nanotron-sweep": pytest.approx(sign)}


@given(st.lists(st.floats(-0.9, 10), min_size=1))
def test_statistics_agree_with_numpy(errors: list[float]) -> None:
    found = error_statistics(errors)
    assert found.n == len(errors)
    assert found.median_abs_error == pytest.approx(np.median(np.abs(errors)))
    assert found.p90_abs_error == pytest.approx(np.percentile(np.abs(errors), 90))
    assert found.bias == pytest.approx(np.median(errors))


def test_no_errors_no_statistics() -> None:
    assert error_statistics([]).median_abs_error is None


def test_spearman_of_a_textbook_example() -> None:
    """IQ and hours of television of ten people, Wikipedia "Spearman's rank correlation": -29/165."""
    iq = [106, 100, 86, 101, 99, 103, 97, 113, 112, 110]
    hours = [7, 27, 2, 50, 28, 29, 20, 12, 6, 17]
    assert spearman([(float(a), float(b)) for a, b in zip(iq, hours, strict=True)]) == pytest.approx(
        -29 / 165
    )


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=12))
def test_spearman_ranks_ties_by_their_mean(pairs: list[tuple[int, int]]) -> None:
    """Ranks by counting (how many are smaller, half of the equal ones) and Pearson's formula by numpy."""

    def ranks(values: list[int]) -> list[float]:
        return [sum(v < w for v in values) + (values.count(w) - 1) / 2 for w in values]

    first, second = ranks([a for a, _ in pairs]), ranks([b for _, b in pairs])
    found = spearman([(float(a), float(b)) for a, b in pairs])
    if len(set(first)) == 1 or len(set(second)) == 1:
        assert found is None
    else:
        assert found == pytest.approx(np.corrcoef(first, second)[0, 1])


def test_spearman_is_one_for_any_increasing_map() -> None:
    for values in itertools.permutations([1.0, 2.0, 3.0, 5.0]):
        assert spearman([(v, math.exp(v)) for v in values]) == pytest.approx(1.0)

"""Reports: what they must show, and one whole page as it looks."""

import io
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from planner import explain
from planner import plan as planned
from planner.analysis import FitReport, Remedy, compare
from planner.plans import Estimate, Optimality, Parallelism, Plan, StagePlan
from planner.report import (
    catalogue_report,
    comparison_report,
    fields_report,
    fit_report,
    plan_report,
    validation_report,
)
from planner.report.console import Bar, show, to_text
from planner.report.plans import (
    describe_pipeline,
    describe_recompute,
    optimality_statement,
    shares,
    short_name,
)
from planner.report.validation import SHOWN_RUNS
from planner.validation import Prediction, Row, Scored, ValidationReport, summarize

Golden = Callable[[str, str], None]


def test_a_plan_on_one_screen(plan: Plan, golden: Golden) -> None:
    text = to_text(plan_report(plan, ["micro_batch=2"]), width=100)
    assert len(text.splitlines()) <= 50
    golden("plan_report.txt", text)


def test_a_plan_that_does_not_fit_says_so(plan: Plan, estimate: Estimate) -> None:
    tight = plan.model_copy(
        update={"estimate": estimate.model_copy(update={"fits": False, "memory_bytes": 9e10})}
    )
    assert "DOES NOT FIT" in to_text(plan_report(tight))


@pytest.mark.parametrize("width", [60, 80, 132])
def test_reports_keep_to_the_width_and_to_ascii(plan: Plan, width: int) -> None:
    text = to_text(plan_report(plan), width)
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= width


def test_width_comes_from_columns(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "64")
    stream = io.StringIO()
    show(plan_report(plan), stream)
    assert 50 < max(map(len, stream.getvalue().splitlines())) <= 64


@pytest.mark.parametrize(("encoding", "name"), [("utf-8", "größe-集群"), ("ascii", "gr??e-??")])
def test_a_pipe_gets_names_as_they_are_where_it_can(encoding: str, name: str) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    show(Text("größe-集群 – µ"), stream)
    stream.seek(0)
    assert stream.read() == f"{name} - u\n"


def test_a_terminal_gets_blocks_and_colour(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        encoding = "utf-8"

        def isatty(self) -> bool:
            return True

    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    coloured, plain = Terminal(), Terminal()
    show(plan_report(plan), coloured)
    monkeypatch.setenv("NO_COLOR", "1")
    show(plan_report(plan), plain)
    assert "█" in coloured.getvalue()
    assert "\x1b[36m" in coloured.getvalue()
    assert "\x1b[36m" not in plain.getvalue()


@given(share=st.floats(-1, 2), width=st.integers(1, 80))
def test_bars_have_their_width(share: float, width: int) -> None:
    (line,) = to_text(Bar(share, width, frame=True), width=100).splitlines()
    assert len(line) == width + 2
    assert abs(line.count("#") - width * min(1, max(0, share))) <= 0.5


@given(st.dictionaries(st.text("abcdef", min_size=1), st.floats(0, 1e6), min_size=1))
def test_shares_add_up(parts: dict[str, float]) -> None:
    """Small components are shown together, never dropped: the printed numbers sum to the whole."""
    text = to_text(shares(parts, lambda value: f"{value:.6f}s"))
    shown = sum(float(word[:-1]) for word in text.split() if word.endswith("s") and word[0].isdigit())
    assert shown == pytest.approx(sum(parts.values()), rel=1e-6, abs=1e-5 * len(parts))


def test_short_names_tell_plans_apart(plan: Plan) -> None:
    assert short_name(plan.plan) == "dp4 tp2 pp2 1f1b zero3 mb2 selective"
    hybrid = Parallelism(data=8, zero_stage=3, sharding="HYBRID_SHARD", shard_degree=4, replicate_degree=2)
    assert short_name(hybrid) == "dp8 zero3 x2 mb1"


def test_layers_per_stage_are_grouped() -> None:
    cuts = [0, 9, 19, 29, 38]
    stages = tuple(
        StagePlan(blocks=(a, b), devices=(0, 1), mesh={}) for a, b in zip(cuts, cuts[1:], strict=False)
    )
    assert describe_pipeline(Parallelism(pipeline=4, stages=stages)).endswith("9, 2 x 10, 9")


def test_stages_with_a_policy_of_their_own_are_grouped() -> None:
    own = ["none", None, "none", "none", "none", None, "full"]
    stages = tuple(
        StagePlan(blocks=(i, i + 1), devices=(i, i + 1), mesh={}, sharding={}, recompute=policy)
        for i, policy in enumerate(own)
    )
    choice = Parallelism(pipeline=7, recompute="selective", stages=stages)
    assert describe_recompute(choice) == "selective; none in stages 0, 2 to 4; full in stage 6"


def test_devices_that_a_plan_leaves_idle_are_said() -> None:
    for data, said in ((8, 0), (4, 1)):
        found = planned("gpt2", "dgx-h100:1", global_batch=8, seq_len=128, stack="llm-c", data=data)
        text = to_text(plan_report(found))
        assert text.count("4 of 8; the others idle") == said


def test_images_are_no_tokens() -> None:
    found = planned("resnet-50", "dgx-h100:1", global_batch=256, seq_len=1)
    text = to_text(plan_report(found), width=100)
    assert "256 images, bf16" in text
    assert "= 256 images" in text
    assert "images/s" in text
    assert "tokens" not in text
    assert "tokens" not in explain(found).split("Where the time goes")[0]


def test_optimality_is_never_overstated() -> None:
    proven = Optimality(proven=True, gap=0.0, evaluated=10, pruned=5)
    stopped = Optimality(proven=False, gap=0.034, evaluated=10, pruned=5, limits_hit=("60 s",))
    assert "Proven best" in optimality_statement(proven)
    assert "3.4%" in optimality_statement(stopped)
    assert "60 s" in optimality_statement(stopped)
    assert "Proven" not in optimality_statement(stopped)


def test_comparisons_mark_what_differs(readable: Plan, estimate: Estimate) -> None:
    plan = readable
    slower = estimate.model_copy(update={"step_time_s": 12.75, "tokens_per_s": 1.0, "time": {"bubble": 1.5}})
    choice = plan.plan.model_copy(update={"recompute": "full"})
    other = plan.model_copy(update={"plan": choice, "estimate": slower})
    text = to_text(comparison_report(plan, other, compare(plan, other)))
    assert [line.split()[1] for line in text.splitlines() if line.startswith("~")] == ["recompute"]
    assert "+250 ms" in text
    assert text.startswith("A is")


def test_comparisons_say_what_plans_are_for_where_that_differs(readable: Plan) -> None:
    plan = readable
    other = plan.model_copy(
        update={"job": plan.job.model_copy(update={"autocast": True, "global_batch": 2048})}
    )
    text = to_text(comparison_report(plan, other, compare(plan, other)))
    marked = [" ".join(line.split()[1:]) for line in text.splitlines() if line.startswith("~")]
    assert marked == [f"global batch {plan.job.global_batch:,} 2,048", "autocast no yes"]


@pytest.mark.parametrize(
    ("compute", "said"),
    [
        (1.006, "0.2% faster, mostly by data (1 s, of which other parts give back 994 ms)"),
        (1.5, "1.17 times as fast, mostly by data (1 s, of which other parts give back 500 ms)"),
        (
            2.0 - 1e-15,
            "1.33 times as fast, mostly by data (1 s of the 1 s)",
        ),  # what rounding leaves is nobody's gain
    ],
)
def test_a_part_that_differs_by_more_than_the_step_is_no_share_of_it(
    readable: Plan, estimate: Estimate, compute: float, said: str
) -> None:
    fast, slow = (
        estimate.model_copy(update={"step_time_s": step, "tokens_per_s": 42 / step, "time": time})
        for step, time in (
            (3.0, {"data": 1.0, "compute": 2.0}),
            (2 + compute, {"data": 2.0, "compute": compute}),
        )
    )
    a, b = (readable.model_copy(update={"estimate": known}) for known in (fast, slow))
    assert compare(a, b).verdict == f"A is {said}."


def test_what_a_job_asks_for_beyond_the_usual_is_in_its_heading(plan: Plan) -> None:
    job = plan.job.model_copy(update={"autocast": True, "mlp_tiles": 4})
    text = " ".join(to_text(plan_report(plan.model_copy(update={"job": job}))).split())
    assert "bf16 under autocast, adamw" in text
    assert "feed-forward layers in 4 parts of a sequence" in text


def test_a_fit_report_says_what_helps(plan: Plan, estimate: Estimate) -> None:
    remedy = Remedy(
        change="--zero 3 instead of --zero 0",
        kind="plan",
        memory_bytes=70 * 2.0**30,
        step_time_s=12.5,
        time_cost_fraction=0.0625,
        plan=plan.plan,
    )
    answer = FitReport(
        fits=False,
        verdict="It does not fit.",
        memory_bytes=90 * 2.0**30,
        memory_limit_bytes=80 * 2.0**30,
        margin_bytes=-10 * 2.0**30,
        margin_fraction=-0.125,
        tightest_rank=1,
        tightest_phase="backward",
        memory=estimate.memory,
        split_by_data_parallelism=("master_weights",),
        same_on_every_data_rank=("activations",),
        largest_micro_batch=None,
        longest_seq_len=None,
        changes=(remedy,),
        plan=plan,
    )
    text = to_text(fit_report(answer))
    for part in (
        "It does not fit.",
        "-10 GiB (-12.5%)",
        "rank 1",
        "master weights",
        "--zero 3",
        "70 GiB",
        "+6.2%",
    ):
        assert part in text
    assert "longest sequence" not in text


def test_catalogue_aligns_numbers_and_skips_absent_columns() -> None:
    entries = {"small": {"parameters": 7, "other": 1}, "large": {"parameters": 7000}}
    lines = to_text(catalogue_report(entries, ("parameters", "source"))).splitlines()
    assert lines == ["name   parameters", "small           7", "large       7,000"]


def test_fields_are_dotted() -> None:
    text = to_text(fields_report({"a": {"b": 1}, "c": [{"d": 2}], "e": [3, 4]}))
    assert [line.split() for line in text.splitlines()] == [["a.b", "1"], ["c.0.d", "2"], ["e", "3,", "4"]]


def test_hardware_is_shown_with_units() -> None:
    device = {
        "peak_flops_per_second": {"bf16": 989e12},
        "memory": 80 * 2.0**30,
        "efficiency": {"memory": 0.9},
    }
    text = to_text(fields_report({"device": device, "links": [{"latency": 2.5e-6}], "price": 2.0}))
    assert [line.split(maxsplit=1)[1] for line in text.splitlines()] == [
        "989 TFLOP/s",
        "80 GiB",
        "0.9",
        "2.5 us",
        "2.0",
    ]


@pytest.fixture
def report() -> ValidationReport:
    rows = [
        Row(
            id=f"run<{i}>",
            predicted=Prediction(
                step_time_s=1.1 * 10**i,
                tokens_per_s_per_gpu=1,
                mfu=0.4,
                memory_gib_per_gpu=10,
                tensor_gib_per_gpu=9,
                fits=True,
            ),
            step_time_error=0.1,
        )
        for i in range(3)
    ]
    scored = [Scored(row, {"series": "one"}, "group", None) for row in rows]
    scored.append(Scored(Row(id="odd", skipped="precision 'int8-AQT' has no equivalent here"), {}, "", None))
    return ValidationReport(rows=tuple(s.row for s in scored), summary=summarize(scored))


def test_validation_report(report: ValidationReport, golden: Golden) -> None:
    golden("validation_report.txt", to_text(validation_report(report), width=100))


def test_a_validation_shows_the_runs_that_are_furthest_off_and_what_it_did_not_use(
    report: ValidationReport,
) -> None:
    one = report.rows[0]
    errors = [(f"run{i}", i / 100) for i in range(SHOWN_RUNS + 1)]
    rows = [one.model_copy(update={"id": name, "step_time_error": error}) for name, error in errors]
    silent = {"step_time_error": None, "assumed": ("ignored measured.step_time_ms",)}
    rows += [one.model_copy(update={**silent, "id": "in ms"})]
    rows += [one.model_copy(update={**silent, "id": "rate", "measured": {"tflops_per_gpu": 400}})]
    rows += [one.model_copy(update={**silent, "id": "crashed", "measured": {"ok": False}})]
    rows += [one.model_copy(update={"id": "units mixed up", "step_time_error": 1e9})]
    text = to_text(
        validation_report(report.model_copy(update={"rows": tuple(rows)})),
        width=100,
    )
    shown = [line.split("  ")[0] for line in text.splitlines() if line.startswith(("run", "units", "in ms"))]
    shown.remove("runs")  # the table of reasons
    assert shown == ["run", "units mixed up", *(f"run{i}" for i in range(SHOWN_RUNS, 1, -1))]
    assert "+1e+11%" in text
    assert "Nothing measured to compare with in 1 run, such as in ms" in text
    assert "A rate of FLOPs, but not what it counts, in 1 run, such as rate: a flops_convention" in text
    assert "Fields that nobody reads, and in how many runs: measured.step_time_ms (3)" in text

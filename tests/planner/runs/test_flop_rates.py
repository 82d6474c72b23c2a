"""Rates of FLOPs become step times by the convention of their source."""

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from planner.errors import InputError, PlannerError
from planner.runs.flop_rates import Convention, convention_of, step_time_of_rate
from planner.runs.mapping import plan_from_run
from planner.runs.record import parse_run
from planner.runs.step_times import measured_step_time
from planner.validation import validate

PUBLISHED = Path(__file__).parents[2] / "published"
MODEL, HARDWARE = Convention(causal=True, recomputed=False), Convention(causal=False, recomputed=True)
FULL = Convention(causal=False, recomputed=False)

RUN: dict[str, Any] = {
    "model": {"name": "llama-3.1-8b", "seq": 8192},
    "hardware": {"gpu": "H100-SXM-80GB", "n_gpus": 8, "gpus_per_node": 8, "peak_tflops_16bit": 989.4},
    "parallel": {
        "dp": 8,
        "sharding": "FULL_SHARD",
        "micro_batch": 1,
        "global_batch": 16,
        "recompute": "full",
    },
}


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("model_causal", MODEL),
        ("model FLOPs, causal attention", MODEL),
        ("6N + full (non-causal) attention", FULL),
        ("6*(N - embedding) + 12*L*h*hd*seq per token (non-causal attention)", FULL),
        ("HARDWARE FLOPs incl. full recompute", HARDWARE),
        ("hw_recompute_full", HARDWARE),
        ("TFLOPS only; full vs causal attention not stated", None),
        ("attention full in older, causal-halved newer", None),
        ("Megatron model FLOPs", None),
        ("causal? source: fwd 11104 TF", None),
        ("unspecified", None),
        (None, None),
    ],
)
def test_words_for_what_is_counted(text: str | None, meant: Convention | None) -> None:
    assert convention_of(text) == meant


def rates_beside_times() -> list[float]:
    """Error of the step time that follows from the rate, of published runs that print both."""
    errors = []
    for line in (PUBLISHED / "runs_gpu.jsonl").read_text().splitlines():
        row = json.loads(line)
        if not {"step_time_s", "tokens_per_s", "tokens_per_s_per_gpu"} & row["measured"].keys():
            continue
        try:
            run = parse_run(row)
            plan, _ = plan_from_run(run)
        except (InputError, PlannerError):
            continue
        seconds, _ = measured_step_time(run, plan)
        gpus = run.hardware.n_gpus or plan.cluster.num_devices
        found = step_time_of_rate(run, plan, gpus)
        if found and seconds:
            errors.append(abs(found[0] / seconds - 1))
    return sorted(errors)


def test_published_rates_tell_published_times() -> None:
    errors = rates_beside_times()
    assert len(errors) > 400
    assert statistics.median(errors) < 0.002
    assert errors[int(0.9 * len(errors))] < 0.05


def measured(convention: str | None, **printed: Any) -> Any:
    row = RUN | {"measured": printed} | ({"flops_convention": convention} if convention else {})
    return validate([row]).rows[0]


def test_a_run_that_prints_a_rate_alone_is_compared() -> None:
    """8 x 16 sequences: 6 N tokens + 6 L h s tokens of causal attention, over 8 x 400 TFLOP/s."""
    row = measured("model FLOPs, causal attention", tflops_per_gpu=400)
    tokens = 16 * 8192
    flops = 6 * (8.03e9 - 128256 * 4096) * tokens + 6 * 32 * 4096 * 8192 * tokens
    assert row.predicted.step_time_s / (1 + row.step_time_error) == pytest.approx(
        flops / (8 * 400e12), rel=0.01
    )
    assert "step time from 400 TFLOP/s per device (model FLOPs, causal attention)" in row.assumed


def test_an_mfu_is_of_the_peak_that_the_source_names() -> None:
    rate, share = (measured("model_full", **told) for told in ({"tflops_per_gpu": 494.7}, {"mfu": 0.5}))
    assert share.step_time_error == pytest.approx(rate.step_time_error)


def test_a_rate_of_unknown_convention_is_not_compared() -> None:
    assert measured(None, tflops_per_gpu=400).step_time_error is None
    assert measured("unspecified", tflops_per_gpu=400).step_time_error is None
    assert measured("model_full", tflops_per_gpu=400, derived=["tflops_per_gpu"]).step_time_error is None
    assert measured("model_full", tflops_per_gpu="about 400").step_time_error is None


@pytest.mark.parametrize("printed", [0, -400, True, float("inf"), "400"])
def test_what_is_no_rate_is_not_compared(printed: Any) -> None:
    row = measured("model_full", tflops_per_gpu=printed)
    assert (row.step_time_error, row.skipped) == (None, None)


def test_a_peak_that_is_no_number_is_the_devices_own() -> None:
    hardware = RUN["hardware"] | {"peak_tflops_16bit": "about 989"}
    row = {**RUN, "hardware": hardware, "measured": {"mfu": 0.5}, "flops_convention": "model_full"}
    named, own = measured("model_full", mfu=0.5), validate([row]).rows[0]
    assert own.step_time_error != named.step_time_error  # 989 and 989.4 TFLOP/s
    assert 1 + own.step_time_error == pytest.approx(1 + named.step_time_error, rel=1e-3)


def test_hardware_flops_of_layers_recomputed_in_part_are_not_guessed() -> None:
    partly = RUN | {"parallel": RUN["parallel"] | {"recompute": "selective"}}
    row = validate(
        [partly | {"measured": {"tflops_per_gpu": 400}, "flops_convention": "hardware FLOPs"}]
    ).rows[0]
    assert row.step_time_error is None
    assert measured("hardware FLOPs", tflops_per_gpu=400).step_time_error is not None


@pytest.mark.parametrize(
    ("recompute", "printed", "every"),
    [
        ("selective (every n-th layer, AC)", {"mfu": 0.61, "hfu": 0.69}, 3),
        ("selective (every n-th layer, AC)", {"mfu": 0.43, "hfu": 0.46}, 5),
        ("selective (every n-th layer, AC)", {"mfu": 0.45, "hfu": 0.60}, 1),
        ("selective (every n-th layer, AC)", {"mfu": 0.45, "hfu": 0.45}, 2),
        ("selective (every n-th layer, AC)", {"mfu": 0.61}, 2),
        ("every 4th layer", {"mfu": 0.61, "hfu": 0.69}, 4),
        ("every other layer", {"mfu": 0.61, "hfu": 0.69}, 2),
        ("full", {"mfu": 0.61, "hfu": 0.69}, 1),
    ],
)
def test_utilisations_with_and_without_recomputation_tell_how_much_there_was(
    recompute: str, printed: dict[str, float], every: int
) -> None:
    row = RUN | {"parallel": RUN["parallel"] | {"recompute": recompute}, "measured": printed}
    plan, assumed = plan_from_run(row)
    assert (plan.plan.recompute, plan.plan.recompute_every) == ("full", every)
    assert (f"recompute_every={every}" in assumed) == ("n-th" in recompute and every != 2)

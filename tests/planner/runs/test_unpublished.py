"""What a source leaves open is chosen so that a run that ran fits; what it says stays."""

import json
from pathlib import Path
from typing import Any

import pytest

from planner.errors import InputError
from planner.evaluation import evaluate
from planner.plans import Estimate, Plan
from planner.runs.mapping import plan_from_run
from planner.runs.record import parse_run
from planner.runs.unpublished import leaner_choices, memory_tells
from planner.validation import validate

PUBLISHED = Path(__file__).parents[2] / "published"
ROWS: dict[str, Any] = {
    row["id"]: row for row in map(json.loads, (PUBLISHED / "runs_gpu.jsonl").read_text().splitlines())
}
TOO_LARGE = "dgxc/v24.11.1/pax-gpt3-175b-H100-128-fp8"
"""GPT-3 over 128 ranks with nothing recomputed: 117 GiB of activations. The source does not say what was."""


def changed(name: str, **parallel: Any) -> dict[str, Any]:
    row = ROWS[name]
    return {**row, "parallel": row["parallel"] | parallel}


def test_a_run_that_ran_is_taken_to_have_recomputed() -> None:
    row = validate([ROWS[TOO_LARGE]]).rows[0]
    assert row.predicted is not None
    assert row.predicted.fits
    assert "recompute=full (fits only so)" in row.assumed
    assert not [text for text in row.assumed if text.startswith("recompute=none")]


def test_what_was_published_stays() -> None:
    row = validate([changed(TOO_LARGE, recompute="none")]).rows[0]
    assert row.predicted is not None
    assert not row.predicted.fits
    assert not [text for text in row.assumed if text.startswith("recompute")]


def test_a_policy_of_its_own_is_what_its_origin_configures_or_else_full() -> None:
    name = "dgxc/v24.11.1/maxtext-llama2-70b-H100-64-bf16"

    def recompute(row: dict[str, Any]) -> str:
        return plan_from_run(parse_run(row))[0].plan.recompute

    assert recompute(ROWS[name]) == "mlp"
    assert recompute(changed(name, recompute="full")) == "full"
    assert recompute(ROWS[name] | {"series": "MaxText", "id": "1"}) == "full"


def test_a_run_that_crashed_keeps_the_usual_choices() -> None:
    row = validate([ROWS[TOO_LARGE] | {"measured": {"ok": False}}]).rows[0]
    assert row.predicted is not None
    assert not row.predicted.fits
    assert not [text for text in row.assumed if "fits only so" in text]


@pytest.mark.parametrize(
    ("published", "closed"),
    [
        ({"recompute": "selective"}, "recompute"),
        ({"grad_dtype": "fp32"}, "grad_dtype"),
        ({"master_dtype": "float32"}, "master_dtype"),
        ({"fused_loss": False}, "fused_loss"),
    ],
)
def test_only_open_fields_are_chosen(published: dict[str, Any], closed: str) -> None:
    opened = {"recompute": None, "grad_dtype": None, "master_dtype": None}
    fields = [
        {field for choice in leaner_choices(run, plan_from_run(run)[0]) for field in choice.fields}
        for run in (
            parse_run(changed("nemo-a100/gpt3-175b-64", **opened)),
            parse_run(changed("nemo-a100/gpt3-175b-64", **(opened | published))),
        )
    ]
    assert fields[0] - fields[1] == {closed}


@pytest.mark.parametrize(
    ("notes", "micro_batch"),
    [
        (
            "micro-batch 4 and GBS 2048 taken from the repo config; README prints only tokens/s per node count.",
            2,
        ),
        ("mbs assumed 4", 2),
        ("no FlashAttention; micro-batch 4. Precision from its configuration.", 4),
        (None, 4),
    ],
)
def test_a_micro_batch_of_another_source_may_have_been_half(notes: str | None, micro_batch: int) -> None:
    """5B over eight A100 without recomputation and without fused attention needs more than they have by 4 each."""
    row = changed("nemo-a100/gpt3-5b-16", micro_batch=4, grad_accum=32) | {"notes": notes}
    result = validate([row]).rows[0]
    assert result.predicted is not None
    assert result.predicted.fits == (micro_batch == 2)
    halved = "micro_batch=half of what is said (fits only so)"
    assert (halved in result.assumed) == (micro_batch == 2)


@pytest.mark.parametrize(("accumulated", "fits"), [(64, True), (32, False), (16, False), (None, False)])
def test_printed_steps_of_accumulation_may_tell_half_a_micro_batch(
    accumulated: int | None, fits: bool
) -> None:
    """2,048 sequences on sixteen ranks are 32 steps of 4 each, 64 of 2."""
    row = changed("nemo-a100/gpt3-5b-16", micro_batch=4, grad_accum_printed=accumulated) | {"notes": None}
    result = validate([row]).rows[0]
    assert result.predicted is not None
    assert result.predicted.fits == fits


def test_attention_from_before_it_was_fused_is_never_fused() -> None:
    """FlashAttention is of May 2022 (arXiv:2205.14135); what made it fit then was something else."""
    row = changed("nemo-a100/gpt3-5b-16", micro_batch=4, grad_accum=32) | {"notes": None}
    assert "attention=plain" in validate([row]).rows[0].assumed


def test_small_changes_come_first_and_alone() -> None:
    run = parse_run(ROWS["nemo-a100/gpt3-175b-64"])
    choices = [tuple(choice.fields) for choice in leaner_choices(run, plan_from_run(run)[0])]
    assert choices[0] == ("grad_dtype",)
    assert [len(fields) for fields in choices] == sorted(len(fields) for fields in choices)


def test_a_custom_policy_may_send_activations_to_the_host() -> None:
    """MaxText's recipe for Mixtral 8x22B on 256 v6e: the inputs of its layers alone are 21 of 31 GiB."""
    lines = (PUBLISHED / "runs_tpu.jsonl").read_text().splitlines()
    recipe = next(row for row in map(json.loads, lines) if row["id"] == "tpu-065")
    row = validate([recipe]).rows[0]
    assert row.predicted is not None
    assert row.predicted.fits
    assert "act_offload=true (fits only so)" in row.assumed
    said = {**recipe, "parallel": {**recipe["parallel"], "act_offload": False}}
    assert not [text for text in validate([said]).rows[0].assumed if "fits only so" in text]


def test_checkpoints_may_be_on_the_host() -> None:
    """DeepSpeed's 1T on 1,024 A100: eight sequences' inputs of layers are 50 of 80 GiB; its post speaks of the host."""
    row = validate([ROWS["dsazure/1T"]]).rows[0]
    assert row.predicted is not None
    assert row.predicted.fits
    assert "act_offload=true (fits only so)" in row.assumed
    said = validate([changed("dsazure/1T", act_offload=False)]).rows[0]
    assert said.predicted is not None
    assert not said.predicted.fits


@pytest.mark.parametrize(
    ("closed", "open_field"),
    [
        ({}, "act_offload_fraction=0.75 (fits only so)"),
        ({"recompute": "none"}, None),
        ({"act_offload": False}, "recompute=full (fits only so)"),
        ({"sharding": "FULL_SHARD"}, "recompute=full (fits only so)"),
    ],
)
def test_megatron_fsdp_sends_layers_to_the_host_as_its_recipes_do(
    closed: dict[str, Any], open_field: str | None
) -> None:
    """Llama-3 70B on 64 GB200: 280 GiB of activations, which the recipe of the release has in part on the host."""
    row = changed("bridge/25.11/llama3_70b/DGX-GB200/64g-fp8-cs-pretrain-256-s8192", **closed)
    chosen = [text for text in validate([row]).rows[0].assumed if "fits only so" in text]
    assert chosen == ([open_field] if open_field else [])


def test_torchtitan_recomputes_as_its_own_configurations_do() -> None:
    """Its 8B on 4 GB200; the source does not say what was recomputed."""
    name = "tt/nvfp4-llama3-8b-4gpu-bf16"
    plan, assumed = plan_from_run(changed(name, micro_batch=1, global_batch=4))
    assert plan.plan.recompute == "alternate"
    assert "recompute=alternate" in assumed
    assert plan_from_run(changed(name, recompute="none"))[0].plan.recompute == "none"
    fields = [tuple(c.fields) for c in leaner_choices(parse_run(ROWS[name]), plan)]
    assert ("recompute",) in fields
    assert all(c.fields.get("recompute") != "selective" for c in leaner_choices(parse_run(ROWS[name]), plan))


SWEPT: dict[str, Any] = {
    row["id"]: row for row in map(json.loads, (PUBLISHED / "sweep_h100.jsonl").read_text().splitlines())
}
KEPT, REPEATED = "us-2189", "us-2177"
"""8B over 16 nodes, 32 tensor ranks, no pipeline: micro-batches of 1 and of 16 sequences."""


def test_its_memory_tells_which_version_a_run_had() -> None:
    kept, repeated = validate([SWEPT[KEPT], SWEPT[REPEATED]]).rows
    assert not [text for text in kept.assumed if text.startswith("stack")]
    assert "stack=nanotron-checked (as its memory tells)" in repeated.assumed
    for row in (kept, repeated):  # the times, which nobody looked at, agree
        assert row.step_time_error is not None
        assert abs(row.step_time_error) < 0.15


def test_a_run_that_names_its_version_or_prints_no_memory_keeps_the_usual_one() -> None:
    row = SWEPT[REPEATED]
    named = row | {"parallel": row["parallel"] | {"stack": "nanotron-keeping"}}
    silent = row | {"measured": row["measured"] | {"memory_gib_per_gpu": None}}
    for found in validate([named, silent]).rows:
        assert found.step_time_error is not None
        assert found.step_time_error < -0.5
        assert not [text for text in found.assumed if text.startswith("stack")]


@pytest.mark.parametrize(
    ("measured", "usual", "leaner", "told"),
    [(10, 20, 10, True), (11.8, 20, 10, True), (12, 20, 10, False), (10, 11.9, 10, False), (8, 20, 10, True)],
)
def test_memory_tells_where_it_is_far_nearer(
    measured: float, usual: float, leaner: float, told: bool
) -> None:
    assert memory_tells(measured, usual, leaner) == told


def test_to_recompute_latent_up_projections_keeps_less_than_none() -> None:
    """Two micro-batches of DeepSeek-V3 on GB300: whole queries and keys of 128 heads would not fit."""
    row = next(row for name, row in ROWS.items() if "26.02/deepseekv3/DGX-GB300" in name)
    report = validate([row])
    assert report.rows[0].predicted is not None
    assert report.rows[0].predicted.fits
    assert not any(made.startswith("recompute") for made in report.rows[0].assumed)


COLOSSALAI: dict[str, Any] = {
    "series": "ColossalAI",
    "id": "colossal/70b",
    "model": {
        "layers": 80,
        "hidden": 8192,
        "heads": 64,
        "kv_heads": 8,
        "ffn_hidden": 28672,
        "vocab": 32000,
        "seq": 4096,
    },
    "hardware": {"gpu": "B200-SXM-180GB", "n_gpus": 16},
    "parallel": {"dp": 2, "tp": 2, "pp": 4, "zero_stage": 1, "global_batch": 128, "recompute": "unspecified"},
}


@pytest.mark.parametrize(
    ("printed", "recompute", "full"),
    [
        ({"tflops_per_gpu": 811.79}, "unspecified", True),
        ({"tflops_per_gpu": 811.79}, None, True),
        ({"tflops_per_gpu": 811.79}, "none", False),
        ({"tflops_per_gpu": 644.0}, "unspecified", False),
        ({"tflops_per_gpu": 620.7}, "unspecified", False),
        ({"tflops_per_gpu": 1288.0}, "unspecified", False),
        ({"tflops_per_gpu": 811.79, "derived": ["tflops_per_gpu"]}, "unspecified", False),
        ({}, "unspecified", False),
    ],
)
def test_a_rate_that_counts_a_second_forward_tells_that_there_was_one(
    printed: dict[str, Any], recompute: str | None, full: bool
) -> None:
    """644 TFLOP/s are those of the model in 22.6 s, 621 with attention halved, 858 with every layer twice."""
    parallel = COLOSSALAI["parallel"] | {"recompute": recompute}
    row = COLOSSALAI | {"parallel": parallel, "measured": {"tokens_per_s": 23183.4} | printed}
    assert ("recompute=full (as its FLOPs count)" in validate([row]).rows[0].assumed) == full


@pytest.mark.parametrize(
    ("parallel", "expected"),
    [
        ({"dp": 8, "tp": 1, "pp": 1, "zero_stage": 2, "global_batch": 36}, (36, 1)),
        ({"dp": 8, "tp": 1, "pp": 1, "zero_stage": 2, "global_batch": 32}, (1, 4)),
        ({"dp": 2, "tp": 2, "pp": 2, "zero_stage": 1, "global_batch": 33}, (1, 33)),
    ],
)
def test_a_batch_that_ranks_cannot_share_is_each_ones(
    parallel: dict[str, int], expected: tuple[int, int]
) -> None:
    row = COLOSSALAI | {"parallel": parallel, "hardware": {"gpu": "H200-SXM-141GB", "n_gpus": 8}}
    plan = plan_from_run(row)[0].plan
    assert (plan.micro_batch, plan.num_microbatches) == expected
    (other,) = validate([row | {"series": "mine"}]).rows
    assert (other.skipped is None) == (parallel["global_batch"] % parallel["dp"] == 0)


def test_a_step_that_was_computed_from_a_rate_follows_the_rate() -> None:
    """Its batch was read otherwise by whoever computed it: 36 sequences in 2.1 s, where every rank has 36."""
    parallel = {"dp": 8, "tp": 1, "pp": 1, "zero_stage": 2, "global_batch": 36}
    row = COLOSSALAI | {"parallel": parallel, "hardware": {"gpu": "H200-SXM-141GB", "n_gpus": 8}}
    printed = {"step_time_s": 2.10158, "tokens_per_s": 70164.5, "derived": ["step_time_s"]}
    derived, rate = (
        validate([row | {"measured": m}]).rows[0].step_time_error
        for m in (printed, {"tokens_per_s": 70164.5})
    )
    assert derived == rate


def test_a_choice_without_a_price_is_none() -> None:
    """DeepSpeed's 1T fits with checkpoints on the host alone; where the way there is unknown, it is said not to fit."""

    def without_host(plan: Plan) -> Estimate:
        if plan.plan.offload:
            raise InputError("offload: the bandwidth to the host is not known")
        return evaluate(plan)

    row = validate([ROWS["dsazure/1T"]], without_host).rows[0]
    assert row.predicted is not None, row.skipped
    assert not row.predicted.fits

"""Rows in the words of other people's logs become plans as well, or say which word has no meaning."""

from pathlib import Path
from typing import Any

import pytest

from planner.errors import InputError
from planner.evaluation import evaluate
from planner.plans import Plan
from planner.runs import parse_run, plan_from_run
from planner.runs.files import load_rows

SAMPLE = Path(__file__).parents[2] / "data" / "runs_sample.jsonl"
ROW: dict[str, Any] = next(row for row in load_rows(SAMPLE) if row["id"] == "us-0001")


def planned(**parallel: Any) -> tuple[Plan, tuple[str, ...]]:
    return plan_from_run(changed(**parallel))


def changed(**parallel: Any) -> dict[str, Any]:
    return {**ROW, "parallel": {**ROW["parallel"], **parallel}}


def test_liger_takes_the_loss_in_chunks_unless_it_is_told_not_to() -> None:
    usual, assumed = planned(stack="deepspeed-liger")
    assert usual.job.fused_loss
    assert "fused_loss=True" in {text.partition(" ")[0] for text in assumed}
    assert not planned(stack="deepspeed-liger", fused_loss=False)[0].job.fused_loss
    assert not planned(stack="deepspeed")[0].job.fused_loss


@pytest.mark.parametrize(
    ("field", "text", "meaning"),
    [
        ("precision", "bf16-mixed", "bf16"),
        ("precision", "fp8 (delayed scaling)", "fp8"),
        ("precision", "nvfp4", "fp4"),
        ("precision", "BFloat16", "bf16"),
        ("recompute", True, "full"),
        ("recompute", False, "none"),
        ("recompute", ["mla_up_proj"], "latent"),
        ("recompute", "selective:core_attn+mlp", "mlp"),
        ("recompute", "selective:core_attn", "attention"),
        ("schedule", "AFAB", "gpipe"),
        ("optim", "fused AdamW", "adamw"),
        ("attention", "TE fused attention", "flash"),
        ("attention", "unfused", "plain"),
        ("sharding", "zero1", 1),
        ("sharding", "FSDP", 3),
        ("sharding", "none", 0),
        ("stack", "Megatron-LM", "megatron-unfused"),
        ("stack", "torchtitan", "torch-fsdp2"),
    ],
)
def test_words_of_other_logs_have_a_meaning(field: str, text: object, meaning: object) -> None:
    plan, _ = planned(**{"pp": 2, "dp": 4, "zero_stage": None, field: text})
    found = {
        "precision": plan.job.precision,
        "recompute": plan.plan.recompute,
        "schedule": plan.plan.schedule,
        "optim": plan.job.optimizer,
        "attention": plan.job.attention,
        "sharding": plan.plan.zero_stage,
        "stack": plan.job.stack,
    }
    assert found[field] == meaning


@pytest.mark.parametrize(
    ("field", "text"),
    [("precision", "mxfp4"), ("precision", "fp8-or-nvfp4"), ("optim", "adagrad"), ("attn", "no flash")],
)
def test_words_without_a_meaning_are_refused(field: str, text: str) -> None:
    with pytest.raises(InputError, match="has no equivalent|is not understood"):
        planned(**{field: text})


@pytest.mark.parametrize(
    ("text", "whole", "parts"),
    [
        (None, False, ()),
        ("None/None", False, ()),
        ("none/full_iteration", False, ()),
        ("full_iteration/[]", True, ()),
        ("transformer_engine/mlp", False, ("mlp",)),
        (
            "transformer_engine/['attn', 'moe_router', 'moe_preprocess']",
            False,
            ("attn", "moe_router", "moe_preprocess"),
        ),
        ("transformer_engine/[attn, mamba]", False, ("attn",)),
        ("transformer_engine/[]", False, ("attn", "mlp", "moe")),
    ],
)
def test_graphs_hold_steps_or_parts_of_layers(text: str | None, whole: bool, parts: tuple[str, ...]) -> None:
    job = planned(cuda_graph=text)[0].job
    assert (job.cuda_graphs, job.graph_parts) == (whole, parts)


@pytest.mark.parametrize(
    ("series", "notes", "said", "routing"),
    [
        ("NeMo AutoModel", None, None, "consecutive"),
        ("NeMo AutoModel", None, "random", "balanced"),
        ("torchtitan pull request", "Router balanced by force", None, "consecutive"),
        ("torchtitan notes", "Natural routing of an untrained router", None, "balanced"),
        ("Megatron-MoE ModelZoo issue 7", "Router balanced by force", None, "balanced"),
        ("someone's", None, "round-robin", "consecutive"),
    ],
)
def test_routers_balanced_by_force_may_give_experts_in_turn(
    series: str, notes: str | None, said: str | None, routing: str
) -> None:
    row = changed(expert_routing=said, stack="nemo") | {"series": series, "notes": notes}
    assert plan_from_run(row)[0].job.expert_routing == routing


@pytest.mark.parametrize("text", ["yes", "transformer_engine/experts", "attn"])
def test_graphs_of_what_is_not_known_are_refused(text: str) -> None:
    with pytest.raises(
        InputError, match=f"cuda_graph '{text}' is not understood: use none, full_iteration, or"
    ):
        planned(cuda_graph=text)


def test_degrees_that_are_not_printed_follow_from_the_devices() -> None:
    plan, assumed = planned(dp=2, tp=None)
    assert plan.plan.tensor == 4
    assert "tp=4" in assumed
    assert planned(cp=0, ep=0, vp=0)[0].plan == planned()[0].plan


def test_the_usual_precision_is_one_that_the_device_has() -> None:
    row = changed(precision=None)
    row = {**row, "hardware": {**row["hardware"], "gpu": "Tesla V100-SXM2-32GB", "intra_link": None}}
    plan, assumed = plan_from_run(row)
    assert plan.job.precision == "fp16"
    assert "precision=fp16" in assumed


@pytest.mark.parametrize("name", ["NVIDIA H100 80GB HBM3", "H100", "h100 sxm 80gb"])
def test_devices_are_known_by_what_drivers_print(name: str) -> None:
    plan, _ = plan_from_run({**ROW, "hardware": {**ROW["hardware"], "gpu": name}})
    assert plan.cluster.device.name == "h100-sxm-80g"


def test_what_only_informs_a_reader_may_be_anything() -> None:
    extra = {
        "url": "x",
        "flags": None,
        "check": "ok",
        "nodes": 0.5,
        "notes": ["a", "b"],
        "id": 7,
        "source": [],
    }
    plan, assumed = plan_from_run({**ROW, **extra})
    assert plan.plan == plan_from_run(ROW)[0].plan
    assert "ignored url" in assumed


def test_a_zero_is_no_measurement() -> None:
    nothing = {"step_time_s": 0, "memory_gib_per_gpu": float("nan"), "tokens_per_s": float("inf")}
    run = parse_run({**ROW, "measured": {**nothing, "tokens_per_s_per_gpu": True}})
    assert run.measured is not None
    assert not any(getattr(run.measured, name) for name in (*nothing, "tokens_per_s_per_gpu"))


def test_a_section_that_is_null_says_nothing() -> None:
    assert parse_run({**ROW, "parallel": None, "measured": None}) == parse_run(
        {key: value for key, value in ROW.items() if key not in ("parallel", "measured")}
    )


def test_embedding_and_head_may_have_a_stage_each() -> None:
    """As in the rows of Zero-Bubble's baseline, whose layers are two fewer than stages."""
    from planner.evaluation import evaluate

    row = changed(dp=1, pp=6, vp=3, schedule="interleaved 1F1B", global_batch=12, stack="megatron")
    row = {**row, "hardware": {**row["hardware"], "n_gpus": 6, "gpus_per_node": 6}}
    plan, _ = plan_from_run(row)
    assert evaluate(plan).step_time_s > 0


@pytest.mark.parametrize(
    ("text", "policy"), [("selective:mlp", "none"), ("selective:mla_up_proj+mlp", "latent")]
)
def test_a_dense_mlp_is_little_of_a_mixture(text: str, policy: str) -> None:
    mixture = {"experts": 8, "topk": 2, "moe_ffn_hidden": 1024}
    row = changed(recompute=text)
    assert plan_from_run(row)[0].plan.recompute == "mlp"
    plan, assumed = plan_from_run({**row, "model": {**row["model"], **mixture}})
    assert plan.plan.recompute == policy
    assert f"recompute={policy}" in assumed


SHARDED = {"tp": 2, "dp": 4, "sharding": "FULL_SHARD", "zero_stage": None}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"reshard_after_forward": 2}, None),
        ({"reshard_after_forward": 4}, None),
        ({"reshard_after_forward": 8}, "reshard_after_forward=True (8 is not priced)"),
        ({"reshard_after_forward": False}, "reshard_after_forward=True (False is not priced)"),
        (
            {"reshard_after_forward": 4, "sharding": "SHARD_GRAD_OP"},
            "reshard_after_forward=False (4 is not priced)",
        ),
        ({"loss_parallel": False}, None),
        ({"reshard_after_forward": True, "loss_parallel": True}, None),
        ({"reshard_after_forward": False, "sharding": "SHARD_GRAD_OP"}, None),
        ({"loss_parallel": False, "tp": 1, "dp": 8}, None),
        ({"reshard_after_forward": 2, "sharding": "NO_SHARD"}, None),
    ],
)
def test_what_is_priced_as_if_it_were_otherwise_is_said(given: dict[str, Any], said: str | None) -> None:
    row = changed(**SHARDED, pp=1, global_batch=8, micro_batch=1) | {"hardware": "dgx-h100:1"}
    row = {**row, "parallel": {**row["parallel"], **given}}
    found = [text for text in plan_from_run(row)[1] if text.startswith(("reshard", "loss_parallel"))]
    assert found == ([said] if said else [])


@pytest.mark.parametrize("pipeline", [1, 2])
def test_whole_logits_are_those_of_the_last_stage(pipeline: int) -> None:
    row = changed(**SHARDED, pp=pipeline, global_batch=8, micro_batch=1) | {"hardware": "dgx-h100:1"}
    row = {**row, "parallel": {**row["parallel"], "tp": 2, "dp": 4 // pipeline, "dp_shard": 4 // pipeline}}
    whole = plan_from_run({**row, "parallel": {**row["parallel"], "loss_parallel": False}})[0]
    assert [bool(stage.sharding) for stage in whole.plan.stages] == [False] * (pipeline - 1) + [True]
    assert evaluate(whole).step_time_s > evaluate(plan_from_run(row)[0]).step_time_s


def test_splash_is_the_kernel_that_tpus_rates_are_of() -> None:
    """AI-Hypercomputer/torchprime pull request 145: 5.87 s a step with flash, 5.367 s with splash attention."""
    row = {
        "series": "torchprime",
        "model": {"name": "llama-3.1-8b", "seq": 8192},
        "hardware": {"gpu": "tpu-v6e", "n_gpus": 256},
        "parallel": {
            "dp": 256,
            "tp": 1,
            "pp": 1,
            "micro_batch": 4,
            "global_batch": 1024,
            "recompute": "full",
        },
    }
    first, splash = (
        plan_from_run({**row, "parallel": {**row["parallel"], "attention": word}})[0]
        for word in ("flash", "splash")
    )
    assert (first.job.stack, splash.job.stack) == ("torch-xla", "torch-xla")
    slower = evaluate(first).step_time_s - evaluate(splash).step_time_s
    assert slower == pytest.approx(5.87 - 5.367, rel=0.1)


@pytest.mark.parametrize("text", ["3", "ZeRO-3", "zero3", "stage3", "stage_3", "ZeRO stage 3", 3.0])
def test_a_stage_is_a_number_in_any_words(text: object) -> None:
    assert planned(zero_stage=text, sharding=None)[0].plan.zero_stage == 3


@pytest.mark.parametrize("text", ["ZeRO++", "stage", "zero4", "stage33"])
def test_other_stages_are_none(text: str) -> None:
    with pytest.raises(InputError, match="zero_stage"):
        planned(zero_stage=text, sharding=None)


@pytest.mark.parametrize(("value", "policy"), [(1, "full"), (0, "none"), ("block", "full")])
def test_recomputation_may_be_switched_by_a_number(value: object, policy: str) -> None:
    assert planned(recompute=value)[0].plan.recompute == policy


def test_sizes_of_a_table_of_text_are_numbers() -> None:
    texts = {key: str(value) if type(value) is int else value for key, value in ROW["model"].items()}
    assert plan_from_run(ROW | {"model": texts})[0] == plan_from_run(ROW)[0]
    with pytest.raises(InputError, match="heads must be a whole number, found 'many'"):
        plan_from_run(ROW | {"model": ROW["model"] | {"heads": "many"}})


def test_a_part_of_a_sequence_for_each_device_is_no_micro_batch() -> None:
    """MaxText's ``per_device_batch_size=0.125`` over eight context ranks."""
    row = changed(dp=8, tp=1, pp=1, micro_batch=0.125, global_batch=8, grad_accum=None)
    assert plan_from_run(row)[0].plan.micro_batch == 1
    with pytest.raises(InputError, match="micro_batch"):
        planned(micro_batch=1.5)


@pytest.mark.parametrize(
    ("parallel", "expected"),
    [
        ({"dp": 8, "tp": 1, "pp": 1}, (4, 1)),
        ({"dp": 4, "tp": 2, "pp": 1}, (8, 1)),
        ({"dp": 8, "tp": 1, "pp": 1, "grad_accum": 2}, (2, 2)),
        ({"dp": 4, "tp": 1, "pp": 2}, (1, 8)),
        ({"dp": 8, "tp": 1, "pp": 1, "micro_batch": 2}, (2, 2)),
    ],
)
def test_maxtext_takes_a_ranks_batch_at_once(parallel: dict[str, int], expected: tuple[int, int]) -> None:
    """One micro-batch a step, before it could accumulate gradients (`planner.runs.origins`)."""
    row = changed(**{"micro_batch": None, "grad_accum": None, "global_batch": 32} | parallel)
    plan = plan_from_run(row | {"series": "maxtext-synthetic"})[0].plan
    assert (plan.micro_batch, plan.num_microbatches) == expected


def test_a_batch_in_tokens_is_refused() -> None:
    with pytest.raises(InputError, match="it counts sequences, not tokens"):
        planned(global_batch=4194304)


@pytest.mark.parametrize(
    ("text", "precision", "policy"),
    [
        ("unspecified", "nvfp4", "all_but_attention"),
        ("selective-op", "nvfp4", "all_but_attention"),
        ("unspecified", "mxfp8", "alternate"),
        ("full", "nvfp4", "full"),
        ("none", "nvfp4", "none"),
    ],
)
def test_products_in_fp4_are_on_no_list_of_what_is_kept(text: str, precision: str, policy: str) -> None:
    row = changed(recompute=text, precision=precision) | {"series": "torchtitan"}
    assert plan_from_run(row)[0].plan.recompute == policy

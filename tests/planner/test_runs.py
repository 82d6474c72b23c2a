"""Published runs become the plans that their sources describe."""

from pathlib import Path
from typing import Any

import pytest

from planner.errors import InputError
from planner.models.catalog import build_graph
from planner.operators import model_flops
from planner.plans import Plan
from planner.runs import plan_from_run
from planner.runs.files import load_rows
from planner.runs.vocabulary import STACK_HABITS, mean_sharding

DATA = Path(__file__).parents[1] / "data" / "runs_sample.jsonl"
ROWS: dict[str, dict[str, Any]] = {row["id"]: row for row in load_rows(DATA)}


def planned(name: str, **parallel: Any) -> tuple[Plan, tuple[str, ...]]:
    """Plan of a sample row with some of its parallel fields replaced."""
    return plan_from_run(changed(name, **parallel))


def changed(name: str, **parallel: Any) -> dict[str, Any]:
    return {**ROWS[name], "parallel": {**ROWS[name]["parallel"], **parallel}}


EXPRESSIBLE = [
    name
    for name in ROWS
    if name
    not in (
        "bloom/036-80L-h13824-a64-dp8tp8pp10-mbs4-gb2048-fp16",
        "moezoo/qwen3-235b-h100-base",
        "nnscaler/llama3-8b-128k-8h100",
        "primus/qwen3-235b-mi355x-32-v-half",
    )
]


@pytest.mark.parametrize("name", EXPRESSIBLE)
def test_plans_use_what_was_printed(name: str) -> None:
    row = ROWS[name]
    plan, assumed = plan_from_run(row)
    parallel, choice = row["parallel"], plan.plan
    assert plan.cluster.num_devices == row["hardware"]["n_gpus"] * row["hardware"].get("devices_per_chip", 1)
    assert choice.num_devices == plan.cluster.num_devices
    assert (choice.tensor, choice.pipeline, choice.context) == (
        parallel["tp"],
        parallel["pp"],
        parallel["cp"],
    )
    assert plan.job.seq_len == row["model"]["seq"]
    assert choice.micro_batch * choice.num_microbatches * choice.data == plan.job.global_batch
    assert choice.shard_degree * choice.replicate_degree == choice.data * choice.context
    if parallel.get("global_batch") is not None:
        assert plan.job.global_batch == parallel["global_batch"]
    if parallel.get("micro_batch") is not None:
        assert choice.micro_batch == parallel["micro_batch"]
    elif f"micro_batch={choice.micro_batch}" not in assumed:
        raise AssertionError("an unpublished micro-batch must be listed")
    if parallel.get("zero_stage") is not None:
        assert choice.zero_stage == parallel["zero_stage"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("bloom/036-80L-h13824-a64-dp8tp8pp10-mbs4-gb2048-fp16", "= 640 devices, the cluster has 320"),
        ("nnscaler/llama3-8b-128k-8h100", "global_batch 4 is not a multiple of dp 8"),
    ],
)
def test_what_a_plan_cannot_say_is_refused(name: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        plan_from_run(ROWS[name])


@pytest.mark.parametrize(
    ("changes", "expert", "whole"),
    [
        ({"ep": 32}, 16, True),  # more than dp 16: over tp 2 as well
        ({"ep": 8, "etp": 1}, 4, True),
        ({"ep": 8, "etp": 2}, 8, False),
        ({"ep": 8}, 4, True),  # as the ModelZoo's tables say
    ],
)
def test_expert_ranks_include_tensor_ranks_where_experts_are_whole(
    changes: dict[str, int], expert: int, whole: bool
) -> None:
    plan, _ = planned("moezoo/qwen3-235b-h100-base", **changes)
    assert (plan.plan.expert, plan.plan.experts_over_tensor) == (expert, whole)


@pytest.mark.parametrize(
    ("flags", "stack"),
    [({}, "torch-fsdp2"), ({"compile": False}, "torch-eager"), ({"async_tp": True}, "torch-async-tp")],
)
def test_flags_of_a_torchtitan_run_choose_its_stack(flags: dict[str, bool], stack: str) -> None:
    plan, _ = planned("tt/t1-8b-8gpu-bf16", **{"compile": True, "async_tp": False, **flags})
    assert plan.job.stack == stack


def test_a_loop_of_ones_own_adds_gradients_up_whole() -> None:
    """torchtitan reduces after every micro-batch; the loops that PyTorch's tracker saw do after the last."""
    assert (
        planned("torch/tiny-dp8", wrap="titan", grad_accum=4, global_batch=32)[0].job.stack == "torch-no-sync"
    )
    assert planned("tt/t1-8b-8gpu-bf16", compile=True, wrap="titan")[0].job.stack == "torch-fsdp2"


def test_the_dispatcher_decides_how_tokens_travel() -> None:
    plan, _ = planned("moezoo/qwen3-235b-h100-base")
    assert plan.job.token_exchange == "deepep"  # DeepEP, by the notes
    plan, _ = planned("moezoo/qwen3-235b-h100-base", moe_dispatcher="alltoall", moe_a2a_overlap=True)
    assert (plan.job.token_exchange, plan.job.overlap_experts) == ("all_to_all", True)
    plan, _ = planned("moezoo/qwen3-235b-h100-base", moe_dispatcher="HybridEP")
    assert plan.job.token_exchange == "hybridep"
    with pytest.raises(
        InputError, match="moe_dispatcher 'mine' is not understood; use all_gather, all_to_all, deepep, hyb"
    ):
        planned("moezoo/qwen3-235b-h100-base", moe_dispatcher="mine")


@pytest.mark.parametrize(
    ("hardware", "tensor", "stack"),
    [
        ("dgx-h100:2", 1, "torch-eager"),
        ("dgx-h100:2", 2, "megatron-serial"),
        ("tpu-v5e:4x4", 1, "jax-xla"),
        ("tpu-v5e:4x4", 2, "jax-xla"),
        ("trn1.32xlarge:1", 2, "neuronx"),
    ],
)
def test_a_run_without_a_stack_has_that_of_its_devices(hardware: str, tensor: int, stack: str) -> None:
    """Neither FSDP2 nor Megatron runs on TPUs and Trainium; PyTorch compiles nothing unasked."""
    parallel = {"dp": 16 // tensor, "tp": tensor, "pp": 1, "micro_batch": 1, "global_batch": 16}
    model = {"name": "llama-3.1-8b", "seq": 4096}
    plan, assumed = plan_from_run({"model": model, "hardware": hardware, "parallel": parallel})
    assert plan.job.stack == stack
    assert f"stack={stack}" in assumed


@pytest.mark.parametrize(("given", "found"), [({}, 1.25), ({"moe_capacity_factor": -1}, None)])
def test_no_capacity_is_an_answer_that_notes_do_not_overrule(
    given: dict[str, int], found: float | None
) -> None:
    row = {
        "model": {"name": "mixtral-8x7b", "seq": 4096},
        "hardware": "dgx-h100:2",
        "parallel": {"dp": 16, "ep": 8, "micro_batch": 1, "global_batch": 16, **given},
        "notes": "elsewhere with capacity factor 1.25",
    }
    assert plan_from_run(row)[0].job.expert_capacity == found


@pytest.mark.parametrize(
    ("stack", "tensor", "rows"),
    [("megatron", 1, 50304), ("deepspeed", 2, 50432), ("nanotron", 4, 50260), ("torch-fsdp2", 2, 50257)],
)
def test_tables_are_padded_as_the_stack_does(stack: str, tensor: int, rows: int) -> None:
    row = {
        "model": {"layers": 2, "hidden": 512, "heads": 8, "ffn_hidden": 2048, "vocab": 50257, "seq": 1024},
        "hardware": {"gpu": "A100-SXM4-80GB", "n_gpus": 8},
        "parallel": {
            "stack": stack,
            "tp": tensor,
            "pp": 1,
            "dp": 8 // tensor,
            "micro_batch": 1,
            "global_batch": 8,
        },
    }
    plan, assumed = plan_from_run(row)
    assert plan.model.config["vocab"] == rows
    assert (f"vocab={rows} (as the stack pads 50257)" in assumed) == (rows != 50257)


def test_everything_assumed_is_listed() -> None:
    _, assumed = planned("us-0001", micro_batch=None, grad_accum=None, precision=None, recompute=None)
    assert {"micro_batch=1", "precision=bf16", "recompute=none"} <= set(assumed)
    _, assumed = planned("us-0001")
    assert not [a for a in assumed if a.startswith(("micro_batch", "precision", "recompute", "grad_dtype"))]


@pytest.mark.parametrize(
    ("name", "stack", "attention"),
    [
        ("us-0001", "nanotron-keeping", "flash"),
        ("tt/t1-8b-8gpu-bf16", "torch-eager", "flash"),
        ("korthikanti-22B-full", "megatron-2022", "plain"),
        ("vtrain/single-0000", "deepspeed-2022", "plain"),
        ("tpu-001", "jax-xla", "flash"),
        ("mlperf/v5.0/llama405b-H100-NVIDIA-eos-n64-512", "nemo", "flash"),
        ("gpurecipes/405b-b200-256", "jax-xla", "flash"),
        ("fms/llama2-7b-H100", "torch-fsdp1", "flash"),
    ],
)
def test_software_follows_from_the_series(name: str, stack: str, attention: str) -> None:
    job = plan_from_run(ROWS[name])[0].job
    assert (job.stack, job.attention) == (stack, attention)


def test_what_is_not_compiled_is_eager_where_nothing_names_its_software() -> None:
    row = changed("tt/t1-8b-8gpu-bf16", compile=False) | {"series": "mine", "id": "1"}
    assert plan_from_run(row)[0].job.stack == "torch-eager"


def test_every_stack_ships() -> None:
    from cluster_specs.software import list_software

    assert {software.name for software in list_software()} == set(STACK_HABITS)


@pytest.mark.parametrize(
    ("text", "zero_stage", "sharding", "degree"),
    [
        ("FULL_SHARD", 3, "FULL_SHARD", 8),
        ("FSDP2 (reshard after fwd)", 3, "FULL_SHARD", 8),
        ("FSDP2 (no reshard with PP)", 2, "SHARD_GRAD_OP", 8),
        ("distributed optimizer (ZeRO-1)", 1, "NO_SHARD", 8),
        ("ZeRO-1 within groups of 4 (hybrid zero)", 1, "NO_SHARD", 4),
        ("FSDP=4 x DP=2", 3, "HYBRID_SHARD", 4),
        ("MaxText FSDP=8 x DP=1", 3, "FULL_SHARD", 8),
        ("NO_SHARD", 0, "NO_SHARD", 1),
    ],
)
def test_sharding_texts(text: str, zero_stage: int, sharding: str, degree: int) -> None:
    choice = planned("us-0001", sharding=text, zero_stage=None)[0].plan
    assert (choice.zero_stage, choice.sharding, choice.shard_degree) == (zero_stage, sharding, degree)
    assert choice.replicate_degree == 8 // degree


def test_hybrid_sharding_without_a_degree_shards_inside_a_node() -> None:
    """Two nodes of four: four shards, two replicas."""
    plan, assumed = plan_from_run(ROWS["vectorlm/llama2-7b-opt3"])
    assert (plan.plan.sharding, plan.plan.shard_degree, plan.plan.replicate_degree) == ("HYBRID_SHARD", 4, 2)
    assert "shard_degree=4" in assumed


def test_unknown_sharding_names_the_known_ones() -> None:
    with pytest.raises(InputError, match="use FULL_SHARD"):
        mean_sharding("split as we like")


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("none", "none"),
        ("none (assumed)", "none"),
        ("full", "full"),
        ("selective-op", "alternate"),
        ("selective-op without exchange", "alternate_local"),
        ("selective-op of compiled parts", "all_but_attention"),
        ("selective_op without products of fp4", "all_but_attention"),
        ("selective_op_all", "selective"),
        ("selective:mlp-act+norm (pipeline-parallel-aware)", "selective"),
        ("selective:layernorm+moe_act", "selective"),
        ("selective:mlp", "mlp"),
        ("minimal", "products"),
        ("minimal_flash", "selective"),
        ("custom", "full"),
        ("dots_nobatch", "products"),
        ("save_dot_except_mlp", "projections"),
        ("qkv_proj_offloaded", "heads"),
        ("custom: decoder_layer_input+q/k/v_proj offload", "heads"),
        ("custom: decoder_layer_input+q/k/v/out_proj offload", "projections"),
    ],
)
def test_recompute_texts(text: str, policy: str) -> None:
    assert planned("us-0001", recompute=text)[0].plan.recompute == policy


@pytest.mark.parametrize(
    ("text", "every"),
    [("every 3rd layer", 3), ("every other layer", 2), ("selective (every n-th layer, AC)", 2), ("full", 1)],
)
def test_layers_that_recompute_may_be_one_in_so_many(text: str, every: int) -> None:
    choice = planned("us-0001", recompute=text)[0].plan
    assert (choice.recompute, choice.recompute_every) == ("full", every)


def test_selective_means_attention_in_megatron() -> None:
    assert planned("korthikanti-22B-full", recompute="selective")[0].plan.recompute == "attention"
    assert planned("tt/t1-8b-8gpu-bf16", recompute="selective")[0].plan.recompute == "selective"


@pytest.mark.parametrize(
    ("text", "vp", "schedule", "virtual_stages"),
    [
        ("1F1B", None, "1f1b", 1),
        ("1F1B (non-interleaved)", None, "1f1b", 1),
        ("interleaved 1F1B", 4, "interleaved", 4),
        ("interleaved 1F1B", "unspecified", "interleaved", 2),
        ("1F1B-I", 3, "interleaved", 3),
        ("ZB-2p", None, "zb-h2", 1),
        ("v-half", None, "v-half", 2),
        ("depth-first", None, "interleaved", 2),
        ("breadth-first", 4, "breadth-first", 4),
        ("LoopedBFS", None, "breadth-first", 1),
        ("InterleavedZeroBubble", 3, "interleaved-zb", 3),
        ("ZBVZeroBubble", None, "zb-v", 2),
        ("DualPipeV", None, "dualpipev", 2),
        ("DualPipe", None, "dualpipe", 1),
        ("DAPPLE", None, "1f1b", 1),
        ("hanayo", None, "hanayo", 2),
        (None, 2, "interleaved", 2),
        (None, None, "1f1b", 1),
    ],
)
def test_schedule_texts(text: str | None, vp: Any, schedule: str, virtual_stages: int) -> None:
    choice = planned("zb/GPT-1.5B-ZB-2p-24mb", schedule=text, vp=vp)[0].plan
    assert (choice.schedule, choice.virtual_stages) == (schedule, virtual_stages)


def test_batch_defaults_keep_the_pipeline_full() -> None:
    """No batch was published for 8 stages: four micro-batches per stage."""
    plan, assumed = plan_from_run(ROWS["nemo-a100/gpt3-175b-64"])
    assert plan.plan.num_microbatches == 32
    assert "num_microbatches=32" in assumed


@pytest.mark.parametrize(
    ("said", "micro_batch", "num_microbatches"),
    [
        ({}, 8, 1),
        ({"grad_accum": 4}, 2, 4),
        ({"global_batch": 1024}, 2, 8),
    ],
)
def test_a_batch_of_each_device_is_one_of_all_tensor_ranks(
    said: dict[str, int], micro_batch: int, num_microbatches: int
) -> None:
    """MaxText: 256 devices of two sequences are 512, eight for each of 64 data ranks; others accumulate."""
    degrees = {"dp": 64, "dp_shard": 64, "tp": 4, "ep": 1, "micro_batch": 2, "global_batch": 512}
    choice = planned("tpu-065", **(degrees | said))[0].plan
    assert (choice.micro_batch, choice.num_microbatches) == (micro_batch, num_microbatches)


def test_experts_with_ranks_of_their_own() -> None:
    """64 data ranks x 4 expert ranks = 256 chips: 256 data-parallel ranks that experts reuse."""
    choice = plan_from_run(ROWS["tpu-065"])[0].plan
    assert (choice.data, choice.expert) == (256, 4)


def test_types_of_master_weights_and_gradients() -> None:
    name = "torch/tiny-dp8"
    assert planned(name)[0].job.grad_dtype == "fp32"
    job = planned(name, master_dtype="bfloat16", reduce_dtype="bfloat16")[0].job
    assert (job.master_weights, job.grad_dtype) == (False, "bf16")
    assert plan_from_run(ROWS["llmf/mpt-70b-a100_40gb-128-s2048-bf16-gb512"])[0].job.grad_dtype == "bf16"


def test_offload_is_kept() -> None:
    assert plan_from_run(ROWS["mleng/llama8b-B200-8k"])[0].plan.offload == ("optimizer",)
    row = ROWS["kwai/llama-175b-256-s4096"]
    plan, _ = plan_from_run(row)
    assert plan.plan.offload == ("activations",)
    assert plan.plan.offload_share == row["parallel"]["act_offload_fraction"] < 1
    by_layers = planned("kwai/llama-175b-256-s4096", act_offload_fraction=None, cpu_offload_layers=24)[0]
    assert by_layers.plan.offload_share == 24 / row["model"]["layers"]


def test_unknown_fields_of_a_row_are_listed() -> None:
    assert "ignored parallel.warp_drive" in planned("us-0001", warp_drive=9)[1]


def test_tensor_ranks_of_maxtext_share_what_layers_hand_on() -> None:
    """MaxText/configs/base.yml: ``activation_embed`` lies over ``tensor``; other JAX programs keep it whole."""
    row = {
        "model": {"name": "llama-3.1-8b", "seq": 4096},
        "hardware": "tpu-v5e:4x4",
        "parallel": {"dp": 4, "tp": 4, "micro_batch": 1, "global_batch": 4},
    }
    shared = {
        name: plan_from_run({**row, "series": name})[0].plan.sequence_parallel for name in ("maxtext", "JAX")
    }
    assert shared == {"maxtext": True, "JAX": False}


def bert(**model: Any) -> dict[str, Any]:
    row = {"model": {"name": "bert-large", "seq": 128}, "hardware": {"gpu": "A100-SXM4-80GB", "n_gpus": 1}}
    row["model"] |= model
    return row | {"parallel": {"sharding": "NO_SHARD", "micro_batch": 256, "global_batch": 256}}


def test_masked_tokens_alone_have_logits() -> None:
    """20 of 128 tokens, of a vocabulary of 30522 and a square product before it."""
    every, few = (
        model_flops(build_graph(plan_from_run(row)[0].model, 128), 1)
        for row in (bert(), bert(max_predictions_per_seq=20))
    )
    assert every - few == 6 * (128 - 20) * 1024 * (30522 + 1024)


def test_a_decoder_predicts_every_token() -> None:
    with pytest.raises(
        InputError, match="is of encoders whose head predicts masked tokens, which llama-3-8b"
    ):
        plan_from_run(bert(name="llama-3-8b", max_predictions_per_seq=20))

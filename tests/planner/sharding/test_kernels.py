"""Experts' layers as fused kernels spare what passed over memory between their products, and nothing else."""

import json
from pathlib import Path
from typing import Any

import pytest

from cluster_specs.adjusted import device_on, in_training
from cluster_specs.catalog import load_cluster, load_device
from cluster_specs.software import load_software
from cost_models.attention import AttentionShape, attention_seconds
from cost_models.compute import matmul_seconds
from planner.evaluation import Evaluator, evaluate
from planner.models.catalog import load_model
from planner.plans import Job, Parallelism, Plan
from planner.runs.mapping import plan_from_run
from planner.sharding.routing import device_of_groups, grid_on, leaving_seconds

ROWS = (Path(__file__).parents[2] / "published" / "runs_gpu.jsonl").read_text().splitlines()


def published(name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(row for row in map(json.loads, ROWS) if row["id"].startswith(name))
    return found


QWEN = published("bridge/26.06/qwen3_30b_a3b/DGX-GB200")
GPT_OSS = published("bridge/26.04/gpt-oss-120b/DGX-GB300")


def compute(row: dict[str, Any] = QWEN, **changes: Any) -> float:
    """Seconds of compute of a step, of the same kernel of attention in all; of Qwen3-30B's on eight GB200."""
    plan = plan_from_run(row)[0]
    job = plan.job.model_copy(update={"attention": "native", **changes})
    return evaluate(Plan(model=plan.model, cluster=plan.cluster, job=job, plan=plan.plan)).time["compute"]


def test_fused_experts_spare_activations_and_casts() -> None:
    """Of 131,072 rows of 768: 1.5 passes of the activation both ways, and four bytes for each cast element."""
    activation = 1.5 * ((2 + 1) + (2 * 2 + 1)) * 2
    casts = 4 * (1 + 2)
    spared = 48 * 16 * 131_072 * 768 * (activation + casts) / (8e12 * 0.8)
    assert compute(stack="nemo-25.11") - compute() == pytest.approx(spared, rel=0.01)


@pytest.mark.parametrize("changes", [{"precision": "bf16"}, {"cuda_graphs": False}])
def test_other_types_and_steps_that_the_host_issues_have_kernels_of_their_own(
    changes: dict[str, Any],
) -> None:
    assert compute(**changes) == pytest.approx(compute(stack="nemo-25.11", **changes))


def test_biases_of_experts_are_kernels_of_their_own() -> None:
    """Of 65,536 rows of 2 x 2,880 clamped gates, and of 2,880 results that a sum in fp32 goes over."""
    without = {**GPT_OSS, "model": {**GPT_OSS["model"], "expert_bias": False}}
    moved = 36 * 5 * 65_536 * 2_880 * (2 * (8 + 10) + 28 + 40) / (8e12 * 0.81)
    assert compute(GPT_OSS) - compute(without) == pytest.approx(moved, rel=0.01)


def assembly(stack: str) -> tuple[float, float]:
    """Seconds to put queries, keys and values of DeepSeek-V3 together, for 16 sequences of 4,096 on one GB300."""
    job = Job.model_validate({"global_batch": 64, "seq_len": 4096, "stack": stack})
    plan = Parallelism(data=4, expert=4, zero_stage=3, shard_degree=4, micro_batch=16)
    evaluator = Evaluator(load_model("deepseek-v3"), load_cluster("gb300-nvl72:1x4"), job)
    block = evaluator.graph.block[evaluator.main_layer]
    op = next(op for op in block.ops if op.name == "rotary")
    cost = evaluator.pricer(plan).op(block, op, evaluator.assignment(plan, block.name, {})["rotary"])
    return cost.forward, cost.backward_input


def test_latent_attention_that_nothing_compiles_is_put_together_as_slowly_as_was_measured() -> None:
    """pytorch/torchtitan pull request 4134: 19.160 and 15.579 ms; 1.276 and 1.949 with kernels written for it."""
    assert assembly("torch-eager") == pytest.approx((19.160e-3, 15.579e-3), rel=0.02)
    compiled = assembly("torch-fsdp2")
    assert 1.276e-3 < compiled[0] < 19.160e-3 / 3
    assert 1.949e-3 < compiled[1] < 15.579e-3 / 2


GPT: dict[str, Any] = {
    "model": {"layers": 2, "hidden": 4096, "heads": 32, "ffn_hidden": 16384, "vocab": 512, "seq": 2048,
              "gated_mlp": False},
    "hardware": {"gpu": "A100-SXM4-80GB", "n_gpus": 1},
    "parallel": {"dp": 1, "tp": 1, "pp": 1, "micro_batch": 4, "global_batch": 4, "recompute": "none"},
}  # fmt: skip


def test_gradients_of_biases_read_what_products_made_once() -> None:
    """Of 8,192 rows: 3 h of queries, keys and values, h of attention, 4 h and h of the MLP, in 16 bits."""
    without = {**GPT, "model": {**GPT["model"], "bias": False}}
    megatron, nemo = (compute(GPT, stack=s) - compute(without, stack=s) for s in ("megatron", "nemo"))
    assert megatron == pytest.approx(2 * 8192 * 9 * 4096 * 2 / (2039e9 * 0.88), rel=0.02)
    assert nemo == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(("gated", "forward", "backward"), [(False, 18, 28), (True, 18 + 3, 28 + 6)])
def test_the_new_gelu_of_transformers_is_eight_kernels(gated: bool, forward: int, backward: int) -> None:
    """Of 2 layers of 8,192 rows of 16,384, in 16 bits; others are 3.4 passes over what they read and make."""
    plain, new = (
        {**GPT, "model": {**GPT["model"], "gated_mlp": gated, "activation": name}}
        for name in ("gelu", "gelu_new")
    )
    inputs = 1 + gated
    arrays = forward + backward - 3.4 * (inputs + 1 + 2 * inputs + 1)
    moved = 2 * 8192 * 16384 * 2 * arrays / (2039e9 * 0.88)
    assert compute(new, stack="hf-fsdp") - compute(plain, stack="hf-fsdp") == pytest.approx(moved, rel=0.02)
    assert compute(new, stack="megatron") == pytest.approx(compute(plain, stack="megatron"))


def test_fused_experts_add_biases_as_they_multiply() -> None:
    fused = published("bridge/26.06/gpt-oss-120b/DGX-GB300")
    without = {**fused, "model": {**fused["model"], "expert_bias": False}}
    assert compute(fused) == pytest.approx(compute(without))


@pytest.mark.parametrize(
    ("changes", "biased"),
    [
        ({}, True),
        ({"expert_bias": False}, False),
        ({"experts": 64}, False),
        ({"name": "Qwen3-30B-A3B"}, False),
    ],
)
def test_a_run_has_the_biases_of_the_model_of_its_name(changes: dict[str, Any], biased: bool) -> None:
    model = plan_from_run({**GPT_OSS, "model": {**GPT_OSS["model"], **changes}})[0].model
    assert bool(model.config.get("expert_bias")) is biased


def test_rows_are_taken_from_a_batch_and_put_back_into_it() -> None:
    """Of FlashMHA with a mask of padding: five passes over queries, keys, values and results; a loss made thrice."""
    unpadded, plain = (compute(GPT, attention="flash", stack=f"composer-{year}") for year in (2022, 2023))
    rows = 2 * 8192 * 4 * 4096 * 2 * (2 + 3)
    loss = 8192 * 512 * (2 * (21 - 1.4) + 4 * (5.5 - 1.4))
    assert unpadded - plain == pytest.approx((rows + loss) / (2039e9 * 0.88), rel=0.02)


def test_levanter_goes_over_tiles_on_gpus_unless_it_is_given_a_kernel() -> None:
    shape = AttentionShape(batch=4, heads=32, q_len=2048, kv_len=2048, qk_dim=128, v_dim=128, kv_heads=32)
    device = in_training(load_device("a100-sxm-80g"))
    tiled, fused = (
        sum(attention_seconds(shape, device, "bf16", kernel, backward=back).seconds for back in (False, True))
        for kernel in ("tiled", "flash")
    )
    loops, native = (compute(GPT, attention=kernel, stack="levanter") for kernel in ("flash", "native"))
    assert loops - native == pytest.approx(2 * (tiled - fused))
    assert native == compute(GPT, attention="flash", stack="jax-xla")


@pytest.mark.parametrize(
    ("name", "stack", "heads", "full", "windowed", "forward", "backward"),
    [
        ("b200-sxm-180g", "levanter-fa4", 16 * 20, 7, 19, 5.9e-3, 13.8e-3),
        ("gb200-186g", "levanter-2026.08", 32 * 16, 1, 0, 2.2e12 / 372e12, 5.5e12 / 421e12),
    ],
)
def test_attention_that_was_measured_in_steps_keeps_its_rate_in_steps(
    name: str, stack: str, heads: int, full: int, windowed: int, forward: float, backward: float
) -> None:
    """Marin's profiles: means of layers in July 2026, whole triangles in August, of 2.2 and 5.5 TFLOPs a device."""
    device = in_training(device_on(load_device(name), load_software(stack)))
    shapes = [AttentionShape(heads, 1, 4096, 4096, 128, 128, 1, window=w) for w in (None, 2048)]
    for measured, back in ((forward, False), (backward, True)):
        whole, cut = (attention_seconds(s, device, "bf16", "flash", backward=back).seconds for s in shapes)
        assert (full * whole + windowed * cut) / (full + windowed) == pytest.approx(measured, rel=0.03)


def test_programs_of_other_groups_take_time_to_leave() -> None:
    """The Triton kernel of haliax on B200: 397, 584, 736 and 859 TFLOP/s of 64, 32, 16 and 8 groups of 32,768 rows."""
    device = load_device("b200-sxm-180g")
    grid = grid_on(load_software("levanter"), device)
    assert grid is not None
    for groups, measured in ((64, 397e12), (32, 584e12), (16, 736e12), (8, 859e12)):
        slower = device_of_groups(load_software("levanter"), device)
        seconds = matmul_seconds(32_768, 2_560, 2_560, slower, "bf16", groups).seconds
        seconds += leaving_seconds(grid, device, 32_768, 2_560, groups)
        assert 2 * groups * 32_768 * 2_560**2 / seconds == pytest.approx(measured, rel=0.03)
    assert grid_on(load_software("levanter-quack"), device) is None
    assert grid_on(load_software("levanter"), load_device("tpu-v5p")) is None


@pytest.mark.parametrize(
    ("rows", "groups", "columns", "depth", "measured", "within"),
    [
        (16_384, 1, 8192, 5120, 4403e-6, 0.05),
        (16_384, 8, 8192, 5120, 4246e-6, 0.05),
        (128_000, 1, 8192, 5120, 43140e-6, 0.12),
        (128_000, 8, 8192, 5120, 37701e-6, 0.12),
        (128_000, 1, 2048, 7168, 13065e-6, 0.12),
        (128_000, 8, 2048, 7168, 14967e-6, 0.12),
    ],
)
def test_grouped_products_of_pytorch_on_b200_take_as_long_as_torchao_measured(
    rows: int, groups: int, columns: int, depth: int, measured: float, within: float
) -> None:
    """Forward and backward in bf16: pytorch/ao pull request 2999, its README (36027d8) at clocks of steps."""
    device = load_device("b200-sxm-180g")
    device = in_training(device) if rows > 16_384 else device
    slower, each = device_of_groups(load_software("torch-compiled-loss"), device), rows / groups
    shapes = ((each, columns, depth), (each, depth, columns), (depth, columns, each))
    seconds = sum(matmul_seconds(*shape, slower, "bf16", groups).seconds for shape in shapes)
    assert seconds == pytest.approx(measured, rel=within)
    assert (
        device_of_groups(load_software("torch-fsdp2"), load_device("h200-sxm-141g")).efficiency.matmul > 0.75
    )

"""What single targets write and refuse beyond their limits."""

import ast
import json
import math
import tomllib
from typing import Any

import pytest
import yaml
from tiny_llama import tiny_model, tiny_plan

from cluster_specs.software import load_software
from planner.errors import Unsupported
from planner.exporters import maxtext, torchtitan
from planner.exporters.registry import export
from planner.models.catalog import list_models, load_model

SHARDED: dict[str, Any] = {"data": 4, "zero_stage": 3, "sharding": "FULL_SHARD", "shard_degree": 4}

REPLICAS: dict[str, Any] = {"data": 4, "zero_stage": 0, "sharding": "NO_SHARD", "shard_degree": 1}

MIXTRAL = {
    "model_type": "mixtral",
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": None,
}

REFUSALS: dict[str, tuple[str, dict[str, Any], str]] = {
    "replicas beside tensor": ("torchtitan", REPLICAS | {"tensor": 2}, "replicates states only where"),
    "replicas over context": ("torchtitan-0.2", {"context": 2}, "shards states over context ranks"),
    "chunks": (
        "torchtitan",
        SHARDED | {"context": 16, "shard_degree": 64},
        "in 32 pieces, which do not divide 16",
    ),
    "tensor and expert": ("torchtitan", SHARDED | {"tensor": 2, "expert": 2}, "spreads experts over tensor"),
    "experts across shards": (
        "torchtitan",
        SHARDED | {"expert": 4, "shard_degree": 2, "replicate_degree": 2},
        "cut groups of 4",
    ),
    "ZeRO 3 with tensor": ("deepspeed", SHARDED | {"tensor": 2, "sequence_parallel": False}, "ZeRO 0 to 2"),
    "offload of activations": (
        "deepspeed",
        SHARDED | {"offload": ("activations",)},
        "only with --recompute full",
    ),
    "offload without ZeRO": ("deepspeed", REPLICAS | {"offload": ("optimizer",)}, "only with ZeRO"),
    "half a node": (
        "accelerate-fsdp1",
        SHARDED | {"shard_degree": 2, "replicate_degree": 2, "sharding": "HYBRID_SHARD"},
        "shards over the 4 devices of a node, the plan over 2",
    ),
    "MaxText's virtual stages": (
        "maxtext",
        {"pipeline": 2, "schedule": "gpipe", "virtual_stages": 2, "recompute": "full"},
        "one stage a rank",
    ),
    "MaxText's micro-batches": (
        "maxtext",
        {"pipeline": 8, "schedule": "gpipe", "data": 4, "zero_stage": 0, "recompute": "full"},
        "multiples of its 8 stages, not 4",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals_name_the_reason(case: str) -> None:
    target, degrees, reason = REFUSALS[case]
    model = (
        tiny_model(num_hidden_layers=8, **MIXTRAL)
        if degrees.get("expert", 1) > 1
        else tiny_model(num_hidden_layers=8)
    )
    with pytest.raises(Unsupported, match=reason):
        export(tiny_plan(model, {"precision": "bf16"}, **degrees), target)


def test_deepspeed_counts_buckets_in_elements() -> None:
    stack = load_software("deepspeed")
    plan = tiny_plan(job={"precision": "bf16", "stack": "deepspeed"}, **SHARDED)
    zero = json.loads(export(plan, "deepspeed")["deepspeed.json"])["zero_optimization"]
    assert zero["reduce_bucket_size"] * 2 == stack.gradient_bucket
    layer = (
        64 * (64 + 2 * 32 + 64) + 3 * 64 * 96 + 2 * 64
    )  # attention, feed-forward and norms of the tiny Llama
    assert zero["stage3_prefetch_bucket_size"] == stack.prefetch_units * layer


@pytest.mark.parametrize("pipeline", [1, 2])
@pytest.mark.parametrize("micro_batch", [1, 2])
def test_torchtitan_splits_the_batch_as_planned(pipeline: int, micro_batch: int) -> None:
    plan = tiny_plan(tiny_model(num_hidden_layers=8), {"precision": "bf16"}, **SHARDED, pipeline=pipeline,
                     micro_batch=micro_batch)  # fmt: skip
    text = export(plan, "torchtitan")["torchtitan_flags.txt"]
    held = micro_batch * (plan.plan.num_microbatches if pipeline > 1 else 1)
    assert f"--training.local_batch_size {held} " in text
    assert ("--parallelism.pipeline_parallel_microbatch_size" in text) is (pipeline > 1)


@pytest.mark.parametrize(("schedule", "stages"), [("1f1b", 1), ("zb-v", 2)])
def test_torchtitan_does_not_compile_blocks_whose_backward_is_split(schedule: str, stages: int) -> None:
    degrees = {"pipeline": 2, "schedule": schedule, "virtual_stages": stages}
    plan = tiny_plan(tiny_model(num_hidden_layers=8), {"precision": "bf16"}, **degrees)
    compiled = schedule == "1f1b"
    assert f"CompileConfig(enable={compiled})" in export(plan, "torchtitan")["config_registry.py"]
    toml = tomllib.loads(export(plan, "torchtitan-0.2")["torchtitan.toml"])
    assert toml["compile"]["enable"] is compiled


def test_torchtitan_runs_a_model_that_it_ships() -> None:
    plan = tiny_plan(load_model("llama-3.1-8b"), {"precision": "bf16"}, **SHARDED, recompute="full")
    tree = ast.parse(export(plan, "torchtitan")["config_registry.py"])
    assert [n.name for n in tree.body if isinstance(n, ast.FunctionDef)] == ["apply", "planned"]
    assert "FullAC.Config()" in ast.unparse(tree)
    assert 'flavor = "8B"' in export(plan, "torchtitan-0.2")["torchtitan.toml"]


def test_models_with_a_name_elsewhere_are_models_that_we_ship() -> None:
    assert set(torchtitan.MODELS) | set(maxtext.MODELS) <= set(list_models())


@pytest.mark.parametrize(
    "degrees",
    [
        SHARDED | {"micro_batch": 2},
        SHARDED | {"tensor": 2, "context": 2, "shard_degree": 8},
        {"data": 2, "pipeline": 2, "schedule": "gpipe", "replicate_degree": 2},
    ],
)
def test_maxtext_covers_the_devices_and_the_batch(degrees: dict[str, Any]) -> None:
    plan = tiny_plan(tiny_model(num_hidden_layers=8), {"precision": "bf16"}, recompute="full", **degrees)
    config = yaml.safe_load(export(plan, "maxtext")["maxtext.yml"])
    axes = [size for key, size in config.items() if key.endswith("_parallelism")]
    assert math.prod(axes) == plan.plan.num_devices
    step = config["per_device_batch_size"] * plan.plan.num_devices * config["gradient_accumulation_steps"]
    assert step == plan.job.global_batch


def test_levanter_replicates_across_slices_only() -> None:
    hybrid = SHARDED | {"sharding": "HYBRID_SHARD", "shard_degree": 2, "replicate_degree": 2}
    plan = tiny_plan(job={"precision": "bf16"}, **hybrid)
    two = plan.cluster.model_copy(update={"nodes": 2, "devices_per_node": 2})
    mesh = yaml.safe_load(export(plan.model_copy(update={"cluster": two}), "levanter")["levanter.yaml"])[
        "trainer"
    ]["mesh"]
    assert (mesh["axes"], mesh["dcn_axes"]) == ({"replica": 1, "data": 2, "model": 1}, {"replica_dcn": 2})
    whole = tiny_plan(job={"precision": "bf16"}, **SHARDED).model_copy(update={"cluster": two})
    with pytest.raises(Unsupported, match="only replicates across slices"):
        export(whole, "levanter")

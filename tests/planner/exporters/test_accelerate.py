"""The exported YAML means to accelerate's own launcher what the plan says."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tiny_llama import ACCELERATE, installed, run_check, tiny_plan

from planner.errors import Unsupported
from planner.exporters.accelerate import to_accelerate

SHARDED: dict[str, Any] = {"data": 4, "zero_stage": 3, "sharding": "FULL_SHARD", "shard_degree": 4}

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "full shard": (
        SHARDED,
        {"mesh": [1, 4, 1, 1], "reshard": True, "checkpointing": False, "offload": "OffloadPolicy"},
    ),
    "hybrid, full recompute, offload": (
        SHARDED
        | {"sharding": "HYBRID_SHARD", "shard_degree": 2, "replicate_degree": 2}
        | {"recompute": "full", "offload": ("optimizer", "weights")},
        {"mesh": [2, 2, 1, 1], "reshard": True, "checkpointing": True, "offload": "CPUOffloadPolicy"},
    ),
    "ZeRO 2": (
        SHARDED | {"zero_stage": 2, "sharding": "SHARD_GRAD_OP"},
        {"mesh": [1, 4, 1, 1], "reshard": False},
    ),
    "context": (SHARDED | {"context": 2, "shard_degree": 8}, {"mesh": [1, 4, 2, 1], "reshard": True}),
}


@pytest.mark.torch
@pytest.mark.skipif(not installed("accelerate"), reason="accelerate is not installed")
@pytest.mark.parametrize("case", CASES)
def test_launcher_reads_the_plan(case: str, tmp_path: Path) -> None:
    degrees, expected = CASES[case]
    plan = tiny_plan(job={"precision": "bf16"}, **degrees)
    path = tmp_path / "accelerate_fsdp2.yaml"
    path.write_text(to_accelerate(plan)["accelerate_fsdp2.yaml"])
    found = json.loads(run_check("check_accelerate.py", path, modules=ACCELERATE).splitlines()[-1])
    assert found["fsdp_version"] == 2
    assert found["mixed_precision"] == "bf16"
    assert found["size"] == found["processes"] == plan.plan.num_devices
    assert {key: found[key] for key in expected} == expected


def test_header_says_what_the_file_cannot() -> None:
    plan = tiny_plan(job={"precision": "bf16", "reduce_dtype": "fp32"}, **SHARDED)
    text = to_accelerate(plan)["accelerate_fsdp2.yaml"]
    assert "reduces gradients in fp32; this file makes accelerate reduce them in bf16" in text
    assert "gradient_accumulation_steps=4" in text
    assert yaml.safe_load(text)["num_processes"] == 4


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "pipeline": ({"pipeline": 2}, "has no pipeline, the plan has 2 stages; plan again with --pipeline 1"),
    "tensor": ({"tensor": 2}, "splits layers by the model's own plan"),
    "replicas": ({"zero_stage": 0}, "shards states; plan again with --zero 2 or 3"),
    "zero 1": ({"zero_stage": 1}, "shards gradients with the optimizer states"),
    "selective": ({"recompute": "selective"}, "recomputes whole layers or nothing, not 'selective'"),
    "optimizer offload": ({"offload": ("optimizer",)}, "weights and optimizer together, not optimizer alone"),
    "activation offload": ({"offload": ("activations",)}, "offloads activations only with --recompute full"),
    "expert": ({"expert": 2}, "no expert parallelism"),
    "copies": ({"shard_degree": 1, "replicate_degree": 4}, "needs data-parallel ranks that share states"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals_name_the_reason(case: str) -> None:
    changes, message = REFUSALS[case]
    with pytest.raises(Unsupported, match=message):
        to_accelerate(tiny_plan(**SHARDED | changes))


def test_bf16_without_fp32_weights_is_refused() -> None:
    job = {"precision": "bf16", "master_weights": False}
    with pytest.raises(Unsupported, match="keeps fp32 weights in mixed precision"):
        to_accelerate(tiny_plan(job=job, **SHARDED))

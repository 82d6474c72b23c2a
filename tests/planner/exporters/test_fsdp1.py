"""The exported script for the first FSDP trains with the numbers of one process."""

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_llama import TORCH, installed, run_check, tiny_plan

from planner.errors import Unsupported
from planner.exporters.fsdp1 import to_fsdp1

SHARDED: dict[str, Any] = {"data": 4, "micro_batch": 2, "zero_stage": 3, "sharding": "FULL_SHARD"}

CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "fully sharded, recompute": (SHARDED | {"shard_degree": 4, "recompute": "full"}, "FULL_SHARD", "(1, 4)"),
    "hybrid": (
        SHARDED | {"shard_degree": 2, "replicate_degree": 2, "sharding": "HYBRID_SHARD"},
        "HYBRID_SHARD",
        "(2, 2)",
    ),
    "ZeRO 2": (
        SHARDED | {"shard_degree": 4, "zero_stage": 2, "sharding": "SHARD_GRAD_OP"},
        "SHARD_GRAD_OP",
        "(1, 4)",
    ),
    "replicas": ({"data": 4, "micro_batch": 2, "replicate_degree": 4}, "NO_SHARD", "(4, 1)"),
}


@pytest.mark.parametrize("case", CASES)
def test_strategies(case: str) -> None:
    degrees, strategy, mesh = CASES[case]
    text = to_fsdp1(tiny_plan(**degrees))["fsdp1_plan.py"]
    assert f"STRATEGY = ShardingStrategy.{strategy}\n" in text
    assert f"MESH_SHAPE = {mesh} " in text
    assert f"RECOMPUTE = {degrees.get('recompute') == 'full'} " in text


@pytest.mark.torch
@pytest.mark.skipif(not installed("torch"), reason="torch is not installed")
@pytest.mark.parametrize("case", ["fully sharded, recompute", "hybrid"])
def test_exported_steps_equal_one_process(case: str, tmp_path: Path) -> None:
    exported = tmp_path / "fsdp1_plan.py"
    exported.write_text(to_fsdp1(tiny_plan(**CASES[case][0]))["fsdp1_plan.py"])
    found = json.loads(run_check("check_torch.py", exported, "{}", modules=TORCH).splitlines()[-1])
    assert found["loss_error"] < 1e-5
    assert found["norm_error"] < 1e-5
    assert found["param_error"] < 1e-4 * found["moved"]


def test_tensor_parallelism_is_refused() -> None:
    with pytest.raises(Unsupported, match="target fsdp1 cannot express tensor parallelism"):
        to_fsdp1(tiny_plan(data=2, tensor=2, zero_stage=3, shard_degree=2))

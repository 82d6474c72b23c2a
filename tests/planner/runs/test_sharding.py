"""How ranks share states where a run's own words are not what its program does."""

from pathlib import Path
from typing import Any

import pytest

from planner.runs import plan_from_run
from planner.runs.files import load_rows

SAMPLE = Path(__file__).parents[2] / "data" / "runs_sample.jsonl"
ROW: dict[str, Any] = next(row for row in load_rows(SAMPLE) if row["id"] == "us-0001")


@pytest.mark.parametrize(
    ("differs", "zero_stage"),
    [
        ({}, 1),
        ({"precision": "fp16"}, 0),
        ({"stack": "megatron"}, 0),
        ({"pp": 1, "dp": 8}, 0),
    ],
)
def test_deepspeed_shares_states_of_bf16_beside_a_pipeline(differs: dict[str, Any], zero_stage: int) -> None:
    """deepspeedai/DeepSpeed pull request 1801: ``BF16_Optimizer``, with stage 0, for pipelines alone."""
    said = {"stack": "deepspeed-2022", "precision": "bf16", "pp": 4, "dp": 2, "tp": 1, "zero_stage": 0}
    row = {**ROW, "parallel": {**ROW["parallel"], "sharding": "none", **said, **differs}}
    plan, assumed = plan_from_run(row)
    assert plan.plan.zero_stage == zero_stage
    assert ("zero_stage=1" in assumed) == bool(zero_stage)

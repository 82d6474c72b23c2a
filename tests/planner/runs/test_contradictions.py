"""Runs that say two things that cannot both be are refused, not read as one of them."""

from pathlib import Path
from typing import Any

import pytest

from planner.errors import InputError
from planner.plans import Plan
from planner.runs import plan_from_run
from planner.runs.files import load_rows

SAMPLE = Path(__file__).parents[2] / "data" / "runs_sample.jsonl"
ROW: dict[str, Any] = next(row for row in load_rows(SAMPLE) if row["id"] == "us-0001")


def planned(**parallel: Any) -> Plan:
    return plan_from_run({**ROW, "parallel": {**ROW["parallel"], **parallel}})[0]


@pytest.mark.parametrize(("sharding", "stage"), [("NO_SHARD", 3), ("FULL_SHARD", 0), ("SHARD_GRAD_OP", 1)])
def test_a_sharding_and_a_zero_stage_that_contradict_each_other_are_refused(
    sharding: str, stage: int
) -> None:
    with pytest.raises(InputError, match=f"sharding {sharding} is ZeRO ., and .*zero_stage says {stage}"):
        planned(sharding=sharding, zero_stage=stage)


def test_a_sharding_and_the_zero_stage_that_it_is_are_read() -> None:
    assert planned(sharding="FULL_SHARD", zero_stage=3).plan.zero_stage == 3


def test_a_sequence_has_no_more_tiles_than_tokens() -> None:
    tokens = ROW["model"]["seq"]
    assert planned(mlp_tiles=tokens).job.mlp_tiles == tokens
    with pytest.raises(ValueError, match=f"mlp_tiles {tokens + 1}: a sequence of {tokens} tokens"):
        planned(mlp_tiles=tokens + 1)

"""Runs that say two things that cannot both be are refused, not read as one of them."""

from pathlib import Path
from typing import Any

import pytest

from planner.errors import InputError
from planner.plans import Parallelism, Plan
from planner.runs import plan_from_run
from planner.runs.files import load_rows

SAMPLE = Path(__file__).parents[2] / "data" / "runs_sample.jsonl"
ROW: dict[str, Any] = next(row for row in load_rows(SAMPLE) if row["id"] == "us-0001")


def read(**parallel: Any) -> tuple[Plan, tuple[str, ...]]:
    return plan_from_run({**ROW, "parallel": {**ROW["parallel"], **parallel}})


def planned(**parallel: Any) -> Plan:
    return read(**parallel)[0]


@pytest.mark.parametrize(("sharding", "stage"), [("NO_SHARD", 3), ("FULL_SHARD", 0), ("SHARD_GRAD_OP", 1)])
def test_a_sharding_and_a_zero_stage_that_contradict_each_other_are_refused(
    sharding: str, stage: int
) -> None:
    with pytest.raises(InputError, match=f"sharding {sharding} is ZeRO ., and .*zero_stage says {stage}"):
        planned(sharding=sharding, zero_stage=stage)


def test_a_sharding_and_the_zero_stage_that_it_is_are_read() -> None:
    assert planned(sharding="FULL_SHARD", zero_stage=3).plan.zero_stage == 3


SMALL: dict[str, Any] = {"model": {"name": "llama-3.2-1b", "seq": 2048}, "hardware": "dgx-h100:2"}


def small(**parallel: Any) -> tuple[Parallelism, tuple[str, ...]]:
    plan, assumed = plan_from_run({**SMALL, "parallel": {"global_batch": 64, "zero_stage": 3, **parallel}})
    return plan.plan, assumed


@pytest.mark.parametrize("steps", ["grad_accum", "num_microbatches"])
def test_steps_of_accumulation_leave_the_micro_batch(steps: str) -> None:
    found, assumed = small(**{steps: 2})
    assert (found.micro_batch, found.num_microbatches) == (2, 2)
    assert "micro_batch=2" in assumed


@pytest.mark.parametrize("parallel", [{"grad_accum": 2, "micro_batch": 1}, {"num_microbatches": 3}])
def test_steps_of_accumulation_that_do_not_make_the_batch_are_said_not_to_be_taken(
    parallel: dict[str, int],
) -> None:
    found, assumed = small(**parallel)
    assert (found.micro_batch, found.num_microbatches) == (1, 4)
    said = max(parallel.values())
    assert f"num_microbatches=4 (global_batch 64 over dp 16 x micro_batch 1, not {said})" in assumed


@pytest.mark.parametrize(
    "parallel", [{"dp_shard": 4}, {"dp_replicate": 4}, {"dp_shard": 4, "dp_replicate": 4}]
)
def test_either_degree_of_sharding_says_the_other(parallel: dict[str, int]) -> None:
    found, _ = small(**parallel)
    assert (found.sharding, found.shard_degree, found.replicate_degree) == ("HYBRID_SHARD", 4, 4)


@pytest.mark.parametrize(
    ("parallel", "said"),
    [
        ({"dp_shard": 3}, "dp_shard 3"),
        ({"dp_shard": 32}, "dp_shard 32"),
        ({"dp_replicate": 32}, "dp_replicate 32"),
        ({"dp_shard": 2, "dp_replicate": 2}, "dp_shard 2 x dp_replicate 2"),
    ],
)
def test_degrees_of_sharding_that_do_not_make_the_data_ranks_are_refused(
    parallel: dict[str, int], said: str
) -> None:
    with pytest.raises(InputError, match=f"{said}: the 16 data-parallel ranks are dp_shard x dp_replicate"):
        small(**parallel)


def test_a_sequence_has_no_more_tiles_than_tokens() -> None:
    tokens = ROW["model"]["seq"]
    assert planned(mlp_tiles=tokens).job.mlp_tiles == tokens
    with pytest.raises(ValueError, match=f"mlp_tiles {tokens + 1}: a sequence of {tokens} tokens"):
        planned(mlp_tiles=tokens + 1)


@pytest.mark.parametrize(
    ("stack", "flags", "found"),
    [
        ("torch-eager", {"compile": True}, "torch-compiled-loss"),
        ("torch-fsdp2", {"compile": False}, "torch-eager"),
        ("torch-fsdp2", {"async_tp": True}, "torch-async-tp"),
        ("torch-fsdp2", {"compile": True}, "torch-fsdp2"),
        ("torch-eager", {"compile": False}, "torch-eager"),
    ],
)
def test_flags_beside_a_named_stack_are_applied(stack: str, flags: dict[str, Any], found: str) -> None:
    plan, assumed = read(stack=stack, **flags)
    assert plan.job.stack == found
    said = f"stack={found} (as {stack} is with what the run says of it)"
    assert (said in assumed) is (found != stack)
    assert not [note for note in assumed if note.startswith("compile=")]


@pytest.mark.parametrize(
    ("stack", "wanted", "has"), [("hf-fsdp", True, "false"), ("torch-whole", False, "true")]
)
def test_compiling_that_a_stack_does_otherwise_is_said_not_to_be_priced(
    stack: str, wanted: bool, has: str
) -> None:
    plan, assumed = read(stack=stack, compile=wanted)
    assert plan.job.stack == stack
    assert f"compile={has} (as stack {stack} is, of which no other is known)" in assumed

"""A plan with more and fewer replicas."""

import pytest

from planner import api
from planner.analysis.replicas import scaling
from planner.plans import Parallelism, Plan


def plan_of(nodes: int, choice: Parallelism, batch: int = 64) -> Plan:
    found = api.plan("llama-3.2-1b", f"dgx-h100:{nodes}", global_batch=batch, seq_len=1024, top=1)
    return api.judged(found.model_copy(update={"plan": choice}))


def test_sizes_are_those_that_the_batch_can_be_dealt_out_to() -> None:
    plan = plan_of(2, Parallelism(data=8, tensor=2, micro_batch=2, num_microbatches=4))
    found = scaling(plan)
    assert [s.devices for s in found] == [8, 16, 32, 64]
    assert found[0].efficiency == 1.0
    assert plan.estimate is not None
    assert found[1].tokens_per_s == plan.estimate.tokens_per_s


def test_half_the_nodes_is_the_plan_that_one_would_write_by_hand() -> None:
    sharded = {"zero_stage": 3, "sharding": "FULL_SHARD"}
    plan = plan_of(
        2, Parallelism.model_validate({"data": 16, "num_microbatches": 4, "shard_degree": 16, **sharded})
    )
    half = plan_of(
        1, Parallelism.model_validate({"data": 8, "num_microbatches": 8, "shard_degree": 8, **sharded})
    )
    assert half.estimate is not None
    smaller = scaling(plan)[0]
    assert smaller.devices == 8
    assert smaller.tokens_per_s == pytest.approx(half.estimate.tokens_per_s)
    assert smaller.memory_bytes == pytest.approx(half.estimate.memory_bytes)


def test_groups_of_hybrid_sharding_stay_as_they_are() -> None:
    hybrid = {"zero_stage": 3, "sharding": "HYBRID_SHARD", "shard_degree": 8, "replicate_degree": 2}
    plan = plan_of(2, Parallelism.model_validate({"data": 16, "num_microbatches": 4, **hybrid}))
    assert [s.devices for s in scaling(plan)] == [8, 16, 32, 64]
    memory = {s.memory_bytes for s in scaling(plan)[1:3]}  # the last has a single micro-batch
    assert max(memory) == pytest.approx(min(memory), rel=0.01)


def test_a_plan_that_no_other_size_can_run_is_alone() -> None:
    plan = plan_of(1, Parallelism(data=1, tensor=8, num_microbatches=1), batch=1)
    assert [s.devices for s in scaling(plan)] == [8]


def test_a_data_axis_that_was_not_there_splits_the_batch() -> None:
    """Experts take all data ranks; with twice as many, twice as many sequences are worked on at once."""
    found = api.plan(
        "qwen3-30b-a3b", "dgx-h200:2", global_batch=256, seq_len=512, data=16, expert=16, micro_batch=4
    )
    assert found.plan.stages[0].mesh["data"] == 1
    one, two = scaling(found)[:2]
    assert (one.devices, two.devices) == (16, 32)
    assert two.efficiency > 0.8

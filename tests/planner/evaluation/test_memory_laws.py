"""What holds of memory whatever the plan."""

import math
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster_specs.catalog import load_cluster
from cluster_specs.software import load_software
from planner.evaluation import Evaluator
from planner.models.catalog import load_model
from planner.plans import Estimate, Job, Parallelism

STACKS = ("torch-fsdp2", "hf-fsdp", "megatron", "deepspeed", "nanotron", "jax-xla")
OUTSIDE = ("communicators", "framework", "fragmentation")


@cache
def evaluator(stack: str, optimizer: str = "adamw") -> Evaluator:
    job = Job.model_validate({"global_batch": 64, "seq_len": 1024, "stack": stack, "optimizer": optimizer})
    return Evaluator(load_model("llama-3.2-1b"), load_cluster("dgx-h100:1"), job)


def estimate(stack: str, zero: int, micro: int, recompute: str, data: int, pipeline: int) -> Estimate:
    plan = Parallelism(
        data=data,
        pipeline=pipeline,
        tensor=8 // data // pipeline,
        zero_stage=zero,
        shard_degree=data if zero else 1,
        replicate_degree=1 if zero else data,
        micro_batch=micro,
        num_microbatches=64 // data // micro,
        recompute=recompute,
    )
    return evaluator(stack).estimate(plan)


plans = {
    "stack": st.sampled_from(STACKS),
    "zero": st.integers(0, 3),
    "recompute": st.sampled_from(["none", "selective", "full"]),
    "data": st.sampled_from([1, 2, 4, 8]),
    "pipeline": st.sampled_from([1, 2]),
}


@given(micro=st.sampled_from([1, 2, 4, 8]), **plans)
@settings(max_examples=60, deadline=None)
def test_parts_add_up_and_the_fullest_moment_is_the_peak(
    stack: str, zero: int, micro: int, recompute: str, data: int, pipeline: int
) -> None:
    found = estimate(stack, zero, micro, recompute, data, min(pipeline, 8 // data))
    assert math.isclose(sum(found.memory.values()), found.memory_bytes)
    tensors = sum(size for part, size in found.memory.items() if part not in OUTSIDE)
    assert math.isclose(tensors, found.tensor_bytes)
    fullest = max(found.memory_over_step, key=lambda moment: moment.tensor_bytes)
    assert math.isclose(fullest.tensor_bytes, found.tensor_bytes)
    assert fullest.phase == found.peak_phase
    assert min(size for moment in found.memory_over_step for size in moment.tensors.values()) > 0
    assert found.tensor_bytes <= found.reserved_bytes <= found.memory_bytes


@pytest.mark.parametrize(
    ("model", "stack", "seq_len"),
    [("llama-3.1-70b", "torch-fsdp2", 2048), ("llama-3.2-1b", "transformers-fsdp2", 512)],
)
def test_parts_add_up_where_less_is_left_of_a_layer_than_it_saved(
    model: str, stack: str, seq_len: int
) -> None:
    """As its attention's backward begins beside the gradients of its feed-forward layer, the peak here."""
    job = Job(global_batch=16, seq_len=seq_len, stack=stack, optimizer="sgd")
    plan = Parallelism(data=8, zero_stage=3, sharding="FULL_SHARD", shard_degree=8, num_microbatches=2)
    found = Evaluator(load_model(model), load_cluster("dgx-h200:1"), job).estimate(plan)
    assert found.peak_phase == "backward"
    outside = sum(found.memory[part] for part in OUTSIDE)
    assert found.memory_bytes - outside == pytest.approx(found.tensor_bytes)
    assert max(at.tensor_bytes for at in found.memory_over_step) == pytest.approx(found.tensor_bytes)


@given(micro=st.sampled_from([1, 2, 4]), **plans)
@settings(max_examples=60, deadline=None)
def test_larger_microbatches_never_need_less(
    stack: str, zero: int, micro: int, recompute: str, data: int, pipeline: int
) -> None:
    """But for what gradients of several micro-batches take, which goes when there is one only."""
    if 64 // data // (2 * micro) < 2:
        return
    plan = (recompute, data, min(pipeline, 8 // data))
    small, large = (estimate(stack, zero, size, *plan) for size in (micro, 2 * micro))
    assert small.tensor_bytes <= large.tensor_bytes * (1 + 1e-9)


@given(**plans)
@settings(max_examples=60, deadline=None)
def test_sharding_the_optimizer_never_needs_more(
    stack: str, zero: int, recompute: str, data: int, pipeline: int
) -> None:
    plan = (1, recompute, data, min(pipeline, 8 // data))
    whole, sharded = (estimate(stack, stage, *plan) for stage in (0, 1))
    assert sharded.tensor_bytes <= whole.tensor_bytes * (1 + 1e-9)


@pytest.mark.parametrize("stack", STACKS)
def test_temporaries_of_an_update_are_those_of_its_optimizer(stack: str) -> None:
    plan = Parallelism(data=8, zero_stage=3, shard_degree=8, num_microbatches=8)
    moments = {
        name: evaluator(stack, name).estimate(plan).memory_over_step[-1].tensors for name in ("adamw", "sgd")
    }
    has_some = load_software(stack).optimizer_temporaries > 0
    assert ("optimizer_temporaries" in moments["adamw"]) == has_some
    assert "optimizer_temporaries" not in moments["sgd"]

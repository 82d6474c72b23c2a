"""Experts over context ranks: expert layers see neither sequences nor batch, only how many tokens each rank has."""

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from cluster_specs.catalog import load_cluster
from planner.errors import InputError
from planner.evaluation import Evaluator
from planner.models.catalog import load_model
from planner.plans import Estimate, Job, Parallelism, StagePlan

MODEL, CLUSTER = load_model("mixtral-8x7b"), load_cluster("dgx-h100:4")

JOB = Job(global_batch=16, seq_len=8192, stack="megatron")


def degrees(data: int, context: int, expert: int, **others: int | bool) -> Parallelism:
    """On eight ranks, or eight times ``tensor``, that all have as many tokens."""
    ranks, sequences = data * context, 8 // data
    return Parallelism.model_validate(
        {"data": data, "context": context, "expert": expert, "micro_batch": sequences, "num_microbatches": 2}
        | {"zero_stage": 1, "shard_degree": ranks}
        | others
    )


def estimate(data: int, context: int, expert: int, **others: int | bool) -> Estimate:
    return Evaluator(MODEL, CLUSTER, JOB).estimate(degrees(data, context, expert, **others))


def of_experts(found: Estimate) -> tuple[float, float, float]:
    """All that expert layers make of a step: exchange, its bytes, and states."""
    states = ("weights", "gradients", "optimizer", "master_weights")
    return (
        found.time["expert"],
        found.communication["all_to_all"],
        sum(found.memory.get(part, 0.0) for part in states),
    )


@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize("expert", [2, 4, 8])
@pytest.mark.parametrize("context", [2, 4, 8])
def test_experts_cost_the_same_on_context_ranks_as_on_data_ranks(
    context: int, expert: int, tensor: int
) -> None:
    """With as many tokens a rank: one sequence over eight ranks, or eight of them on a rank each."""
    whole = {"tensor": tensor, "experts_over_tensor": tensor > 1}
    if tensor * expert > 8:
        return
    folded, usual = estimate(8 // context, context, expert, **whole), estimate(8, 1, expert, **whole)
    assert of_experts(folded) == pytest.approx(of_experts(usual))
    assert folded.time["data"] == pytest.approx(usual.time["data"])


def test_keys_travel_between_context_ranks_whoever_has_which_experts() -> None:
    folded, apart = estimate(1, 8, 8), estimate(1, 8, 1)
    assert folded.time["context"] == pytest.approx(apart.time["context"])
    assert folded.communication["send"] == pytest.approx(apart.communication["send"])


@given(st.sampled_from([1, 2, 3, 4, 6, 8, 12]), st.sampled_from([1, 2, 3, 4, 6, 8]), st.data())
def test_a_mesh_has_all_ranks_and_says_the_degrees(data: int, context: int, draw: st.DataObject) -> None:
    expert = draw.draw(st.sampled_from([e for e in range(1, 97) if data * context % e == 0]))
    plan = Parallelism(data=data, tensor=2, context=context, expert=expert)
    assert prod(plan.axes.values()) == plan.num_devices
    assert StagePlan(blocks=(0, 1), devices=(0, 1), mesh=plan.axes).degrees == (data, 2, context, expert)
    assert ("context_expert" in plan.axes) == (data % expert > 0)


def test_more_experts_than_ranks_are_refused() -> None:
    with pytest.raises(ValidationError, match="16 must divide the data x context parallel degrees 2 x 4"):
        Parallelism(data=2, context=4, expert=16)


def test_a_stack_that_reuses_data_ranks_only_refuses_context_ranks() -> None:
    job = JOB.model_copy(update={"stack": "jax-xla"})
    with pytest.raises(InputError, match="expert 8 does not divide data 1, and stack jax-xla"):
        Evaluator(MODEL, load_cluster("tpu-v5p:4x4x4"), job).estimate(degrees(1, 8, 8))


def test_a_mesh_that_takes_other_ranks_for_experts_is_refused() -> None:
    plan = degrees(2, 4, 4)
    stage = StagePlan(blocks=(0, 32), devices=(0, 8), mesh={"context_expert": 4, "data": 2})
    with pytest.raises(InputError, match="context_expert 4, but expert 4 over data 2 needs 2"):
        Evaluator(MODEL, CLUSTER, JOB).estimate(plan.model_copy(update={"stages": (stage,)}))

"""Weights that fewer ranks share between forward and backward than share their states."""

import pytest

from cluster_specs.catalog import load_cluster
from planner.errors import InputError
from planner.evaluation import Evaluator
from planner.models.catalog import load_model
from planner.plans import Estimate, Job, Parallelism

SHARDED = {"data": 8, "shard_degree": 8, "zero_stage": 3, "sharding": "FULL_SHARD"}


def estimate(**changes: object) -> Estimate:
    job = Job(global_batch=8, seq_len=4096)
    evaluator = Evaluator(load_model("llama-2-7b"), load_cluster("dgx-h100:1"), job)
    return evaluator.estimate(Parallelism.model_validate(SHARDED | changes))


@pytest.mark.parametrize("parts", [2, 4])
def test_the_second_gather_is_of_fewer_and_larger_parts(parts: int) -> None:
    """A rank receives 7 of 8 parts for the forward, and all but its own of the fewer ones for the backward."""
    both, other = estimate().communication["all_gather"], estimate(secondary_degree=parts)
    expected = both / 2 * (1 + (1 - 1 / parts) / (7 / 8))
    assert other.communication["all_gather"] == pytest.approx(expected)


def test_memory_lies_between_freeing_weights_and_keeping_them() -> None:
    freed, kept = estimate(), estimate(zero_stage=2, sharding="SHARD_GRAD_OP")
    four, two = (estimate(secondary_degree=parts) for parts in (4, 2))
    assert freed.tensor_bytes < four.tensor_bytes < two.tensor_bytes < kept.tensor_bytes
    layers = 6_738_415_616 - 2 * 32000 * 4096
    most = max(moment.tensors.get("secondary_weights", 0.0) for moment in four.memory_over_step)
    assert most == pytest.approx((layers + 32000 * 4096) * 2 / 4, rel=1e-3)  # the head stays whole


def test_it_may_be_faster_where_parts_are_within_a_node() -> None:
    job = Job(global_batch=16, seq_len=512)
    evaluator = Evaluator(load_model("llama-2-7b"), load_cluster("dgx-a100-80g:2"), job)
    nodes = SHARDED | {"data": 16, "shard_degree": 16}
    plain, within = (evaluator.estimate(Parallelism.model_validate(nodes | changes)) for changes in (
        {}, {"secondary_degree": 8}
    ))  # fmt: skip
    assert within.step_time_s < plain.step_time_s


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"secondary_degree": 3}, "must divide the 8 ranks"),
        ({"secondary_degree": 8}, "neither one nor all"),
        ({"secondary_degree": 1}, "neither one nor all"),
        ({"secondary_degree": 4, "zero_stage": 2, "sharding": "SHARD_GRAD_OP"}, "only ZeRO 3"),
        ({"secondary_degree": 4, "offload": ("optimizer", "weights")}, "only ZeRO 3"),
    ],
)
def test_what_cannot_be_shared_so_is_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises((InputError, ValueError), match=said):
        Parallelism.model_validate(SHARDED | changes)

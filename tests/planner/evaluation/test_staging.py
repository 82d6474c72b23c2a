"""Copies between parameters and the buffers of FSDP2's collectives, and what an update by many kernels costs."""

from collections.abc import Callable
from typing import Any

import pytest

from cluster_specs.catalog import load_cluster
from cluster_specs.software import load_software
from planner.evaluation import Evaluator
from planner.models.catalog import load_model
from planner.plans import Job, Parallelism

PARAMETERS = 8.03e9
"""Of Llama-3.1-8B."""
COPIED = 0.896 * 3.35e12
"""What an H100 of 80 GB reads and writes [bytes/s]."""
NODE = Parallelism(
    data=8, micro_batch=1, num_microbatches=1, zero_stage=3, sharding="FULL_SHARD", shard_degree=8
)


def seconds(plan: Parallelism, cluster: str = "dgx-h100:1", **job: Any) -> float:
    settings = {"global_batch": 8, "seq_len": 8192, "stack": "torch-fsdp2"} | job
    return (
        Evaluator(load_model("llama-3.1-8b"), load_cluster(cluster), Job(**settings))
        .estimate(plan)
        .step_time_s
    )


@pytest.fixture
def sorting(monkeypatch: pytest.MonkeyPatch) -> Callable[..., float]:
    """Seconds of a step that sorting adds."""
    flat = load_software("torch-fsdp2").model_copy(update={"sorts_shards": False})

    def added(plan: Parallelism, **job: Any) -> float:
        sorted_ = seconds(plan, **job)
        with monkeypatch.context() as patch:
            patch.setattr("planner.evaluation.setting.load_software", lambda _: flat)
            return sorted_ - seconds(plan, **job)

    return added


@pytest.mark.parametrize(("reduce_dtype", "width"), [("bf16", 2), ("fp32", 4)])
def test_weights_are_copied_after_both_gathers_and_gradients_before_they_are_scattered(
    sorting: Callable[..., float], reduce_dtype: str, width: float
) -> None:
    moved = PARAMETERS * (2 * (2 + 2) + 2 + width)
    assert sorting(NODE, reduce_dtype=reduce_dtype) == pytest.approx(moved / COPIED, rel=0.01)


def test_every_micro_batch_is_sorted(sorting: Callable[..., float]) -> None:
    twice = NODE.model_copy(update={"num_microbatches": 2})
    assert sorting(twice, global_batch=16) == pytest.approx(2 * sorting(NODE), rel=0.01)


def test_weights_that_stay_gathered_are_sorted_once(sorting: Callable[..., float]) -> None:
    kept = NODE.model_copy(update={"zero_stage": 2, "sharding": "SHARD_GRAD_OP"})
    moved = PARAMETERS * (2 + 2 + 2 + 2)
    assert sorting(kept) == pytest.approx(moved / COPIED, rel=0.01)


def test_the_first_fsdp_joins_gradients_and_sorts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    joined = seconds(NODE, stack="torch-fsdp1")
    apart = load_software("torch-fsdp1").model_copy(update={"joins_gradients": False})
    monkeypatch.setattr("planner.evaluation.setting.load_software", lambda _: apart)
    moved = PARAMETERS * (2 + 2)
    assert joined - seconds(NODE, stack="torch-fsdp1") == pytest.approx(moved / COPIED, rel=0.01)


def test_whole_weights_are_not_sorted(sorting: Callable[..., float]) -> None:
    whole = NODE.model_copy(update={"zero_stage": 0, "sharding": "NO_SHARD", "shard_degree": 1})
    assert sorting(whole) == 0


@pytest.mark.parametrize(("stack", "gain"), [("torch-eager", 0.0224), ("torch-fsdp2", 0.0163)])
def test_one_kernel_for_the_update_gains_what_torchtitan_measured(stack: str, gain: float) -> None:
    """8B with FSDP, eager and compiled (pytorch/torchtitan@6e49885), on the H100 of its tables."""
    plan = NODE.model_copy(update={"recompute": "alternate"})
    one, many = (
        seconds(plan, "h100-96g-8x:1", stack=stack, reduce_dtype="fp32", fused_optimizer=fused)
        for fused in (True, False)
    )
    assert many / one - 1 == pytest.approx(gain, abs=0.006)

"""What a layer of experts takes whose host waits for the device before tokens are sent."""

from collections.abc import Mapping
from typing import Any

import pytest

from cluster_specs.catalog import load_cluster
from planner.evaluation import Evaluator
from planner.evaluation.blocks import BlockCost
from planner.evaluation.pacing import Step, period
from planner.models.catalog import load_model
from planner.plans import Job, Parallelism

QWEN = "qwen3-30b-a3b"


def layer(
    policy: str = "none", nodes: int = 2, expert: int = 16, job: Mapping[str, Any] | None = None
) -> BlockCost:
    """A layer of Qwen3-30B-A3B in NeMo, one sequence on each of so many nodes' devices."""
    fields = {"global_batch": 8 * nodes, "seq_len": 4096, "stack": "nemo", **(job or {})}
    evaluator = Evaluator(load_model(QWEN), load_cluster(f"dgx-h100:{nodes}"), Job.model_validate(fields))
    plan = Parallelism(data=8 * nodes, expert=expert, zero_stage=1, shard_degree=8 * nodes)
    return evaluator.block(plan, evaluator.main_layer, policy, {})


@pytest.mark.parametrize(
    ("steps", "seconds"),
    [
        (((1.0, 0.0), (0.0, 5.0), (2.0, 1.0)), 7.0),  # issued behind long work: hidden
        (((1.0, 1.0), (2.0, 0.0), (0.0, 5.0)), 8.0),  # long work is issued last: nothing hides
        (((1.0, 0.5),) * 4, 4.5),
        (((0.5, 1.0),) * 4, 4.5),
        ((), 0.0),
    ],
)
def test_the_device_begins_what_is_issued_when_what_was_before_is_done(
    steps: tuple[tuple[float, float], ...], seconds: float
) -> None:
    assert period(Step(*step) for step in steps) == pytest.approx(seconds)


def device_forward(cost: BlockCost) -> float:
    return cost.forward + sum(cost.comm_forward.values())


@pytest.mark.parametrize("policy", ["none", "full"])
def test_waiting_takes_longer_than_either_and_no_longer_than_both(policy: str) -> None:
    cost = layer(policy)
    device = device_forward(cost)
    assert max(cost.host_forward, device) < cost.paced.forward < cost.host_forward + device


def test_a_device_that_is_always_early_hides_the_wait() -> None:
    """Within a node no exchange outlasts what the host issues behind it."""
    cost = layer(expert=8)
    assert cost.paced.forward == pytest.approx(cost.host_forward)


def test_gradients_wait_only_where_the_forward_runs_again() -> None:
    assert layer("none").paced.backward == 0
    again = layer("full")
    assert again.paced.backward > max(again.host_backward, again.paced.forward)


@pytest.mark.parametrize(
    "job", [{"expert_capacity": 1.0}, {"stack": "deepspeed"}, {"stack": "jax-xla"}], ids=str
)
def test_hosts_that_know_what_experts_get_wait_for_nobody(job: dict[str, Any]) -> None:
    """NVIDIA/Megatron-LM token_dispatcher.py, ``drop_and_pad``: ``preprocess`` counts nothing."""
    assert layer(job=job).paced.forward == 0


def test_ranks_that_exchange_nothing_wait_for_nobody() -> None:
    assert layer(expert=1).paced.forward == 0

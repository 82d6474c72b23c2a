"""ZeRO over one rank: there is nothing to share, so that it saves no time."""

from typing import Any

import pytest

from cluster_specs.catalog import load_cluster
from cluster_specs.software import list_software
from planner.evaluation import Evaluator
from planner.models.catalog import load_model
from planner.plans import Estimate, Job, Parallelism

STACKS = sorted(software.name for software in list_software() if software.name != "neuronx")
SHARDED = [(1, "NO_SHARD"), (2, "SHARD_GRAD_OP"), (3, "FULL_SHARD"), (3, "HYBRID_SHARD")]
DEGREES: list[dict[str, Any]] = [
    {"tensor": 8, "micro_batch": 8},
    {"tensor": 8, "num_microbatches": 8},
    {"tensor": 4, "pipeline": 2, "num_microbatches": 8},
]


def estimate(stack: str, degrees: dict[str, Any], zero: int, sharding: str) -> Estimate:
    cluster = load_cluster("tpu-v5p:2x2x2" if stack.startswith(("jax", "libtpu")) else "dgx-h100:1")
    job = Job(global_batch=8, seq_len=2048, stack=stack)
    plan = Parallelism(data=1, zero_stage=zero, sharding=sharding, sequence_parallel=True, **degrees)
    return Evaluator(load_model("llama-3.1-8b"), cluster, job).estimate(plan)


@pytest.mark.parametrize("degrees", DEGREES, ids=str)
@pytest.mark.parametrize("stack", STACKS)
def test_sharding_over_one_rank_is_no_faster(stack: str, degrees: dict[str, Any]) -> None:
    whole = estimate(stack, degrees, 0, "NO_SHARD")
    for choice in SHARDED:
        assert estimate(stack, degrees, *choice).step_time_s >= whole.step_time_s * (1 - 1e-12)

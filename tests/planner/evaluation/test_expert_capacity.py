"""Experts with a capacity: all compute as many tokens, and what sorts them may be products with masks."""

import pytest

from cluster_specs.catalog import load_cluster
from planner.evaluation import Evaluator
from planner.models.catalog import load_model
from planner.plans import Estimate, Job, Parallelism

HIDDEN, FFN, EXPERTS, TOPK, LAYERS, SEQ = 4096, 14336, 8, 2, 32, 4096


def estimate(cluster: str, capacity: float | None, stack: str, **degrees: int) -> Estimate:
    job = Job(global_batch=256, seq_len=SEQ, expert_capacity=capacity, stack=stack)
    plan = Parallelism(zero_stage=3, **degrees)
    return Evaluator(load_model("mixtral-8x7b"), load_cluster(cluster), job).estimate(plan)


def on_gpus(capacity: float | None, expert: int) -> Estimate:
    degrees = {"data": 32, "expert": expert, "num_microbatches": 8, "shard_degree": 32}
    return estimate("dgx-h100:4", capacity, "torch-fsdp2", **degrees)


@pytest.mark.parametrize("expert", [1, 8])
def test_capacity_for_the_mean_costs_what_even_experts_do(expert: int) -> None:
    assert on_gpus(1.0, expert).time == on_gpus(None, expert).time


def test_padding_is_sent_as_tokens_are() -> None:
    sent = [on_gpus(capacity, 8).communication["all_to_all"] for capacity in (1.0, 1.5)]
    assert sent[1] == pytest.approx(1.5 * sent[0])


def test_padding_is_computed_whether_ranks_share_experts_or_not() -> None:
    """Experts are most of the products of a layer."""
    for expert in (1, 8):
        plain, padded = (on_gpus(capacity, expert).time["compute"] for capacity in (1.0, 1.5))
        assert 1.25 < padded / plain < 1.5


def test_masks_cost_a_product_of_every_token_with_every_place() -> None:
    """Two forward, three backward: weights of what comes back have gradients, places have none."""
    degrees = {"data": 256, "num_microbatches": 1, "shard_degree": 256}
    cluster, capacity = load_cluster("tpu-v5p:8x8x4"), 1.25
    masked = estimate("tpu-v5p:8x8x4", capacity, "jax-xla", **degrees)
    even = estimate("tpu-v5p:8x8x4", 1.0, "jax-xla", **degrees)
    rate = cluster.device.peak_flops_per_second["bf16"]
    products = 5 * 2 * SEQ * SEQ * TOPK * HIDDEN * LAYERS
    experts = 9 * 2 * SEQ * TOPK * HIDDEN * FFN * LAYERS
    least = (capacity - 1.0) * (products + experts) / rate
    assert least < masked.time["compute"] - even.time["compute"] < 1.6 * least


def test_tiles_that_experts_share_are_gone_where_they_have_arrays_of_their_own() -> None:
    """Eight experts of 1,024 tokens each, in tiles of 512: 7 of 16 are computed twice, but masks cost more."""
    degrees = {"data": 256, "num_microbatches": 1, "shard_degree": 256}
    sorted_once = estimate("tpu-v5p:8x8x4", None, "jax-xla", **degrees)
    experts = 9 * 2 * SEQ * TOPK * HIDDEN * FFN * LAYERS
    rate = load_cluster("tpu-v5p:8x8x4").device.peak_flops_per_second["bf16"]
    assert sorted_once.time["compute"] > (1 + 7 / 16) * experts / rate

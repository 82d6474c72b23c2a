"""Tensor ranks beyond the heads of keys: what Megatron Core sends that they may share these."""

import pytest

from cluster_specs.catalog import load_cluster
from planner.evaluation import Evaluator
from planner.evaluation.blocks import BlockCost
from planner.models.catalog import load_model
from planner.plans import Job, Parallelism

SEQ, HEADS, KV_HEADS, HEAD_DIM = 4096, 32, 4, 128  # Qwen3-30B-A3B


def layer(tensor: int, stack: str = "megatron", policy: str = "none") -> BlockCost:
    job = Job.model_validate({"global_batch": 16, "seq_len": SEQ, "stack": stack})
    evaluator = Evaluator(load_model("qwen3-30b-a3b"), load_cluster("dgx-h100:2"), job)
    plan = Parallelism(data=16 // tensor, tensor=tensor, sequence_parallel=True, zero_stage=1)
    return evaluator.block(plan, evaluator.main_layer, policy, {})


PROJECTED = SEQ * (HEADS + 2 * KV_HEADS) * HEAD_DIM * 2


def whole(cost: BlockCost, collective: str, tensor: int) -> float:
    """Of whole arrays, over so many ranks [bytes]."""
    return cost.sent_bytes[collective] * tensor / (tensor - 1)


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
def test_projections_are_gathered_and_their_gradients_scattered(collective: str) -> None:
    """``get_query_key_value_tensors``: once each, of all heads; what else ranks send depends on the sequence alone."""
    own, shared = (whole(layer(ranks), collective, ranks) for ranks in (KV_HEADS, 2 * KV_HEADS))
    assert shared - own == pytest.approx(PROJECTED)


def test_a_layer_that_runs_again_gathers_again() -> None:
    more = []
    for ranks in (KV_HEADS, 2 * KV_HEADS):
        once, twice = (whole(layer(ranks, policy=p), "all_gather", ranks) for p in ("none", "full"))
        more.append(twice - once)
    assert more[1] - more[0] == pytest.approx(PROJECTED)


def test_ranks_that_make_the_keys_they_need_share_none() -> None:
    own, shared = (
        whole(layer(ranks, stack="torch-fsdp2"), "all_gather", ranks) for ranks in (KV_HEADS, 2 * KV_HEADS)
    )
    assert shared == pytest.approx(own)

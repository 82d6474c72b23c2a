"""Look-ups in shards of an embedding table: what ranks exchange instead of gathering it.

Whole compiled steps are in `test_communication`.
"""

from collections.abc import Mapping
from typing import Any

import pytest

from cluster_specs.catalog import load_cluster
from planner.evaluation import Evaluator
from planner.graph import Tensor
from planner.models.catalog import load_model
from planner.plans import Job, Parallelism

TABLE = 2 * 128256 * 4096
SEEN = 2 * 16 * 4096 * 4096
"""Vectors of 16 sequences of 4,096 tokens."""


def sent(
    model: str, tokens: tuple[int, int], cluster: str = "tpu-v5p:2x2x4", **degrees: Any
) -> Mapping[str, float]:
    """Bytes of embedding and head that a device sends, by kind; ``tokens`` are sequences of a rank and their length."""
    devices = load_cluster(cluster).num_devices
    plan = Parallelism.model_validate(
        {"data": devices, "zero_stage": 3, "sharding": "FULL_SHARD", "shard_degree": devices, **degrees}
        | {"micro_batch": tokens[0]}
    )
    job = Job(global_batch=plan.data * tokens[0], seq_len=tokens[1], stack="jax-xla")
    evaluator = Evaluator(load_model(model), load_cluster(cluster), job)
    layers = (
        sum(2 * evaluator.graph.elements(w) for w in layer_weights(evaluator)) * evaluator.graph.num_layers
    )
    found = dict(evaluator.estimate(plan).communication)
    found["all_gather"] -= 2 * layers * (1 - 1 / plan.shard_degree)
    return found


def layer_weights(evaluator: Evaluator) -> list[Tensor]:
    block = evaluator.graph.block[evaluator.main_layer]
    return [block.tensor[name] for op in block.ops for name in op.weights]


@pytest.mark.parametrize("model", ["llama-3.1-8b", "llama-3.2-1b"], ids=["own head", "shared with the head"])
def test_columns_of_few_and_of_many_tokens_are_exchanged(model: str) -> None:
    """The head gathers its weights; tokens' columns go there and back."""
    width = 1 if model == "llama-3.1-8b" else 1 / 2
    for times, tokens in ((1, (1, 4096)), (4, (2, 8192))):
        found = sent(model, tokens)
        assert found["all_gather"] == pytest.approx(15 / 16 * width * TABLE, rel=1e-3)
        assert found["all_to_all"] == pytest.approx(2 * 15 / 16 * times * width * SEEN / 16)


def test_as_many_context_ranks_as_copies_are_taken_for_them() -> None:
    """What XLA made of the look-up alone (jax 0.10.2, libtpu 0.0.52): parts of 16 sequences of 8,192 tokens [bytes]."""
    split = {"data": 16, "context": 2, "shard_degree": 16, "replicate_degree": 2, "sharding": "HYBRID_SHARD"}
    found = sent("llama-3.1-8b", (1, 8192), cluster="tpu-v5p:2x4x4", **split)
    assert found["all_to_all"] == (16 + 30 + 60) * 2**20
    assert found["send"] >= (32 + 64) * 2**20


@pytest.mark.parametrize(
    ("seq", "whole"), [(512, True), (1024, True), (1536, True), (2048, False), (3072, True)]
)
def test_what_is_found_is_scattered_in_whole_tiles_of_tokens(seq: int, whole: bool) -> None:
    """As XLA made it of 2 x 8 ranks on v5e (jax 0.10.2, libtpu 0.0.52), of half as many columns: else summed whole."""
    split = {"data": 2, "tensor": 8, "shard_degree": 2, "sequence_parallel": True}
    summed = sent("llama-3.1-8b", (1, seq), cluster="tpu-v5e:4x4", **split)["all_reduce"]
    of_tokens = 2 * 7 / 8 * 2 * seq * 4096
    assert (summed >= of_tokens) == whole
    assert summed - whole * of_tokens < 2**20


def test_where_columns_do_not_divide_ranks_sum_what_they_find_in_rows() -> None:
    """Falcon 7B has 65,024 rows of 4,544, which 128 does not divide: all gather the gradients of what they found."""
    head, few = 2 * 65024 * 4544, 2 * 128 * 128 * 4544
    found = sent("falcon-7b", (1, 128), cluster="tpu-v5e:8x16")
    assert "all_to_all" not in found
    by_sums = found["all_reduce"] / 2  # gathers of small weights
    assert found["all_gather"] + by_sums == pytest.approx(127 / 128 * (head + few), rel=1e-3)


def test_many_tokens_of_split_sequences_gather_the_table() -> None:
    """As in compiled steps of 8B's width over 4 x 4 and 8 x 8 ranks, 32,768 tokens a sequence."""
    split = {"data": 4, "context": 4, "shard_degree": 16}
    few, many = (sent("llama-3.1-8b", (1, seq), **split)["all_gather"] for seq in (16384, 32768))
    keys_and_values = 3 / 4 * 2 * 32 * 2 * 1024  # of a token, in 32 layers
    assert many - few == pytest.approx(15 / 16 * (TABLE - 2 * SEEN) + keys_and_values * 16384, rel=1e-2)

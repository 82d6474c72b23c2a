"""Look-ups in shards of an embedding table: what ranks exchange instead of gathering it.

Whole compiled steps are in `test_communication`.
"""

import pytest

from cluster_specs.catalog import load_cluster
from planner.evaluation import Evaluator
from planner.graph import Tensor
from planner.models.catalog import load_model
from planner.plans import Job, Parallelism

TABLE = 2 * 128256 * 4096
GATHERED = 15 / 16 * TABLE


def gathered(model: str, micro_batch: int, seq_len: int) -> float:
    """Bytes of embedding and head that a device sends for gathers, with ZeRO-3 over 16 ranks."""
    job = Job(global_batch=16 * micro_batch, seq_len=seq_len, stack="jax-xla")
    plan = Parallelism(data=16, micro_batch=micro_batch, zero_stage=3, sharding="FULL_SHARD", shard_degree=16)
    evaluator = Evaluator(load_model(model), load_cluster("tpu-v5p:2x2x4"), job)
    sent = evaluator.estimate(plan).communication["all_gather"]
    layers = evaluator.graph.num_layers * 2 * 15 / 16
    weights = sum(evaluator.graph.elements(w) for w in layer_weights(evaluator))
    return sent - layers * 2 * weights  # bytes, twice


def layer_weights(evaluator: Evaluator) -> list[Tensor]:
    block = evaluator.graph.block[evaluator.main_layer]
    return [block.tensor[name] for op in block.ops for name in op.weights]


def test_few_tokens_are_looked_up_and_many_gather_the_table() -> None:
    """The gradient of 16 x 4,096 tokens is gathered where those are fewer than the table's 128,256 rows."""
    head, few = GATHERED, 15 / 16 * 2 * 16 * 4096 * 4096
    assert gathered("llama-3.1-8b", 1, 4096) == pytest.approx(head + few, rel=1e-3)
    assert gathered("llama-3.1-8b", 2, 8192) == pytest.approx(2 * head, rel=1e-3)


def test_a_table_that_the_head_shares_is_gathered_for_it_and_looked_up() -> None:
    """As in a compiled step of Qwen3 0.6B; of more tokens than the table has rows, it is gathered for both."""
    table, few = 15 / 16 * 2 * 128256 * 2048, 15 / 16 * 2 * 16 * 4096 * 2048
    assert gathered("llama-3.2-1b", 1, 4096) == pytest.approx(table + few, rel=1e-3)
    assert gathered("llama-3.2-1b", 2, 8192) == pytest.approx(table, rel=1e-3)

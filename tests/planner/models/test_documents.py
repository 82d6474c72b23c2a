"""Documents that share a sequence: each attends to itself, as if it were a sequence of its own."""

import json

import pytest
from pydantic import ValidationError

from cluster_specs.catalog import load_cluster
from planner import evaluate, plan
from planner.api import read_plan
from planner.evaluation import Evaluator
from planner.flops import Counting, keys_per_query
from planner.models.catalog import build_graph, load_model
from planner.models.documents import of_documents
from planner.operators import forward_flops
from planner.plans import Estimate, Job, Parallelism

LENGTH = 8192


def estimate(documents: int | None, attention: str = "flash", **degrees: int) -> Estimate:
    job = Job(global_batch=16, seq_len=LENGTH, document_len=documents, attention=attention)
    parallel = Parallelism(data=8 // degrees.get("context", 1), num_microbatches=2, zero_stage=3, **degrees)
    parallel = parallel.model_copy(
        update={"shard_degree": 8, "num_microbatches": 2 * degrees.get("context", 1)}
    )
    return Evaluator(load_model("llama-3.2-1b"), load_cluster("dgx-h100:1"), job).estimate(parallel)


def test_scores_are_as_many_as_pairs_within_documents() -> None:
    """Causal: n/2 keys a query, n the tokens of a document."""
    model = load_model("llama-3.2-1b")
    whole, flops = build_graph(model, LENGTH), []
    for length in (None, LENGTH, 2048, 1024):
        flops.append(forward_flops(of_documents(whole, length), 1, Counting()))
    pairs = (
        16 * 32 * 2 * 2 * 64 * LENGTH
    )  # layers, heads, two products of a multiplication and an addition, head dim
    assert flops[1] == flops[0]
    assert flops[0] - flops[2] == pytest.approx(pairs * (LENGTH - 2048) / 2)
    assert flops[2] - flops[3] == pytest.approx(pairs * 1024 / 2)


def test_documents_cost_what_sequences_of_their_own_do() -> None:
    packed = estimate(2048)
    job = Job(global_batch=64, seq_len=2048)
    parallel = Parallelism(data=8, micro_batch=4, num_microbatches=2, zero_stage=3, shard_degree=8)
    apart = Evaluator(load_model("llama-3.2-1b"), load_cluster("dgx-h100:1"), job).estimate(parallel)
    assert packed.step_time_s == pytest.approx(apart.step_time_s, rel=1e-9)
    assert packed.mfu == pytest.approx(apart.mfu, rel=1e-9)
    assert packed.memory_bytes == pytest.approx(apart.memory_bytes, rel=1e-9)


@pytest.mark.parametrize("degrees", [{}, {"context": 2}])
def test_shorter_documents_are_never_slower(degrees: dict[str, int]) -> None:
    seconds = [estimate(length, **degrees).step_time_s for length in (None, LENGTH, 4096, 2048, 512)]
    assert seconds[0] == seconds[1]
    assert seconds[1:] == sorted(seconds[1:], reverse=True)
    assert seconds[-1] < 0.9 * seconds[0]


def test_plain_attention_makes_all_scores_whatever_is_masked() -> None:
    assert estimate(2048, "plain").time == estimate(None, "plain").time


def test_an_encoder_is_read_whole() -> None:
    """Documents part what attends to itself; cross-attention goes over all that the encoder made."""
    graph = of_documents(build_graph(load_model("t5-small"), 512), 128)
    ops = [op for block in graph.blocks for op in block.ops if op.kind == "attention"]
    assert {op.name: op.attributes.get("documents") for op in ops} == {
        "attention": 128,
        "cross_attention": None,
    }


def test_chunks_of_a_model_stay_where_documents_are_longer() -> None:
    whole = build_graph(load_model("llama-4-scout-17b-16e"), 32768)

    def keys(length: int) -> set[float]:
        graph = of_documents(whole, length)
        ops = [op for block in graph.blocks for op in block.ops if op.kind == "attention"]
        return {keys_per_query(op, graph, Counting()) for op in ops}

    assert keys(16384) == {4096, 8192}
    assert keys(4096) == {2048}


def test_on_tpus_documents_save_nothing_but_the_count() -> None:
    """Splash attention computes the scores of other documents, and hides them; chunks are in its mask."""
    job = Job(global_batch=64, seq_len=LENGTH, stack="jax-xla")
    parallel = Parallelism(data=64, zero_stage=3, shard_degree=64)
    whole, packed = (
        Evaluator(
            load_model("llama-3.2-1b"),
            load_cluster("tpu-v5p:4x4x4"),
            job.model_copy(update={"document_len": length}),
        ).estimate(parallel)
        for length in (None, 1024)
    )
    assert packed.step_time_s == whole.step_time_s
    assert packed.mfu < whole.mfu


def test_a_plan_for_documents_says_so() -> None:
    found = plan("llama-3.2-1b", "dgx-h100:1", global_batch=16, seq_len=LENGTH, document_len=1024)
    assert read_plan(json.loads(found.to_json())).plan.job.document_len == 1024
    assert evaluate(found).step_time_s == found.estimate.step_time_s


def test_documents_are_no_longer_than_their_sequence() -> None:
    with pytest.raises(ValidationError, match="must be at most seq_len, 4096 tokens"):
        Job(global_batch=8, seq_len=4096, document_len=4097)

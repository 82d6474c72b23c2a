"""Boundaries moved by the simulated step: never slower, never too large, and as good as every cut on small cases."""

from itertools import combinations
from math import inf

import pytest

from cluster_specs.catalog import load_cluster
from planner.evaluation.cuts import even_cuts
from planner.evaluation.evaluator import Evaluator
from planner.models.catalog import load_model
from planner.pipeline.generators import schedule_entry
from planner.plans import Estimate, Job, Parallelism, Pins
from planner.search.best_first import Search
from planner.search.polishing import polished
from planner.search.stages import LESS, Cuts, moved_by_one
from tests.planner.search.small_cases import cluster_with, small_llama


def priced(evaluator: Evaluator, plan: Parallelism, cuts: Cuts) -> tuple[Cuts, Estimate]:
    return cuts, evaluator.estimate(plan, {}, cuts)


@pytest.mark.parametrize("vocabulary", [128, 32_000, 256_000])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1"])
def test_as_good_as_every_cut(vocabulary: int, schedule: str) -> None:
    model = small_llama(num_hidden_layers=9, vocab_size=vocabulary)
    evaluator = Evaluator(model, cluster_with("a100-4x-50g:1"), Job(global_batch=8, seq_len=2048))
    plan = Parallelism(pipeline=4, num_microbatches=8, schedule=schedule)
    limit = evaluator.cluster.device.memory
    every = [evaluator.estimate(plan, {}, (0, *ends, 9)).step_time_s for ends in combinations(range(1, 9), 3)]
    cuts, estimate = polished(evaluator, plan, {}, priced(evaluator, plan, (0, 2, 4, 6, 9)), limit)
    assert estimate.step_time_s == pytest.approx(min(every))
    assert estimate == evaluator.estimate(plan, {}, cuts)


def test_memory_is_kept_to() -> None:
    evaluator = Evaluator(
        small_llama(num_hidden_layers=9), cluster_with("a100-4x-50g:1"), Job(global_batch=8, seq_len=2048)
    )
    plan = Parallelism(pipeline=4, num_microbatches=8)
    start = (0, 2, 4, 6, 9)
    limit = evaluator.estimate(plan, {}, start).memory_bytes
    _, estimate = polished(evaluator, plan, {}, priced(evaluator, plan, start), limit)
    assert estimate.memory_bytes <= limit


@pytest.mark.parametrize(
    ("model", "cluster", "batch", "seq", "least"),
    [
        ("gemma-2-9b", "dgx-h100:2", 128, 4096, 0.05),
        ("t5-11b", "dgx-a100-80g:2", 128, 512, 0.03),
        ("qwen2.5-0.5b", "dgx-h100:1", 64, 4096, 0.20),
    ],
)
def test_uneven_models_are_cut_unevenly(model: str, cluster: str, batch: int, seq: int, least: float) -> None:
    """Wide vocabularies, and decoders dearer than encoders: at least so much faster than equal layer counts."""
    evaluator = Evaluator(load_model(model), load_cluster(cluster), Job(global_batch=batch, seq_len=seq))
    tensor = 1 if cluster.endswith("h100:1") else 2
    pins = Pins(pipeline=4, tensor=tensor, context=1, schedule="1f1b", micro_batch=1, zero_stage=0)
    search = Search(evaluator, pins, "time")
    found = search.run(1).found[0]
    sharding = search.sharding(found.candidate)
    _, estimate = polished(evaluator, found.plan, sharding, (found.cuts, found.estimate), search.limit)
    layers = evaluator.graph.num_layers
    even = evaluator.estimate(found.plan, sharding, tuple(round(s * layers / 4) for s in range(5)))
    assert even.step_time_s / estimate.step_time_s - 1 > least


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "gpipe", "zb-h1", "zb-v", "dualpipe"])
@pytest.mark.parametrize("microbatches", [8, 40])
def test_what_is_not_simulated_would_not_have_been_taken(schedule: str, microbatches: int) -> None:
    """Taking the same moves as where each of them is priced in full."""
    model = small_llama(num_hidden_layers=19, vocab_size=128_000)
    evaluator = Evaluator(
        model, cluster_with("a100-4x-50g:1", bandwidth=0.1), Job(global_batch=microbatches, seq_len=2048)
    )
    virtual = schedule_entry(schedule).stages_per_rank[0]
    plan = Parallelism(pipeline=4, virtual_stages=virtual, num_microbatches=microbatches, schedule=schedule)
    start = even_cuts(19, 4 * virtual)
    cuts, estimate = polished(evaluator, plan, {}, priced(evaluator, plan, start), inf)
    plain, least = start, evaluator.estimate(plan, {}, start).step_time_s
    improving = True
    while improving:
        improving = False
        for moved in moved_by_one(plain):
            seconds = evaluator.estimate(plan, {}, moved).step_time_s
            if seconds < LESS * least:
                plain, least, improving = moved, seconds, True
    assert (cuts, estimate.step_time_s) == (plain, least)

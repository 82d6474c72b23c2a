"""Models, clusters and jobs so small that every plan for them can be priced."""

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from cluster_specs.catalog import load_cluster
from cluster_specs.cluster import ClusterSpec
from planner.evaluation.evaluator import Evaluator
from planner.models.catalog import load_model
from planner.models.model import Model
from planner.plans import Job, Objective, Pins
from planner.search.best_first import Found, Search
from planner.search.candidates import Candidate
from planner.search.space import candidates

LLAMA = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 32000,
    "tie_word_embeddings": False,
}


def small_llama(**changes: Any) -> Model:
    """Half a billion parameters."""
    return Model(name="small-llama", family="llama", config=LLAMA | changes)


def small_mixture() -> Model:
    """As `small_llama` with two layers, of four experts each."""
    experts = {
        "model_type": "mixtral",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 2,
    }
    return Model(name="small-mixture", family="mixtral", config=LLAMA | experts)


def cluster_with(name: str, memory_gib: float | None = None, bandwidth: float = 1.0) -> ClusterSpec:
    """A shipped cluster with another device memory, and links of ``bandwidth`` times their own."""
    cluster = load_cluster(name)
    links = tuple(link.model_copy(update={"bandwidth": bandwidth * link.bandwidth}) for link in cluster.links)
    memory = cluster.device.memory if memory_gib is None else memory_gib * 2**30
    return cluster.model_copy(
        update={"links": links, "device": cluster.device.model_copy(update={"memory": memory})}
    )


class Case(NamedTuple):
    """A question to the search."""

    model: Model
    cluster: ClusterSpec
    job: Job
    pins: Pins = Pins()

    def search(self, objective: Objective = "time") -> Search:
        return Search(Evaluator(self.model, self.cluster, self.job), self.pins, objective)


TWO_NODES, ONE_NODE = "a100-4x-50g:2", "dgx-h100:1"

CASES = {
    "ample memory": Case(load_model("gpt2"), load_cluster(ONE_NODE), Job(global_batch=32, seq_len=1024)),
    "slow network": Case(small_llama(), load_cluster(TWO_NODES), Job(global_batch=32, seq_len=1024)),
    "tight memory": Case(small_llama(), cluster_with(TWO_NODES, 4.5), Job(global_batch=16, seq_len=1024)),
    "only pipelines fit": Case(
        small_llama(num_hidden_layers=4), cluster_with(TWO_NODES, 2.65), Job(global_batch=8, seq_len=1024)
    ),
    "experts": Case(small_mixture(), cluster_with(TWO_NODES, 6), Job(global_batch=16, seq_len=1024)),
    "long sequences": Case(small_llama(), cluster_with(ONE_NODE, 12), Job(global_batch=4, seq_len=16384)),
    "pipeline": Case(
        small_llama(), cluster_with(TWO_NODES, 8), Job(global_batch=8, seq_len=1024), Pins(pipeline=2)
    ),
    "links that carry next to nothing": Case(
        small_llama(num_hidden_layers=4),
        cluster_with(TWO_NODES, 8, bandwidth=1e-5),
        Job(global_batch=8, seq_len=1024),
        Pins(pipeline=2, tensor=1),
    ),
    "states on the host": Case(
        small_llama(),
        cluster_with(TWO_NODES, 3),
        Job(global_batch=8, seq_len=1024),
        Pins(offload=("optimizer", "weights")),
    ),
    "recomputation of each stage": Case(
        small_llama(num_hidden_layers=4),
        cluster_with(TWO_NODES, 6),
        Job(global_batch=16, seq_len=1024),
        Pins(tensor=1, context=1, recompute="full,selective"),
    ),
    "compiled": Case(
        small_llama(num_hidden_layers=4, vocab_size=128000),
        cluster_with("tpu-v5e:2x4", 4),
        Job(global_batch=8, seq_len=128, stack="jax-xla"),
        Pins(context=1),
    ),
    "compiled with ZeRO-1": Case(
        small_llama(num_hidden_layers=2),
        cluster_with("tpu-v5e:2x4", 6),
        Job(global_batch=16, seq_len=128, stack="jax-xla"),
        Pins(context=1, zero_stage=1),
    ),
    "any schedule": Case(
        small_llama(num_hidden_layers=4),
        cluster_with(TWO_NODES, 8),
        Job(global_batch=16, seq_len=1024),
        Pins(pipeline=2, tensor=1, context=1, zero_stage=0, schedule="automatic"),
    ),
}


class Priced(NamedTuple):
    """A case with the price of every plan."""

    search: Search
    found: tuple[Found, ...]


def every_candidate(search: Search, pipelines: bool | None = None) -> Iterator[Candidate]:
    """With its fast and its lean assignment."""
    space = candidates(search.evaluator, search.pins, search.objective, pipelines)
    return (c._replace(lean=lean) for c in space for lean in (False, True) if c.tensor > 1 or not lean)


@cache
def _priced(name: str, c: Candidate) -> Found:
    """A candidate of a case, whatever the objective."""
    return search_of(name, "time").price(c)


@cache
def _evaluator(name: str) -> Evaluator:
    return CASES[name].search().evaluator


def search_of(name: str, objective: Objective) -> Search:
    """A case's, with an evaluator that remembers what it has priced, as searches of one question share it."""
    return Search(_evaluator(name), CASES[name].pins, objective)


@cache
def every_plan(name: str, objective: Objective) -> Priced:
    """The case of `CASES`, by trying everything; pipelines too where nothing else fits."""
    search = search_of(name, objective)
    found = tuple(_priced(name, c) for c in every_candidate(search))
    if not any(f.estimate.memory_bytes <= search.limit for f in found):
        found = tuple(_priced(name, c) for c in every_candidate(search, pipelines=True))
    return Priced(search, found)

"""What evaluators share: answers are the same without, and groups of ranks are the same on clusters of one fabric."""

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest

from cluster_specs.changes import changed
from cluster_specs.cluster import ClusterSpec
from cluster_specs.sizing import sized
from cluster_specs.software import load_software
from cluster_specs.topology import comm_group
from planner.evaluation import sharing
from planner.evaluation.evaluator import Evaluator
from planner.evaluation.sharing import fabric, forget, kept_for
from planner.graph import Graph
from planner.models.catalog import load_model
from planner.models.model import Model
from planner.plans import Job, Pins
from planner.search import plan
from planner.search.assignments import all_have_batch

GPT2 = load_model("gpt2")
MIXTURE = Model(
    name="mixture",
    family="mixtral",
    config={
        "model_type": "mixtral",
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "num_hidden_layers": 4,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "vocab_size": 32000,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
)


WIDE = Model(
    name="wide",
    family="llama",
    config={
        "model_type": "llama",
        "hidden_size": 8192,
        "intermediate_size": 16384,
        "num_hidden_layers": 2,
        "num_attention_heads": 64,
        "num_key_value_heads": 2,
        "vocab_size": 32000,
    },
)
"""Products deep enough for rings between tensor ranks, some of which share heads of keys."""


class Asked(NamedTuple):
    """What the search is asked."""

    model: Model
    cluster: ClusterSpec
    job: Job
    pins: Pins = Pins()


def question(model: Model, kind: str, devices: int, batch: int = 64, **knobs: str) -> Asked:
    stack = "jax-xla" if kind.startswith("tpu") else "torch-fsdp2"
    cluster = changed(sized(kind, devices), knobs) if knobs else sized(kind, devices)
    return Asked(model, cluster, Job(global_batch=batch, seq_len=1024, stack=stack))


def pinned(**pins: object) -> Asked:
    return question(MIXTURE, "dgx-h100", 16)._replace(pins=Pins.model_validate(pins))


SERIES = {
    "counts": [question(GPT2, "dgx-h100", n) for n in (4, 8, 16, 32, 64)],
    "counts, with experts": [question(MIXTURE, "dgx-h100", n) for n in (16, 8, 32)],
    "counts of a torus": [question(GPT2, "tpu-v5e", n) for n in (4, 16, 8)],
    "layouts of a torus, with few heads of keys": [
        question(WIDE, "tpu-v5e", 16)._replace(pins=Pins(tensor=tensor, pipeline=pipeline))
        for tensor, pipeline in ((2, 1), (8, 1), (8, 2), (4, 1), (16, 1))
    ],
    "networks": [question(GPT2, "dgx-h100", 32, network=f"{x}x") for x in (0.25, 1, 4)],
    "pins": [
        pinned(tensor=2),
        pinned(recompute="full", zero_stage=3),
        pinned(pipeline=2),
        pinned(offload=("optimizer",)),
        pinned(pipeline=2, schedule="gpipe", tensor=1),
    ],
    "batches": [question(GPT2, "l40s-8x", 16, batch=batch) for batch in (16, 64, 48)],
}


def answers(asked: Sequence[Asked], before: Callable[[], None]) -> list[str]:
    found = []
    for each in asked:
        before()
        found.append(plan(*each).to_json())
    return found


@pytest.mark.parametrize("asked", SERIES.values(), ids=SERIES)
def test_answers_are_the_same_byte_by_byte(asked: Sequence[Asked]) -> None:
    alone = answers(asked, forget)
    forget()
    assert answers(asked, lambda: None) == alone
    assert answers(asked[::-1], lambda: None)[::-1] == alone


def test_counts_and_batches_share_and_other_hardware_does_not() -> None:
    def kept(cluster: ClusterSpec, batch: int = 64) -> object:
        return Evaluator(GPT2, cluster, Job(global_batch=batch, seq_len=1024)).kept

    two = sized("dgx-h100", 16)
    assert kept(two) is kept(sized("dgx-h100", 64)) is kept(two, 32)
    assert kept(two) is kept(changed(two, {"price.per_device_hour": 1}))
    for knob in ("compute", "memory", "memory-bandwidth", "scale-up", "network", "latency"):
        assert kept(changed(two, {knob: "2x"})) is not kept(two), knob
    assert kept(changed(two, {"host.memory": "1 TB"})) is not kept(two)
    assert kept(sized("dgx-h100", 8)) is not kept(two)


KINDS = ("dgx-h100", "p5.48xlarge", "mi300x-8x", "gb200-nvl72", "l40s-8x", "tpu-v5e", "tpu-v5p")


@pytest.mark.parametrize("kind", KINDS)
def test_groups_are_the_same_on_one_fabric(kind: str) -> None:
    """Every group of two axes that the smaller cluster has, uneven ones too."""
    counts = (64, 128) if kind == "tpu-v5p" else (64, 256) if kind == "tpu-v5e" else (2, 3, 8)
    per_node = 1 if kind.startswith("tpu") else sized(kind).devices_per_node
    clusters = [sized(kind, n * per_node) for n in counts]
    for small, large in itertools.pairwise(clusters):
        if fabric(small) != fabric(large):
            assert kind.startswith("tpu")
            continue
        for size, stride, outer in itertools.product(range(1, 17), range(1, 9), range(1, 5)):
            if size * stride * outer <= small.num_devices:
                axes = ((size, stride), (outer, size * stride))
                assert comm_group(small, axes) == comm_group(large, axes)


def test_the_oldest_and_the_fullest_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    def kept(seq_len: int) -> object:
        job = Job(global_batch=8, seq_len=seq_len)
        return kept_for(GPT2, sized("dgx-h100", 8), job, load_software(job.stack))

    first = kept(64)
    assert kept(64) is first
    for seq_len in range(128, 128 + sharing.MOST_KEPT):
        kept(seq_len)
    assert kept(64) is not first
    filled = Evaluator(GPT2, sized("dgx-h100", 8), Job(global_batch=8, seq_len=64))
    monkeypatch.setattr(sharing, "MOST_ENTRIES", 0)
    plan(GPT2, sized("dgx-h100", 8), Job(global_batch=8, seq_len=64), Pins(tensor=1))
    assert filled.kept.entries > 0
    assert kept(64) is not filled.kept


def test_operators_without_a_batch_are_noticed() -> None:
    graph = Evaluator(*question(GPT2, "dgx-h100", 8)[:3]).graph
    assert all_have_batch(graph)
    without = Graph.model_validate_json(graph.model_dump_json().replace('"batch",', ""))
    assert not all_have_batch(without)

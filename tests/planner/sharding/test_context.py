"""Keys and values of a split sequence: the same work however they are exchanged, and what hides behind it."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster_specs.catalog import load_cluster
from cluster_specs.cluster import ClusterSpec
from cost_models.attention import AttentionShape, attended_pairs
from planner.evaluation import Evaluator
from planner.models.catalog import load_model
from planner.plans import Job, Parallelism
from planner.sharding.costs import OpCost
from planner.sharding.spec import Strategy

EXCHANGES = ("all_gather", "ring", "gathered_ring", "all_to_all")
STRATEGY: Strategy = (("context", "seq"),)
NODE = load_cluster("dgx-h100:1")


def linked(factor: float) -> ClusterSpec:
    links = tuple(
        link.model_copy(update={"bandwidth": factor * link.bandwidth, "latency": link.latency / factor})
        for link in NODE.links
    )
    return NODE.model_copy(update={"links": links})


def attention(
    exchange: str,
    degree: int = 4,
    seq_len: int = 65536,
    cluster: ClusterSpec = NODE,
    model: str = "llama-3.1-8b",
) -> OpCost:
    """Of one layer, one sequence split over ``degree`` ranks."""
    job: dict[str, Any] = {"global_batch": 1, "seq_len": seq_len, "context_exchange": exchange}
    pricer = Evaluator(load_model(model), cluster, Job(**job)).pricer(Parallelism(context=degree))
    block = pricer.graph.block["layer"]
    return pricer.op(block, next(op for op in block.ops if op.kind == "attention"), STRATEGY)


@given(chunk=st.integers(1, 64), degree=st.integers(2, 16))
def test_steps_cover_the_triangle(chunk: int, degree: int) -> None:
    """Each rank: the triangle of its own keys, then half of a square for each other rank."""
    length = 2 * chunk
    own = AttentionShape(1, 1, length, length, 1, 1, 1)
    half = replace(own, kv_len=length / 2, causal=False)
    whole = AttentionShape(1, 1, degree * length, degree * length, 1, 1, 1)
    computed = degree * (attended_pairs(own) + (degree - 1) * attended_pairs(half))
    assert computed == attended_pairs(whole)


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_long_sequences_take_as_long_however_they_are_exchanged(exchange: str) -> None:
    found, plain = (attention(kind, 4, 262144, linked(1e6)) for kind in (exchange, "all_gather"))
    assert found.seconds == pytest.approx(plain.seconds, rel=0.05)


def test_a_ring_hides_behind_long_sequences_and_not_behind_short_ones() -> None:
    def exposed(seq_len: int) -> float:
        found = attention("ring", 8, seq_len, linked(0.1))
        return sum(comm.seconds for comm in found.comm_forward) / found.forward

    assert exposed(262144) == 0
    assert exposed(8192) > 1


def test_a_slow_ring_takes_its_hops() -> None:
    """Forward n - 1 of keys and values; backward as many again, and n of their gradients, of equal size."""
    n, slow = 4, linked(1e-5)
    found, gathered = attention("ring", n, cluster=slow), attention("all_gather", n, cluster=slow)
    hop = gathered.comm_forward[0].seconds / (n - 1)
    compute = found.forward + found.backward_input
    hops = (n - 1) + (n - 1) + n
    assert found.seconds - compute == pytest.approx(hops * hop, rel=1e-3)


def test_steps_send_what_a_gather_sends() -> None:
    for exchange in ("ring", "gathered_ring"):
        found, gathered = attention(exchange), attention("all_gather")
        assert found.comm_forward[0].sent_bytes == gathered.comm_forward[0].sent_bytes


def test_gradients_travel_once_around_in_their_type() -> None:
    keys = 2 * 65536 / 4 * 8 * 128 * 2
    assert attention("ring").comm_backward[1].sent_bytes == 4 * keys
    assert attention("gathered_ring").comm_backward[1].sent_bytes == 4 * 2 * keys


@pytest.mark.parametrize("degree", [2, 4, 8])
def test_all_to_all_sends_four_equal_parts(degree: int) -> None:
    """DeepSpeed Ulysses, arXiv:2309.14509, section 3: queries, keys, values, results, without grouped heads."""
    found = attention("all_to_all", degree, 4096, model="llama-2-7b")
    part = 4096 / degree * 4096 * 2
    assert sum(comm.sent_bytes for comm in found.comm_forward) == pytest.approx(
        4 * part * (degree - 1) / degree
    )


def test_heads_that_do_not_divide_leave_ranks_idle() -> None:
    uneven = attention(
        "all_to_all", 8, model="qwen2.5-0.5b"
    )  # 14 heads: 2 on each of 8 ranks, two of them idle
    even = attention("all_gather", 8, model="qwen2.5-0.5b")
    assert uneven.forward == pytest.approx(even.forward * math.ceil(14 / 8) / (14 / 8), rel=0.1)


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_more_bandwidth_is_never_slower(exchange: str) -> None:
    seconds = [attention(exchange, 8, 16384, linked(f)).seconds for f in (0.01, 0.1, 0.3, 1.0, 3.0, 100.0)]
    assert seconds == sorted(seconds, reverse=True)

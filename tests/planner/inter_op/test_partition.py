import itertools
import math
from collections import Counter

import networkx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import Infeasible, InputError
from planner.inter_op.partition import (
    partition_homogeneous,
    partition_layers,
)

TIMES = st.sampled_from([0.0, 1.0, 1.5, 2.0, 3.0, 5.25, 7.0, math.inf])


def cuts(num_layers, num_stages):
    """Every way to cut layers into that many stages."""
    for inner in itertools.combinations(range(1, num_layers), num_stages - 1):
        yield tuple(itertools.pairwise((0, *inner, num_layers)))


def step(times, num_microbatches):
    return sum(times) + (num_microbatches - 1) * max(times) if max(times) < math.inf else math.inf


@st.composite
def tables(draw):
    """(layers, stages, microbatches, seconds of [start, end, stage]); ``inf`` does not fit."""
    num_layers = draw(st.integers(1, 6))
    num_stages = draw(st.integers(1, num_layers))
    keys = [
        (a, b, s) for a in range(num_layers) for b in range(a + 1, num_layers + 1) for s in range(num_stages)
    ]
    times = draw(st.lists(TIMES, min_size=len(keys), max_size=len(keys)))
    return num_layers, num_stages, draw(st.integers(1, 9)), dict(zip(keys, times, strict=True))


@given(tables())
def test_layers_equal_brute_force(table):
    num_layers, num_stages, num_microbatches, seconds = table
    best = min(
        step([seconds[a, b, s] for s, (a, b) in enumerate(cut)], num_microbatches)
        for cut in cuts(num_layers, num_stages)
    )

    def fits(start, end, stage):
        return math.isfinite(seconds[start, end, stage])

    def cut():
        return partition_layers(num_layers, num_stages, lambda *stage: seconds[stage], fits, num_microbatches)

    if math.isinf(best):
        with pytest.raises(Infeasible, match=f"no cut of {num_layers} layers into {num_stages} stages fits"):
            cut()
        return
    found = cut()
    assert found.stages in set(cuts(num_layers, num_stages))
    assert found.stage_seconds == tuple(seconds[a, b, s] for s, (a, b) in enumerate(found.stages))
    assert found.step_seconds(num_microbatches) == pytest.approx(best)


def test_every_trade_between_sum_and_bottleneck_is_weighed():
    start, end, stage = np.ogrid[:10, :10, :4]
    neither = 0
    for seed in range(60):
        # stages of unlike speed, so that few layers on a slow one trade the bottleneck for the sum
        seconds = (
            np.maximum(0, end - start)
            / (1 + stage)
            * (1 + 0.3 * np.random.default_rng(seed).random((10, 10, 4)))
        )
        num_microbatches = 2 + seed % 4
        every = [[seconds[a, b, s] for s, (a, b) in enumerate(cut)] for cut in cuts(9, 4)]
        found = partition_layers(9, 4, seconds.item, lambda *_: True, num_microbatches)
        best = min(step(times, num_microbatches) for times in every)
        assert found.step_seconds(num_microbatches) == pytest.approx(best)
        neither += found.slowest > min(map(max, every)) and found.total > min(map(sum, every))
    assert neither > 5  # neither the least bottleneck nor the least sum is the answer to these


@given(
    st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.25]), min_size=1, max_size=8),
    st.data(),
    st.integers(1, 9),
)
def test_homogeneous_equals_brute_force(layers, data, num_microbatches):
    num_stages = data.draw(st.integers(1, len(layers)))
    first, last = data.draw(st.tuples(TIMES, TIMES).filter(lambda extra: math.isfinite(sum(extra))))
    room = data.draw(st.lists(st.integers(1, 5), min_size=num_stages, max_size=num_stages))

    def times(cut):
        seconds = [sum(layers[a:b]) if b - a <= n else math.inf for (a, b), n in zip(cut, room, strict=True)]
        seconds[0] += first
        seconds[-1] += last
        return seconds

    best = min(step(times(cut), num_microbatches) for cut in cuts(len(layers), num_stages))
    if math.isinf(best):
        with pytest.raises(Infeasible):
            partition_homogeneous(layers, num_stages, num_microbatches, first, last, room)
        return
    found = partition_homogeneous(layers, num_stages, num_microbatches, first, last, room)
    assert found.stage_seconds == pytest.approx(times(found.stages))
    assert found.step_seconds(num_microbatches) == pytest.approx(best)


@given(st.integers(1, 40), st.data(), st.integers(1, 64))
def test_uniform_layers_are_split_evenly(num_layers, data, num_microbatches):
    num_stages = data.draw(st.integers(1, num_layers))
    counts = [
        b - a for a, b in partition_homogeneous([1 / 3] * num_layers, num_stages, num_microbatches).stages
    ]
    assert sum(counts) == num_layers
    assert max(counts) - min(counts) <= 1
    assert counts == sorted(counts)


def test_embedding_and_head_take_the_place_of_layers():
    """Llama 3 405B's own cut: 126 layers over 16 stages, one fewer on the first and on the last."""
    found = partition_homogeneous([1.0] * 126, 16, 16, first_extra=0.5, last_extra=0.9)
    assert [b - a for a, b in found.stages] == [7, *[8] * 14, 7]
    assert found.slowest == pytest.approx(8)


def test_evenness_decides_where_time_does_not():
    # layer 0 is the bottleneck, wherever the rest is cut
    found = partition_homogeneous([10.0, 1, 1, 1, 1, 1, 1], 3, 8)
    assert found.stages == ((0, 1), (1, 4), (4, 7))


def test_memory_of_early_stages_moves_layers_back():
    found = partition_homogeneous([1.0] * 12, 4, 8, max_layers_per_stage=[1, 2, 4, 8])
    assert [b - a for a, b in found.stages] == [1, 2, 4, 5]


def test_many_microbatches_want_balance_and_one_wants_speed():
    # stage 1 runs every layer at half the time
    def seconds(start, end, stage):
        return (end - start) / (1 + stage)

    def cut(num_microbatches):
        return partition_layers(9, 2, seconds, lambda *_: True, num_microbatches).stages

    assert cut(1) == ((0, 1), (1, 9))
    assert cut(1000) == ((0, 3), (3, 9))


def test_callbacks_are_asked_once_and_only_what_can_be():
    calls = Counter()

    def seconds(*stage):
        calls[stage] += 1
        return 1.0

    partition_layers(7, 3, seconds, lambda start, end, stage: end - start < 4, 4)
    assert set(calls.values()) == {1}
    for start, end, stage in calls:
        assert start >= stage
        assert 7 - end >= 2 - stage
        assert end - start < 4


def test_least_sum_is_a_shortest_path():
    rng = np.random.default_rng(0)
    seconds = rng.random((21, 21, 5))
    graph = networkx.DiGraph()
    for (a, b, s), t in np.ndenumerate(seconds):
        if a < b:
            graph.add_edge((a, s), (b, s + 1), weight=t)
    shortest = networkx.dijkstra_path_length(graph, (0, 0), (20, 5))
    found = partition_layers(20, 5, lambda a, b, s: seconds[a, b, s], lambda *_: True, 1)
    assert found.total == pytest.approx(shortest)


def test_more_microbatches_never_take_less_and_never_a_slower_bottleneck():
    rng = np.random.default_rng(13)
    seconds = rng.random((13, 13, 4))
    found = [
        (m, partition_layers(12, 4, lambda a, b, s: seconds[a, b, s], lambda *_: True, m))
        for m in (1, 2, 4, 8, 64)
    ]
    assert len({p.stages for _, p in found}) == 3
    for (m, earlier), (n, later) in itertools.pairwise(found):
        assert later.step_seconds(n) > earlier.step_seconds(m)
        assert later.slowest <= earlier.slowest
        assert later.total >= earlier.total


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: partition_homogeneous([1.0] * 3, 4, 1), Infeasible, "3 layers cannot fill 4 stages"),
        (lambda: partition_homogeneous([1.0] * 3, 0, 1), InputError, "0 stages and 1 microbatches"),
        (lambda: partition_homogeneous([1.0] * 3, 1, 0), InputError, "1 stages and 0 microbatches"),
        (
            lambda: partition_homogeneous([1.0] * 3, 2, 1, max_layers_per_stage=[3]),
            InputError,
            "1 entries for 2",
        ),
        (
            lambda: partition_homogeneous([1.0] * 3, 2, 1, max_layers_per_stage=[3, 0]),
            Infeasible,
            "stage 1 fits with no number of layers",
        ),
    ],
)
def test_impossible_requests_say_why(call, error, message):
    with pytest.raises(error, match=message):
        call()

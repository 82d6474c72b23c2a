"""No simulated pipeline is below the closed-form bounds, and even ones come close to them."""

from itertools import combinations_with_replacement, pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cluster_specs.software import load_software
from planner.evaluation.cuts import places_of, ranks_of
from planner.evaluation.handing_over import receive_buffers
from planner.evaluation.rank import Rank
from planner.evaluation.stages import StageCost
from planner.evaluation.states import Sync
from planner.evaluation.step import carried
from planner.pipeline.dependencies import arranged, peak_bytes
from planner.pipeline.generators import SCHEDULES, refusal
from planner.pipeline.ports import Ports
from planner.pipeline.simulator import StageTimes, makespan
from planner.plans import Job
from planner.search.bounds import (
    around_busiest,
    busiest_rank,
    busiest_within,
    least_received,
    pipeline_seconds,
    waits_behind,
)
from planner.search.candidates import Candidate, parallelism
from planner.search.fullest import Load, fullest_rank, fullest_with_whole_layers

BACKWARD = 1.5
"""Of its inputs and of its weights, each against one forward."""


def candidate(schedule: str, p: int, v: int, m: int) -> Candidate:
    return Candidate(1, 1, p, 1, 1, v, 1, m, 0, "NO_SHARD", 1, "none", schedule)


def whole_model(forward: float) -> StageCost:
    backward = BACKWARD * forward
    return StageCost(forward, backward, backward, {}, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, (), Sync(), 0.0, {})


def simulated(schedule: str, p: int, v: int, m: int, forwards: list[float]) -> float:
    backwards = [BACKWARD * f for f in forwards]
    return makespan(schedule, p, v, m, StageTimes(forwards, backwards, backwards)).makespan


FORWARDS = st.lists(st.floats(0.5, 4), min_size=8, max_size=8)
SHAPES = [
    ("1f1b", 2, 1),
    ("1f1b", 8, 1),
    ("gpipe", 4, 1),
    ("zb-h1", 4, 1),
    ("interleaved", 4, 2),
    ("zb-v", 4, 2),
]


@pytest.mark.parametrize(("schedule", "p", "v"), SHAPES)
@given(forwards=FORWARDS, rounds=st.integers(1, 4))
def test_no_split_is_faster_than_the_bound(
    schedule: str, p: int, v: int, forwards: list[float], rounds: int
) -> None:
    forwards, m = forwards[: p * v], rounds * p
    split = SCHEDULES[schedule].splits_backward
    bound = pipeline_seconds(whole_model(sum(forwards)), min(forwards), candidate(schedule, p, v, m), split)
    assert bound <= simulated(schedule, p, v, m, forwards) * (1 + 1e-9)


@pytest.mark.parametrize("ports", ["rank", "wire"])
@pytest.mark.parametrize(("schedule", "p", "v"), SHAPES)
@given(forwards=FORWARDS, hops=st.lists(st.floats(0, 50), min_size=7, max_size=7), rounds=st.integers(1, 4))
def test_no_pipeline_is_faster_than_its_links(
    schedule: str, p: int, v: int, ports: Ports, forwards: list[float], hops: list[float], rounds: int
) -> None:
    forwards, m = forwards[: p * v], rounds * p
    plan = parallelism(candidate(schedule, p, v, m))
    sends = [
        hop if here != there else 0.0
        for hop, (here, there) in zip(hops, pairwise(places_of(plan)), strict=False)
    ]
    weights = [BACKWARD * f for f in forwards]
    times = StageTimes(forwards, weights, weights)
    span = makespan(schedule, p, v, m, times, sends, ports=ports).makespan
    work = 0.0 if SCHEDULES[schedule].splits_backward else (1 + 2 * BACKWARD) * sum(forwards)
    assert carried(plan, ports, sends, work) <= span * (1 + 1e-12)


def test_a_pipeline_whose_links_do_all_takes_what_they_take() -> None:
    """Two stages, of which each hands on sixteen results: there, one after the other, and the last one back."""
    plan = parallelism(candidate("1f1b", 2, 1, 16))
    span = makespan(
        "1f1b", 2, 1, 16, StageTimes([0.0] * 2, [0.0] * 2, [0.0] * 2), [3.0], ports="rank"
    ).makespan
    assert carried(plan, "rank", [3.0]) == pytest.approx(17 * 3.0)
    assert span == pytest.approx(17 * 3.0)


@pytest.mark.parametrize("p", [2, 3, 5])
@given(forwards=FORWARDS, more=st.integers(1, 12))
def test_no_1f1b_is_faster_than_its_busiest_rank_allows(p: int, forwards: list[float], more: int) -> None:
    forwards, m = forwards[:p], p + more
    assert waits_behind("1f1b", p, m)
    span = simulated("1f1b", p, 1, m, forwards)
    seconds = [(1 + 2 * BACKWARD) * forward for forward in forwards]
    assert around_busiest(sum(seconds), max(seconds), p, m) <= span * (1 + 1e-9)
    assert max(seconds) <= busiest_within(span, sum(seconds), p, m) * (1 + 1e-9)


def test_even_1f1b_takes_what_its_busiest_rank_allows() -> None:
    p, m, each = 4, 16, 1 + 2 * BACKWARD
    span = simulated("1f1b", p, 1, m, [1.0] * p)
    assert around_busiest(p * each, each, p, m) == pytest.approx(span)
    assert busiest_within(span, p * each, p, m) == pytest.approx(each)


@pytest.mark.parametrize(("p", "m"), [(2, 8), (4, 64), (8, 64)])
def test_even_1f1b_is_close_to_the_bound(p: int, m: int) -> None:
    """With nothing to do for weights: within the ratio of 1 + x to exp(x), for a bubble of x = (p - 1) / m."""
    whole = whole_model(p)._replace(backward_weight=0.0)
    even = makespan("1f1b", p, 1, m, StageTimes([1.0] * p, [BACKWARD] * p, [0.0] * p)).makespan
    bound = pipeline_seconds(whole, 1.0, candidate("1f1b", p, 1, m), splits_backward=False)
    assert bound == pytest.approx(even, rel=0.06)


@given(
    p=st.integers(1, 4),
    number=st.integers(1, 9),
    ends=st.tuples(st.floats(0, 4), st.floats(0, 4)),
    layer=st.floats(0.1, 3),
)
def test_the_busiest_rank_has_whole_layers(
    p: int, number: int, ends: tuple[float, float], layer: float
) -> None:
    """Against every way to give so many equal layers to the ranks."""
    beside = [sum(ends)] if p == 1 else [ends[0], *[0.0] * (p - 2), ends[1]]
    cuts = combinations_with_replacement(range(number + 1), p - 1)
    counts = ([b - a for a, b in pairwise((0, *cut, number))] for cut in cuts)
    fastest = min(max(n * layer + end for n, end in zip(each, beside, strict=True)) for each in counts)
    given_ends = ends if p > 1 else (sum(ends),)
    assert busiest_rank(layer, number, given_ends, p) == pytest.approx(fastest, rel=1e-6)


KINDS = (Load(7, 2.0, 1.0), Load(5, 0.5, 3.0))
"""The first with more states than activations, the second the other way round."""


@pytest.mark.parametrize(("schedule", "p"), [("1f1b", 2), ("1f1b", 4), ("gpipe", 4)])
@given(
    order=st.permutations(range(12)),
    cuts=st.lists(st.integers(0, 12), min_size=3, max_size=3),
    states=st.floats(0, 5),
    ends=st.tuples(st.floats(0, 20), st.floats(0, 20)),
    m=st.integers(1, 20),
)
def test_the_fullest_rank_holds_as_much_as_the_bound(
    schedule: str,
    p: int,
    order: list[int],
    cuts: list[int],
    states: float,
    ends: tuple[float, float],
    m: int,
) -> None:
    """However layers of two kinds are ordered and cut; embedding and head are on the first and the last rank."""
    kinds = tuple(load._replace(states=states * load.states) for load in KINDS)
    layers = [kinds[number >= kinds[0].number] for number in order]
    bounds = [0, *sorted(cuts[: p - 1]), len(layers)]
    ranks = [layers[start:end] for start, end in pairwise(bounds)]
    saved = [sum(load.activations for load in rank) for rank in ranks]
    in_flight = peak_bytes(arranged(schedule, p, 1, m), saved, [0.0] * p)
    held = [sum(load.states for load in rank) + kept for rank, kept in zip(ranks, in_flight, strict=True)]
    held[0] += ends[0]
    held[-1] += ends[1]
    assert fullest_rank(kinds, ends, candidate(schedule, p, 1, m)) <= max(held) * (1 + 1e-9)


@pytest.mark.parametrize(("p", "v"), [(2, 1), (4, 1), (2, 2), (3, 2), (2, 4)])
@given(
    order=st.permutations(range(12)),
    cuts=st.sets(st.integers(1, 11), min_size=7, max_size=7),
    states=st.floats(0, 5),
    ends=st.tuples(st.floats(0, 20), st.floats(0, 20)),
    m=st.integers(2, 20),
)
def test_a_rank_holds_as_much_as_the_bound_with_whole_layers(
    p: int, v: int, order: list[int], cuts: set[int], states: float, ends: tuple[float, float], m: int
) -> None:
    """However layers are ordered and cut, if every stage has one; one in flight less where all were, as above."""
    schedule = "interleaved" if v > 1 else "1f1b"
    assume(not refusal(schedule, p, v, m))
    kinds = tuple(load._replace(states=states * load.states) for load in KINDS)
    layers = [kinds[number >= kinds[0].number] for number in order]
    stages = [layers[a:b] for a, b in pairwise([0, *sorted(cuts)[: p * v - 1], len(layers)])]
    saved = [sum(load.activations for load in stage) for stage in stages]
    held = list(peak_bytes(arranged(schedule, p, v, m), saved, [0.0] * len(saved)))
    for s, stage in enumerate(stages):
        held[s % p] += sum(load.states for load in stage)
    held[0] += ends[0]
    held[-1] += ends[1]
    assert fullest_with_whole_layers(kinds, ends, candidate(schedule, p, v, m)) <= max(held) * (1 + 1e-9)


@pytest.mark.parametrize(("p", "v", "m"), [(4, 1, 8), (4, 3, 4), (4, 3, 8)])
def test_stages_of_one_layer_meet_the_bound_with_whole_layers(p: int, v: int, m: int) -> None:
    """But for what first stages have in flight beyond a round; and all others are below what layers in parts say."""
    schedule, one = ("interleaved" if v > 1 else "1f1b"), Load(p * v, 2.0, 1.0)
    held = max(peak_bytes(arranged(schedule, p, v, m), [one.activations] * p * v, [0.0] * p * v))
    bound = fullest_with_whole_layers((one,), (0.0, 0.0), candidate(schedule, p, v, m))
    beyond = max(0, 2 * (p - 1) + 1 - p) if v > 1 and m > p else 0
    assert bound == held + v * one.states - beyond


@pytest.mark.parametrize(("schedule", "p", "v"), [*SHAPES, ("dualpipev", 4, 2), ("1f1b", 1, 1)])
def test_no_rank_receives_in_less_than_the_bound(schedule: str, p: int, v: int) -> None:
    """And some rank in no more; other stacks have no such buffers."""
    c, software, boundary = candidate(schedule, p, v, 2 * p), load_software("torch-fsdp2"), 3.0
    stages = [whole_model(1.0)._replace(boundary_bytes=boundary) for _ in range(p * v)]
    stages[0] = stages[0]._replace(end_units=(1.0,))
    stages[-1] = stages[-1]._replace(loss_bytes=1.0)
    plan, job = parallelism(c), Job(global_batch=2 * p, seq_len=1024)
    held = [
        receive_buffers(Rank([stages[s] for s in own], 0.0, job, plan, software)) for own in ranks_of(plan)
    ]
    assert least_received(c, software, boundary) == min(held)
    assert least_received(c, load_software("megatron"), boundary) == 0


@pytest.mark.parametrize(("p", "layers"), [(1, 12), (4, 32), (8, 32)])
def test_an_even_cut_of_equal_layers_meets_the_bound(p: int, layers: int) -> None:
    """Where nothing is in flight."""
    assert fullest_rank((Load(layers, 3.0, 0.0),), (0.0, 0.0), candidate("1f1b", p, 1, 8)) == 3 * layers / p

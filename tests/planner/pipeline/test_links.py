"""Links that carry one result at a time."""

import heapq
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.pipeline.generators import SCHEDULES, generate, refusal
from planner.pipeline.schedule import Pass, Schedule
from planner.pipeline.simulator import StageTimes, makespan, simulate

NAMED = [name for name, entry in SCHEDULES.items() if name not in ("dualpipe", "dualpipev")]


def numbers(name: str) -> tuple[int, int, int]:
    """Ranks, stages on each and microbatches."""
    least = SCHEDULES[name].stages_per_rank[0]
    return 4, least, 8


def event_driven(schedule: Schedule, seconds: tuple[float, float, float], p2p: float) -> float:
    """Another simulator: a clock, ranks that look for work, ports with queues."""
    length = {Pass.F: seconds[0], Pass.B: seconds[1] + seconds[2], Pass.I: seconds[1], Pass.W: seconds[2]}
    last = schedule.num_stages - 1
    here: dict[tuple[object, ...], float] = {("F", 0, k): 0.0 for k in range(schedule.num_microbatches)}
    position = [0] * schedule.num_ranks
    free = [0.0] * schedule.num_ranks
    port = [0.0] * schedule.num_ranks
    events = [(0.0, rank) for rank in range(schedule.num_ranks)]
    end = 0.0
    while events:
        now, rank = heapq.heappop(events)
        if position[rank] == len(schedule.ranks[rank]) or now < free[rank]:
            continue
        stage, work, k = schedule.ranks[rank][position[rank]]
        needed = {Pass.F: "F", Pass.B: "B", Pass.I: "B", Pass.W: "W"}[work]
        arrival = here.get((needed, stage, k))
        if arrival is None:
            continue
        if arrival > now:
            heapq.heappush(events, (arrival, rank))
            continue
        position[rank] += 1
        free[rank] = done = now + length[work]
        end = max(end, done)
        heapq.heappush(events, (done, rank))
        to = None
        if work is Pass.F:
            to = ("F", stage + 1, k) if stage < last else ("B", stage, k)
        elif work is not Pass.W and stage:
            to = ("B", stage - 1, k)
        if work is Pass.I:
            here["W", stage, k] = done
        if to is not None:
            home = schedule.home(to[1], k)
            if home != rank:
                port[rank] = max(port[rank], done) + p2p
            here[to] = port[rank] if home != rank else done
            heapq.heappush(events, (here[to], home))
    assert position == [len(actions) for actions in schedule.ranks]
    return end


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("p2p", [0.0, 0.4, 1.0, 1.7, 5.0])
def test_agrees_with_an_event_driven_simulation(name: str, p2p: float) -> None:
    p, v, m = numbers(name)
    schedule = generate(name, p, v, m)
    times = (1.0, 0.9, 0.8)
    ours = makespan(name, p, v, m, StageTimes.uniform(p * v, *times), p2p, one_port=True).makespan
    assert ours == pytest.approx(event_driven(schedule, times, p2p))
    assert simulate(schedule, StageTimes.uniform(p * v, *times), p2p, one_port=True).makespan == ours


def test_results_queue_at_the_port() -> None:
    # Four forwards of 1 s, each sent for 3 s: the last arrives at 1 + 4 x 3.
    timeline = simulate(generate("gpipe", 2, 1, 4), StageTimes.uniform(2, 1, 1, 1), 3.0, one_port=True)
    sent = [t for t in timeline.transfers() if t.sender == 0]
    assert [(t.start, t.end) for t in sent] == [(1, 4), (4, 7), (7, 10), (10, 13)]
    assert timeline.starts[1][:4] == (4, 7, 10, 13)
    free = simulate(generate("gpipe", 2, 1, 4), StageTimes.uniform(2, 1, 1, 1), 3.0)
    assert free.starts[1][:4] == (4, 5, 6, 7)


@given(
    st.sampled_from(sorted(SCHEDULES)),
    st.floats(0, 3),
    st.tuples(*[st.floats(0.1, 2)] * 3),
)
def test_queues_only_cost_time_and_only_where_links_are_slow(name, p2p, seconds) -> None:
    p, v, m = numbers(name)
    assert not refusal(name, p, v, m)
    times = StageTimes.uniform(p * v, *seconds)
    free = makespan(name, p, v, m, times, p2p)
    queued = makespan(name, p, v, m, times, p2p, one_port=True)
    assert queued.makespan >= free.makespan * (1 - 1e-12)
    if p2p <= min(seconds):
        assert queued == free


def test_a_rank_sends_one_thing_at_a_time() -> None:
    for name in ("interleaved", "1f1b", "zb-v"):
        p, v, m = numbers(name)
        timeline = simulate(generate(name, p, v, m), StageTimes.uniform(p * v, 1, 1, 1), 2.5, one_port=True)
        for rank in range(p):
            sent = sorted((t.start, t.end) for t in timeline.transfers() if t.sender == rank)
            assert all(before[1] <= after[0] + 1e-9 for before, after in pairwise(sent))

"""What a timeline says of bubbles, memory and critical path, and the pictures that it makes."""

import json
from functools import lru_cache
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.pipeline.dependencies import arranged, peak_bytes
from planner.pipeline.generators import SCHEDULES, generate, refusal
from planner.pipeline.schedule import Pass, Schedule
from planner.pipeline.simulator import StageTimes, simulate
from planner.pipeline.timeline import Timeline, critical_path, to_chrome_trace, to_text


@lru_cache
def shapes(name: str) -> list[tuple[int, int, int]]:
    numbers = product(range(1, 5), range(1, 5), range(1, 13))
    return [shape for shape in numbers if not refusal(name, *shape)]


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    name = draw(st.sampled_from(sorted(SCHEDULES)))
    p, v, m = draw(st.sampled_from(shapes(name)))
    seconds = st.lists(st.floats(0.1, 3.0), min_size=p * v, max_size=p * v)
    times = StageTimes(draw(seconds), draw(seconds), draw(seconds), draw(st.sampled_from([1.0, 0.7])))
    return simulate(generate(name, p, v, m), times, draw(st.sampled_from([0.0, 0.3])))


def held(schedule: Schedule, until_input: list[float], until_weight: list[float]) -> list[list[list[float]]]:
    """By rank: bytes that each stage holds after every action of the rank; a second opinion."""
    histories = []
    for actions in schedule.ranks:
        history = [[0.0] * schedule.num_stages]
        for stage, work, _ in actions:
            now = list(history[-1])
            if work is Pass.F:
                now[stage] += until_input[stage] + until_weight[stage]
            if work in (Pass.B, Pass.I):
                now[stage] -= until_input[stage]
            if work in (Pass.B, Pass.W):
                now[stage] -= until_weight[stage]
            history.append(now)
        histories.append(history)
    return histories


@given(timelines(), st.data())
@settings(deadline=None)
def test_memory_is_what_a_walk_through_the_order_finds(timeline: Timeline, data: st.DataObject) -> None:
    schedule = timeline.schedule
    sizes = st.lists(st.floats(0.0, 10.0), min_size=schedule.num_stages, max_size=schedule.num_stages)
    until_input, until_weight = data.draw(sizes), data.draw(sizes)
    whole = [a + b for a, b in zip(until_input, until_weight, strict=True)]
    expected = [max(map(sum, history)) for history in held(schedule, until_input, until_weight)]
    assert timeline.memory_peak(whole, until_weight) == pytest.approx(expected, abs=1e-9)
    counts = held(schedule, [0.0] * schedule.num_stages, [1.0] * schedule.num_stages)
    assert timeline.peak_in_flight_by_stage == tuple(
        max(now[stage] for history in counts for now in history) for stage in range(schedule.num_stages)
    )


@pytest.mark.parametrize(("p", "m"), [(4, 16), (8, 24)])
def test_zero_bubble_memory(p: int, m: int) -> None:
    """arXiv:2401.10241, table 2: (p-i+1) M_B + (i-1) M_W and (2p-2i+1) M_B + (2i-2) M_W, i from 1."""
    whole, weight = 34.0, 32.0
    times = StageTimes.uniform(p, 1.0, 1.0, 1.0)
    workers = range(1, p + 1)
    h1 = simulate(generate("zb-h1", p, 1, m), times).memory_peak((whole,) * p, (weight,) * p)
    assert h1 == pytest.approx([(p - i + 1) * whole + (i - 1) * weight for i in workers])
    h2 = simulate(generate("zb-h2", p, 1, m), times).memory_peak((whole,) * p, (weight,) * p)
    assert h2 == pytest.approx([(2 * p - 2 * i + 1) * whole + (2 * i - 2) * weight for i in workers])


@pytest.mark.parametrize(("p", "v", "m"), [(4, 2, 8), (8, 4, 16), (8, 3, 24)])
def test_interleaved_memory(p: int, v: int, m: int) -> None:
    """Korthikanti et al., arXiv:2205.05198: the first rank holds L (1 + (p-1)/(pv)) layers' activations."""
    layers_per_stage = 1.0 / (p * v)  # of all L layers
    timeline = simulate(generate("interleaved", p, v, m), StageTimes.uniform(p * v, 1.0, 1.0, 1.0))
    assert timeline.memory_peak((layers_per_stage,) * p * v)[0] == pytest.approx(1 + (p - 1) / (p * v))


@pytest.mark.parametrize(("p", "m"), [(2, 1), (4, 3), (4, 16), (8, 32)])
def test_in_flight_of_the_simple_schedules(p: int, m: int) -> None:
    """DAPPLE, arXiv:2007.01045: p - s; GPipe holds every microbatch."""
    times = StageTimes.uniform(p, 1.0, 1.0, 1.0)
    one_f_one_b = simulate(generate("1f1b", p, 1, m), times)
    assert one_f_one_b.peak_in_flight == tuple(min(m, p - s) for s in range(p))
    assert one_f_one_b.peak_in_flight_by_stage == one_f_one_b.peak_in_flight
    assert simulate(generate("gpipe", p, 1, m), times).peak_in_flight == (m,) * p


def test_peak_bytes_needs_no_simulation() -> None:
    assert peak_bytes(arranged("1f1b", 2, 1, 4), (0.0, 0.0), (10.0, 7.0)) == pytest.approx((20.0, 7.0))


@given(timelines())
@settings(deadline=None)
def test_the_critical_path_adds_up(timeline: Timeline) -> None:
    path = critical_path(timeline)
    assert path[0].start == 0.0
    assert path[-1].end == timeline.makespan
    gaps = [after.start - before.end for before, after in zip(path, path[1:], strict=False)]
    for gap, before, after in zip(gaps, path, path[1:], strict=False):
        if before.rank == after.rank:
            assert gap == pytest.approx(0.0, abs=1e-9)
        else:
            assert gap == pytest.approx(0.0, abs=1e-9) or gap == pytest.approx(0.3)
    work = sum(span.end - span.start for span in path)
    assert work + sum(gaps) == pytest.approx(timeline.makespan)


@given(timelines())
@settings(deadline=None)
def test_bubbles_are_what_is_not_busy(timeline: Timeline) -> None:
    ranks = timeline.schedule.num_ranks
    assert timeline.bubble_fraction == pytest.approx(1 - sum(timeline.busy) / (ranks * timeline.makespan))
    assert timeline.stage_bubble_fraction >= -1e-12
    assert timeline.stage_bubble_fraction <= timeline.bubble_fraction + 1e-12
    assert min(timeline.idle_in_window) >= -1e-9


@given(timelines())
@settings(deadline=None)
def test_the_trace_shows_every_action_once_and_one_at_a_time(timeline: Timeline) -> None:
    events = [e for e in json.loads(to_chrome_trace(timeline))["traceEvents"] if e["ph"] == "X"]
    assert sorted(e["name"] for e in events) == sorted(
        str(action) for actions in timeline.schedule.ranks for action in actions
    )
    assert max(e["ts"] + e["dur"] for e in events) == pytest.approx(timeline.makespan * 1e6)
    for rank in range(timeline.schedule.num_ranks):
        spans = sorted({(e["ts"], e["ts"] + e["dur"]) for e in events if e["tid"] == rank})
        for (_, end), (start, _) in zip(spans, spans[1:], strict=False):
            assert start >= end - 1e-3


def test_trace_event_by_hand() -> None:
    timeline = simulate(generate("1f1b", 2, 1, 1), StageTimes.uniform(2, 0.5, 0.25, 0.25), p2p=0.125)
    events = {e["name"]: e for e in json.loads(to_chrome_trace(timeline))["traceEvents"]}
    assert events["1B0"] == {
        "name": "1B0",
        "cat": "B",
        "ph": "X",
        "pid": 0,
        "tid": 1,
        "ts": 1_125_000.0,
        "dur": 500_000.0,
        "args": {"stage": 1, "microbatch": 0},
    }


def test_gantt_chart_of_1f1b() -> None:
    timeline = simulate(generate("1f1b", 2, 1, 3), StageTimes.uniform(2, 1.0, 1.0, 1.0))
    assert to_text(timeline, columns=12) == (
        "rank 0 |FF..BBFBB.BB|  75% busy\n"  # drawn by hand
        "rank 1 |.FBBFBBFBB..|  75% busy\n"
    )


def test_a_step_without_work_has_no_bubble() -> None:
    timeline = simulate(generate("gpipe", 2, 1, 2), StageTimes.uniform(2, 0.0, 0.0, 0.0))
    assert timeline.makespan == 0.0
    assert timeline.bubble_fraction == 0.0
    assert to_text(timeline, columns=4).count("....") == 2

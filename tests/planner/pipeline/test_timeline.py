"""What a timeline says of bubbles, transfers, memory and critical path."""

from functools import lru_cache
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.pipeline.activations import Held
from planner.pipeline.dependencies import arranged, peak_bytes
from planner.pipeline.generators import SCHEDULES, generate, refusal
from planner.pipeline.schedule import Action, Pass, Schedule
from planner.pipeline.simulator import StageTimes, simulate
from planner.pipeline.timeline import Timeline, critical_path


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
    expected = [max(map(sum, history)) for history in held(schedule, until_input, until_weight)]
    assert peak_bytes(timeline.dependencies, until_input, until_weight) == pytest.approx(expected, abs=1e-9)
    counts = held(schedule, [0.0] * schedule.num_stages, [1.0] * schedule.num_stages)
    assert timeline.peak_in_flight_by_stage == tuple(
        max(now[stage] for history in counts for now in history) for stage in range(schedule.num_stages)
    )


@pytest.mark.parametrize(("p", "m"), [(4, 16), (8, 24)])
def test_zero_bubble_memory(p: int, m: int) -> None:
    """arXiv:2401.10241, table 2: (p-i+1) M_B + (i-1) M_W and (2p-2i+1) M_B + (2i-2) M_W, i from 1."""
    whole, weight = 34.0, 32.0
    workers = range(1, p + 1)
    kept = ((whole - weight,) * p, (weight,) * p)
    h1 = peak_bytes(arranged("zb-h1", p, 1, m), *kept)
    assert h1 == pytest.approx([(p - i + 1) * whole + (i - 1) * weight for i in workers])
    h2 = peak_bytes(arranged("zb-h2", p, 1, m), *kept)
    assert h2 == pytest.approx([(2 * p - 2 * i + 1) * whole + (2 * i - 2) * weight for i in workers])


@pytest.mark.parametrize(("p", "v", "m"), [(4, 2, 8), (8, 4, 16), (8, 3, 24)])
def test_interleaved_memory(p: int, v: int, m: int) -> None:
    """Korthikanti et al., arXiv:2205.05198: the first rank holds L (1 + (p-1)/(pv)) layers' activations."""
    layers_per_stage = 1.0 / (p * v)  # of all L layers
    stages = ((layers_per_stage,) * p * v, (0.0,) * p * v)
    held_first = peak_bytes(arranged("interleaved", p, v, m), *stages)[0]
    assert held_first == pytest.approx(1 + (p - 1) / (p * v))


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
def test_work_and_idle_time_add_up_to_the_makespan(timeline: Timeline) -> None:
    for busy, idle, inside in zip(timeline.busy, timeline.idle, timeline.idle_in_window, strict=True):
        assert busy + sum(idle) == pytest.approx(timeline.makespan)
        assert idle.waiting == inside
        assert min(idle) >= -1e-9


@given(timelines())
@settings(deadline=None)
def test_whatever_changes_ranks_is_a_transfer_that_arrives_in_time(timeline: Timeline) -> None:
    schedule, p2p = timeline.schedule, float(timeline.hops.max())
    starts = {span.action: span.start for span in timeline.spans()}
    crossings = 0
    for microbatch in range(schedule.num_microbatches):
        homes = [schedule.home(stage, microbatch) for stage in range(schedule.num_stages)]
        crossings += 2 * sum(a != b for a, b in zip(homes, homes[1:], strict=False))
    transfers = list(timeline.transfers())
    assert len(transfers) == crossings
    for action, sender, receiver, start, end in transfers:
        step = 1 if action.work is Pass.F else -1
        assert sender == schedule.home(action.stage, action.microbatch) != receiver
        assert receiver == schedule.home(action.stage + step, action.microbatch)
        assert end - start == pytest.approx(p2p)
        kinds = (Pass.F,) if action.work is Pass.F else (Pass.B, Pass.I)
        following = [Action(action.stage + step, kind, action.microbatch) for kind in kinds]
        assert max(starts.get(next_action, 0.0) for next_action in following) >= end - 1e-9


@given(timelines(), st.data())
@settings(deadline=None)
def test_memory_over_time_peaks_where_the_order_says(timeline: Timeline, data: st.DataObject) -> None:
    stages = timeline.schedule.num_stages
    sizes = st.lists(st.floats(0.0, 10.0), min_size=stages, max_size=stages)
    early, late = data.draw(sizes), data.draw(sizes)
    over_time = timeline.memory_over_time(Held(tuple(early), tuple(late)))
    peaks = peak_bytes(timeline.dependencies, early, late)
    for steps, peak in zip(over_time, peaks, strict=True):
        moments = [moment for moment, _ in steps]
        assert moments == sorted(set(moments))
        assert steps[-1][1] == pytest.approx(0.0, abs=1e-9)
        most = max(held for _, held in steps)
        if timeline.schedule.overlapped:
            assert most >= peak - 1e-9
        else:
            assert most == pytest.approx(peak, abs=1e-9)


def test_memory_over_time_by_hand() -> None:
    """Two microbatches through one stage, F I W each a second: 3 bytes wait for I, 4 for W."""
    timeline = simulate(generate("zb-h1", 1, 1, 2), StageTimes.uniform(1, 1.0, 1.0, 1.0))
    assert str(timeline.schedule) == "0F0,0I0,0W0,0F1,0I1,0W1\n"
    assert timeline.memory_over_time(Held((3.0,), (4.0,)))[0] == (
        (0.0, 7.0),
        (2.0, 4.0),
        (3.0, 7.0),
        (5.0, 4.0),
        (6.0, 0.0),
    )

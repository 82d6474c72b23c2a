"""Schedules found automatically: never worse than any named one that fits, near the optimum, within memory."""

import time
from itertools import product

import pytest
from exact import Case, shortest_makespan
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import Infeasible, InputError
from planner.pipeline.activations import Held
from planner.pipeline.automatic import Conditions, find_schedule
from planner.pipeline.dependencies import arrange, peak_bytes
from planner.pipeline.generators import SCHEDULES, generate, refusal, stage_to_rank
from planner.pipeline.schedule import Schedule, check
from planner.pipeline.simulator import StageTimes, simulate


def makespan(schedule: Schedule, times: StageTimes, p2p: float = 0.0) -> float:
    return simulate(schedule, times, p2p).makespan


def fits(schedule: Schedule, held: Held, limit: list[float]) -> bool:
    peaks = peak_bytes(arrange(schedule), held.until_input, held.until_weight)
    return all(peak <= room + 1e-6 for peak, room in zip(peaks, limit, strict=True))


@st.composite
def problems(draw: st.DrawFn) -> tuple[StageTimes, float, list[float], int, Held, tuple[int, ...]]:
    p, v = draw(st.integers(1, 4)), draw(st.integers(1, 2))
    m = draw(st.integers(1, 8))
    name = draw(st.sampled_from(["1f1b", "zb-v"])) if v == 2 else "1f1b"
    homes = stage_to_rank(name, p, v)
    seconds = st.lists(st.floats(0.2, 3.0), min_size=p * v, max_size=p * v)
    sizes = st.lists(st.floats(0.1, 2.0), min_size=p * v, max_size=p * v)
    early, late = draw(sizes), draw(sizes)
    least = [sum(early[s] + late[s] for s in range(p * v) if homes[s] == rank) for rank in range(p)]
    room = draw(st.floats(1.0, 2.0 * m))
    times = StageTimes(draw(seconds), draw(seconds), draw(seconds))
    p2p = draw(st.sampled_from([0.0, 0.2, 1.5]))
    return times, p2p, [room * need for need in least], m, Held(tuple(early), tuple(late)), homes


@given(problems())
@settings(max_examples=25)
def test_complete_within_memory_and_no_worse_than_any_named_schedule(
    problem: tuple[StageTimes, float, list[float], int, Held, tuple[int, ...]],
) -> None:
    times, p2p, limit, m, held, homes = problem
    found = find_schedule(times, p2p, limit, m, held=held, homes=homes)
    check(found)
    assert found.stage_to_rank == homes
    assert fits(found, held, limit)
    ranks = len(limit)
    v = len(homes) // ranks
    for name, entry in SCHEDULES.items():
        if entry.copies > 1 or refusal(name, ranks, v, m) or stage_to_rank(name, ranks, v) != homes:
            continue
        named = generate(name, ranks, v, m)
        if fits(named, held, limit):
            assert makespan(found, times, p2p) <= makespan(named, times, p2p) * (1 + 1e-9)


CASES = [
    (p, m, times, p2p, room)
    for (p, m), times, p2p, room in product(
        [(2, 2), (2, 3), (3, 2)], [(1.0, 1.0, 1.0), (1.0, 1.3, 0.7), (1.0, 0.8, 1.4)], [0.0, 0.25], [1, 2, 9]
    )
]


@pytest.mark.parametrize(("p", "m", "passes", "p2p", "room"), CASES)
def test_the_optimum_of_small_cases(
    p: int, m: int, passes: tuple[float, float, float], p2p: float, room: int
) -> None:
    """An integer program, written on its own, finds nothing shorter; nor do we miss it by more than 2 %."""
    skew = [1.0 + 0.3 * (s == p - 1) for s in range(p)]
    forward, inputs, weights = ([seconds * k for k in skew] for seconds in passes)
    held = Held((0.2,) * p, (0.8,) * p)
    case = Case(forward, inputs, weights, range(p), m, p2p, *held, [float(room)] * p)
    best = shortest_makespan(case)
    times = StageTimes(forward, inputs, weights)
    found = makespan(find_schedule(times, p2p, [float(room)] * p, m, held=held), times, p2p)
    assert best * (1 - 1e-6) <= found <= best * 1.02


def test_the_optimum_of_a_v_of_two_ranks() -> None:
    passes = [1.0, 0.7, 1.2, 0.9]
    held = Held((0.5,) * 4, (0.5,) * 4)
    case = Case(passes, passes, passes, (0, 1, 1, 0), 2, 0.1, *held, [4.0, 4.0])
    times = StageTimes(passes, passes, passes)
    found = find_schedule(times, 0.1, [4.0, 4.0], 2, held=held, homes=(0, 1, 1, 0))
    assert makespan(found, times, 0.1) == pytest.approx(shortest_makespan(case), rel=0.02)


def best_named(times: StageTimes, p2p: float, limit: float, m: int, homes: tuple[int, ...]) -> float:
    """Makespan of the best named schedule for the placement that fits, a microbatch on a stage counting one."""
    p, v = max(homes) + 1, len(homes) // (max(homes) + 1)
    unit = Held((0.0,) * len(homes), (1.0,) * len(homes))
    spans = []
    for name, entry in SCHEDULES.items():
        if entry.copies == 1 and not refusal(name, p, v, m) and stage_to_rank(name, p, v) == homes:
            named = generate(name, p, v, m)
            spans += [makespan(named, times, p2p)] if fits(named, unit, [limit] * p) else []
    return min(spans)


DOWN_AND_UP = (0, 1, 2, 3, 3, 2, 1, 0)
VOCABULARY = StageTimes([1.6, *[1.0] * 6, 0.9], [1.0] * 8, [0.6, *[1.0] * 7])


@pytest.mark.parametrize(
    ("times", "homes", "limit", "gain"),
    [
        (
            StageTimes.uniform(4, 1.0, 1.0, 1.0),
            (0, 1, 2, 3),
            5,
            0.03,
        ),  # more than ZB-H1 takes, less than ZB-H2
        (StageTimes.uniform(4, 1.0, 1.0, 1.0), (0, 1, 2, 3), 6, 0.05),
        (VOCABULARY, DOWN_AND_UP, 10, 0.04),  # the first stage is longer than the others
        (StageTimes.uniform(8, 1.0, 1.2, 0.8), DOWN_AND_UP, 4, 0.02),  # less than V-Min was made for
    ],
)
def test_better_than_named_schedules_where_none_was_made_for_it(
    times: StageTimes, homes: tuple[int, ...], limit: int, gain: float
) -> None:
    p2p, m = 0.3 if len(homes) == 4 else 0.1, 12
    found = makespan(find_schedule(times, p2p, [float(limit)] * 4, m, homes=homes), times, p2p)
    assert found < best_named(times, p2p, limit, m, homes) * (1 - gain)


@pytest.mark.parametrize(("p", "m"), [(4, 8), (8, 24)])
def test_zero_bubble_is_found_again(p: int, m: int) -> None:
    """With the memory of ZB-H1 at least its time; with unlimited memory that of ZB-H2."""
    times = StageTimes.uniform(p, 1.0, 1.0, 1.0)
    for name, limit in (("zb-h1", p), ("zb-h2", m)):
        known = makespan(generate(name, p, 1, m), times)
        assert makespan(find_schedule(times, 0.0, [float(limit)] * p, m), times) <= known


CONDITIONS = [
    Conditions(blocking=True),
    Conditions(ports="rank"),
    Conditions(blocking=True, ports="rank"),
    Conditions(steady=True),
    Conditions(blocking=True, ports="wire", steady=True),
]


@pytest.mark.parametrize("conditions", CONDITIONS)
@pytest.mark.parametrize("limit", [4.0, 9.0])
def test_no_worse_than_any_named_schedule_under_the_same_conditions(
    conditions: Conditions, limit: float
) -> None:
    times = StageTimes([1.0, 1.2, 0.7, 1.1], [1.1, 1.0, 1.3, 0.6], [0.8, 0.7, 1.0, 1.3])
    p2p = [0.6, 0.3, 0.9]

    def length(schedule: Schedule) -> float:
        blocking, ports, _ = conditions
        return conditions.length(simulate(schedule, times, p2p, blocking=blocking, ports=ports))

    found = find_schedule(times, p2p, [limit] * 4, 7, conditions=conditions)
    unit = Held((0.0,) * 4, (1.0,) * 4)
    assert fits(found, unit, [limit] * 4)
    for name, entry in SCHEDULES.items():
        if entry.copies == 1 and not refusal(name, 4, 1, 7):
            named = generate(name, 4, 1, 7)
            if fits(named, unit, [limit] * 4):
                assert length(found) <= length(named) * (1 + 1e-9)


def test_a_large_problem_takes_seconds() -> None:
    """16 ranks, 64 microbatches, three thousand actions: measured at 1.5 s; the margin is for busy machines."""
    times = StageTimes.uniform(16, 1.0, 1.1, 0.9)
    start = time.process_time()
    find_schedule(times, 0.05, [16.0] * 16, 64)
    assert time.process_time() - start < 15


def test_what_cannot_be_is_said() -> None:
    times = StageTimes.uniform(2, 1.0, 1.0, 1.0)
    with pytest.raises(Infeasible, match="rank 1 has room for 0.5, but one microbatch keeps 1 there"):
        find_schedule(times, 0.0, [4.0, 0.5], 4)
    with pytest.raises(InputError, match="2 stages on 2 ranks need as many bytes held and memory limits"):
        find_schedule(times, 0.0, [4.0], 4)
    with pytest.raises(InputError, match=r"homes \(0, 2\) for 2 stages"):
        find_schedule(times, 0.0, [4.0, 4.0, 4.0], 4, homes=(0, 2))
    with pytest.raises(InputError, match="0 microbatches"):
        find_schedule(times, 0.0, [4.0, 4.0], 0)


def test_more_memory_never_hurts() -> None:
    times = StageTimes([1.0, 1.2, 0.9], [1.1, 1.0, 1.3], [0.8, 0.7, 1.0])
    spans = [makespan(find_schedule(times, 0.1, [float(room)] * 3, 6), times, 0.1) for room in range(1, 7)]
    assert all(more <= less * 1.02 for less, more in zip(spans, spans[1:], strict=False))
    assert spans[-1] < spans[0]

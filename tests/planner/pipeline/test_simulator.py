"""The simulator against a longest path, its laws, deadlocks and bad input."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from random import Random
from typing import Any

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import Deadlock, InputError
from planner.pipeline.dependencies import arranged
from planner.pipeline.generators import SCHEDULES, generate, refusal
from planner.pipeline.schedule import Action, Pass, Schedule, from_csv
from planner.pipeline.simulator import StageTimes, longest_path, makespan, simulate

EXACT = pytest.approx


# A longest path, built here from the rules alone -----------------------------------------------------------


@dataclass(frozen=True)
class Case:
    name: str
    shape: tuple[int, int, int]
    times: StageTimes
    p2p: list[float]

    @property
    def schedule(self) -> Schedule:
        return generate(self.name, *self.shape)


@lru_cache
def shapes(name: str) -> list[tuple[int, int, int]]:
    numbers = product(range(1, 6), range(1, 5), range(1, 15))
    return [shape for shape in numbers if not refusal(name, *shape)]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    name = draw(st.sampled_from(sorted(SCHEDULES)))
    p, v, m = draw(st.sampled_from(shapes(name)))
    seconds = st.lists(st.floats(0.0, 3.0), min_size=p * v, max_size=p * v)
    times = StageTimes(draw(seconds), draw(seconds), draw(seconds), draw(st.sampled_from([1.0, 0.7])))
    p2p = draw(st.lists(st.floats(0.0, 1.0), min_size=p * v - 1, max_size=p * v - 1))
    return Case(name, (p, v, m), times, p2p)


def units(schedule: Schedule) -> Iterator[tuple[int, tuple[Action, ...]]]:
    """What a rank runs at once: an action, or an overlapped pair."""
    for rank, actions in enumerate(schedule.ranks):
        rest = iter(actions)
        for action in rest:
            yield rank, ((action, next(rest)) if action in schedule.overlapped else (action,))


def needs(action: Action, last: int, by_name: dict[str, Any]) -> str | None:
    """Name of the action that has to end first."""
    stage, work, microbatch = action
    if work is Pass.W:
        return f"{stage}I{microbatch}"
    if work is Pass.F:
        return f"{stage - 1}F{microbatch}" if stage else None
    if stage == last:
        return f"{stage}F{microbatch}"
    whole = f"{stage + 1}B{microbatch}"
    return whole if whole in by_name else f"{stage + 1}I{microbatch}"


def waiting_graph(case: Case) -> nx.DiGraph:
    """Nodes are units with their seconds; an edge's ``delay`` is the transfer that it needs."""
    schedule, times = case.schedule, case.times
    seconds = {
        Pass.F: times.forward,
        Pass.I: times.backward_input,
        Pass.W: times.backward_weight,
        Pass.B: [i + w for i, w in zip(times.backward_input, times.backward_weight, strict=True)],
    }
    by_name = {str(action): (rank, unit) for rank, unit in units(schedule) for action in unit}
    graph = nx.DiGraph()
    before: dict[int, tuple[Action, ...]] = {}
    for rank, unit in units(schedule):
        length = sum(seconds[action.work][action.stage] for action in unit)
        graph.add_node(unit, seconds=length * (times.overlap if len(unit) == 2 else 1.0))
        if rank in before:
            graph.add_edge(before[rank], unit, delay=0.0)
        before[rank] = unit
    for rank, unit in units(schedule):
        for action in unit:
            name = needs(action, schedule.num_stages - 1, by_name)
            if name is not None:
                source_rank, source = by_name[name]
                boundary = min(action.stage, int(name.split("F")[0].split("B")[0].split("I")[0]))
                delay = case.p2p[boundary] if source_rank != rank else 0.0
                delay = max(delay, graph.get_edge_data(source, unit, {"delay": 0.0})["delay"])
                graph.add_edge(source, unit, delay=delay)
    return graph


def earliest_ends(graph: nx.DiGraph) -> dict[str, float]:
    ends: dict[Any, float] = {}
    for unit in nx.topological_sort(graph):
        start = max((ends[u] + graph.edges[u, unit]["delay"] for u in graph.predecessors(unit)), default=0.0)
        ends[unit] = start + graph.nodes[unit]["seconds"]
    return {str(action): end for unit, end in ends.items() for action in unit}


@given(cases())
@settings(max_examples=150, deadline=None)
def test_every_end_is_the_longest_path_to_it(case: Case) -> None:
    timeline = simulate(case.schedule, case.times, case.p2p)
    expected = earliest_ends(waiting_graph(case))
    for span in timeline.spans():
        assert span.end == EXACT(expected[str(span.action)], abs=1e-9)
    assert len(list(timeline.spans())) == len(expected)


@given(cases())
@settings(deadline=None)
def test_makespan_is_that_of_the_timeline(case: Case) -> None:
    quick = makespan(case.name, *case.shape, case.times, case.p2p)
    timeline = simulate(case.schedule, case.times, case.p2p)
    assert quick.makespan == timeline.makespan
    assert quick.busy == timeline.busy
    assert quick.peak_in_flight == timeline.peak_in_flight
    assert quick.first_start == EXACT([row[0] for row in timeline.starts], abs=1e-9)
    assert quick.last_end == tuple(row[-1] for row in timeline.ends)
    assert quick.idle == tuple(timeline.makespan - busy for busy in timeline.busy)


# Laws ------------------------------------------------------------------------------------------------------


@given(cases(), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_no_shorter_than_what_was_critical_under_other_times(case: Case, random: Random) -> None:
    """A path through the schedule has to be gone whatever it takes."""
    order = arranged(case.name, *case.shape)
    now = replace(case.times, overlap=1.0)
    path = longest_path(order, now, case.p2p)
    assert path.under(now, case.p2p) == EXACT(path.seconds, abs=1e-9)
    assert path.seconds == EXACT(makespan(case.name, *case.shape, now, case.p2p).makespan, abs=1e-9)
    columns = [[random.uniform(0, 3) for _ in case.times.forward] for _ in range(3)]
    other, hops = StageTimes(*columns), [random.random() for _ in case.p2p]
    assert path.under(other, hops) <= makespan(case.name, *case.shape, other, hops).makespan + 1e-9


@given(cases())
@settings(deadline=None)
def test_no_shorter_than_the_busiest_rank_and_one_microbatch(case: Case) -> None:
    result = makespan(case.name, *case.shape, case.times, case.p2p)
    assert result.makespan >= max(result.busy) - 1e-9
    if not case.schedule.overlapped:
        crossed = [
            seconds
            for seconds, (here, there) in zip(
                case.p2p, nx.utils.pairwise(case.schedule.stage_to_rank), strict=True
            )
            if here != there
        ]
        path = math.fsum((*case.times.forward, *case.times.backward_input, *crossed, *crossed))
        assert result.makespan >= path - 1e-9


@given(cases(), st.floats(0.0, 2.0))
@settings(deadline=None)
def test_slower_links_blocking_sends_and_slower_stages_never_help(case: Case, more: float) -> None:
    before = simulate(case.schedule, case.times, case.p2p).makespan - 1e-9
    assert simulate(case.schedule, case.times, [seconds + more for seconds in case.p2p]).makespan >= before
    assert simulate(case.schedule, case.times, case.p2p, blocking=True).makespan >= before
    slower = StageTimes(
        [case.times.forward[0] + more, *case.times.forward[1:]],
        case.times.backward_input,
        case.times.backward_weight,
        case.times.overlap,
    )
    assert simulate(case.schedule, slower, case.p2p).makespan >= before


@given(cases(), st.floats(0.1, 10.0))
@settings(deadline=None)
def test_time_has_no_unit(case: Case, scale: float) -> None:
    times = case.times
    columns = (times.forward, times.backward_input, times.backward_weight)
    scaled = StageTimes(*([scale * x for x in column] for column in columns), overlap=times.overlap)
    base = makespan(case.name, *case.shape, case.times, case.p2p).makespan
    assert makespan(case.name, *case.shape, scaled, [scale * x for x in case.p2p]).makespan == EXACT(
        scale * base, abs=1e-9
    )


@given(cases())
@settings(deadline=None)
def test_a_function_of_the_action_does_as_well_as_stage_times(case: Case) -> None:
    times = StageTimes(case.times.forward, case.times.backward_input, case.times.backward_weight)
    table = times.table(case.schedule.num_stages)
    by_function = simulate(case.schedule, lambda action: table[action.stage, action.work], case.p2p)
    assert by_function == simulate(case.schedule, times, case.p2p)


# Deadlocks and bad input -----------------------------------------------------------------------------------


def test_a_deadlock_names_the_next_actions() -> None:
    schedule = from_csv("0B0,0F0\n1F0,1B0\n")
    with pytest.raises(Deadlock) as raised:
        simulate(schedule, StageTimes.uniform(2, 1.0, 1.0, 1.0))
    assert str(raised.value) == (
        "deadlock: every rank waits; next actions are 0B0, 1F0; "
        "in a circle: 0B0 for 1B0 (behind 1F0), 1F0 for 0F0 (behind 0B0)"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "0F0,0F1,0B0,0B1\n1B0,1F0,1F1,1B1",
            "every rank waits; next actions are 0B0, 1B0; in a circle: 1B0 for 1F0 (behind 1B0)",
        ),
        (
            "0F0,0I0,0W0\n1F0,1W0,1I0",
            "every rank waits; next actions are 0I0, 1W0; in a circle: 1W0 for 1I0 (behind 1W0)",
        ),
        (
            "0F0,0W0,0I0\n1F0,1B0",
            "1 of 2 ranks wait; next actions are 0W0; in a circle: 0W0 for 0I0 (behind 0W0)",
        ),
        ("0F0,1B0,1F0,0B0", "every rank waits; next actions are 1B0; in a circle: 1B0 for 1F0 (behind 1B0)"),
        (
            "0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0",
            "every rank waits; next actions are 0B0, 1F1; "
            "in a circle: 0B0 for 1B0 (behind 1F1), 1F1 for 0F1 (behind 0B0)",
        ),
    ],
)
def test_a_deadlock_names_who_waits_for_whom(text: str, message: str) -> None:
    schedule = from_csv(text)
    with pytest.raises(Deadlock) as raised:
        simulate(schedule, StageTimes.uniform(schedule.num_stages, 1.0, 1.0, 1.0))
    assert str(raised.value) == f"deadlock: {message}"


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_a_shuffled_schedule_deadlocks_if_and_only_if_waiting_is_circular(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["1f1b", "zb-h1", "zb-v"]))
    entry = SCHEDULES[name]
    schedule = generate(name, 2, entry.stages_per_rank[0], 2)
    ranks = tuple(tuple(data.draw(st.permutations(actions))) for actions in schedule.ranks)
    shuffled = Schedule(ranks, schedule.stage_to_rank, schedule.num_microbatches)
    by_name = {str(action) for actions in ranks for action in actions}
    graph = nx.DiGraph(nx.utils.pairwise([str(action) for action in ranks[0]]))
    graph.add_edges_from(nx.utils.pairwise([str(action) for action in ranks[1]]))
    for action in (action for actions in ranks for action in actions):
        source = needs(action, schedule.num_stages - 1, dict.fromkeys(by_name))
        if source is not None:
            graph.add_edge(source, str(action))
    times = StageTimes.uniform(schedule.num_stages, 1.0, 1.0, 1.0)
    if nx.is_directed_acyclic_graph(graph):
        simulate(shuffled, times)
    else:
        with pytest.raises(Deadlock):
            simulate(shuffled, times)


@pytest.mark.parametrize(
    ("times", "p2p", "message"),
    [
        (StageTimes.uniform(3, 1.0, 1.0, 1.0), 0.0, "2 stages, but there are times for [3]"),
        (StageTimes((1.0, 1.0), (1.0, 1.0), (1.0,)), 0.0, "2 stages, but there are times for [1, 2]"),
        (StageTimes((1.0, -1.0), (1.0, 1.0), (1.0, 1.0)), 0.0, "stage times must be finite and not negative"),
        (StageTimes((1.0, math.nan), (1.0, 1.0), (1.0, 1.0)), 0.0, "stage times must be finite"),
        (StageTimes((1.0, 1.0), (1.0, 1.0), (1.0, 1.0), math.inf), 0.0, "overlap must be finite"),
        (StageTimes.uniform(2, 1.0, 1.0, 1.0), -0.1, "p2p times must be finite and not negative"),
        (StageTimes.uniform(2, 1.0, 1.0, 1.0), [0.1, 0.1], "2 stages need 1 p2p times, got 2"),
    ],
)
def test_times_that_do_not_fit_are_refused(times: StageTimes, p2p: Any, message: str) -> None:
    with pytest.raises(InputError) as error:
        makespan("1f1b", 2, 1, 4, times, p2p)
    assert message in str(error.value)


def test_action_times_that_are_no_times_are_refused() -> None:
    with pytest.raises(InputError, match="action times must be finite"):
        simulate(generate("1f1b", 2, 1, 4), lambda action: -1.0)


def test_a_hundred_thousand_actions_take_well_under_a_second() -> None:
    """Measured at 0.03 s once the order is cached; the margin is for busy machines."""
    times = StageTimes.uniform(64, 1.0, 1.0, 1.0)
    assert generate("1f1b", 64, 1, 800).num_actions == 102_400
    makespan("1f1b", 64, 1, 800, times, 0.1)
    start = time.perf_counter()
    makespan("1f1b", 64, 1, 800, times, 0.1)
    assert time.perf_counter() - start < 0.5


def test_a_million_actions_take_seconds() -> None:
    """Generated, ordered and simulated: measured at 2.9 s, and 0.4 s once the order is known."""
    times = StageTimes.uniform(64, 1.0, 1.0, 1.0)
    for most in (15.0, 3.0):
        start = time.process_time()
        result = makespan("1f1b", 64, 1, 7813, times)
        assert time.process_time() - start < most
        assert result.makespan == (7813 + 63) * 3.0

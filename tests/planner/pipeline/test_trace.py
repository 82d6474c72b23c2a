"""The pictures of a timeline: traces that Perfetto reads, charts that a terminal shows."""

import json
from typing import Any

import pytest

from planner.pipeline.generators import SCHEDULES, generate, refusal
from planner.pipeline.simulator import StageTimes, simulate
from planner.pipeline.timeline import Timeline
from planner.pipeline.trace import Beside, Counter, to_chrome_trace, to_text

SHAPES = [(4, v, 8) for v in (1, 2)]


def some_timeline(name: str) -> Timeline:
    p, v, m = next(shape for shape in SHAPES if not refusal(name, *shape))
    times = StageTimes.uniform(p * v, 1.0, 1.1, 0.9)
    return simulate(generate(name, p, v, m), times, p2p=0.3)


def events_of(timeline: Timeline, kind: str = "X", **more: Any) -> list[dict[str, Any]]:
    return [e for e in json.loads(to_chrome_trace(timeline, **more))["traceEvents"] if e["ph"] == kind]


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_trace_shows_every_action_once_and_one_at_a_time_on_each_track(name: str) -> None:
    timeline = some_timeline(name)
    events = events_of(timeline)
    compute = [e for e in events if e["tid"] == 0]
    assert sorted(e["name"] for e in compute) == sorted(
        str(action) for actions in timeline.schedule.ranks for action in actions
    )
    assert max(e["ts"] + e["dur"] for e in compute) == pytest.approx(timeline.makespan * 1e6)
    for track in {(e["pid"], e["tid"]) for e in events}:
        spans = sorted({(e["ts"], e["ts"] + e["dur"]) for e in events if (e["pid"], e["tid"]) == track})
        for (_, end), (start, _) in zip(spans, spans[1:], strict=False):
            assert start >= end - 1e-3


def test_tracks_have_names() -> None:
    names = {
        (e["pid"], e.get("tid")): e["args"]["name"]
        for e in events_of(some_timeline("1f1b"), "M")
        if "name" in e["args"]
    }
    for rank in range(4):
        assert names[rank, None] == f"rank {rank}"
        assert names[rank, 0] == "compute"
        assert names[rank, 1] == "send"


def test_trace_events_by_hand() -> None:
    timeline = simulate(generate("1f1b", 2, 1, 1), StageTimes.uniform(2, 0.5, 0.25, 0.25), p2p=0.125)
    events = {e["name"]: e for e in events_of(timeline)}
    assert events["1B0"] == {
        "name": "1B0",
        "cat": "B",
        "ph": "X",
        "pid": 1,
        "tid": 0,
        "ts": 1_125_000.0,
        "dur": 500_000.0,
        "args": {"stage": 1, "microbatch": 0},
    }
    assert events["1B0 to rank 0"] == {
        "name": "1B0 to rank 0",
        "cat": "send",
        "ph": "X",
        "pid": 1,
        "tid": 1,
        "ts": 1_625_000.0,
        "dur": 125_000.0,
        "args": {"stage": 1, "microbatch": 0, "to": 0},
    }


def test_sends_that_overlap_get_tracks_of_their_own() -> None:
    """Four forwards of a second, each sent for 2.5 s: three are under way at once."""
    timeline = simulate(generate("gpipe", 2, 1, 4), StageTimes.uniform(2, 1.0, 1.0, 1.0), p2p=2.5)
    sends = [e for e in events_of(timeline) if e["pid"] == 0 and e["tid"] > 0]
    assert [e["tid"] for e in sends] == [1, 2, 3, 1]


def test_memory_is_a_counter() -> None:
    timeline = simulate(generate("gpipe", 1, 1, 1), StageTimes.uniform(1, 1.0, 1.0, 1.0))
    counters = events_of(timeline, "C", counters=[Counter("memory", "bytes", [[(0.0, 5.0), (2.0, 3.0)]])])
    assert [(e["pid"], e["ts"], e["args"]) for e in counters] == [
        (0, 0.0, {"bytes": 5.0}),
        (0, 2_000_000.0, {"bytes": 3.0}),
    ]


def test_what_a_rank_does_besides_has_tracks_of_its_own() -> None:
    timeline = simulate(generate("1f1b", 2, 1, 1), StageTimes.uniform(2, 1.0, 1.0, 1.0), p2p=0.5)
    beside = [Beside(1, "data", "data", 5.0, 6.0), Beside(0, "update", "optimizer", 7.0, 8.5)]
    found = {e["name"]: e for e in events_of(timeline, beside=beside)}
    names = {(e["pid"], e.get("tid")): e["args"].get("name") for e in events_of(timeline, "M", beside=beside)}
    assert (found["data"]["pid"], found["data"]["ts"], found["data"]["dur"]) == (1, 5e6, 1e6)
    assert names[1, found["data"]["tid"]] == "data"
    assert names[0, found["optimizer"]["tid"]] == "update"
    assert (0, found["data"]["tid"]) not in names


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

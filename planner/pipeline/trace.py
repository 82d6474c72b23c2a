"""Pictures of a timeline: a trace for Perfetto and a chart in text."""

import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from planner.pipeline.schedule import Action
from planner.pipeline.timeline import Timeline

COMPUTE = 0
"""Thread of a rank's actions; its sends follow, each on the first thread that is free."""

Steps = Sequence[tuple[float, float]]
"""A value from each moment [s] on."""


class Counter(NamedTuple):
    """Something that is counted on every rank, and in what."""

    name: str
    unit: str
    by_rank: Sequence[Steps]


class Beside(NamedTuple):
    """What a rank does besides its actions, on a track with a name [s]."""

    rank: int
    track: str
    name: str
    start: float
    end: float


def to_chrome_trace(
    timeline: Timeline, counters: Iterable[Counter] = (), beside: Iterable[Beside] = ()
) -> str:
    """The timeline as JSON for chrome://tracing or Perfetto: a process per rank, a thread per stream."""
    sends = list(_sends(timeline))
    names = {COMPUTE: "compute"}
    for event in sends:
        thread = event["tid"]
        names[thread] = "send" if thread == COMPUTE + 1 else f"send {thread}"
    others = list(beside)
    for track in dict.fromkeys(one.track for one in others):
        names[len(names)] = track
    threads = {name: thread for thread, name in names.items()}
    more = (
        _event(name, "X", rank, threads[track], start, cat=track, dur=(end - start) * 1e6)
        for rank, track, name, start, end in others
    )
    events = [*_actions(timeline), *sends, *more]
    tracks = sorted({(event["pid"], event["tid"]) for event in events})
    counted = chain.from_iterable(map(_counted, counters))
    return json.dumps({"traceEvents": [*_names(tracks, names), *events, *counted], "displayTimeUnit": "ms"})


def _counted(counter: Counter) -> Iterator[dict[str, Any]]:
    for rank, steps in enumerate(counter.by_rank):
        for moment, value in steps:
            yield _event(counter.name, "C", rank, COMPUTE, moment, args={counter.unit: value})


def _event(name: str, kind: str, rank: int, thread: int, start: float, **more: Any) -> dict[str, Any]:
    # The format counts microseconds.
    return {"name": name, "ph": kind, "pid": rank, "tid": thread, "ts": start * 1e6, **more}


def _names(tracks: Sequence[tuple[int, int]], names: Mapping[int, str]) -> Iterator[dict[str, Any]]:
    for rank, thread in tracks:
        if thread == COMPUTE:
            yield {"name": "process_name", "ph": "M", "pid": rank, "args": {"name": f"rank {rank}"}}
            yield {"name": "process_sort_index", "ph": "M", "pid": rank, "args": {"sort_index": rank}}
        yield {
            "name": "thread_name",
            "ph": "M",
            "pid": rank,
            "tid": thread,
            "args": {"name": names[thread]},
        }


def _actions(timeline: Timeline) -> Iterator[dict[str, Any]]:
    for rank, action, start, end in timeline.spans():
        facts = {"stage": action.stage, "microbatch": action.microbatch}
        lasts = (end - start) * 1e6
        yield _event(str(action), "X", rank, COMPUTE, start, cat=action.work.name, dur=lasts, args=facts)


def _sends(timeline: Timeline) -> Iterator[dict[str, Any]]:
    busy_until: dict[int, list[float]] = defaultdict(list)
    for action, sender, receiver, start, end in timeline.transfers():
        lanes = busy_until[sender]
        lane = next((lane for lane, until in enumerate(lanes) if until <= start), len(lanes))
        lanes[lane : lane + 1] = [end]
        facts = {"stage": action.stage, "microbatch": action.microbatch, "to": receiver}
        name, lasts = f"{action} to rank {receiver}", (end - start) * 1e6
        yield _event(name, "X", sender, COMPUTE + 1 + lane, start, cat="send", dur=lasts, args=facts)


def to_text(timeline: Timeline, columns: int = 96) -> str:
    """The timeline as a Gantt chart, a line per rank: the pass that runs (F, B, I, W), or ``.`` for idle."""
    step = timeline.makespan / columns
    width = len(str(timeline.schedule.num_ranks - 1))
    lines = []
    for rank, actions in enumerate(timeline.schedule.ranks):
        cells = _cells(actions, timeline.starts[rank], timeline.ends[rank], step, columns)
        share = timeline.busy[rank] / timeline.makespan if timeline.makespan else 1.0
        lines.append(f"rank {rank:>{width}} |{''.join(cells)}| {share:4.0%} busy\n")
    return "".join(lines)


def _cells(
    actions: Sequence[Action], starts: Sequence[float], ends: Sequence[float], step: float, columns: int
) -> Iterator[str]:
    """The pass that runs in the middle of each column."""
    for column in range(columns):
        moment = (column + 0.5) * step
        place = bisect_right(starts, moment) - 1
        yield actions[place].work.name if place >= 0 and moment < ends[place] else "."

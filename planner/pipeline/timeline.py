"""When everything in a pipeline ran: spans, bubbles, memory, and pictures of them."""

import json
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import NamedTuple

from planner.pipeline.dependencies import (
    Dependencies,
    Integers,
    peak_bytes,
    peak_in_flight,
    peak_in_flight_by_stage,
)
from planner.pipeline.schedule import Action, Schedule


class Span(NamedTuple):
    """An action, where and when it ran [s]."""

    rank: int
    action: Action
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """A simulated step; times in seconds from its start, a place per rank and action as in the schedule."""

    schedule: Schedule
    starts: tuple[tuple[float, ...], ...]
    ends: tuple[tuple[float, ...], ...]
    busy: tuple[float, ...]
    """Time at work of each rank [s]; an overlapped pair counts once."""
    dependencies: Dependencies = field(repr=False, compare=False)
    causes: Integers = field(repr=False, compare=False)
    """What each action waited for last, both by number (see `Dependencies`); 0 for the start of the step."""

    def spans(self) -> Iterator[Span]:
        """Everything that ran, rank by rank."""
        for rank, row in enumerate(zip(self.schedule.ranks, self.starts, self.ends, strict=True)):
            for action, start, end in zip(*row, strict=True):
                yield Span(rank, action, start, end)

    @property
    def makespan(self) -> float:
        """From the first start to the last end [s]."""
        return max(row[-1] for row in self.ends)

    @property
    def idle_in_window(self) -> tuple[float, ...]:
        """Time that each rank waits between its first start and its last end [s]."""
        return tuple(window - busy for window, busy in zip(self._windows, self.busy, strict=True))

    @property
    def bubble_fraction(self) -> float:
        """Idle share of all ranks' time, ``1 - mean(busy) / makespan``."""
        return _idle_share(self.busy, self.makespan)

    @property
    def stage_bubble_fraction(self) -> float:
        """Bubble rate of a steady run of steps, ``1 - mean(busy) / max(last end - first start)``.

        Ranks that finish early start the next step early, so a staggered end costs nothing.
        Source: zero bubble, arXiv:2401.10241, section 5.3.
        """
        return _idle_share(self.busy, max(self._windows))

    @property
    def _windows(self) -> tuple[float, ...]:
        return tuple(ends[-1] - starts[0] for starts, ends in zip(self.starts, self.ends, strict=True))

    @property
    def peak_in_flight(self) -> tuple[int, ...]:
        """Most microbatches that each rank has in flight, over its stages: from F until B or W."""
        return peak_in_flight(self.dependencies)

    @property
    def peak_in_flight_by_stage(self) -> tuple[int, ...]:
        """Most microbatches that each stage has in flight: from F until B or W."""
        return peak_in_flight_by_stage(self.dependencies)

    def memory_peak(
        self, stage_activation_bytes: Sequence[float], until_weight: Sequence[float] | None = None
    ) -> tuple[float, ...]:
        """Most activation memory of each rank [B].

        ``stage_activation_bytes`` is what a microbatch stores on each stage; of that, ``until_weight`` is
        kept until the weight gradient (all of it, if not given), the rest until the input gradient.
        """
        kept = stage_activation_bytes if until_weight is None else until_weight
        freed = [whole - part for whole, part in zip(stage_activation_bytes, kept, strict=True)]
        return peak_bytes(self.dependencies, freed, kept)


def _idle_share(busy: Sequence[float], whole: float) -> float:
    return 1.0 - fmean(busy) / whole if whole else 0.0


def critical_path(timeline: Timeline) -> tuple[Span, ...]:
    """The spans that the makespan consists of, first to last; between ranks a transfer lies between them.

    Shorten one of them, or a transfer, and the step may get shorter; nothing else can help.
    """
    spans = list(timeline.spans())
    place = {number: index for index, number in enumerate(timeline.dependencies.program.tolist())}
    number = max(place, key=lambda number: spans[place[number]].end)
    path = []
    while number:
        path.append(spans[place[number]])
        number = int(timeline.causes[number])
    # An overlapped pair has one span; its first action leads back from it and is not a step of its own.
    first_of_pair = timeline.schedule.overlapped
    return tuple(span for span in reversed(path) if span.action not in first_of_pair)


def to_chrome_trace(timeline: Timeline) -> str:
    """The timeline as JSON for chrome://tracing or Perfetto: a thread per rank."""
    names = [
        {"name": "thread_name", "ph": "M", "pid": 0, "tid": rank, "args": {"name": f"rank {rank}"}}
        for rank in range(timeline.schedule.num_ranks)
    ]
    events = [
        {
            "name": str(span.action),
            "cat": span.action.work.name,
            "ph": "X",
            "pid": 0,
            "tid": span.rank,
            "ts": span.start * 1e6,  # the format counts microseconds
            "dur": (span.end - span.start) * 1e6,
            "args": {"stage": span.action.stage, "microbatch": span.action.microbatch},
        }
        for span in timeline.spans()
    ]
    return json.dumps({"traceEvents": names + events, "displayTimeUnit": "ms"})


def to_text(timeline: Timeline, columns: int = 96) -> str:
    """The timeline as a Gantt chart, a line per rank: the pass that runs (F, B, I, W), or ``.`` for idle."""
    step = timeline.makespan / columns
    width = len(str(timeline.schedule.num_ranks - 1))
    lines = []
    for rank, actions in enumerate(timeline.schedule.ranks):
        cells = _cells(actions, timeline.starts[rank], timeline.ends[rank], step, columns)
        share = 1.0 - _idle_share((timeline.busy[rank],), timeline.makespan)
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

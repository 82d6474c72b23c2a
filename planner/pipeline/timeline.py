"""When everything in a pipeline ran: spans, transfers, bubbles and memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import NamedTuple

from planner.pipeline.activations import Held
from planner.pipeline.dependencies import (
    NOWHERE,
    Dependencies,
    Floats,
    Integers,
    peak_in_flight,
    peak_in_flight_by_stage,
)
from planner.pipeline.ports import SAME_MOMENT
from planner.pipeline.schedule import Action, Pass, Schedule


class Span(NamedTuple):
    """An action, where and when it ran [s]."""

    rank: int
    action: Action
    start: float
    end: float


class Transfer(NamedTuple):
    """The result of an action on its way to another rank [s]."""

    action: Action
    sender: int
    receiver: int
    start: float
    end: float


class Idle(NamedTuple):
    """Where the time of a rank goes that it does not work [s]."""

    fill: float
    """Before its first action: the pipeline fills."""
    waiting: float
    """Between its actions: for others, or for transfers."""
    drain: float
    """After its last action, until the last rank is done."""


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
    hops: Floats = field(repr=False, compare=False)
    """Time from stage s to s+1 and back, by s, where they are on different ranks [s]."""
    delivered: Floats = field(repr=False, compare=False)
    """When the result of each action arrived on another rank, by number; its end where it went to none."""

    def spans(self) -> Iterator[Span]:
        """Everything that ran, rank by rank."""
        for rank, row in enumerate(zip(self.schedule.ranks, self.starts, self.ends, strict=True)):
            for action, start, end in zip(*row, strict=True):
                yield Span(rank, action, start, end)

    def transfers(self) -> Iterator[Transfer]:
        """Everything that went from rank to rank, by sender."""
        numbers = self.dependencies.program
        leaves = self.dependencies.departure[numbers].tolist()
        for span, boundary, number in zip(self.spans(), leaves, numbers.tolist(), strict=True):
            if boundary != NOWHERE:
                stage, work, microbatch = span.action
                receiver = self.schedule.home(stage + 1 if work is Pass.F else stage - 1, microbatch)
                hop = float(self.hops[boundary])
                end = float(self.delivered[number])
                yield Transfer(span.action, span.rank, receiver, end - hop, end)

    @property
    def makespan(self) -> float:
        """From the first start to the last end [s]."""
        return max(row[-1] for row in self.ends)

    @property
    def idle_in_window(self) -> tuple[float, ...]:
        """Time that each rank waits between its first start and its last end [s]; 0 where rounding is left."""
        waits = (span - busy for span, busy in zip(self.spans_by_rank, self.busy, strict=True))
        least = SAME_MOMENT * self.makespan
        return tuple(wait if wait > least else 0.0 for wait in waits)

    @property
    def idle(self) -> tuple[Idle, ...]:
        """Of each rank; with its time at work it adds up to the makespan."""
        makespan, waiting = self.makespan, self.idle_in_window
        return tuple(
            Idle(starts[0], inside, makespan - ends[-1])
            for starts, inside, ends in zip(self.starts, waiting, self.ends, strict=True)
        )

    @property
    def bubble_fraction(self) -> float:
        """Idle share of all ranks' time, ``1 - mean(busy) / makespan``."""
        return _idle_share(self.busy, self.makespan)

    @property
    def busiest_bubble_fraction(self) -> float:
        """Idle share of the busiest rank's time, which is what a step is longer by than its work."""
        return _idle_share((max(self.busy),), self.makespan)

    @property
    def stage_bubble_fraction(self) -> float:
        """Bubble rate of a steady run of steps, ``1 - mean(busy) / max(last end - first start)``.

        Ranks that finish early start the next step early, so a staggered end costs nothing.
        Source: zero bubble, arXiv:2401.10241, section 5.3.
        """
        return _idle_share(self.busy, self.longest_span)

    @property
    def longest_span(self) -> float:
        """Of any rank from its first start to its last end [s]: a step among many, if no barrier parts them."""
        return max(self.spans_by_rank)

    @property
    def spans_by_rank(self) -> tuple[float, ...]:
        """From the first start of each rank to its last end [s]."""
        return tuple(ends[-1] - starts[0] for starts, ends in zip(self.starts, self.ends, strict=True))

    @property
    def peak_in_flight(self) -> tuple[int, ...]:
        """Most microbatches that each rank has in flight, over its stages: from F until B or W."""
        return peak_in_flight(self.dependencies)

    @property
    def peak_in_flight_by_stage(self) -> tuple[int, ...]:
        """Most microbatches that each stage has in flight: from F until B or W."""
        return peak_in_flight_by_stage(self.dependencies)

    def memory_over_time(self, held: Held) -> tuple[tuple[tuple[float, float], ...], ...]:
        """By rank, the activations [B] from each moment [s] on at which they change.

        They come when a forward starts and go when the gradient that needs them last is done, so that at any
        moment at least as much is there as `peak_bytes` counts between actions; without overlapped pairs the peaks
        are the same.
        """
        return tuple(
            _memory(row, held) for row in zip(self.schedule.ranks, self.starts, self.ends, strict=True)
        )


def _memory(
    rank: tuple[Sequence[Action], Sequence[float], Sequence[float]], held: Held
) -> tuple[tuple[float, float], ...]:
    changes: list[tuple[float, bool, float]] = []
    for (stage, work, _), start, end in zip(*rank, strict=True):
        early, late = held.until_input[stage], held.until_weight[stage]
        if work is Pass.F:
            changes.append((start, True, early + late))
        else:
            changes.append(
                (end, False, -(early + late if work is Pass.B else early if work is Pass.I else late))
            )
    held_now, steps = 0.0, [(0.0, 0.0)]
    for moment, _, change in sorted(changes):
        held_now += change
        if moment == steps[-1][0]:
            steps.pop()
        steps.append((moment, max(0.0, held_now)))
    return tuple(steps)


def _idle_share(busy: Sequence[float], whole: float) -> float:
    return 1.0 - fmean(busy) / whole if whole else 0.0


def critical_path(timeline: Timeline, rank: int | None = None) -> tuple[Span, ...]:
    """The spans that the makespan consists of, first to last; between ranks a transfer lies between them.

    Shorten one of them, or a transfer, and the step may get shorter; nothing else can help. With ``rank`` the path
    ends where that rank does.
    """
    spans = list(timeline.spans())
    graph = timeline.dependencies
    place = {number: index for index, number in enumerate(graph.program.tolist())}
    if rank is None:
        number = max(place, key=lambda number: spans[place[number]].end)
    else:
        number = int(graph.program[graph.offsets[rank + 1] - 1])
    path = []
    while number:
        path.append(spans[place[number]])
        number = int(timeline.causes[number])
    # An overlapped pair has one span; its first action leads back from it and is not a step of its own.
    first_of_pair = timeline.schedule.overlapped
    return tuple(span for span in reversed(path) if span.action not in first_of_pair)

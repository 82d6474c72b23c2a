"""An event-driven simulation of a pipeline schedule: stage times and links in, a timeline out.

Every rank runs its actions in the order of the schedule, one at a time (or two where the schedule overlaps
a forward with a backward). An action starts when the one before it on its rank has ended and its input is
there: at the end of its source, plus ``p2p`` where the source is on another rank. Sends do not keep the sender busy,
unless ``blocking``: then its next action waits until they are done. With ``one_port`` a rank sends one result at a
time, in the order in which they are ready, so that what is sent faster than the link carries it queues up.

Source: with these rules the published bubble rates of arXiv:2401.10241, tables 5 and 9, come out to four
digits.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self, TypeAlias

import numpy as np

from planner.errors import InputError
from planner.pipeline.dependencies import NOWHERE, Dependencies, Floats, arrange, arranged, peak_in_flight
from planner.pipeline.schedule import Action, Schedule
from planner.pipeline.timeline import Timeline

BoundarySeconds: TypeAlias = float | Sequence[float]
"""One time for all boundaries between stages, or one for each [s]."""


@dataclass(frozen=True, slots=True)
class StageTimes:
    """How long each stage takes for one microbatch [s]; a full backward is both backwards in turn."""

    forward: Sequence[float]
    backward_input: Sequence[float]
    backward_weight: Sequence[float]
    overlap: float = 1.0
    """Time of an overlapped forward and backward over the sum of both; 1 saves nothing."""

    @classmethod
    def uniform(cls, num_stages: int, forward: float, backward_input: float, backward_weight: float) -> Self:
        """The same times [s] for every stage."""
        return cls((forward,) * num_stages, (backward_input,) * num_stages, (backward_weight,) * num_stages)

    def table(self, num_stages: int) -> Floats:
        """Seconds by stage and `Pass`.

        Raises: InputError where there is not one finite time for every stage.
        """
        given = {len(self.forward), len(self.backward_input), len(self.backward_weight)}
        if given != {num_stages}:
            raise InputError(f"the schedule has {num_stages} stages, but there are times for {sorted(given)}")
        columns = (self.forward, self.backward_input, self.backward_weight)
        _checked(np.asarray(self.overlap), "overlap")
        forward, inputs, weights = np.array(columns, dtype=np.float64)
        return _checked(np.stack((forward, inputs + weights, inputs, weights), axis=1), "stage times")


class PipelineTime(NamedTuple):
    """What a search needs of a simulated step; a place per rank."""

    makespan: float
    """From the first start to the last end [s]."""
    busy: tuple[float, ...]
    """Time at work [s]."""
    first_start: tuple[float, ...]
    """Before it, the rank waits for the pipeline to fill [s]."""
    last_end: tuple[float, ...]
    """After it, the rank's gradients are complete [s]."""
    peak_in_flight: tuple[int, ...]
    """Most microbatches in flight, over the rank's stages: from F until B or W."""

    @property
    def idle(self) -> tuple[float, ...]:
        """Makespan less time at work of each rank [s]."""
        return tuple(self.makespan - busy for busy in self.busy)


def makespan(
    name: str,
    num_ranks: int,
    virtual_stages: int,
    num_microbatches: int,
    times: StageTimes,
    p2p: BoundarySeconds = 0.0,
    *,
    one_port: bool = False,
) -> PipelineTime:
    """The time of a named schedule as `simulate` has it, without the timeline.

    ``p2p`` is the time to pass one microbatch on to a stage on another rank [s]; with ``one_port`` a rank passes on one
    at a time.
    Raises: as `generate`; InputError where ``times`` or ``p2p`` do not fit the stages.
    """
    dependencies = arranged(name, num_ranks, virtual_stages, num_microbatches)
    work = _prepare(dependencies, _stage_seconds(dependencies, times), p2p, times.overlap)
    ends = _run(dependencies, work, one_port).ends
    first, last = dependencies.offsets[:-1], dependencies.offsets[1:] - 1
    return PipelineTime(
        makespan=max(ends),
        busy=_busy(dependencies, work),
        first_start=tuple(ends[i] - work.seconds[i] for i in dependencies.program[first].tolist()),
        last_end=tuple(ends[i] for i in dependencies.program[last].tolist()),
        peak_in_flight=peak_in_flight(dependencies),
    )


def simulate(
    schedule: Schedule,
    seconds: StageTimes | Callable[[Action], float],
    p2p: BoundarySeconds = 0.0,
    *,
    blocking: bool = False,
    one_port: bool = False,
) -> Timeline:
    """The timeline of ``schedule`` when its actions take ``seconds`` [s].

    ``p2p`` is the time to pass one microbatch on to a stage on another rank [s]; with ``blocking`` the sender
    does nothing else meanwhile, with ``one_port`` it passes on one at a time.
    Raises: InputError where the schedule is incomplete or the times do not fit it; Deadlock where every
    rank waits.
    """
    dependencies = arrange(schedule)
    if isinstance(seconds, StageTimes):
        work = _prepare(dependencies, _stage_seconds(dependencies, seconds), p2p, seconds.overlap, blocking)
    else:
        work = _prepare(dependencies, _action_seconds(schedule, seconds, dependencies), p2p, 1.0, blocking)
    ran = _run(dependencies, work, one_port)
    ends, delivered = np.array(ran.ends), np.array(ran.delivered) if ran.delivered else None
    free = ends[dependencies.previous] + work.hold
    arrived = ends[dependencies.source] + work.delay
    if delivered is not None:
        arrived = np.where(dependencies.arrival != NOWHERE, delivered[dependencies.source], arrived)
    starts = np.maximum(free, arrived)
    first = np.flatnonzero(dependencies.partner)
    second = dependencies.partner[first]
    starts[first], ends[first] = starts[second], ends[second]
    if delivered is not None:
        delivered[first] = delivered[second]
    return Timeline(
        schedule=schedule,
        starts=_by_rank(dependencies, starts),
        ends=_by_rank(dependencies, ends),
        busy=_busy(dependencies, work),
        dependencies=dependencies,
        causes=np.where(free >= arrived, dependencies.previous, dependencies.source),
        hops=work.hops,
        delivered=delivered,
    )


class _Work(NamedTuple):
    """What `_run` needs besides the order, by number [s]."""

    seconds: Floats
    """Time at work."""
    delay: Floats
    """From the end of its source to the arrival of the result."""
    hold: Floats
    """From the end of the action before it to the end of that one's blocking sends."""
    hops: Floats
    """From stage s to s+1 and back, by s; 0 at the end."""


def _prepare(
    dependencies: Dependencies, seconds: Floats, p2p: BoundarySeconds, overlap: float, blocking: bool = False
) -> _Work:
    transfer = boundary_seconds(p2p, dependencies.num_stages)
    sending = transfer[dependencies.departure] if blocking else np.zeros_like(seconds)
    # The first of a pair is the instant when its input is there; the second waits for it and stands for both.
    first = np.flatnonzero(dependencies.partner)
    second = dependencies.partner[first]
    seconds[second] = overlap * (seconds[first] + seconds[second])
    sending[second] += sending[first]
    seconds[first] = sending[first] = 0.0
    return _Work(seconds, transfer[dependencies.arrival], sending[dependencies.previous], transfer)


class _Ran(NamedTuple):
    """By number [s]."""

    ends: list[float]
    delivered: list[float]
    """When the result of an action has arrived; empty where that is its end and the transfer."""


def _run(dependencies: Dependencies, work: _Work, one_port: bool) -> _Ran:
    """End of every action; results queue only where a transfer takes longer than some action of its sender."""
    crossing = dependencies.departure[1:] != NOWHERE
    if one_port and crossing.any():
        shortest = work.seconds[1:][dependencies.partner[1:] == 0].min()
        if work.hops[dependencies.departure[1:][crossing]].max() > shortest:
            return _run_queued(dependencies, work)
    return _Ran(_run_free(dependencies, work), [])


def _run_queued(dependencies: Dependencies, work: _Work) -> _Ran:
    """As `_run_free`, with a queue at every rank's port: an order on a rank is also the order of what it sends."""
    ends, delivered = [0.0], [0.0]
    port = [0.0] * (len(dependencies.offsets) - 1)
    waiting = [0.0] * len(port)
    steps = zip(
        dependencies.previous[1:].tolist(),
        dependencies.source[1:].tolist(),
        work.seconds[1:].tolist(),
        work.hold[1:].tolist(),
        (dependencies.arrival[1:] != NOWHERE).tolist(),
        work.hops[dependencies.departure[1:]].tolist(),
        dependencies.rank[1:].tolist(),
        (dependencies.partner[1:] > 0).tolist(),
        strict=True,
    )
    for previous, source, seconds, hold, crosses, hop, rank, paired in steps:
        arrived = delivered[source] if crosses else ends[source]
        end = max(ends[previous] + hold, arrived) + seconds
        ends.append(end)
        sends = max(hop, waiting[rank])
        waiting[rank] = hop if paired else 0.0  # the two of a pair send at once, one to each side
        if sends and not paired:
            port[rank] = max(port[rank], end) + sends
        delivered.append(max(port[rank], end))
    return _Ran(ends, delivered)


def _run_free(dependencies: Dependencies, work: _Work) -> list[float]:
    """End of every action by number, links being wide enough for all; the hot loop."""
    ends = [0.0]
    append = ends.append
    steps = zip(
        dependencies.previous[1:].tolist(),
        dependencies.source[1:].tolist(),
        work.seconds[1:].tolist(),
        work.delay[1:].tolist(),
        work.hold[1:].tolist(),
        strict=True,
    )
    for previous, source, seconds, delay, hold in steps:
        free = ends[previous] + hold
        arrived = ends[source] + delay
        append((free if free > arrived else arrived) + seconds)
    return ends


def _stage_seconds(dependencies: Dependencies, times: StageTimes) -> Floats:
    seconds = times.table(dependencies.num_stages)[dependencies.stage, dependencies.work]
    seconds[0] = 0.0
    return seconds


def _action_seconds(
    schedule: Schedule, seconds: Callable[[Action], float], dependencies: Dependencies
) -> Floats:
    by_number = np.zeros(schedule.num_actions + 1)
    by_number[dependencies.program] = [seconds(action) for actions in schedule.ranks for action in actions]
    return _checked(by_number, "action times")


def boundary_seconds(p2p: BoundarySeconds, num_stages: int) -> Floats:
    """Transfer time by boundary, and zero at the end, where index -1 finds it."""
    transfer = np.zeros(num_stages)
    given = np.asarray(p2p, dtype=np.float64)
    if given.ndim and given.shape != (num_stages - 1,):
        raise InputError(f"{num_stages} stages need {num_stages - 1} p2p times, got {given.size}")
    transfer[:-1] = _checked(given, "p2p times")
    return transfer


def _checked(seconds: Floats, what: str) -> Floats:
    if not (np.isfinite(seconds).all() and (seconds >= 0).all()):
        raise InputError(f"{what} must be finite and not negative")
    return seconds


def _busy(dependencies: Dependencies, work: _Work) -> tuple[float, ...]:
    return tuple(np.bincount(dependencies.rank, weights=work.seconds).tolist())


def _by_rank(dependencies: Dependencies, values: Floats) -> tuple[tuple[float, ...], ...]:
    program = values[dependencies.program].tolist()
    return tuple(
        tuple(program[start:end]) for start, end in itertools.pairwise(dependencies.offsets.tolist())
    )

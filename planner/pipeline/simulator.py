"""An event-driven simulation of a pipeline schedule: stage times and links in, a timeline out.

Every rank runs its actions in the order of the schedule, one at a time (or two where the schedule overlaps
a forward with a backward). An action starts when the one before it on its rank has ended and its input is
there: at the end of its source, plus ``p2p`` where the source is on another rank. Sends do not keep the sender busy,
unless ``blocking``: then its next action waits until they are done. Results may have to share ``ports``
(`planner.pipeline.ports`), so that what is sent faster than the links carry it queues up.

Source: with these rules the published bubble rates of arXiv:2401.10241, tables 5 and 9, come out to four
digits.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Self, TypeAlias

import numpy as np

from planner.errors import InputError
from planner.pipeline.dependencies import NOWHERE, Dependencies, Floats, arrange, arranged, peak_in_flight
from planner.pipeline.ports import (
    ROUNDS,
    SAME_MOMENT,
    Ports,
    Ran,
    Work,
    run_queued,
    settled,
    transfers,
)
from planner.pipeline.schedule import Action, Pass, Schedule
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
    ports: Ports = "endless",
) -> PipelineTime:
    """The time of a named schedule as `simulate` has it, without the timeline.

    ``p2p`` is the time to pass one microbatch on to a stage on another rank [s].
    Raises: as `generate`; InputError where ``times`` or ``p2p`` do not fit the stages.
    """
    forward, inputs, weights = times.forward, times.backward_input, times.backward_weight
    fixed = StageTimes(tuple(forward), tuple(inputs), tuple(weights), times.overlap)
    links = p2p if isinstance(p2p, float | int) else tuple(p2p)
    return _makespan(name, num_ranks, virtual_stages, num_microbatches, fixed, links, ports)


@lru_cache(maxsize=64)
def _makespan(
    name: str, p: int, v: int, m: int, times: StageTimes, p2p: float | tuple[float, ...], ports: Ports
) -> PipelineTime:
    """As `makespan`; a search asks for the plans that it likes more than once."""
    dependencies = arranged(name, p, v, m)
    work = _prepare(dependencies, _stage_seconds(dependencies, times), p2p, times.overlap)
    ends = _run(dependencies, work, ports).ends.tolist()
    first, last = dependencies.offsets[:-1], dependencies.offsets[1:] - 1
    return PipelineTime(
        makespan=max(ends),
        busy=_busy(dependencies, work),
        first_start=tuple(ends[i] - work.seconds[i] for i in dependencies.program[first].tolist()),
        last_end=tuple(ends[i] for i in dependencies.program[last].tolist()),
        peak_in_flight=peak_in_flight(dependencies),
    )


class Path(NamedTuple):
    """What a makespan consists of."""

    seconds: float
    """Without queues at ports [s]."""
    passes: Floats
    """[stage, pass]: how many forwards, input gradients and weight gradients of each stage lie on it."""
    crossings: Floats
    """How often it crosses each boundary between stages."""

    def under(self, times: StageTimes, p2p: Sequence[float]) -> float:
        """What the same path takes where stages and boundaries take these times; no makespan is shorter [s].

        Passes that overlap take the time of both.
        """
        passes = np.array((times.forward, times.backward_input, times.backward_weight), dtype=np.float64).T
        return float((self.passes * passes).sum() + self.crossings @ np.asarray(p2p, dtype=np.float64))


def longest_path(dependencies: Dependencies, times: StageTimes, p2p: BoundarySeconds = 0.0) -> Path:
    """A critical path of the order, each action with whatever it waits for last.

    The makespan for any other times is at least the time of the same path.
    """
    work = _prepare(dependencies, _stage_seconds(dependencies, times), p2p, times.overlap)
    delay = work.hops[dependencies.arrival]
    ends = _ends_free(dependencies, work, delay)
    stands_for = np.zeros_like(dependencies.partner)  # the second of a pair takes the time of both
    first = np.flatnonzero(dependencies.partner)
    stands_for[dependencies.partner[first]] = first
    number, waited = int(ends.argmax()), []
    on_path, seconds = [], float(ends[number])
    while number:
        if not dependencies.partner[number]:
            on_path += [n for n in (number, int(stands_for[number])) if n]
        previous, source = int(dependencies.previous[number]), int(dependencies.source[number])
        if ends[previous] >= ends[source] + delay[number]:
            number = previous
        else:
            waited.append(int(dependencies.arrival[number]))
            number = source
    return Path(seconds, _passes(dependencies, on_path), _crossings(dependencies, waited))


def _passes(dependencies: Dependencies, numbers: Sequence[int]) -> Floats:
    by_work = np.zeros((dependencies.num_stages, len(Pass)))
    np.add.at(by_work, (dependencies.stage[numbers], dependencies.work[numbers]), 1)
    forward, both, inputs, weights = by_work.T
    return np.stack((forward, inputs + both, weights + both), axis=1)


def _crossings(dependencies: Dependencies, boundaries: Sequence[int]) -> Floats:
    crossed = [boundary for boundary in boundaries if boundary != NOWHERE]
    return np.bincount(crossed, minlength=dependencies.num_stages - 1).astype(np.float64)


def simulate(
    schedule: Schedule,
    seconds: StageTimes | Callable[[Action], float],
    p2p: BoundarySeconds = 0.0,
    *,
    blocking: bool = False,
    ports: Ports = "endless",
) -> Timeline:
    """The timeline of ``schedule`` when its actions take ``seconds`` [s].

    ``p2p`` is the time to pass one microbatch on to a stage on another rank [s]; with ``blocking`` the sender
    does nothing else meanwhile.
    Raises: InputError where the schedule is incomplete or the times do not fit it; Deadlock where every
    rank waits.
    """
    dependencies = arrange(schedule)
    if isinstance(seconds, StageTimes):
        work = _prepare(dependencies, _stage_seconds(dependencies, seconds), p2p, seconds.overlap, blocking)
    else:
        work = _prepare(dependencies, _action_seconds(schedule, seconds, dependencies), p2p, 1.0, blocking)
    ends, released, delivered = _run(dependencies, work, ports)
    free = released[dependencies.previous]
    crosses = dependencies.arrival != NOWHERE
    arrived = np.where(crosses, delivered[dependencies.producers], ends[dependencies.source])
    starts = np.maximum(free, arrived)
    first = np.flatnonzero(dependencies.partner)
    second = dependencies.partner[first]
    starts[first], ends[first] = starts[second], ends[second]
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


def _prepare(
    dependencies: Dependencies, seconds: Floats, p2p: BoundarySeconds, overlap: float, blocking: bool = False
) -> Work:
    transfer = boundary_seconds(p2p, dependencies.num_stages)
    sending = transfer[dependencies.departure] if blocking else np.zeros_like(seconds)
    # The first of a pair is the instant when its input is there; the second waits for it and stands for both.
    first = np.flatnonzero(dependencies.partner)
    second = dependencies.partner[first]
    seconds[second] = overlap * (seconds[first] + seconds[second])
    sending[second] += sending[first]
    seconds[first] = sending[first] = 0.0
    return Work(seconds, sending, transfer)


def _run(dependencies: Dependencies, work: Work, ports: Ports) -> Ran:
    """Everything with as many ports as there are.

    Where few results collide, arrivals and the actions that follow them settle in a few runs without queues; that is
    the same as to simulate the queues, and faster.
    """
    delay = work.hops[dependencies.arrival]
    ends = _ends_free(dependencies, work, delay)
    if ports == "endless" or not work.hops.any():
        return _ran(dependencies, work, ends, delay)
    sent = transfers(dependencies, work.hops, ports)
    for _ in range(0 if work.sending.any() else ROUNDS):
        waits = settled(sent, ends)
        if waits is None:
            break
        if (np.abs(waits - delay[sent.consumer]) <= SAME_MOMENT * ends.max()).all():
            return _ran(dependencies, work, ends, delay)
        delay[sent.consumer] = waits
        ends = _ends_free(dependencies, work, delay)
    return run_queued(dependencies, work, sent)


def _ends_free(dependencies: Dependencies, work: Work, delay: Floats) -> Floats:
    """When everything ends where inputs arrive ``delay`` seconds after they are handed over [s]; the hot loop."""
    ends = [0.0]
    append = ends.append
    steps = zip(
        dependencies.previous[1:].tolist(),
        dependencies.source[1:].tolist(),
        work.seconds[1:].tolist(),
        delay[1:].tolist(),
        work.sending[dependencies.previous[1:]].tolist(),
        strict=True,
    )
    for previous, source, seconds, waits, holds in steps:
        free = ends[previous] + holds
        arrived = ends[source] + waits
        append((free if free > arrived else arrived) + seconds)
    return np.array(ends)


def _ran(dependencies: Dependencies, work: Work, ends: Floats, delay: Floats) -> Ran:
    """What ended then; both of an overlapped pair are handed over when it is done."""
    delivered = np.where(dependencies.partner > 0, ends[dependencies.partner], ends)
    consumer = dependencies.consumers
    delivered[dependencies.producers[consumer]] = (ends[dependencies.source] + delay)[consumer]
    return Ran(ends, ends + work.sending, delivered)


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


def _busy(dependencies: Dependencies, work: Work) -> tuple[float, ...]:
    return tuple(np.bincount(dependencies.rank, weights=work.seconds).tolist())


def _by_rank(dependencies: Dependencies, values: Floats) -> tuple[tuple[float, ...], ...]:
    program = values[dependencies.program].tolist()
    return tuple(
        tuple(program[start:end]) for start, end in itertools.pairwise(dependencies.offsets.tolist())
    )

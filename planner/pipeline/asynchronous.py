"""Pipelines that never flush: what they gain in throughput, and what it costs in stale and multiple weights.

Weights change while microbatches are in flight, so a gradient belongs to older weights than those that it updates:
an update is stale by the number of updates between the two. Who wants forward and backward of a microbatch to see the
same weights must stash every version in use.

Sources: PipeDream, arXiv:1806.03377 (weight stashing, vertical sync); PipeDream-2BW, arXiv:2006.09503, section 3.1;
AMPNet, arXiv:1705.09786.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from planner.errors import InputError, UnknownName
from planner.pipeline.list_scheduling import Policy, Resource, Task, list_schedule
from planner.pipeline.one_way import one_f_one_b
from planner.pipeline.ports import Ports
from planner.pipeline.schedule import Action, Pass, Schedule
from planner.pipeline.simulator import BoundarySeconds, StageTimes, boundary_seconds, simulate
from planner.pipeline.timeline import Timeline

VersionRule = Callable[[int, int, int, Sequence[int]], int]
"""Version that a forward uses, from the newest version on the stage, the microbatch, how many microbatches make an
update, and the versions that the first stage used."""


class AsyncEntry(NamedTuple):
    """What is known of an asynchronous pipeline."""

    description: str
    source: str
    version: VersionRule
    stashes: bool = True
    """The backward sees the weights of the forward."""
    least_per_update: Callable[[int], int] = lambda p: 1
    """Fewest microbatches that must make an update, from the number of ranks."""
    bounded: bool = False
    """Microbatches are let in while fewer than a bound are in flight, instead of in the order of 1F1B."""


@dataclass(frozen=True, slots=True)
class AsyncReport:
    """A stretch of training without a flush; by stage where not said otherwise."""

    timeline: Timeline
    throughput: float
    """Microbatches per second, once the pipeline is full."""
    weight_versions: tuple[int, ...]
    """Most versions of its weights that a stage holds."""
    staleness: tuple[tuple[int, ...], ...]
    """Of every update in turn: how many updates its oldest gradient had missed."""
    mismatched: tuple[int, ...]
    """Microbatches whose backward saw other weights than their forward."""
    versions_after: tuple[tuple[int, ...], ...]
    """Versions of its weights that a stage holds after each of its actions."""

    def versions_over_time(self) -> tuple[tuple[tuple[float, int], ...], ...]:
        """By stage, versions held from each moment [s] on."""
        ends = self.timeline.ends
        return tuple(
            ((0.0, 1), *zip(*stage, strict=True)) for stage in zip(ends, self.versions_after, strict=True)
        )

    @property
    def steady_staleness(self) -> tuple[int, ...]:
        """Of the update in the middle of the stretch, as ramps are milder."""
        return tuple(updates[len(updates) // 2] for updates in self.staleness)


def run_asynchronously(
    name: str,
    times: StageTimes,
    num_microbatches: int,
    p2p: BoundarySeconds = 0.0,
    *,
    per_update: int = 1,
    max_active: int | None = None,
    blocking: bool = False,
    ports: Ports = "endless",
) -> AsyncReport:
    """A stretch of ``num_microbatches`` through one stage per rank.

    ``per_update`` gradients make an update; ``max_active`` bounds the microbatches in flight of AMPNet (the number
    of ranks, if not given). ``blocking`` and ``ports`` are those of `simulate`.
    Raises: UnknownName; InputError where there are too few microbatches to fill the pipeline or to make an update.
    """
    if name not in ASYNCHRONOUS:
        raise UnknownName("asynchronous pipeline", name, ASYNCHRONOUS)
    entry, p = ASYNCHRONOUS[name], len(times.forward)
    least = 4 * max(p, per_update)
    if num_microbatches < least:
        raise InputError(
            f"{num_microbatches} microbatches say little of a steady state; give at least {least}"
        )
    if not times.table(p).any():
        raise InputError("a pipeline whose stages take no time has no throughput; give one a time above 0")
    if per_update < entry.least_per_update(p):
        raise InputError(
            f"{name} on {p} ranks needs at least {entry.least_per_update(p)} microbatches per update, "
            f"got {per_update}"
        )
    schedule = one_f_one_b(p, 1, num_microbatches)
    if entry.bounded:
        schedule = _by_arrival(times, num_microbatches, p2p, p if max_active is None else max_active)
    timeline = simulate(schedule, times, p2p, blocking=blocking, ports=ports)
    first: list[int] = []
    stages = [_walk(schedule.ranks[s], entry, per_update, first) for s in range(p)]
    return AsyncReport(
        timeline,
        _throughput(timeline),
        tuple(max(stage.versions) for stage in stages),
        tuple(stage.staleness for stage in stages),
        tuple(stage.mismatched for stage in stages),
        tuple(stage.versions for stage in stages),
    )


def _by_arrival(times: StageTimes, m: int, p2p: BoundarySeconds, max_active: int) -> Schedule:
    """Every rank runs what has arrived, backwards first."""
    p = len(times.forward)
    if max_active < 1:
        raise InputError(f"at least one microbatch must be in flight, got a bound of {max_active}")
    active = Resource([1.0] + [0.0] * (p - 1), [0.0] * p, [float(max_active)] * p)
    transfer = boundary_seconds(p2p, p)[:-1].tolist()
    task = Task(tuple(range(p)), m, times.table(p).tolist(), transfer, (active,), splits_backward=False)
    return list_schedule(task, Policy(lambda action: (action.work is Pass.F, action.microbatch)))


def _throughput(timeline: Timeline) -> float:
    """Between a quarter and three quarters of the first stage's backwards; neither ramp reaches that far."""
    ends = [span.end for span in timeline.spans() if span.action.stage == 0 and span.action.work is Pass.B]
    start, end = len(ends) // 4, 3 * len(ends) // 4
    return (end - start) / (ends[end] - ends[start])


class _Stage(NamedTuple):
    versions: tuple[int, ...]
    staleness: tuple[int, ...]
    mismatched: int


def _walk(actions: Sequence[Action], entry: AsyncEntry, per_update: int, first: list[int]) -> _Stage:
    """Follow one stage's weights; the first stage's versions are left in ``first``."""
    newest = mismatched = 0
    versions: list[int] = []
    used: dict[int, int] = {}
    gathered: list[int] = []
    staleness: list[int] = []
    for action in actions:
        if action.work is Pass.F:
            used[action.microbatch] = entry.version(newest, action.microbatch, per_update, first)
            if action.stage == 0:
                first.append(used[action.microbatch])
        else:
            version = used.pop(action.microbatch)
            mismatched += version != newest and not entry.stashes
            gathered.append(version)
            if len(gathered) == per_update:
                staleness.append(newest - min(gathered))
                newest += 1
                gathered.clear()
        oldest = min(used.values(), default=newest) if entry.stashes else newest
        versions.append(newest - oldest + 1)  # what lies between is still to be used
    return _Stage(tuple(versions), tuple(staleness), mismatched)


def _newest(newest: int, microbatch: int, per_update: int, first: Sequence[int]) -> int:
    return newest


def _as_first_stage(newest: int, microbatch: int, per_update: int, first: Sequence[int]) -> int:
    return first[microbatch] if microbatch < len(first) else newest


def _one_batch_late(newest: int, microbatch: int, per_update: int, first: Sequence[int]) -> int:
    return max(microbatch // per_update - 1, 0)


ASYNCHRONOUS: Mapping[str, AsyncEntry] = MappingProxyType(
    {
        "pipedream": AsyncEntry(
            "1F1B without a flush; every stage stashes the weights of each microbatch in flight",
            "PipeDream, arXiv:1806.03377",
            _newest,
        ),
        "pipedream-vertical": AsyncEntry(
            "PipeDream with vertical sync: every stage uses the version that the first stage used",
            "PipeDream, arXiv:1806.03377",
            _as_first_stage,
        ),
        "pipedream-2bw": AsyncEntry(
            "1F1B without a flush; updates of at least as many microbatches as ranks, two versions in all",
            "PipeDream-2BW, arXiv:2006.09503",
            _one_batch_late,
            least_per_update=lambda p: p,
        ),
        "ampnet": AsyncEntry(
            "ranks run what arrives and update as soon as gradients are there; nothing is stashed",
            "AMPNet, arXiv:1705.09786",
            _newest,
            stashes=False,
            bounded=True,
        ),
    }
)

"""A good schedule for any stage times, links and memory: the best of the named ones, list scheduling, and repair.

Three steps, each no worse than the one before. The named schedules for this placement that fit are simulated. A list
scheduler makes orders of its own under a grid of policies: how far forwards run ahead, in which order a rank prefers
its stages, how patient weight gradients are. The best order is then improved: its actions are scheduled again by
how late each may start (forward-backward improvement, as in project scheduling), and for small problems neighbours on
the critical path change places while that helps.

Source: zero bubble, arXiv:2401.10241, section 3; forward-backward improvement: Li and Willis, An iterative scheduling
technique for resource-constrained project scheduling, EJOR 56 (1992).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np

from planner.errors import Deadlock, Infeasible, InputError
from planner.pipeline.activations import Held
from planner.pipeline.dependencies import peak_bytes
from planner.pipeline.generators import SCHEDULES, generate, refusal, stage_to_rank
from planner.pipeline.list_scheduling import Policy, Resource, Task, Urgency, list_schedule
from planner.pipeline.ports import Ports
from planner.pipeline.schedule import Action, Pass, Schedule
from planner.pipeline.simulator import BoundarySeconds, StageTimes, boundary_seconds, simulate
from planner.pipeline.timeline import Timeline, critical_path

PATIENCE = (0.0, 0.5, 1.0)
"""Shares of a weight gradient's time for which a rank waits for something more urgent."""

IMPROVED = 3
"""Of the candidates, the best so many are improved."""

ROUNDS = 8
"""Of forward-backward improvement at most."""

SWAPS = 300
"""Simulations that the exchange of neighbours may take."""

SMALL = 600
"""Actions up to which neighbours are exchanged."""

LESS = 1 - 1e-9
"""What counts as shorter."""


class Conditions(NamedTuple):
    """How schedules run, and which of two is better; see `simulate`."""

    blocking: bool = False
    ports: Ports = "endless"
    steady: bool = False
    """Compared by `Timeline.longest_span` instead of the makespan: steps follow each other without a barrier."""

    def length(self, timeline: Timeline) -> float:
        """What is to be short [s]."""
        return timeline.longest_span if self.steady else timeline.makespan


USUAL = Conditions()
"""Sends beside work, links without queues, the least makespan."""


def find_schedule(
    stage_times: StageTimes,
    p2p: BoundarySeconds,
    memory_limit_per_rank: Sequence[float],
    num_microbatches: int,
    *,
    held: Held | None = None,
    homes: Sequence[int] | None = None,
    conditions: Conditions = USUAL,
) -> Schedule:
    """The schedule with the least makespan (see ``conditions``) that could be found within every rank's memory.

    ``held`` is what a microbatch keeps on each stage, in the unit of the limits; if not given, one until its weight
    gradient, so that limits count microbatches. ``homes`` is the rank of every stage; if not given, stage s is on
    rank s. Never worse than the best of `SCHEDULES` that fits this placement and the limits.
    Raises: InputError where lengths do not match; Infeasible where not even one microbatch fits.
    """
    problem = _problem(stage_times, p2p, memory_limit_per_rank, num_microbatches, held, homes)
    problem = replace(problem, conditions=conditions)
    candidates = [problem.timed(schedule) for schedule in (*problem.named(), *problem.listed())]
    fitting = sorted((c for c in candidates if c is not None), key=problem.length)
    return min(
        (_exchange(problem, _rescheduled(problem, c)) for c in fitting[:IMPROVED]), key=problem.length
    ).schedule


@dataclass(frozen=True, slots=True)
class _Problem:
    """What is asked."""

    task: Task
    times: StageTimes
    transfer: tuple[float, ...]
    held: Held
    limit: tuple[float, ...]
    conditions: Conditions = USUAL

    def length(self, timeline: Timeline) -> float:
        """What is to be short [s]."""
        return self.conditions.length(timeline)

    def timed(self, schedule: Schedule) -> Timeline | None:
        """Its timeline; None where it needs more memory than there is."""
        blocking, ports, _ = self.conditions
        timeline = simulate(schedule, self.times, self.transfer, blocking=blocking, ports=ports)
        peaks = peak_bytes(timeline.dependencies, self.held.until_input, self.held.until_weight)
        fits = all(peak <= limit * (1 + 1e-9) for peak, limit in zip(peaks, self.limit, strict=True))
        return timeline if fits else None

    def named(self) -> Iterator[Schedule]:
        """Schedules of `SCHEDULES` for this placement, whether they fit or not."""
        homes, m = self.task.stage_to_rank, self.task.num_microbatches
        ranks = max(homes) + 1
        v, rest = divmod(len(homes), ranks)
        for name, entry in () if rest else SCHEDULES.items():
            possible = entry.copies == 1 and not refusal(name, ranks, v, m)
            if possible and stage_to_rank(name, ranks, v) == homes:
                yield generate(name, ranks, v, m)

    def listed(self) -> Iterator[Schedule]:
        """What the list scheduler makes of it."""
        for split in (True, False):
            task = replace(self.task, splits_backward=split)
            for ahead, order, patience in product(self._run_ahead(), _ORDERS, PATIENCE if split else (0.0,)):
                yield list_schedule(task, Policy(order, patience, ahead))

    def _run_ahead(self) -> Iterator[tuple[Resource, ...]]:
        """How many microbatches may wait for their input gradient on a rank.

        As many as in 1F1B, what keeps the rank busy until the first gradient is back (one forward less, or more, than
        it takes), any.
        """
        homes = self.task.stage_to_rank
        ranks, stages = max(homes) + 1, len(homes)
        v = -(-stages // ranks)
        none, one = [0.0] * stages, [1.0] * stages
        least = [float(homes.count(rank)) for rank in range(ranks)]
        fills = np.array([self._fill(rank) for rank in range(ranks)])
        for counts in (
            [v * (ranks - r) for r in range(ranks)],
            np.floor(fills * (1 + 1e-9)),
            np.ceil(fills * (1 - 1e-9)),
            [v * ranks] * ranks,
        ):
            yield (Resource(one, none, np.maximum(counts, least).tolist()),)
        yield ()

    def _fill(self, rank: int) -> float:
        """Forwards of the rank that take as long as the first microbatch's way from its first stage there and back."""
        forward, _, backward, _ = np.array(self.task.seconds).T
        hops = np.append(self.task.transfer, 0.0)
        stages = [stage for stage, home in enumerate(self.task.stage_to_rank) if home == rank]
        first, last = stages[0], stages[-1]
        way = (forward + hops)[first:].sum() + (backward[last + 1 :] + hops[last:-1]).sum()
        return float(way / forward[stages].mean()) if forward[stages].any() else 0.0


def _problem(
    times: StageTimes,
    p2p: BoundarySeconds,
    limit: Sequence[float],
    m: int,
    held: Held | None,
    homes: Sequence[int] | None,
) -> _Problem:
    stages = len(times.forward)
    table = times.table(stages).tolist()
    placed = tuple(range(stages)) if homes is None else tuple(homes)
    kept = held or Held((0.0,) * stages, (1.0,) * stages)
    ranks = max(placed, default=-1) + 1
    if m < 1 or len(placed) != stages or set(placed) != set(range(ranks)):
        raise InputError(
            f"{m} microbatches, and homes {placed} for {stages} stages: give each stage a rank, counting from 0"
        )
    if len(limit) != ranks or {len(kept.until_input), len(kept.until_weight)} != {stages}:
        raise InputError(f"{stages} stages on {ranks} ranks need as many bytes held and memory limits")
    given = boundary_seconds(p2p, stages)[:-1].tolist()
    crossing = [seconds if a != b else 0.0 for seconds, (a, b) in zip(given, pairwise(placed), strict=True)]
    memory = Resource(kept.until_input, kept.until_weight, limit)
    task = Task(placed, m, table, crossing, (memory,))
    _check_room(kept, placed, limit)
    return _Problem(task, times, tuple(given), kept, tuple(limit))


def _check_room(kept: Held, homes: Sequence[int], limit: Sequence[float]) -> None:
    for rank, room in enumerate(limit):
        pairs = zip(kept.until_input, kept.until_weight, homes, strict=True)
        least = sum(max(early + late, late) for early, late, home in pairs if home == rank)
        if least > room * (1 + 1e-9):
            raise Infeasible(
                f"rank {rank} has room for {room:g}, but one microbatch keeps {least:g} there",
                "smaller microbatches, recomputation or more stages",
            )


def _depth_first(action: Action) -> tuple[float, ...]:
    """Backwards first; of several stages the last."""
    return (_RANKING[action.work], -action.stage, action.microbatch)


def _oldest_first(action: Action) -> tuple[float, ...]:
    """Backwards first; of several stages the one with the oldest microbatch."""
    return (_RANKING[action.work], action.microbatch, -action.stage)


def _forward_first(action: Action) -> tuple[float, ...]:
    """Forwards first, as far as they may run ahead."""
    return (action.work is not Pass.F, _RANKING[action.work], action.microbatch, -action.stage)


_RANKING = {Pass.B: 0, Pass.I: 0, Pass.F: 1, Pass.W: 2}
_ORDERS: tuple[Urgency, ...] = (_depth_first, _oldest_first, _forward_first)


def _rescheduled(problem: _Problem, best: Timeline) -> Timeline:
    """List scheduling by latest start, again and again while it helps."""
    for _ in range(ROUNDS):
        if best.schedule.overlapped:
            return best
        works = {action.work for actions in best.schedule.ranks for action in actions}
        if {Pass.B, Pass.I} <= works:
            return best
        task = replace(problem.task, splits_backward=Pass.I in works)
        urgency = _by_latest_start(_latest_starts(problem, best))
        found = [problem.timed(list_schedule(task, Policy(urgency, patience))) for patience in PATIENCE]
        enough = LESS * problem.length(best)
        shorter = [timeline for timeline in found if timeline and problem.length(timeline) < enough]
        if not shorter:
            return best
        best = min(shorter, key=problem.length)
    return best


def _by_latest_start(starts: Mapping[Action, float]) -> Urgency:
    return lambda action: (starts[action],)


def _latest_starts(problem: _Problem, timeline: Timeline) -> dict[Action, float]:
    """When each action has to start in this order so that what is to be short is not longer [s]."""
    graph = timeline.dependencies
    count = len(graph.stage)
    seconds = np.array(problem.task.seconds)[graph.stage, graph.work]
    delay = np.append(problem.transfer, 0.0)[graph.arrival]
    latest = [float("inf")] * count
    for last, starts in zip(graph.program[graph.offsets[1:] - 1].tolist(), timeline.starts, strict=True):
        begin = starts[0] if problem.conditions.steady else 0.0
        latest[last] = begin + problem.length(timeline)
    steps = zip(graph.previous.tolist(), graph.source.tolist(), seconds.tolist(), delay.tolist(), strict=True)
    # From the last number to the first: what comes after an action has a larger number.
    for number, (previous, source, length, wait) in reversed(list(enumerate(steps))):
        latest[number] -= length
        latest[previous] = min(latest[previous], latest[number])
        latest[source] = min(latest[source], latest[number] - wait)
    actions = (action for actions in timeline.schedule.ranks for action in actions)
    return {action: latest[number] for action, number in zip(actions, graph.program.tolist(), strict=True)}


def _exchange(problem: _Problem, best: Timeline) -> Timeline:
    """Exchange neighbours of which the second is on the critical path, while that shortens the step."""
    if best.schedule.num_actions > SMALL or best.schedule.overlapped:
        return best
    tried, improved = 0, True
    while improved:
        improved = False
        for schedule in _neighbours(problem, best):
            if tried == SWAPS:
                return best
            tried += 1
            try:
                timeline = problem.timed(schedule)
            except Deadlock:
                continue
            if timeline and problem.length(timeline) < LESS * problem.length(best):
                best, improved = timeline, True
                break
    return best


def _neighbours(problem: _Problem, timeline: Timeline) -> Iterator[Schedule]:
    schedule = timeline.schedule
    places = {action: at for actions in schedule.ranks for at, action in enumerate(actions)}
    ends = timeline.spans_by_rank if problem.conditions.steady else [row[-1] for row in timeline.ends]
    for span in critical_path(timeline, max(range(len(ends)), key=ends.__getitem__)):
        actions, at = schedule.ranks[span.rank], places[span.action]
        if at and (actions[at - 1].stage, actions[at - 1].microbatch) != span.action[::2]:
            swapped = (*actions[: at - 1], actions[at], actions[at - 1], *actions[at + 1 :])
            yield replace(
                schedule, ranks=(*schedule.ranks[: span.rank], swapped, *schedule.ranks[span.rank + 1 :])
            )

"""List scheduling of a pipeline: every rank, whenever it is free, runs the most urgent action that is ready.

The order comes out of the times, the links and what each rank can hold. Stages meet the microbatches in order. An
action that would take more of a resource than a rank has must wait; a forward is let in only if the microbatch
could go on through the rank's later stages, so that the oldest microbatch always can, and nothing locks up.

Source: zero bubble, arXiv:2401.10241, section 3.1, whose heuristic is one setting of `Policy`.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

from planner.pipeline.schedule import Action, Pass, Schedule

SAME_MOMENT = 1e-9
"""Relative to the time of a microbatch: sums of the same times in another order differ by less."""

Urgency = Callable[[Action], tuple[float, ...]]
"""The smaller, the earlier."""


class Resource(NamedTuple):
    """Something that microbatches in flight take; by stage, and by rank for ``limit``."""

    until_input: Sequence[float]
    """Taken by F, given back by B or I."""
    until_weight: Sequence[float]
    """Taken by F, given back by B or W."""
    limit: Sequence[float]


@dataclass(frozen=True, slots=True)
class Task:
    """What has to be scheduled."""

    stage_to_rank: tuple[int, ...]
    num_microbatches: int
    seconds: Sequence[Sequence[float]]
    """By stage and `Pass` [s]."""
    transfer: Sequence[float]
    """From stage s to s+1 and back, by s [s]; zero where both are on one rank."""
    resources: tuple[Resource, ...] = ()
    splits_backward: bool = True


class Policy(NamedTuple):
    """How a rank chooses."""

    urgency: Urgency
    patience: float = 0.0
    """A weight gradient is put off if something else arrives within this share of its time."""
    resources: tuple[Resource, ...] = ()
    """Limits that the policy sets itself beside those of the task."""


def list_schedule(task: Task, policy: Policy) -> Schedule:
    """The schedule that the policy makes of the task.

    Every resource must have room for one microbatch on each rank; see `Resource`.
    """
    run = _Run(task, policy)
    while run.events:
        moment, rank = heappop(run.events)
        if moment >= run.free[rank] - run.tolerance:
            run.choose(rank, max(moment, run.free[rank]))
    return Schedule(tuple(map(tuple, run.orders)), task.stage_to_rank, task.num_microbatches)


class _Account:
    """What is taken of a resource, by rank."""

    def __init__(self, resource: Resource, stage_to_rank: Sequence[int]) -> None:
        self.limit = [limit * (1 + SAME_MOMENT) for limit in resource.limit]
        self.taken = [0.0] * len(resource.limit)
        # Some weight gradients need more than what the forward kept; it is set aside from the start.
        self.whole = [max(a + b, b) for a, b in zip(resource.until_input, resource.until_weight, strict=True)]
        self.late = list(resource.until_weight)
        self.needed = [
            whole + sum(self.whole[t] for t in range(s + 1, len(stage_to_rank)) if stage_to_rank[t] == home)
            for s, (whole, home) in enumerate(zip(self.whole, stage_to_rank, strict=True))
        ]

    def admits(self, rank: int, stage: int) -> bool:
        return self.taken[rank] + self.needed[stage] <= self.limit[rank]

    def book(self, rank: int, stage: int, work: Pass) -> None:
        self.taken[rank] += (
            self.whole[stage],
            -self.whole[stage],
            self.late[stage] - self.whole[stage],
            -self.late[stage],
        )[work]


@dataclass(slots=True)
class _Run:
    """The state of a simulation in which ranks choose as they go."""

    task: Task
    policy: Policy
    events: list[tuple[float, int]] = field(default_factory=list)
    """When which rank should look for something to do."""
    free: list[float] = field(default_factory=list)
    orders: list[list[Action]] = field(default_factory=list)
    queues: list[list[tuple[int, Pass, deque[tuple[float, int]]]]] = field(default_factory=list)
    """By rank: stage, pass, and the microbatches that wait for it with their arrival."""
    waiting: dict[tuple[int, Pass], deque[tuple[float, int]]] = field(default_factory=dict)
    """The same queues by stage and pass."""
    accounts: tuple[_Account, ...] = ()
    tolerance: float = 0.0
    backward: Pass = Pass.I

    def __post_init__(self) -> None:
        task = self.task
        num_ranks = max(task.stage_to_rank) + 1
        self.free = [0.0] * num_ranks
        self.orders = [[] for _ in range(num_ranks)]
        self.queues = [[] for _ in range(num_ranks)]
        self.backward = Pass.I if task.splits_backward else Pass.B
        for stage, rank in enumerate(task.stage_to_rank):
            for work in (Pass.F, self.backward, Pass.W)[: 3 if task.splits_backward else 2]:
                self.waiting[stage, work] = deque()
                self.queues[rank].append((stage, work, self.waiting[stage, work]))
        resources = task.resources + self.policy.resources
        self.accounts = tuple(_Account(resource, task.stage_to_rank) for resource in resources)
        self.tolerance = SAME_MOMENT * sum(map(sum, task.seconds))
        self.waiting[0, Pass.F].extend((0.0, k) for k in range(task.num_microbatches))
        self.events.append((0.0, task.stage_to_rank[0]))

    def choose(self, rank: int, now: float) -> None:
        """Start the most urgent action of the rank, if it has one that should start now."""
        soonest = float("inf")
        best: Action | None = None
        least: tuple[float, ...] = ()
        for stage, work, queue in self.queues[rank]:
            if not queue or (work is Pass.F and not all(a.admits(rank, stage) for a in self.accounts)):
                continue
            arrival, microbatch = queue[0]
            if arrival > now + self.tolerance:
                soonest = min(soonest, arrival)
                continue
            action = Action(stage, work, microbatch)
            urgency = self.policy.urgency(action)
            if best is None or urgency < least:
                best, least = action, urgency
        if best is None:
            return
        seconds = self.task.seconds[best.stage][best.work]
        if best.work is Pass.W and soonest - now < self.policy.patience * seconds:
            return
        self._start(rank, best, now + seconds)

    def _start(self, rank: int, action: Action, end: float) -> None:
        stage, work, microbatch = action
        self.waiting[stage, work].popleft()
        self.orders[rank].append(action)
        self.free[rank] = end
        heappush(self.events, (end, rank))
        for account in self.accounts:
            account.book(rank, stage, work)
        last = len(self.task.stage_to_rank) - 1
        if work is Pass.F and stage < last:
            self._send(stage + 1, Pass.F, microbatch, end + self.task.transfer[stage])
        elif work is Pass.F:
            self._send(stage, self.backward, microbatch, end)
        elif work is not Pass.W and stage > 0:
            self._send(stage - 1, self.backward, microbatch, end + self.task.transfer[stage - 1])
        if work is Pass.I:
            self._send(stage, Pass.W, microbatch, end)

    def _send(self, stage: int, work: Pass, microbatch: int, arrival: float) -> None:
        self.waiting[stage, work].append((arrival, microbatch))
        heappush(self.events, (arrival, self.task.stage_to_rank[stage]))

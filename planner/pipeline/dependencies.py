"""Who waits for whom in a schedule, as integer arrays in an order in which everything can run.

Every action waits for the one before it on its rank and for at most one other, its source: a forward for
the forward of the stage before; a backward (B or I) for the backward of the stage after, on the last stage
for its own forward; a W for its I. All of it depends on the schedule alone, so it is worked out once and
then simulated with many stage times.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.errors import Deadlock
from planner.pipeline.generators import generate, is_written_out
from planner.pipeline.schedule import Pass, Schedule, check

Integers: TypeAlias = NDArray[np.int32]
Floats: TypeAlias = NDArray[np.float64]

NOWHERE = -1
MOST_NAMED = 16  # actions in a message


@dataclass(frozen=True)
class Dependencies:
    """A schedule whose actions are numbered 1, 2, ... in an order in which they can run.

    Number 0 is the start of the step; every array but the last three is indexed by these numbers.
    """

    stage: Integers
    work: Integers
    rank: Integers
    previous: Integers
    """The action before it on its rank."""
    source: Integers
    """The other action that it waits for; where that is the first of an overlapped pair, the second."""
    arrival: Integers
    """Stage s where its source's result crosses between stages s and s+1 and between ranks; else -1."""
    departure: Integers
    """Stage s where its own result does; else -1."""
    partner: Integers
    """For the first of an overlapped pair the second, which is the next on its rank; else 0."""
    program: Integers
    """Numbers in program order: rank 0's actions, then rank 1's, ..."""
    offsets: Integers
    """Where each rank begins in ``program``; one more at the end."""
    num_stages: int

    @cached_property
    def as_programs(self) -> "Programs":
        """What every rank runs."""
        return Programs(self.stage[self.program], self.work[self.program], self.offsets, self.num_stages)

    @cached_property
    def most_in_flight(self) -> tuple[int, ...]:
        """Most microbatches that each rank has in flight, over its stages: from F until B or W."""
        return peak_in_flight(self.as_programs)

    @cached_property
    def consumers(self) -> Integers:
        """The actions whose input comes from another rank."""
        return np.flatnonzero(self.arrival != NOWHERE).astype(np.int32)

    @cached_property
    def producers(self) -> Integers:
        """The action whose result each waits for: its source, or the forward that is paired with it."""
        first = np.zeros_like(self.partner)
        pairs = np.flatnonzero(self.partner)
        first[self.partner[pairs]] = pairs
        paired = (self.work == Pass.F) & (first[self.source] > 0)
        return np.where(paired, first[self.source], self.source).astype(np.int32)


class Programs(NamedTuple):
    """What every rank runs in turn, whoever waits for whom: all that memory depends on."""

    stage: Integers
    """Of rank 0's actions, then rank 1's, ..."""
    work: Integers
    offsets: Integers
    """Where each rank begins, and the end."""
    num_stages: int


@lru_cache(maxsize=128)
def programs(name: str, num_ranks: int, virtual_stages: int, num_microbatches: int) -> Programs:
    """Of a schedule of `SCHEDULES`; errors as `generate`."""
    schedule = generate(name, num_ranks, virtual_stages, num_microbatches)
    stage, work, _ = _columns(schedule)
    return Programs(stage, work, _offsets(schedule), schedule.num_stages)


@lru_cache(maxsize=128)
def arranged(name: str, num_ranks: int, virtual_stages: int, num_microbatches: int) -> Dependencies:
    """The dependencies of a schedule of `SCHEDULES`; errors as `generate`."""
    return _arrange(generate(name, num_ranks, virtual_stages, num_microbatches))


def arrange(schedule: Schedule) -> Dependencies:
    """The dependencies of a schedule.

    Raises: InputError where it is incomplete; Deadlock where its order cannot run.
    """
    check(schedule)
    return _arrange(schedule)


def _arrange(schedule: Schedule) -> Dependencies:
    columns, offsets = _columns(schedule), _offsets(schedule)
    stage, work, _ = columns
    source = _sources(schedule, *columns)
    partner = _partners(schedule)
    # A pair hands its results on when both are done.
    source = np.where((source >= 0) & (partner[source] >= 0), partner[source], source)
    order = _runnable_order(schedule, source.tolist(), offsets.tolist())
    number = np.empty(len(order) + 1, dtype=np.int32)  # by place in the program; the last is that of "none"
    number[order] = np.arange(1, len(order) + 1)
    number[NOWHERE] = 0
    previous = np.arange(-1, len(order) - 1)
    previous[offsets[:-1]] = NOWHERE
    arrival, departure = _crossings(schedule, stage, work)

    def by_number(values: Integers, start: int) -> Integers:
        return np.concatenate(([start], values[order])).astype(np.int32)

    return Dependencies(
        stage=by_number(stage, 0),
        work=by_number(work, 0),
        rank=by_number(np.repeat(np.arange(schedule.num_ranks), np.diff(offsets)), 0),
        previous=by_number(number[previous], 0),
        source=by_number(number[source], 0),
        arrival=by_number(arrival, NOWHERE),
        departure=by_number(departure, NOWHERE),
        partner=by_number(number[partner], 0),
        program=number[:-1],
        offsets=offsets,
        num_stages=schedule.num_stages,
    )


def _columns(schedule: Schedule) -> Integers:
    """Stages, passes and microbatches of all actions in program order."""
    flat = chain.from_iterable(chain.from_iterable(schedule.ranks))
    return np.fromiter(flat, dtype=np.int32, count=3 * schedule.num_actions).reshape(-1, 3).T


def _offsets(schedule: Schedule) -> Integers:
    return np.cumsum([0, *(len(actions) for actions in schedule.ranks)], dtype=np.int32)


def _sources(schedule: Schedule, stage: Integers, work: Integers, microbatch: Integers) -> Integers:
    """Place in the program of the action that each action waits for; -1 for none."""
    last = schedule.num_stages - 1
    place = np.full((len(Pass), schedule.num_stages, schedule.num_microbatches), NOWHERE, dtype=np.int32)
    place[work, stage, microbatch] = np.arange(len(stage))
    forward, input_backward = place[Pass.F], np.maximum(place[Pass.B], place[Pass.I])
    before = np.where(stage > 0, forward[stage - 1, microbatch], NOWHERE)
    after = np.where(
        stage < last, input_backward[np.minimum(stage + 1, last), microbatch], forward[last, microbatch]
    )
    own = place[Pass.I, stage, microbatch]
    return np.choose(work, [before, after, after, own]).astype(np.int32)


def _partners(schedule: Schedule) -> Integers:
    """Place of the action that each overlapped forward runs with; -1 for all others."""
    partner = np.full(schedule.num_actions, NOWHERE, dtype=np.int32)
    if schedule.overlapped:
        program = (action for actions in schedule.ranks for action in actions)
        for place, action in enumerate(program):
            if action in schedule.overlapped:
                partner[place] = place + 1
    return partner


def _crossings(schedule: Schedule, stage: Integers, work: Integers) -> tuple[Integers, Integers]:
    """The boundary that each action's input and output cross; -1 where they stay on the rank.

    A mirrored microbatch changes ranks where the others do.
    """
    home = np.array(schedule.stage_to_rank)
    crossed = np.append(home[1:] != home[:-1], False)
    forward, backward = work == Pass.F, (work == Pass.B) | (work == Pass.I)
    boundaries = []
    for boundary in (stage - forward, stage - backward):
        moves = (forward | backward) & (boundary >= 0) & crossed[boundary]
        boundaries.append(np.where(moves, boundary, NOWHERE).astype(np.int32))
    return boundaries[0], boundaries[1]


def _runnable_order(schedule: Schedule, source: Sequence[int], offsets: Sequence[int]) -> list[int]:
    """Places in the program, such that each comes after what it waits for."""
    order: list[int] = []
    done = bytearray(len(source) + 1)
    done[NOWHERE] = 1
    position = list(offsets[:-1])
    waiting: dict[int, int] = {}
    runnable = list(range(schedule.num_ranks))
    while runnable:
        rank = runnable.pop()
        place, end = position[rank], offsets[rank + 1]
        while place < end and done[source[place]]:
            done[place] = 1
            order.append(place)
            if place in waiting:
                runnable.append(waiting.pop(place))
            place += 1
        position[rank] = place
        if place < end:
            waiting[source[place]] = rank
    if len(order) < len(source):
        raise Deadlock(_describe_deadlock(schedule, position, offsets, source))
    return order


def _describe_deadlock(
    schedule: Schedule, position: Sequence[int], offsets: Sequence[int], source: Sequence[int]
) -> str:
    program = list(chain.from_iterable(schedule.ranks))
    blocked = [
        rank for rank, (place, end) in enumerate(zip(position, offsets[1:], strict=True)) if place < end
    ]
    everyone = len(blocked) == schedule.num_ranks
    who = "every rank waits" if everyone else f"{len(blocked)} of {schedule.num_ranks} ranks wait"
    names = ", ".join(str(program[position[rank]]) for rank in blocked[:MOST_NAMED])
    circle = _circle(
        blocked[0], {rank: bisect_right(offsets, source[position[rank]]) - 1 for rank in blocked}
    )
    waits = []
    for rank, other in pairwise([*circle, circle[0]]):
        wanted, ahead = source[position[rank]], position[other]
        behind = "" if wanted == ahead else f" (behind {program[ahead]})"
        waits.append(f"{program[position[rank]]} for {program[wanted]}{behind}")
    return (
        f"deadlock: {who}; next actions are {names}{_more(blocked)}; in a circle: "
        f"{', '.join(waits[:MOST_NAMED])}{_more(waits)}"
    )


def _more(items: Sequence[object]) -> str:
    return ", ..." if len(items) > MOST_NAMED else ""


def _circle(rank: int, waits_for: Mapping[int, int]) -> list[int]:
    """Ranks that wait for each other, found from one that waits."""
    seen: list[int] = []
    while rank not in seen:
        seen.append(rank)
        rank = waits_for[rank]
    return seen[seen.index(rank) :]


def peak_bytes(
    order: Dependencies | Programs, until_input: Sequence[float], until_weight: Sequence[float]
) -> tuple[float, ...]:
    """Most activation memory [B] that each rank holds at once.

    A forward of stage s stores ``until_input[s]`` bytes that its B or I frees, and ``until_weight[s]`` bytes
    that its B or W frees. Source: zero bubble, arXiv:2401.10241, section 2.3 (M_B and M_W).
    """
    own = order if isinstance(order, Programs) else order.as_programs
    return _peaks(own, own.offsets[:-1], until_input, until_weight)


def peak_in_flight(order: Dependencies | Programs) -> tuple[int, ...]:
    """Most microbatches that each rank has in flight, over its stages: from F until B or W."""
    return order.most_in_flight if isinstance(order, Dependencies) else _counts(order, order.offsets[:-1])


def peak_in_flight_by_stage(dependencies: Dependencies) -> tuple[int, ...]:
    """Most microbatches that each stage (each copy of it) has in flight: from F until B or W."""
    own = dependencies.as_programs
    by_stage = np.argsort(own.stage, kind="stable")
    starts = np.searchsorted(own.stage[by_stage], np.arange(own.num_stages)).astype(np.int32)
    return _counts(own._replace(stage=own.stage[by_stage], work=own.work[by_stage]), starts)


def steady(name: str, num_ranks: int, num_microbatches: int) -> int:
    """So many microbatches that more would not add to what is in flight at any moment.

    Schedules that alternate forward and backward fill up within their warm-up; GPipe and breadth-first hold all.
    """
    p, m = num_ranks, num_microbatches
    # Interleaved rounds have m / (m // p) microbatches; fewer of them must still be whole rounds.
    enough, step = 3 * p, math.lcm(p, m // max(1, m // p))
    if name in ("gpipe", "breadth-first", "terapipe") or m <= enough + step or is_written_out(name):
        return m
    return enough + (m - enough) % step


@lru_cache(maxsize=128)
def moments_in_flight(
    name: str, num_ranks: int, virtual_stages: int, num_microbatches: int
) -> tuple[tuple[Integers, ...], ...]:
    """By rank, how many microbatches of each stage have had their F and not their B or I, at the moments that count.

    Moments at which no stage has more than at another one are left out. Errors as `generate`.
    """
    order = programs(name, num_ranks, virtual_stages, steady(name, num_ranks, num_microbatches))
    found = []
    for start, end in pairwise(order.offsets.tolist()):
        works = order.work[start:end]
        change = np.zeros((len(works), order.num_stages), dtype=np.int32)
        change[np.arange(len(works)), order.stage[start:end]] = np.where(
            works == Pass.F, 1, np.where(works == Pass.W, 0, -1)
        )
        found.append(_largest(np.unique(change.cumsum(axis=0), axis=0)))
    return tuple(found)


def _largest(held: Integers) -> tuple[Integers, ...]:
    """Rows that are not below another one in every column."""
    kept: list[Integers] = []
    for row in held[np.argsort(-held.sum(axis=1), kind="stable")]:
        if not any((row <= other).all() for other in kept):
            kept.append(row)
    return tuple(kept)


def _counts(actions: Programs, starts: Integers) -> tuple[int, ...]:
    none, one = np.zeros(actions.num_stages), np.ones(actions.num_stages)
    return tuple(round(count) for count in _peaks(actions, starts, none, one))


def _peaks(
    actions: Programs, starts: Integers, until_input: ArrayLike, until_weight: ArrayLike
) -> tuple[float, ...]:
    """Largest running sum of what is stored less what is freed, in each group of actions."""
    inputs, weights = (np.asarray(held, dtype=np.float64) for held in (until_input, until_weight))
    change = np.stack((inputs + weights, -inputs - weights, -inputs, -weights), axis=1)
    # What a group stores it frees, so every group starts from zero (up to rounding).
    held = np.cumsum(change[actions.stage, actions.work])
    return tuple(np.maximum.reduceat(held, starts).tolist())

"""A pipeline schedule as data: what every rank runs, in order, in PyTorch's notation.

``2F0`` is the forward of microbatch 0 on stage 2. A schedule is one line of such actions per rank; waiting
is not written down, it follows from the times (`planner.pipeline.simulator`).
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import NamedTuple

from planner.errors import InputError


class Pass(IntEnum):
    """Kind of work; the number is its column in a table of stage times."""

    F = 0
    """Forward."""
    B = 1
    """Full backward: gradients of input and weights in one go."""
    I = 2  # noqa: E741 - PyTorch's letter
    """Backward of the input alone; what the stage before waits for."""
    W = 3
    """Backward of the weights alone; nobody waits for it."""


class Action(NamedTuple):
    """One pass of one microbatch through one stage."""

    stage: int
    work: Pass
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.work.name}{self.microbatch}"


@dataclass(frozen=True, slots=True)
class Schedule:
    """The order of work on every rank of a pipeline."""

    ranks: tuple[tuple[Action, ...], ...]
    """Actions of every rank, in the order in which it runs them."""
    stage_to_rank: tuple[int, ...]
    num_microbatches: int
    overlapped: frozenset[Action] = frozenset()
    """Forwards that run together with the action that follows them (PyTorch's ``OVERLAP_F_B``)."""
    mirrored: frozenset[int] = frozenset()
    """Microbatches that cross the ranks the other way round, through a second copy of every stage: what is on
    rank r for the others is on rank p-1-r for them (Chimera, DualPipe)."""

    def home(self, stage: int, microbatch: int) -> int:
        """The rank on which ``microbatch`` meets ``stage``."""
        rank = self.stage_to_rank[stage]
        return self.num_ranks - 1 - rank if microbatch in self.mirrored else rank

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Stages of which the rank holds a copy, ascending."""
        homes = {rank, self.num_ranks - 1 - rank} if self.mirrored else {rank}
        return tuple(stage for stage, home in enumerate(self.stage_to_rank) if home in homes)

    @property
    def num_stages(self) -> int:
        """Stages, virtual ones counted."""
        return len(self.stage_to_rank)

    @property
    def num_ranks(self) -> int:
        """Pipeline ranks."""
        return len(self.ranks)

    @property
    def num_actions(self) -> int:
        """Actions of all ranks."""
        return sum(len(actions) for actions in self.ranks)

    def __str__(self) -> str:
        return to_csv(self)


_ACTION = re.compile(r"(\d+)([FBIW])(\d+)")
_PAIR = re.compile(r"\(([^;()]+);([^;()]+)\)OVERLAP_F_B")
_NO_WORK = re.compile(r"\d+(UNSHARD|RESHARD|REDUCE_GRAD|(SEND|RECV)_[FB]\d+)")


def parse_action(text: str) -> Action:
    """The action that ``text`` such as ``2F0`` stands for.

    Raises: InputError where it stands for none.
    """
    match = _ACTION.fullmatch(text.strip())
    if match is None:
        raise InputError(
            f"cannot read pipeline action {text.strip()!r}; write stage, pass (F, B, I or W), microbatch: 2F0"
        )
    stage, work, microbatch = match.groups()
    return Action(int(stage), Pass[work], int(microbatch))


def to_csv(schedule: Schedule) -> str:
    """The schedule as PyTorch's CSV: a line per rank, without idle cells."""
    return "".join(",".join(_cells(actions, schedule.overlapped)) + "\n" for actions in schedule.ranks)


def _cells(actions: Sequence[Action], overlapped: frozenset[Action]) -> Iterator[str]:
    remaining = iter(actions)
    for action in remaining:
        yield f"({action};{next(remaining)})OVERLAP_F_B" if action in overlapped else str(action)


def from_csv(text: str) -> Schedule:
    """The complete schedule that PyTorch's CSV describes: a line per rank, empty cells skipped.

    Cells that move or gather data (``SEND_F``, ``UNSHARD`` ...) are skipped too, as the order of the work
    decides who waits for whom. A stage belongs to the rank in whose line it first meets the lowest microbatch
    that it meets; microbatches that meet all stages on the opposite ranks are mirrored.
    Raises: InputError where a cell cannot be read or the schedule is incomplete.
    """
    overlapped: set[Action] = set()
    ranks = tuple(tuple(_parse_line(line, overlapped)) for line in text.splitlines() if line.strip(", "))
    met = [(action, rank) for rank, actions in enumerate(ranks) for action in actions]
    owner: dict[int, int] = {}
    for action, rank in sorted(met, key=lambda meeting: meeting[0].microbatch):
        owner.setdefault(action.stage, rank)
    if not owner:
        raise InputError("the schedule is empty; give one line of actions such as 0F0,0B0 per rank")
    missing = sorted(set(range(max(owner))) - set(owner))
    if missing:
        raise InputError(f"the schedule has a stage {max(owner)} but no work for stages {missing}")
    elsewhere = {action.microbatch for action, rank in met if rank != owner[action.stage]}
    astray = {action.microbatch for action, rank in met if rank != len(ranks) - 1 - owner[action.stage]}
    schedule = Schedule(
        ranks=ranks,
        stage_to_rank=tuple(owner[stage] for stage in range(len(owner))),
        num_microbatches=1 + max(action.microbatch for action, _ in met),
        overlapped=frozenset(overlapped),
        mirrored=frozenset(elsewhere - astray),
    )
    check(schedule)
    return schedule


def _parse_line(line: str, overlapped: set[Action]) -> Iterator[Action]:
    for cell in line.split(","):
        cell = cell.strip()
        pair = _PAIR.fullmatch(cell)
        if pair:
            first, second = (parse_action(part) for part in pair.groups())
            overlapped.add(first)
            yield from (first, second)
        elif cell and not _NO_WORK.fullmatch(cell):
            yield parse_action(cell)


def check(schedule: Schedule) -> None:
    """Refuse a schedule that is incomplete: every microbatch crosses every stage once, forward and back.

    Each stage runs, on its own rank, every microbatch's F once and either its B, or its I and W, once. That
    the order can run at all is found out by `planner.pipeline.dependencies.arrange`.
    Raises: InputError.
    """
    if not set(schedule.stage_to_rank) <= set(range(schedule.num_ranks)):
        raise InputError(f"stages live on ranks {schedule.stage_to_rank}, but there are {schedule.num_ranks}")
    if not schedule.mirrored <= set(range(schedule.num_microbatches)):
        raise InputError(f"microbatches {sorted(schedule.mirrored)} are mirrored, but not all of them exist")
    microbatches = schedule.num_microbatches
    tallies = [0] * (schedule.num_stages * microbatches)
    for rank, actions in enumerate(schedule.ranks):
        if not actions:
            raise InputError(f"rank {rank} has no work; a pipeline has at least one stage per rank")
        straight, opposite = (
            [home == place for home in schedule.stage_to_rank]
            for place in (rank, schedule.num_ranks - 1 - rank)
        )
        for action in actions:
            stage, work, microbatch = action
            homes = opposite if microbatch in schedule.mirrored else straight
            if not (0 <= stage < schedule.num_stages and homes[stage] and 0 <= microbatch < microbatches):
                raise InputError(_misplaced(schedule, rank, action))
            tallies[stage * microbatches + microbatch] += _TALLY[work]
    for visit, tally in enumerate(tallies):
        if tally not in _COMPLETE:
            raise InputError(_incomplete(schedule, *divmod(visit, microbatches)))
    _check_overlaps(schedule)


_TALLY = tuple(1 << 32 * work for work in Pass)  # one count per pass in one integer
_COMPLETE = (_TALLY[Pass.F] + _TALLY[Pass.B], _TALLY[Pass.F] + _TALLY[Pass.I] + _TALLY[Pass.W])


def _check_overlaps(schedule: Schedule) -> None:
    if not schedule.overlapped:
        return
    pairs = {pair[0]: pair[1] for actions in schedule.ranks for pair in pairwise(actions)}
    for action in schedule.overlapped:
        second = pairs.get(action)
        if action.work is not Pass.F or second is None or second.work is not Pass.B:
            raise InputError(
                f"{action} overlaps with {second or 'nothing'}; "
                f"only a forward overlaps, and with a full backward: (2F1;3B0)OVERLAP_F_B"
            )


def _misplaced(schedule: Schedule, rank: int, action: Action) -> str:
    if 0 <= action.stage < schedule.num_stages and 0 <= action.microbatch < schedule.num_microbatches:
        home = schedule.home(action.stage, action.microbatch)
        return f"rank {rank} runs {action}, but stage {action.stage} lives on rank {home}"
    return (
        f"rank {rank} runs {action}, but the schedule has stages 0 to {schedule.num_stages - 1} "
        f"and microbatches 0 to {schedule.num_microbatches - 1}"
    )


def _incomplete(schedule: Schedule, stage: int, microbatch: int) -> str:
    actions = schedule.ranks[schedule.home(stage, microbatch)]
    found = [
        action.work.name for action in actions if (action.stage, action.microbatch) == (stage, microbatch)
    ]
    return (
        f"stage {stage} runs {', '.join(found) or 'nothing'} for microbatch {microbatch}; "
        f"it has to run F and B, or F, I and W, once each"
    )

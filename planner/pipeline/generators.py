"""Pipeline schedules by name: who runs what in which order; `SCHEDULES` is the table.

Most of them are one idea with different numbers: a rank runs ``warmup`` forwards, then alternates one forward
and one backward, then drains (`_alternate`). What differs is the order in which a rank visits its stages, the
length of the warm-up, and whether the backward is split so that weight gradients fill bubbles.

p is the number of ranks, m of microbatches, v of stages on each rank; ranks and stages count from 0.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, NamedTuple

from planner.errors import InputError, UnknownName
from planner.pipeline.schedule import Action, Pass, Schedule
from planner.pipeline.v_shaped import dualpipev, zb_v

Visit = tuple[int, int]
"""A stage and the microbatch that visits it."""

Generator = Callable[[int, int, int], Schedule]
"""From numbers of ranks, stages per rank and microbatches to a schedule."""


def _any(p: int, v: int, m: int) -> bool:
    return True


def _equal_rounds(p: int, v: int, m: int) -> bool:
    return m % max(1, m // p) == 0


_EQUAL_ROUNDS = "microbatches in max(1, microbatches // ranks) equal rounds, such as a multiple of the ranks"


class ScheduleEntry(NamedTuple):
    """What the planner knows of a schedule before it builds one."""

    generate: Generator
    description: str
    source: str
    stages_per_rank: tuple[int, int | None] = (1, 1)
    """Least and most stages on a rank; None is no limit."""
    splits_backward: bool = False
    """Input and weight gradients are separate passes (I and W)."""
    placement: Literal["loop", "v"] = "loop"
    """``loop``: stage s on rank s mod p. ``v``: the second half comes back in reverse."""
    requirement: str = ""
    """What the schedule needs of the numbers of ranks and microbatches; empty is nothing."""
    accepts: Callable[[int, int, int], bool] = _any
    """Whether p, v and m meet the requirement."""
    torch_name: str | None = None
    """Class in torch.distributed.pipelining, less ``Schedule``; None where it has none."""


def generate(name: str, num_ranks: int, virtual_stages: int, num_microbatches: int) -> Schedule:
    """The schedule ``name`` for ``num_ranks`` ranks with ``virtual_stages`` stages each.

    Raises: UnknownName; InputError where the schedule does not exist for these numbers.
    """
    reason = refusal(name, num_ranks, virtual_stages, num_microbatches)
    if reason:
        raise InputError(reason)
    return SCHEDULES[name].generate(num_ranks, virtual_stages, num_microbatches)


def stage_to_rank(name: str, num_ranks: int, virtual_stages: int) -> tuple[int, ...]:
    """The rank of every stage of the schedule ``name``, without generating it.

    Raises: UnknownName.
    """
    stages = range(num_ranks * virtual_stages)
    if _entry(name).placement == "v":
        return tuple(min(stage, 2 * num_ranks - 1 - stage) for stage in stages)
    return tuple(stage % num_ranks for stage in stages)


def _entry(name: str) -> ScheduleEntry:
    if name not in SCHEDULES:
        raise UnknownName("pipeline schedule", name, SCHEDULES)
    return SCHEDULES[name]


def refusal(name: str, num_ranks: int, virtual_stages: int, num_microbatches: int) -> str:
    """Why the schedule does not exist for these numbers, in a sentence; empty where it does.

    Raises: UnknownName.
    """
    entry = _entry(name)
    numbers = (num_ranks, virtual_stages, num_microbatches)
    if min(numbers) < 1:
        return "a pipeline needs at least one rank, stage per rank and microbatch; got {}, {} and {}".format(
            *numbers
        )
    least, most = entry.stages_per_rank
    if virtual_stages < least or (most is not None and virtual_stages > most):
        limit = "exactly" if least == most else "at least"
        return f"schedule {name} needs {limit} {least} stages per rank, got {virtual_stages}"
    if not entry.accepts(*numbers):
        got = f"got {num_microbatches} microbatches on {num_ranks} ranks"
        return f"schedule {name} needs {entry.requirement}; {got}"
    return ""


def _alternate(
    forwards: Sequence[Visit], backwards: Sequence[Visit], warmup: int, weight_delay: int | None = None
) -> list[Action]:
    """One forward, one backward, after ``warmup`` forwards.

    With ``weight_delay`` the backward is split, and a rank holds back that many weight gradients: as soon as
    one more is pending, the oldest runs. Without, the backward is whole.
    """
    actions = [Action(stage, Pass.F, microbatch) for stage, microbatch in forwards[:warmup]]
    backward = Pass.B if weight_delay is None else Pass.I
    pending: deque[Visit] = deque()
    for step, (stage, microbatch) in enumerate(backwards, start=warmup):
        if step < len(forwards):
            actions.append(Action(forwards[step][0], Pass.F, forwards[step][1]))
        actions.append(Action(stage, backward, microbatch))
        if weight_delay is not None:
            pending.append((stage, microbatch))
            if len(pending) > weight_delay:
                actions.append(_weight(pending.popleft()))
    actions.extend(_weight(visit) for visit in pending)
    return actions


def _weight(visit: Visit) -> Action:
    return Action(visit[0], Pass.W, visit[1])


def _one_stage(per_rank: Iterable[list[Action]], m: int) -> Schedule:
    ranks = tuple(tuple(actions) for actions in per_rank)
    return Schedule(ranks, tuple(range(len(ranks))), m)


def _visits(stage: int, m: int) -> list[Visit]:
    return [(stage, microbatch) for microbatch in range(m)]


def gpipe(p: int, v: int, m: int) -> Schedule:
    """All forwards, then all backwards in the same order."""
    return _one_stage((_alternate(_visits(s, m), _visits(s, m), m) for s in range(p)), m)


def one_f_one_b(p: int, v: int, m: int) -> Schedule:
    """After p-s-1 forwards, one forward and one backward in turn: at most p-s microbatches are in flight."""
    return _one_stage((_alternate(_visits(s, m), _visits(s, m), min(m, p - s - 1)) for s in range(p)), m)


def zb_h1(p: int, v: int, m: int) -> Schedule:
    """1F1B with the backward split; stage s keeps s weight gradients for the drain."""
    return _one_stage((_alternate(_visits(s, m), _visits(s, m), min(m, p - s - 1), s) for s in range(p)), m)


def zb_h2(p: int, v: int, m: int) -> Schedule:
    """Zero bubble where F = I = W: twice the warm-up of 1F1B and twice the weight gradients held back."""
    return _one_stage(
        (_alternate(_visits(s, m), _visits(s, m), min(m, 2 * (p - s - 1)), 2 * s) for s in range(p)), m
    )


def _round_size(p: int, m: int) -> int:
    """Microbatches that a rank runs through one stage before it turns to its next; p where p divides m."""
    return m // max(1, m // p)


def _rounds(stages: Sequence[int], m: int, size: int) -> list[Visit]:
    """Visits of a rank's stages, ``size`` microbatches at a time."""
    return [
        (stage, microbatch)
        for start in range(0, m, size)
        for stage in stages
        for microbatch in range(start, start + size)
    ]


def _looped(p: int, v: int, m: int, rank_actions: Callable[[int, Sequence[int]], list[Action]]) -> Schedule:
    """A schedule with stage s on rank s mod p."""
    ranks = tuple(tuple(rank_actions(rank, range(rank, p * v, p))) for rank in range(p))
    return Schedule(ranks, tuple(stage % p for stage in range(p * v)), m)


def interleaved(p: int, v: int, m: int) -> Schedule:
    """1F1B depth first over v stages per rank; the warm-up is 2(p-r-1) + (v-1) x round."""
    size = _round_size(p, m)

    def actions(rank: int, stages: Sequence[int]) -> list[Action]:
        warmup = min(m * v, (v - 1) * size + 2 * (p - rank - 1))
        return _alternate(_rounds(stages, m, size), _rounds(stages[::-1], m, size), warmup)

    return _looped(p, v, m, actions)


def interleaved_zb(p: int, v: int, m: int) -> Schedule:
    """Interleaved with the backward split: the warm-up is p-r-1 + (v-1) x round, and r weights wait."""
    size = _round_size(p, m)

    def actions(rank: int, stages: Sequence[int]) -> list[Action]:
        warmup = min(m * v, (v - 1) * size + p - rank - 1)
        return _alternate(_rounds(stages, m, size), _rounds(stages[::-1], m, size), warmup, rank)

    return _looped(p, v, m, actions)


def breadth_first(p: int, v: int, m: int) -> Schedule:
    """All microbatches through a rank's first stage, then its second, ...; backwards in the reverse order."""

    def actions(_: int, stages: Sequence[int]) -> list[Action]:
        forwards = _rounds(stages, m, m)
        return _alternate(forwards, forwards[::-1], len(forwards))

    return _looped(p, v, m, actions)


SCHEDULES: Mapping[str, ScheduleEntry] = MappingProxyType(
    {
        "gpipe": ScheduleEntry(
            gpipe,
            description="all forwards, then all backwards; holds the activations of every microbatch",
            source="GPipe, arXiv:1811.06965",
            torch_name="GPipe",
        ),
        "1f1b": ScheduleEntry(
            one_f_one_b,
            description="one forward, one backward; the bubble of gpipe, but at most p microbatches held",
            source="PipeDream-Flush, arXiv:2006.09503; DAPPLE, arXiv:2007.01045",
            torch_name="1F1B",
        ),
        "interleaved": ScheduleEntry(
            interleaved,
            description="1f1b over v stages per rank: bubble / v, messages x v, somewhat more memory",
            source="Megatron-LM, arXiv:2104.04473",
            stages_per_rank=(2, None),
            requirement=_EQUAL_ROUNDS,
            accepts=_equal_rounds,
            torch_name="Interleaved1F1B",
        ),
        "breadth-first": ScheduleEntry(
            breadth_first,
            description="gpipe over v stages per rank: bubble / v, long runs of one stage, most memory",
            source="breadth-first pipeline parallelism, arXiv:2211.05953",
            stages_per_rank=(1, None),
            torch_name="LoopedBFS",
        ),
        "zb-h1": ScheduleEntry(
            zb_h1,
            description="1f1b with weight gradients moved into the bubble: a third of it, same memory",
            source="zero bubble, arXiv:2401.10241",
            splits_backward=True,
        ),
        "zb-h2": ScheduleEntry(
            zb_h2,
            description="no bubble where F = I = W, for twice the activations; ranks end one by one",
            source="zero bubble, arXiv:2401.10241",
            splits_backward=True,
        ),
        "interleaved-zb": ScheduleEntry(
            interleaved_zb,
            description="zb-h1 over v stages per rank: a v-th of its bubble",
            source="zero bubble, arXiv:2401.10241, as in torch.distributed.pipelining",
            stages_per_rank=(1, None),
            splits_backward=True,
            requirement=_EQUAL_ROUNDS,
            accepts=_equal_rounds,
            torch_name="InterleavedZeroBubble",
        ),
        "zb-v": ScheduleEntry(
            zb_v,
            description="stages run down the ranks and back: no bubble where F = I = W, memory of 1f1b",
            source="zero bubble, arXiv:2401.10241, section 6",
            stages_per_rank=(2, 2),
            splits_backward=True,
            placement="v",
            torch_name="ZBVZeroBubble",
        ),
        "dualpipev": ScheduleEntry(
            dualpipev,
            description="stages run down the ranks and back; forwards overlap with backwards",
            source="DeepSeek-V3, arXiv:2412.19437; github.com/deepseek-ai/DualPipe",
            stages_per_rank=(2, 2),
            splits_backward=True,
            placement="v",
            requirement="at least twice as many microbatches as ranks",
            accepts=lambda p, v, m: m >= 2 * p,
            torch_name="DualPipeV",
        ),
    }
)

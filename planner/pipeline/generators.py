"""Pipeline schedules by name: `SCHEDULES` is the table; the families have modules of their own.

p is the number of ranks, m of microbatches, v of stages on each rank; ranks and stages count from 0.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import takewhile
from types import MappingProxyType
from typing import Literal, NamedTuple

from planner.errors import InputError, UnknownName
from planner.pipeline.controllable import v_half, v_min
from planner.pipeline.dualpipe import dualpipe, dualpipev
from planner.pipeline.looped import breadth_first, interleaved, interleaved_zb, round_size
from planner.pipeline.one_way import eager_one_f_one_b, gpipe, one_f_one_b, zb_h1, zb_h2
from planner.pipeline.schedule import Action, Pass, Schedule, from_csv
from planner.pipeline.token_slices import terapipe
from planner.pipeline.v_shaped import zb_v
from planner.pipeline.waves import chimera, hanayo, wave_homes

Generator = Callable[[int, int, int], Schedule]
"""From numbers of ranks, stages per rank and microbatches to a schedule."""


def _any(p: int, v: int, m: int) -> bool:
    return True


def _one(p: int, m: int) -> int:
    return 1


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
    placement: Literal["loop", "wave"] = "loop"
    """``loop``: stage s on rank s mod p. ``wave``: down the ranks and up again, and so on."""
    copies: Literal[1, 2] = 1
    """Copies of every stage, on opposite ranks; with two, half of the microbatches go the other way."""
    requirement: str = ""
    """What the schedule needs of the numbers of ranks and microbatches; empty is nothing."""
    accepts: Callable[[int, int, int], bool] = _any
    """Whether p, v and m meet the requirement."""
    turn: Callable[[int, int], int] = _one
    """Microbatches, by p and m, that a rank runs through one of its stages before it turns to the next."""
    torch_name: str | None = None
    """Class in torch.distributed.pipelining, less ``Schedule``; None where it has none."""
    also: tuple[str, ...] = ()
    """What papers and frameworks call it besides, in small letters."""


def generate(name: str, num_ranks: int, virtual_stages: int, num_microbatches: int) -> Schedule:
    """The schedule ``name`` for ``num_ranks`` ranks with ``virtual_stages`` stages each.

    Raises: UnknownName; InputError where the schedule does not exist for these numbers.
    """
    reason = refusal(name, num_ranks, virtual_stages, num_microbatches)
    if reason:
        raise InputError(reason)
    return schedule_entry(name).generate(num_ranks, virtual_stages, num_microbatches)


def stage_to_rank(name: str, num_ranks: int, virtual_stages: int) -> tuple[int, ...]:
    """The rank of every stage (of its first copy) of the schedule ``name``, without generating it.

    Raises: UnknownName.
    """
    stages = num_ranks * virtual_stages
    if is_written_out(name):
        return _read(name).stage_to_rank
    if schedule_entry(name).placement == "wave":
        return wave_homes(num_ranks, stages)
    return tuple(stage % num_ranks for stage in range(stages))


def schedule_entry(name: str) -> ScheduleEntry:
    """What is known of the schedule ``name``, which may be written out as PyTorch's CSV.

    Raises: UnknownName; InputError where the CSV cannot be read.
    """
    if is_written_out(name):
        return _written_entry(name)
    if name not in SCHEDULES:
        if (ours := usual_name(name)) != name:
            raise InputError(f"unknown pipeline schedule {name!r}; here it is {ours}")
        raise UnknownName("pipeline schedule", name, SCHEDULES, see="`meshwright schedules` lists them")
    return SCHEDULES[name]


def usual_name(name: str) -> str:
    """Our name of a schedule that papers, frameworks or a capital letter call otherwise; other text as it is."""
    meant = (known for known, entry in SCHEDULES.items() if name.lower() in (known, *entry.also))
    return next(meant, name)


def splits_backward(name: str) -> bool:
    """Whether input and weight gradients are separate passes; errors as `schedule_entry`."""
    return schedule_entry(name).splits_backward


def is_written_out(name: str) -> bool:
    """Whether ``name`` is itself the orders of all ranks, as PyTorch's CSV: a plan can hold any schedule."""
    return "," in name or "\n" in name


def schedule_label(name: str) -> str:
    """The schedule's name; of one that is written out, what it is."""
    return f"written out ({_written_entry(name).requirement})" if is_written_out(name) else name


@lru_cache(maxsize=64)
def _read(csv: str) -> Schedule:
    return from_csv(csv)


@lru_cache(maxsize=64)
def _written_entry(csv: str) -> ScheduleEntry:
    schedule = _read(csv)
    p, m = schedule.num_ranks, schedule.num_microbatches
    v, rest = divmod(schedule.num_stages, p)
    if rest:
        raise InputError(
            f"the schedule has {schedule.num_stages} stages on {p} ranks; give each rank as many"
        )
    if schedule.mirrored and 2 * len(schedule.mirrored) != m:
        raise InputError(
            f"{len(schedule.mirrored)} of the schedule's {m} microbatches cross it the other way; half of them have to"
        )
    return ScheduleEntry(
        lambda p, v, m: schedule,
        description="orders given by the user",
        source="the user",
        stages_per_rank=(v, v),
        splits_backward=any(a.work is Pass.I for actions in schedule.ranks for a in actions),
        copies=2 if schedule.mirrored else 1,
        requirement=f"{p} ranks with {v} stages each and {m} microbatches",
        accepts=lambda *numbers: numbers == (p, v, m),
        turn=lambda *_: min(_last_turn(actions) for actions in schedule.ranks),
    )


def _last_turn(actions: Sequence[Action]) -> int:
    """Microbatches that a rank runs through the stage that ends its order, without another in between."""
    passes = (action for action in reversed(actions) if action.work is not Pass.W)
    last = takewhile(lambda a: a.stage == actions[-1].stage and a.work is not Pass.F, passes)
    return max(1, sum(1 for _ in last))


def refusal(name: str, num_ranks: int, virtual_stages: int, num_microbatches: int) -> str:
    """Why the schedule does not exist for these numbers, in a sentence; empty where it does.

    Raises: UnknownName.
    """
    entry = schedule_entry(name)
    numbers = (num_ranks, virtual_stages, num_microbatches)
    if min(numbers) < 1:
        return "a pipeline needs at least one rank, stage per rank and microbatch; got {}, {} and {}".format(
            *numbers
        )
    least, most = entry.stages_per_rank
    if virtual_stages < least or (most is not None and virtual_stages > most):
        limit = "exactly" if least == most else "at least"
        return f"schedule {schedule_label(name)} needs {limit} {least} stages per rank, got {virtual_stages}"
    if not entry.accepts(*numbers):
        got = f"got {num_microbatches} microbatches on {num_ranks} ranks with {virtual_stages} stages each"
        return f"schedule {'as written' if is_written_out(name) else name} needs {entry.requirement}; {got}"
    return ""


SCHEDULES: Mapping[str, ScheduleEntry] = MappingProxyType(
    {
        "gpipe": ScheduleEntry(
            gpipe,
            description="all forwards, then all backwards; holds the activations of every microbatch",
            source="GPipe, arXiv:1811.06965",
            also=("afab", "all-forward-all-backward"),
            torch_name="GPipe",
        ),
        "1f1b": ScheduleEntry(
            one_f_one_b,
            description="one forward, one backward; the bubble of gpipe, but at most p microbatches held",
            source="PipeDream-Flush, arXiv:2006.09503; DAPPLE, arXiv:2007.01045",
            also=("dapple", "pipedream-flush", "one-f-one-b"),
            torch_name="1F1B",
        ),
        "eager-1f1b": ScheduleEntry(
            eager_one_f_one_b,
            description="1f1b with up to 2p-1 microbatches held, so that transfers hide behind compute",
            source="arXiv:2211.05322; alpa's overlap-friendly 1F1B",
            also=("overlap-friendly", "1f1b-overlap-friendly"),
        ),
        "interleaved": ScheduleEntry(
            interleaved,
            description="1f1b over v stages per rank, depth first: bubble / v, messages x v, more memory",
            source="Megatron-LM, arXiv:2104.04473; the depth-first schedule of arXiv:2211.05953",
            also=("depth-first", "interleaved-1f1b", "interleaved1f1b"),
            stages_per_rank=(2, None),
            requirement=_EQUAL_ROUNDS,
            accepts=_equal_rounds,
            turn=round_size,
            torch_name="Interleaved1F1B",
        ),
        "breadth-first": ScheduleEntry(
            breadth_first,
            description="gpipe over v stages per rank: bubble / v, long runs of one stage, most memory",
            source="breadth-first pipeline parallelism, arXiv:2211.05953",
            also=("looped-bfs", "loopedbfs", "bfs"),
            stages_per_rank=(1, None),
            turn=lambda p, m: m,
            torch_name="LoopedBFS",
        ),
        "zb-h1": ScheduleEntry(
            zb_h1,
            description="1f1b with weight gradients moved into the bubble: a third of it, same memory",
            source="zero bubble, arXiv:2401.10241",
            also=("zb-1p", "zb1p", "zbh1"),
            splits_backward=True,
        ),
        "zb-h2": ScheduleEntry(
            zb_h2,
            description="no bubble where F = I = W, for twice the activations; ranks end one by one",
            source="zero bubble, arXiv:2401.10241",
            also=("zbh2",),
            splits_backward=True,
        ),
        "interleaved-zb": ScheduleEntry(
            interleaved_zb,
            description="zb-h1 over v stages per rank: a v-th of its bubble",
            source="zero bubble, arXiv:2401.10241, as in torch.distributed.pipelining",
            also=("interleavedzerobubble", "interleaved-zero-bubble"),
            stages_per_rank=(1, None),
            splits_backward=True,
            requirement=_EQUAL_ROUNDS,
            accepts=_equal_rounds,
            turn=round_size,
            torch_name="InterleavedZeroBubble",
        ),
        "zb-v": ScheduleEntry(
            zb_v,
            description="stages run down the ranks and back: no bubble where F = I = W, memory of 1f1b",
            source="zero bubble, arXiv:2401.10241, section 6",
            also=("zbv", "zbvzerobubble"),
            stages_per_rank=(2, 2),
            splits_backward=True,
            placement="wave",
            torch_name="ZBVZeroBubble",
        ),
        "dualpipev": ScheduleEntry(
            dualpipev,
            description="stages run down the ranks and back; forwards overlap with backwards",
            source="DeepSeek-V3, arXiv:2412.19437; github.com/deepseek-ai/DualPipe",
            stages_per_rank=(2, 2),
            splits_backward=True,
            placement="wave",
            requirement="at least twice as many microbatches as ranks",
            accepts=lambda p, v, m: m >= 2 * p,
            torch_name="DualPipeV",
        ),
        "v-half": ScheduleEntry(
            v_half,
            description="stages down the ranks and back: half the activations of 1f1b, and half its bubble",
            source="controllable memory, arXiv:2405.15362",
            stages_per_rank=(2, 2),
            splits_backward=True,
            placement="wave",
        ),
        "v-min": ScheduleEntry(
            v_min,
            description="stages down the ranks and back: a third of the activations of 1f1b, 2/3 of its bubble",
            source="controllable memory, arXiv:2405.15362",
            stages_per_rank=(2, 2),
            splits_backward=True,
            placement="wave",
        ),
        "hanayo": ScheduleEntry(
            hanayo,
            description="v/2 waves of stages down the ranks and up again: bubble / v where F = B, stages held once",
            source="Hanayo, arXiv:2308.15762",
            stages_per_rank=(2, None),
            placement="wave",
            requirement="an even number of stages per rank",
            accepts=lambda p, v, m: v % 2 == 0,
        ),
        "chimera": ScheduleEntry(
            chimera,
            description="two copies of the model in opposite directions: half the bubble where F = B, even memory",
            source="Chimera, arXiv:2107.06925",
            copies=2,
            requirement="even numbers of ranks and microbatches",
            accepts=lambda p, v, m: p % 2 == 0 and m % 2 == 0,
        ),
        "dualpipe": ScheduleEntry(
            dualpipe,
            description="two copies of the model in opposite directions; forwards overlap with backwards",
            source="DeepSeek-V3, arXiv:2412.19437; github.com/deepseek-ai/DualPipe",
            splits_backward=True,
            copies=2,
            requirement="even numbers of ranks and microbatches, at least twice as many microbatches as ranks",
            accepts=lambda p, v, m: p % 2 == 0 and m % 2 == 0 and m >= 2 * p,
        ),
        "terapipe": ScheduleEntry(
            terapipe,
            description="microbatches are slices of sequences, which attend to those before: gpipe, back in reverse",
            source="TeraPipe, arXiv:2102.07988",
        ),
    }
)

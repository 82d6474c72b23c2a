"""Schedules with one stage on each rank, and the idea that most schedules share.

A rank runs ``warmup`` forwards, then alternates one forward and one backward, then drains (`alternate`). What
differs is the length of the warm-up, and whether the backward is split so that weight gradients fill bubbles.

p is the number of ranks, m of microbatches, v of stages on each rank; ranks and stages count from 0.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from planner.pipeline.schedule import Action, Pass, Schedule

Visit = tuple[int, int]
"""A stage and the microbatch that visits it."""


def alternate(
    forwards: Sequence[Visit], backwards: Sequence[Visit], warmup: int, weight_delay: int | None = None
) -> list[Action]:
    """One forward, one backward, after ``warmup`` forwards.

    With ``weight_delay`` the backward is split, and a rank holds back that many weight gradients: as soon as
    one more is pending, the oldest runs. Without, the backward is whole.
    """
    forth = [Action(stage, Pass.F, microbatch) for stage, microbatch in forwards]
    backward = Pass.B if weight_delay is None else Pass.I
    back = [Action(stage, backward, microbatch) for stage, microbatch in backwards]
    if weight_delay is None:
        turns = len(forth) - warmup
        both = [*forth[warmup:], *back[:turns]]
        both[::2], both[1::2] = forth[warmup:], back[:turns]
        return [*forth[:warmup], *both, *back[turns:]]
    actions, pending = forth[:warmup], deque[Visit]()
    for step, (own, visit) in enumerate(zip(back, backwards, strict=True), start=warmup):
        actions += (*forth[step : step + 1], own)
        pending.append(visit)
        if len(pending) > weight_delay:
            actions.append(_weight(pending.popleft()))
    actions.extend(_weight(visit) for visit in pending)
    return actions


def _weight(visit: Visit) -> Action:
    return Action(visit[0], Pass.W, visit[1])


def one_stage(per_rank: Iterable[list[Action]], m: int) -> Schedule:
    """The schedule with stage s on rank s."""
    ranks = tuple(tuple(actions) for actions in per_rank)
    return Schedule(ranks, tuple(range(len(ranks))), m)


def visits(stage: int, m: int) -> list[Visit]:
    """All microbatches through one stage, in order."""
    return [(stage, microbatch) for microbatch in range(m)]


def gpipe(p: int, v: int, m: int) -> Schedule:
    """All forwards, then all backwards in the same order."""
    return one_stage((alternate(visits(s, m), visits(s, m), m) for s in range(p)), m)


def one_f_one_b(p: int, v: int, m: int) -> Schedule:
    """After p-s-1 forwards, one forward and one backward in turn: at most p-s microbatches are in flight."""
    return one_stage((alternate(visits(s, m), visits(s, m), min(m, p - s - 1)) for s in range(p)), m)


def eager_one_f_one_b(p: int, v: int, m: int) -> Schedule:
    """1F1B with twice the warm-up, so that transfers run while other microbatches are computed."""
    return one_stage((alternate(visits(s, m), visits(s, m), min(m, 2 * (p - s - 1))) for s in range(p)), m)


def zb_h1(p: int, v: int, m: int) -> Schedule:
    """1F1B with the backward split; stage s keeps s weight gradients for the drain."""
    return one_stage((alternate(visits(s, m), visits(s, m), min(m, p - s - 1), s) for s in range(p)), m)


def zb_h2(p: int, v: int, m: int) -> Schedule:
    """Zero bubble where F = I = W: twice the warm-up of 1F1B and twice the weight gradients held back."""
    return one_stage(
        (alternate(visits(s, m), visits(s, m), min(m, 2 * (p - s - 1)), 2 * s) for s in range(p)), m
    )

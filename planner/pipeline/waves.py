"""Chimera and Hanayo: two arrangements of one timetable in which nothing collides.

Time is cut into slots, one for a forward and one for a backward of a stage. A microbatch that enters at slot t meets
stage s of S at t + s, and on its way back at t + 2S - 1 - s. Let ``unit`` microbatches enter every other slot, and
the next unit 2S slots after the first: then no rank has to be in two places at once, for Chimera (both directions,
``unit`` = p/2 of each) nor for Hanayo (one direction up and down the ranks, ``unit`` = p), and after the ramp every
slot is used. A rank runs its passes in the order of these slots; how long they take does not matter.

Source: Chimera, arXiv:2107.06925, section 3; Hanayo, arXiv:2308.15762, which folds Chimera's two directions.
"""

from collections.abc import Iterator

from planner.pipeline.schedule import Action, Pass, Schedule

Slotted = tuple[int, Action]


def _crossing(num_stages: int, unit: int, index: int, microbatch: int) -> Iterator[Slotted]:
    """Slot and action of everything that happens to the microbatch, the ``index``-th of its direction."""
    units, place = divmod(index, unit)
    enters = 2 * num_stages * units + 2 * place
    for stage in range(num_stages):
        yield enters + stage, Action(stage, Pass.F, microbatch)
        yield enters + 2 * num_stages - 1 - stage, Action(stage, Pass.B, microbatch)


def chimera(p: int, v: int, m: int) -> Schedule:
    """Chimera for even p: even microbatches start on the first rank, odd ones on the last."""
    ranks: list[list[Slotted]] = [[] for _ in range(p)]
    for microbatch in range(m):
        index, up = divmod(microbatch, 2)
        for slot, action in _crossing(p, p // 2, index, microbatch):
            ranks[p - 1 - action.stage if up else action.stage].append((slot, action))
    return Schedule(_in_order(ranks), tuple(range(p)), m, mirrored=frozenset(range(1, m, 2)))


def hanayo(p: int, v: int, m: int) -> Schedule:
    """Hanayo with v/2 waves: stages run down the ranks and up again, v/2 times."""
    homes = wave_homes(p, p * v)
    ranks: list[list[Slotted]] = [[] for _ in range(p)]
    for microbatch in range(m):
        for slot, action in _crossing(p * v, p, microbatch, microbatch):
            ranks[homes[action.stage]].append((slot, action))
    return Schedule(_in_order(ranks), homes, m)


def wave_homes(p: int, num_stages: int) -> tuple[int, ...]:
    """Ranks of stages that run down p ranks and up again: 0, 1, ..., p-1, p-1, ..., 1, 0, 0, 1, ..."""
    return tuple(min(stage % (2 * p), 2 * p - 1 - stage % (2 * p)) for stage in range(num_stages))


def _in_order(ranks: list[list[Slotted]]) -> tuple[tuple[Action, ...], ...]:
    return tuple(tuple(action for _, action in sorted(slotted)) for slotted in ranks)

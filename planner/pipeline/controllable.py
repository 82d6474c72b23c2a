"""V-Half and V-Min: stages down the ranks and back, spaced so that a microbatch lives only as long as it must.

A building block says in which slot each rank runs the forwards and input gradients of one microbatch; it repeats
every six slots, for three passes of two stages. How long a microbatch stays on a rank, and so how many are there at
once, follows from the spacing alone. Weight gradients take the slots that are left. Where the pipeline fills and
drains, passes then move up into free slots, as far as they can without holding more than the steady state does.

Source: Qi et al., Pipeline parallelism with controllable memory, arXiv:2405.15362, sections 3 and 4; slots as in
sail-sg/zero-bubble-pipeline-parallelism, v_schedule_greedy.py.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

import numpy as np

from planner.pipeline.schedule import Action, Pass, Schedule
from planner.pipeline.waves import wave_homes

PERIOD = 6

Block = Sequence[tuple[Action, int]]
"""What one rank does for the first microbatch, and in which slot; weight gradients left out."""


def v_half(p: int, v: int, m: int) -> Schedule:
    """Half the activation memory of 1F1B."""
    wait = 3 if p % 2 == 0 else 0  # so that passes of different microbatches do not fall into one slot

    def block(r: int) -> Block:
        turn = 3 * p - 1 + wait
        return _block(p, r, 2 * r, 3 * p - 2 - r, turn + 2 * r, turn + 3 * p - 1 - r)

    return _repeat(p, m, block)


def v_min(p: int, v: int, m: int) -> Schedule:
    """A third of the activation memory of 1F1B, the least that leaves no rank waiting in the steady state."""
    wait = 2 if p % 3 == 0 else 0

    def block(r: int) -> Block:
        turn = 2 * p + wait
        return _block(p, r, r, 2 * p - 1 - r, turn + r, turn + 2 * p - 1 - r)

    return _repeat(p, m, block)


def _block(p: int, r: int, down: int, up: int, back_down: int, back_up: int) -> Block:
    first, second = r, 2 * p - 1 - r
    return (
        (Action(first, Pass.F, 0), down),
        (Action(second, Pass.F, 0), up),
        (Action(second, Pass.I, 0), back_down),
        (Action(first, Pass.I, 0), back_up),
    )


def _repeat(p: int, m: int, block: Callable[[int], Block]) -> Schedule:
    """The block m times on each of p ranks, its ramps squeezed."""
    homes = wave_homes(p, 2 * p)
    table = _Table([_Line(_passes(block(rank), m)) for rank in range(p)], homes)
    for line in table.lines:
        line.fill_in_weights()
    limit = max(line.most_held() for line in table.lines)
    filled, draining = table.slot_of(Action(0, Pass.I, 0)), table.slot_of(Action(0, Pass.F, m - 1))
    table.move_up(lambda slot: slot < filled or slot > draining, limit)
    # What drains goes first; its weight gradients then take what is left again.
    for line in table.lines:
        line.take_out_weights(draining)
    table.move_up(lambda slot: slot > draining, limit)
    for line in table.lines:
        line.fill_in_weights()
    return Schedule(tuple(line.order() for line in table.lines), homes, m)


def _passes(block: Block, m: int) -> dict[Action, int]:
    return {
        action._replace(microbatch=microbatch): slot + PERIOD * microbatch
        for action, slot in block
        for microbatch in range(m)
    }


class _Line:
    """The slots of one rank.

    Up to ``settled`` nothing changes any more; then ``held`` stage activations are left, and the weight gradients
    ``owed`` have no slot yet. While all have one, ``profile`` counts what is held, slot by slot.
    """

    def __init__(self, slots: dict[Action, int]) -> None:
        self.slots = slots
        self.at = {slot: action for action, slot in slots.items()}
        self.settled, self.held = -1, 0
        self.owed: list[Action] = []
        self.profile = np.zeros(0, dtype=np.int64)

    def order(self) -> tuple[Action, ...]:
        return tuple(self.at[slot] for slot in sorted(self.at))

    def fill_in_weights(self) -> None:
        """Every free slot after ``settled`` takes the oldest weight gradient that is owed."""
        for slot, action in list(self._with_weights()):
            self.at[slot], self.slots[action] = action, slot
        changes = np.zeros(max(self.at) + 1, dtype=np.int64)
        for slot, action in self.at.items():
            changes[slot] = _CHANGE[action.work]
        self.profile = changes.cumsum()

    def take_out_weights(self, after: int) -> None:
        settled = [action for slot, action in self.at.items() if slot <= after]
        for slot, action in list(self.at.items()):
            if slot > after and action.work is Pass.W:
                del self.at[slot], self.slots[action]
        self.settled, self.held = after, sum(_CHANGE[action.work] for action in settled)
        debts = (action._replace(work=Pass.W) for action in settled if action.work is Pass.I)
        self.owed = sorted((d for d in debts if d not in self.slots), key=lambda d: self.slots[_debtor(d)])

    def _with_weights(self) -> Iterator[tuple[int, Action]]:
        """Slots and actions after ``settled``, as `fill_in_weights` would leave them."""
        owed = deque(self.owed)
        slot, last = self.settled + 1, max(self.at)
        while slot <= last or owed:
            action = self.at.get(slot)
            if action is None and owed:
                action = owed.popleft()
            if action is not None:
                yield slot, action
                if action.work is Pass.I and (debt := action._replace(work=Pass.W)) not in self.slots:
                    owed.append(debt)
            slot += 1

    def most_held(self) -> int:
        """Stage activations held at most after ``settled``."""
        changes = (_CHANGE[action.work] for _, action in self._with_weights())
        return max(accumulate(changes, initial=self.held))

    def move_up(self, action: Action, earliest: int, limit: int) -> None:
        """Into the first free slot from which the rank never holds more than ``limit``."""
        old = self.slots[action]
        for new in range(max(earliest, 0), old):
            if new not in self.at and not (new <= self.settled < old) and self._fits(action, new, limit):
                self._move(action, new)
                self.profile[new:old] += _CHANGE[action.work]
                return

    def _fits(self, action: Action, new: int, limit: int) -> bool:
        if action.work is Pass.W:
            return True
        old = self.slots[action]
        if self.settled < 0:  # nothing else moves, so what is held changes between the two slots only
            return action.work is Pass.I or int(self.profile[new:old].max()) < limit
        self._move(action, new)
        fits = self.most_held() <= limit
        self._move(action, old)
        return fits

    def _move(self, action: Action, new: int) -> None:
        old = self.slots[action]
        del self.at[old]
        self.at[new], self.slots[action] = action, new


_CHANGE = {Pass.F: 1, Pass.I: 0, Pass.W: -1}


def _debtor(weight: Action) -> Action:
    return weight._replace(work=Pass.I)


class _Table:
    """The slots of all ranks."""

    def __init__(self, lines: Sequence[_Line], homes: tuple[int, ...]) -> None:
        self.lines, self.homes = lines, homes

    def slot_of(self, action: Action) -> int:
        return self.lines[self.homes[action.stage]].slots[action]

    def move_up(self, where: Callable[[int], bool], limit: int) -> None:
        """What stands in such slots, in their order."""
        everything = sorted((slot, action) for line in self.lines for action, slot in line.slots.items())
        for slot, action in everything:
            if where(slot):
                earliest = 1 + max((self.slot_of(other) for other in self._before(action)), default=-1)
                self.lines[self.homes[action.stage]].move_up(action, earliest, limit)

    def _before(self, action: Action) -> Iterator[Action]:
        """What has to be over."""
        stage, work, microbatch = action
        last = len(self.homes) - 1
        if microbatch > 0:
            yield Action(stage, work, microbatch - 1)
        if work is Pass.W:
            yield Action(stage, Pass.I, microbatch)
        elif work is Pass.F and stage > 0:
            yield Action(stage - 1, Pass.F, microbatch)
        elif work is Pass.I:
            yield Action(stage + 1, Pass.I, microbatch) if stage < last else Action(stage, Pass.F, microbatch)

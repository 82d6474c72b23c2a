"""Links that carry one result at a time: what is sent faster than they carry it queues at both ends.

A rank sends its results in the order in which it makes them. Where ranks share a switch, each has one port out and one
port in, and a result occupies the sender's and the receiver's at once: first asked, first served. Where neighbours have
a wire of their own (a torus), only results that take the same wire wait for each other.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from planner.pipeline.dependencies import Dependencies, Floats, Integers

Ports: TypeAlias = Literal["endless", "rank", "wire"]
"""What results have to share: nothing, one port out and one in of every rank, or a wire between two ranks."""

INFINITY = float("inf")

SAME_MOMENT = 1e-12
"""Relative to the step: times that differ by less are the same."""

ROUNDS = 12
"""In which arrivals settle where few results collide."""


class Work(NamedTuple):
    """What a simulation needs besides the order, by number [s]."""

    seconds: Floats
    """Time at work."""
    sending: Floats
    """For which the rank itself is busy with sending, once it is done."""
    hops: Floats
    """From stage s to s+1 and back, by s; 0 at the end."""


class Ran(NamedTuple):
    """By number [s]."""

    ends: Floats
    released: Floats
    """When the rank can begin with the next action."""
    delivered: Floats
    """When the result of an action has reached another rank; its end where it reaches none."""


class Transfers(NamedTuple):
    """Results that change ranks, in the order of the actions that wait for them."""

    producer: Integers
    """Number of the action whose result it is."""
    handed: Integers
    """Number of the action at whose end it is handed over: of an overlapped pair the second."""
    consumer: Integers
    way_out: Integers
    """Number of the sender's port, or of the wire."""
    way_in: Integers
    """Number of the receiver's port, or of the wire."""
    seconds: Floats


def transfers(dependencies: Dependencies, hops: Floats, ports: Ports) -> Transfers:
    """Everything that changes ranks."""
    consumer = dependencies.consumers
    handed = dependencies.source[consumer]
    sender, receiver = dependencies.rank[handed], dependencies.rank[consumer]
    if ports == "wire":
        sender = receiver = (sender * (len(dependencies.offsets) - 1) + receiver).astype(np.int32)
    seconds = hops[dependencies.arrival[consumer]]
    return Transfers(dependencies.producers[consumer], handed, consumer, sender, receiver, seconds)


def settled(sent: Transfers, ends: Floats) -> Floats | None:
    """By transfer, from being handed over to its arrival [s], if actions end when ``ends`` says.

    A result sets off when it is there, the one before it is through, and the receiver has dealt with those that asked
    earlier. From the times without ports on, these are applied until nothing changes; None where that takes long.
    """
    takes_time = sent.seconds > 0
    ready, seconds = ends[sent.handed][takes_time], sent.seconds[takes_time]
    way_out, way_in = sent.way_out[takes_time], sent.way_in[takes_time]
    in_turn = np.lexsort((ready, way_out))
    through = ready + seconds
    for _ in range(ROUNDS):
        asked = np.maximum(ready, _before(through, way_out, in_turn))
        served = np.lexsort((asked, way_in))
        later = np.maximum(asked, _before(through, way_in, served)) + seconds
        if np.array_equal(later, through):
            waits = np.zeros_like(sent.seconds)
            waits[takes_time] = through - ready
            return waits
        through = later
    return None


def _before(through: Floats, way: Integers, order: NDArray[np.int64]) -> Floats:
    """When the way was free of the one before, by transfer; 0 for the first on it."""
    before = np.zeros_like(through)
    same = way[order][1:] == way[order][:-1]
    before[order[1:]] = np.where(same, through[order][:-1], 0.0)
    return before


class _Transfer(NamedTuple):
    """One of `Transfers`."""

    producer: int
    handed: int
    consumer: int
    way_out: int
    way_in: int
    seconds: float


def run_queued(dependencies: Dependencies, work: Work, sent: Transfers) -> Ran:
    """Everything in the order of time, with a queue at every port."""
    run = _Run.of(dependencies, work, sent)
    run.to_the_end(dependencies.program[dependencies.offsets[:-1]].tolist())
    ends = np.array(run.ends)
    delivered = np.where(np.isinf(run.delivered), ends, run.delivered)
    return Ran(ends, np.array(run.released), delivered)


@dataclass(slots=True)
class _Run:
    """The state of the simulation. Actions are numbered from 1 on; transfers and ports from 0 on."""

    seconds: Sequence[float]
    previous: Sequence[int]
    following: Sequence[int]
    """The next action on the rank; 0 for none."""
    waits_for: Sequence[int]
    """The action whose result has to arrive from another rank; 0 where none has."""
    blocking: bool
    sent: Sequence[Sequence[int]]
    """By action, the transfers that set off at its end."""
    transfers: Sequence[_Transfer]
    num_ways: int
    ends: list[float]
    released: list[float]
    delivered: list[float]
    idle: bytearray
    """By action: the rank has come to it, and its input is not there."""
    out_free: list[float]
    """By way out, from when on nothing is under way."""
    in_free: list[float]
    asks: bytearray
    """By way out: its next result asks for its way in."""
    unsent: dict[int, deque[int]] = field(default_factory=dict)
    """By way out, the results behind the one that is under way or asks."""
    asking: dict[int, deque[int]] = field(default_factory=dict)
    """By way in, the results that wait for it."""
    events: list[tuple[float, int]] = field(default_factory=list)
    """Moment, and the action that ends, or less than 0 the way (out, then in) that becomes free."""

    @classmethod
    def of(cls, dependencies: Dependencies, work: Work, sent: Transfers) -> "_Run":
        count, ranks = len(dependencies.stage), len(dependencies.offsets) - 1
        by_action: list[list[int]] = [[] for _ in range(count)]
        for number, handed in enumerate(sent.handed.tolist()):
            by_action[handed].append(number)
        waits_for = np.zeros(count, dtype=np.int32)
        waits_for[sent.consumer] = sent.producer
        following = np.zeros(count, dtype=np.int32)
        following[dependencies.previous[1:]] = np.arange(1, count)
        ways = ranks * ranks
        return cls(
            seconds=work.seconds.tolist(),
            previous=dependencies.previous.tolist(),
            following=following.tolist(),
            waits_for=waits_for.tolist(),
            blocking=bool(work.sending.any()),
            sent=by_action,
            transfers=list(map(_Transfer, *(column.tolist() for column in sent))),
            num_ways=ways,
            ends=[0.0] * count,
            released=[0.0] * count,
            delivered=[INFINITY] * count,
            idle=bytearray(count),
            out_free=[0.0] * ways,
            in_free=[0.0] * ways,
            asks=bytearray(ways),
        )

    def to_the_end(self, first: Sequence[int]) -> None:
        """Run until nothing happens any more; ``first`` is what each rank begins with."""
        for action in first:
            self._come_to(action, 0.0)
        events, num_ways = self.events, self.num_ways
        while events:
            now, what = heappop(events)
            if what > 0:
                self._ended(what, now)
            elif -what <= num_ways:
                self._way_out_free(-what - 1, now)
            else:
                self._way_in_free(-what - 1 - num_ways, now)

    def _come_to(self, action: int, now: float) -> None:
        """The rank is free for the action; it begins once its input is there."""
        waits_for = self.waits_for[action]
        arrival = self.delivered[waits_for] if waits_for else now
        if arrival == INFINITY:
            self.idle[action] = 1
            return
        self.ends[action] = end = (arrival if arrival > now else now) + self.seconds[action]
        heappush(self.events, (end, action))

    def _ended(self, action: int, now: float) -> None:
        sent = self.sent[action]
        for number in sent:
            self._hand_over(number, now)
        if sent and self.blocking:
            self._release(action)
            return
        self.released[action] = now
        if self.following[action]:
            self._come_to(self.following[action], now)

    def _release(self, action: int) -> None:
        """Let a rank go on that waits for its own sends, if all are under way: it is known when they arrive."""
        arrival = max(self.delivered[self.transfers[number].producer] for number in self.sent[action])
        self.released[action] = arrival
        if arrival < INFINITY and self.following[action]:
            self._come_to(self.following[action], arrival)

    def _hand_over(self, number: int, now: float) -> None:
        transfer = self.transfers[number]
        _, _, _, way, _, seconds = transfer
        if not seconds:
            self._deliver(transfer, now)
        elif self.asks[way] or way in self.unsent:
            self.unsent.setdefault(way, deque()).append(number)
        elif self.out_free[way] > now:
            self.unsent[way] = deque((number,))
            heappush(self.events, (self.out_free[way], -1 - way))
        else:
            self._ask(number, now)

    def _way_out_free(self, way: int, now: float) -> None:
        queue = self.unsent[way]
        number = queue.popleft()
        if not queue:
            del self.unsent[way]
        self._ask(number, now)

    def _ask(self, number: int, now: float) -> None:
        transfer = self.transfers[number]
        way = transfer.way_in
        if way in self.asking:
            self.asking[way].append(number)
        elif self.in_free[way] > now:
            self.asking[way] = deque((number,))
            heappush(self.events, (self.in_free[way], -1 - self.num_ways - way))
        else:
            self._set_off(transfer, now)
            return
        self.asks[transfer.way_out] = 1

    def _way_in_free(self, way: int, now: float) -> None:
        queue = self.asking[way]
        transfer = self.transfers[queue.popleft()]
        self.asks[transfer.way_out] = 0
        self._set_off(transfer, now)
        if queue:
            heappush(self.events, (self.in_free[way], -1 - self.num_ways - way))
        else:
            del self.asking[way]

    def _set_off(self, transfer: _Transfer, now: float) -> None:
        _, handed, _, way_out, way_in, seconds = transfer
        self.out_free[way_out] = self.in_free[way_in] = arrival = now + seconds
        if way_out in self.unsent:
            heappush(self.events, (arrival, -1 - way_out))
        self._deliver(transfer, arrival)
        if self.blocking and self.released[handed] == INFINITY:
            self._release(handed)

    def _deliver(self, transfer: _Transfer, arrival: float) -> None:
        """The result will be there at ``arrival``."""
        producer, _, action, _, _, _ = transfer
        self.delivered[producer] = arrival
        if self.idle[action]:
            free = self.released[self.previous[action]]
            self.ends[action] = end = (arrival if arrival > free else free) + self.seconds[action]
            heappush(self.events, (end, action))

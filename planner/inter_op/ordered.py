"""Cuts of layers and devices in the order of what their pipelines cannot be below.

A stage works ``w_k`` seconds for each of m microbatches, and ``a_k`` once all are through. It waits until the first
microbatch has come through the stages before it, and they wait until the last has gone back through it. Behind it a
microbatch takes at least ``R_k = sum_(j>k) w_j`` to come back. Between the forward and the backward of its first
microbatch, and of its last, it can only work on the ``q_k - 1`` others that it may hold beside that one; where m > q_k
these are different times, so it stands still for at least ``2 R_k - (q_k - 1) w_k``:

    M >= max_k (sum_(j<k) w_j + m w_k + max(0, 2 R_k - (q_k - 1) w_k) + a_k)

where a backward is not split and each rank has one stage. The least of that over all cuts follows from the last stage
to the first, V' and R' being those of the stages behind (R' the least there is),
``V = min max(m w + max(0, 2 R' - (q - 1) w) + a, w + V')``, and cuts come in its order by best-first search: whoever
simulates them in turn knows, whenever it is enough, what all others cannot be below.
"""

import heapq
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from planner.inter_op.partition import Array, Slot, StagePartition, Submesh, cover, slots_of

LONG = 1e300
"""Longer than any time [s], and yet a number."""


class Bounded(NamedTuple):
    """A cut, and what its step cannot be below [s]; no cut that comes later has a lower bound."""

    bound: float
    cut: StagePartition


class _Partial(NamedTuple):
    """The first stages of a cut."""

    bound: float
    passed: float
    """A microbatch through the stages so far, with what is added for the pipeline [s]."""
    slowest: float
    """What they cannot be below [s]."""
    waiting: float
    """The same less twice the time of a microbatch through all stages, for which they wait [s]."""
    left: int
    """Stages still to come."""
    start: int
    devices: int
    """Still to be used."""
    chosen: tuple[tuple[int, int, int], ...] = ()
    """Start, end and submesh of every stage so far."""


class _Longer(NamedTuple):
    """A partial cut with a stage on one submesh, wherever the stage may end; made one by one, in order."""

    partial: _Partial
    submesh: int
    ends: npt.NDArray[np.intp]
    """Of the stage, the least bound first, of equal ones the first end."""
    bounds: Array
    """In this order."""


class _Queue:
    """Partial cuts by their bounds; which came first decides between equals."""

    def __init__(self, tables: "_Tables", first: Sequence[_Partial]) -> None:
        """With these."""
        self._tables, self._came = tables, len(first)
        self._heap: list[tuple[float, int, _Partial | _Longer, int]] = [
            (partial.bound, came, partial, 0) for came, partial in enumerate(first)
        ]
        heapq.heapify(self._heap)

    def __bool__(self) -> bool:
        return bool(self._heap)

    @property
    def least(self) -> float:
        """What none is below [s]."""
        return self._heap[0][0]

    def add(self, longer: _Longer) -> None:
        """All of these, of which only the first has to be in the heap."""
        self._push(longer, self._came, 0)
        self._came += self._tables.work.shape[-1]

    def _push(self, longer: _Longer, came: int, which: int) -> None:
        heapq.heappush(
            self._heap, (float(longer.bounds[which]), came + int(longer.ends[which]), longer, which)
        )

    def pop(self) -> _Partial:
        """The first, which is taken out."""
        _, came, one, which = heapq.heappop(self._heap)
        if isinstance(one, _Partial):
            return one
        if which + 1 < len(one.ends):
            self._push(one, came - int(one.ends[which]), which + 1)
        return _made(self._tables, one, which)


def cuts_in_order(
    work: Array,
    after: Array,
    pools: Sequence[int],
    submeshes: Sequence[Submesh],
    num_microbatches: int,
    held: Sequence[int],
    extra: Sequence[float],
    enough: float = math.inf,
) -> Iterator[Bounded]:
    """All cuts whose bounds are below ``enough`` [s], that of the least bound first.

    ``work[stages after, k, start, end]`` and ``after`` are w and a of a stage on submesh k [s], infinite where it is
    not allowed. ``pools`` says how many devices each has, in the order in which a microbatch passes them, all of which
    are used; a submesh may be used any number of times. ``held[stages after]`` is q, the microbatches that a stage
    holds at most. ``extra[s - 1]`` [s] is added for a pipeline of s stages, infinite where there is to be none.
    """
    tables = _tables(work, after, slots_of(pools, submeshes), sum(pools), num_microbatches, held)
    least = tables.least
    queue = _Queue(
        tables,
        [
            _Partial(float(least[stages, 0, -1]) + seconds, seconds, 0.0, -LONG, stages, 0, sum(pools))
            for stages, seconds in enumerate(extra[: len(least) - 1], start=1)
            if np.isfinite(least[stages, 0, -1] + seconds)
        ],
    )
    while queue and queue.least < enough:
        partial = queue.pop()
        if not partial.left:
            yield Bounded(partial.bound, _cut(work, partial))
            continue
        for longer in _continued(tables, partial):
            queue.add(longer)


class _Tables(NamedTuple):
    work: Array
    alone: Array
    """m w + a: what a stage cannot be below if nothing comes before it or behind."""
    waiting: Array
    """(m - 2) w - (q - 1) w + a: the same less twice a microbatch through it and all behind, as it waits for them."""
    least: Array
    """V by stages, first layer and devices."""
    through: Array
    """A microbatch through the stages, at least, likewise."""
    slots: tuple[Slot, ...]


def _tables(
    work: Array, after: Array, slots: tuple[Slot, ...], devices: int, m: int, held: Sequence[int]
) -> _Tables:
    alone = m * work + after
    seconds, last = (np.where(np.isfinite(work), table, 0.0) for table in (work, after))
    others = np.asarray(held, dtype=np.float64)[:, None, None, None] - 1
    waiting = np.where(others < m - 1, (m - 2 - others) * seconds + last, -LONG)

    def cut(stage: Array, behind: Array) -> Array:
        through = stage[0] + behind[1]
        waits = np.maximum(stage[1], stage[2] + 2 * through)
        return np.stack((np.maximum(waits, stage[0] + behind[0]), through))

    least, through = cover(np.stack((work, alone, waiting), axis=2), slots, devices, cut, parts=2)
    return _Tables(work, alone, waiting, least, through, slots)


def _continued(tables: _Tables, partial: _Partial) -> Iterator[_Longer]:
    """The partial cut with every stage that may come next, by its submesh."""
    left, passed = partial.left - 1, partial.passed
    for submesh, (size, low, high) in enumerate(tables.slots):
        if not low <= partial.devices <= high:
            continue
        at, rest = (left, submesh, partial.start), (left, slice(None), partial.devices - size)
        longer = passed + tables.work[at]
        slowest = np.maximum(max(partial.bound, partial.slowest), passed + tables.alone[at])
        waiting = np.maximum(partial.waiting, tables.waiting[at] - passed)
        bounds = np.maximum(slowest, waiting + 2 * (longer + tables.through[rest]))
        if left:
            bounds = np.maximum(bounds, longer + tables.least[rest])
        (ends,) = np.nonzero(np.isfinite(bounds) & np.isfinite(tables.least[rest]))
        if ends.size:
            order = bounds[ends].argsort(kind="stable")
            yield _Longer(partial, submesh, ends[order], bounds[ends[order]])


def _made(tables: _Tables, longer: _Longer, which: int) -> _Partial:
    """The cut whose last stage has the end at this place in their order."""
    before, submesh, end = longer.partial, longer.submesh, int(longer.ends[which])
    left, passed = before.left - 1, before.passed
    at = (left, submesh, before.start, end)
    return _Partial(
        float(longer.bounds[which]),
        float(passed + tables.work[at]),
        float(max(before.slowest, passed + tables.alone[at])),
        float(max(before.waiting, tables.waiting[at] - passed)),
        left,
        end,
        before.devices - tables.slots[submesh].size,
        (*before.chosen, (before.start, end, submesh)),
    )


def _cut(work: Array, partial: _Partial) -> StagePartition:
    stages, seconds, submeshes = [], [], []
    for after, (start, end, submesh) in zip(
        reversed(range(len(partial.chosen))), partial.chosen, strict=True
    ):
        stages.append((start, end))
        seconds.append(float(work[after, submesh, start, end]))
        submeshes.append(submesh)
    return StagePartition(tuple(stages), tuple(seconds), tuple(submeshes))


def pools_bound(rates: Array, num_microbatches: int, waits: bool) -> float:
    """What no pipeline over pools can be below, if each works on every microbatch with all its devices [s].

    ``rates[k, l]`` [s] is what pool k would take for part l of the model. Let u_k be the time for which pool k works on
    a microbatch. Its slowest stage takes no less, and waits for the first microbatch to come from the pools before it
    and for the last to go back through them: ``M >= sum_(j<k) u_j + m u_k``. With weights y that add up to 1,
    ``M >= sum_l min_k c_k rates_kl`` with ``c_k = m y_k + sum_(j>k) y_j``. Where a rank has several stages, or
    backwards are split, there is less to wait for, and only ``m y_k`` counts: ``waits`` says which.
    """
    whole = rates.sum(axis=1)
    if np.isinf(whole).any():
        return float("inf")
    weights = np.zeros(len(whole))
    for k in reversed(range(len(whole))):
        waiting = weights[k + 1 :].sum() if waits else 0.0
        weights[k] = max(0.0, (1 / whole[k] - waiting) / num_microbatches)
    weights /= weights.sum()
    behind = weights[::-1].cumsum()[::-1] - weights if waits else 0.0
    return float(((num_microbatches * weights + behind)[:, None] * rates).min(axis=0).sum())

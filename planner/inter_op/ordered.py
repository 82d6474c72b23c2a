"""Cuts of layers and devices in the order of what their pipelines cannot be below.

A stage works ``w_k`` seconds for each of m microbatches, and ``a_k`` once all are through. It waits until the first
microbatch has come through the stages before it, and they wait until the last has gone back through it:

    M >= max_k (sum_(j<k) w_j + m w_k + a_k)

where a backward is not split and each rank has one stage. The least of that over all cuts follows from the last stage
to the first, ``V = min max(m w + a, w + V')`` with V' that of the stages behind, and cuts come in its order by
best-first search: whoever simulates them in turn knows, whenever it is enough, what all others cannot be below.
"""

import heapq
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from planner.inter_op.partition import Array, Slot, StagePartition, Submesh, cover, slots_of


class Bounded(NamedTuple):
    """A cut, and what its step cannot be below [s]; no cut that comes later has a lower bound."""

    bound: float
    cut: StagePartition


class _Partial(NamedTuple):
    """The first stages of a cut, in a queue."""

    bound: float
    order: int
    """Decides between equals."""
    passed: float
    """A microbatch through the stages so far, with what is added for the pipeline [s]."""
    slowest: float
    """What they cannot be below [s]."""
    left: int
    """Stages still to come."""
    start: int
    devices: int
    """Still to be used."""
    chosen: tuple[tuple[int, int, int], ...] = ()
    """Start, end and submesh of every stage so far."""


def cuts_in_order(
    work: Array,
    after: Array,
    pools: Sequence[int],
    submeshes: Sequence[Submesh],
    num_microbatches: int,
    extra: Sequence[float],
) -> Iterator[Bounded]:
    """All cuts, that of the least bound first.

    ``work[stages after, k, start, end]`` and ``after`` are w and a of a stage on submesh k [s], infinite where it is
    not allowed. ``pools`` says how many devices each has, in the order in which a microbatch passes them, all of which
    are used; a submesh may be used any number of times. ``extra[s - 1]`` [s] is added for a pipeline of s stages,
    infinite where there is to be none.
    """

    def through(stage: Array, behind: Array) -> Array:
        least: Array = np.maximum(num_microbatches * stage[0] + stage[1], stage[0] + behind)
        return least

    slots = slots_of(pools, submeshes)
    least = cover(np.stack((work, after), axis=2), slots, sum(pools), through)
    tables = _Tables(work, num_microbatches * work + after, least, slots)
    queue = [
        _Partial(float(least[stages, 0, -1]) + seconds, stages, seconds, 0.0, stages, 0, sum(pools))
        for stages, seconds in enumerate(extra[: len(least) - 1], start=1)
        if np.isfinite(least[stages, 0, -1] + seconds)
    ]
    heapq.heapify(queue)
    count = len(queue) + 1
    while queue:
        partial = heapq.heappop(queue)
        if not partial.left:
            yield Bounded(partial.bound, _cut(work, partial))
            continue
        for longer in _continued(tables, partial):
            count += 1
            heapq.heappush(queue, longer._replace(order=count))


class _Tables(NamedTuple):
    work: Array
    alone: Array
    """m w + a: what a stage cannot be below if nothing comes before it."""
    least: Array
    """V by stages, first layer and devices."""
    slots: tuple[Slot, ...]


def _continued(tables: _Tables, partial: _Partial) -> Iterator[_Partial]:
    """The partial cut with every stage that may come next."""
    left, start = partial.left - 1, partial.start
    for submesh, (size, low, high) in enumerate(tables.slots):
        if not low <= partial.devices <= high:
            continue
        work = tables.work[left, submesh, start]
        slowest = np.maximum(partial.slowest, partial.passed + tables.alone[left, submesh, start])
        behind = partial.passed + work + tables.least[left, :, partial.devices - size]
        bounds = np.maximum(partial.bound, slowest if not left else np.maximum(slowest, behind))
        bounds[np.isinf(tables.least[left, :, partial.devices - size])] = np.inf
        for end in np.flatnonzero(np.isfinite(bounds)).tolist():
            yield _Partial(
                float(bounds[end]),
                0,
                partial.passed + float(work[end]),
                float(slowest[end]),
                left,
                end,
                partial.devices - size,
                (*partial.chosen, (start, end, submesh)),
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

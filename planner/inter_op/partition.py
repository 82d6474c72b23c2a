"""Cutting layers into pipeline stages by dynamic programming, and submeshes that cover pools.

A step of a pipeline with stages of t_1 .. t_S seconds per microbatch and m microbatches takes

    T = sum_i t_i + (m - 1) max_i t_i

(fill and drain once, then the slowest stage sets the pace). For a bound t on the slowest stage, the least sum
is a shortest path over the cuts. Only a few bounds can matter: from the least bottleneck possible up to where
(m - 1) t alone spoils the best T known; each path's own bottleneck says where to go on below. The answer is
exact. Transfers between stages belong to the stage seconds that the caller gives.
Source: Zheng et al., "Alpa", OSDI 2022, section 5, which tries every bound in increasing order.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from planner.errors import Infeasible, InputError

Array = npt.NDArray[np.float64]
Integers = npt.NDArray[np.intp]
Combine = Callable[[Array, Array], Array]

ROUNDING = 1e-9
"""Times that differ by less than this share are equal."""


@dataclass(frozen=True, slots=True)
class StagePartition:
    """Layers cut into consecutive stages."""

    stages: tuple[tuple[int, int], ...]
    """Half-open ranges of layers, in order."""
    stage_seconds: tuple[float, ...]
    """Per stage and microbatch [s]."""
    submeshes: tuple[int, ...] = ()
    """Per stage the number of its submesh, where those were to be chosen."""

    @property
    def total(self) -> float:
        """One microbatch through all stages [s]."""
        return sum(self.stage_seconds)

    @property
    def slowest(self) -> float:
        """One microbatch on the slowest stage [s]."""
        return max(self.stage_seconds)

    def step_seconds(self, num_microbatches: int) -> float:
        """T above [s]."""
        return self.total + (num_microbatches - 1) * self.slowest


def partition_layers(
    num_layers: int,
    num_stages: int,
    stage_seconds: Callable[[int, int, int], float],
    stage_fits: Callable[[int, int, int], bool],
    num_microbatches: int,
) -> StagePartition:
    """The fastest cut of layers into exactly ``num_stages`` stages of at least one layer.

    ``stage_seconds(start, end, stage)`` [s] and ``stage_fits(start, end, stage)`` are called once at most
    per argument tuple. Equal times are decided by the more even layer counts, then by fewer layers first.
    Raises `Infeasible` where no cut fits.
    """
    width = _check(num_layers, num_stages, num_microbatches)
    seconds = np.full((num_stages, width, width), np.inf)
    starts = {0}
    for stage in range(num_stages):
        last_stage, ends = stage == num_stages - 1, set[int]()
        for start in starts:
            for end in range(start + 1, stage + width + 1) if not last_stage else (num_layers,):
                if stage_fits(start, end, stage):
                    seconds[stage, start - stage, end - start - 1] = stage_seconds(start, end, stage)
                    ends.add(end)
        starts = ends
    return _best_cut(seconds, num_microbatches)


def partition_homogeneous(
    layer_seconds: Sequence[float] | Array,
    num_stages: int,
    num_microbatches: int,
    first_extra: float = 0.0,
    last_extra: float = 0.0,
    max_layers_per_stage: Sequence[int] | None = None,
) -> StagePartition:
    """`partition_layers` where a stage's seconds are the sum of its layers', whichever stage it is.

    ``first_extra`` and ``last_extra`` [s] come on top on the first and last stage (embedding, head and loss);
    ``max_layers_per_stage`` says how many layers fit on each stage.
    """
    layers = np.asarray(layer_seconds, dtype=np.float64)
    width = _check(layers.size, num_stages, num_microbatches)
    if max_layers_per_stage is not None and len(max_layers_per_stage) != num_stages:
        raise InputError(
            f"max_layers_per_stage has {len(max_layers_per_stage)} entries for {num_stages} stages"
        )
    extra = np.zeros(num_stages)
    extra[0] += first_extra
    extra[-1] += last_extra
    room = (width,) * num_stages if max_layers_per_stage is None else tuple(map(int, max_layers_per_stage))
    summed = _Summed(np.concatenate([[0.0], np.cumsum(layers)]), extra, room)
    # The sum over stages is the same for every cut, so the slowest alone decides.
    slowest = _slowest(summed)
    return _evenest(summed, slowest * (1 + ROUNDING) if num_microbatches > 1 else np.inf)


class _Summed(NamedTuple):
    """Stages whose seconds are those of their layers."""

    before: Array
    """Of all layers before each, and of all [s]."""
    extra: Array
    """Beside the layers, by stage [s]."""
    room: tuple[int, ...]
    """Most layers of each stage."""


def _slowest(summed: _Summed) -> float:
    """What the slowest stage takes at least [s], within `ROUNDING`; raises `Infeasible` where there is no cut.

    Stages that take as many layers as a bound allows, one after the other, reach as far as any: the bound is halved in.
    """
    before, extra, room = summed.before.tolist(), summed.extra.tolist(), summed.room
    num_layers, num_stages = len(before) - 1, len(room)
    high = _filled(before, extra, room, np.inf)
    if high is None:
        raise Infeasible(_why_no_cut(num_layers, num_stages, [s for s, most in enumerate(room) if most < 1]))
    alone = np.diff(before)
    alone[0] += extra[0]
    alone[-1] += extra[-1]
    low = max(float(alone.max()), (before[-1] + sum(extra)) / num_stages) * (1 - ROUNDING)
    while high - low > ROUNDING / 2 * high:
        bound = (low + high) / 2
        found = _filled(before, extra, room, bound)
        low, high = (bound, high) if found is None else (low, found)
    return high


def _filled(before: list[float], extra: list[float], room: tuple[int, ...], bound: float) -> float | None:
    """What the slowest stage takes where each has as many layers as ``bound`` [s] allows; None where some are left."""
    num_layers, num_stages = len(before) - 1, len(room)
    start, slowest = 0, 0.0
    for stage in range(num_stages):
        most = min(start + room[stage], num_layers - (num_stages - 1 - stage))
        end = min(most, bisect_right(before, before[start] + bound - extra[stage]) - 1)
        if end <= start:
            return None
        slowest = max(slowest, before[end] - before[start] + extra[stage])
        start = end
    return slowest if start == num_layers else None


def _evenest(summed: _Summed, bound: float) -> StagePartition:
    """Of the cuts with no stage slower than ``bound`` [s], the one with the least sum of squared layer counts."""
    before, extra, room = summed
    num_layers, num_stages = len(before) - 1, len(room)
    width = num_layers - num_stages + 1
    starts = np.arange(width)
    least, most = np.full(width, np.inf), list[Integers]()
    least[-1], uneven = 0.0, list[Array]()
    for stage in reversed(range(num_stages)):
        reach = np.searchsorted(before, before[stage + starts] + bound - extra[stage], "right") - 1
        most.append(np.clip(reach - stage - starts, 0, np.minimum(room[stage], width - starts)))
        uneven.append(_squared(least, most[-1]))
        least = uneven[-1].min(axis=1)
    stages, times, first = [], [], 0
    for stage, squares in enumerate(reversed(uneven)):
        start, more = stage + first, int(squares[first].argmin())
        stages.append((start, start + more + 1))
        times.append(float(before[start + more + 1] - before[start] + extra[stage]))
        first += more
    return StagePartition(tuple(stages), tuple(times))


def _squared(least: Array, most: Integers) -> Array:
    """[a, n]: squared layer counts of a stage with n + 1 layers from its layer a on, and of those behind it."""
    widest = max(1, int(most.max()))
    counts = np.square(np.arange(1.0, widest + 1))
    return np.where(np.arange(widest) < most[:, None], counts + _behind(least, widest), np.inf)


class Submesh(NamedTuple):
    """A kind of stage mesh: so many devices of one pool."""

    size: int
    pool: int = 0


def _fastest(
    least: Callable[[float], StagePartition], bottleneck: float, num_microbatches: int
) -> StagePartition:
    """The partition of least T, ``least(t)`` being the one of least sum with no stage slower than t."""
    best = least(bottleneck)
    others = num_microbatches - 1
    spare = best.step_seconds(num_microbatches) - least(np.inf).total
    bound = spare / others if others else np.inf
    while bound >= bottleneck:
        cut = least(bound)
        if cut.step_seconds(num_microbatches) < best.step_seconds(num_microbatches) * (1 - ROUNDING):
            best = cut
        if cut.total + others * bottleneck >= best.step_seconds(num_microbatches) * (1 - ROUNDING):
            break
        bound = cut.slowest * (1 - 2 * ROUNDING)
    return best


def _within(seconds: Array, bound: float) -> Array:
    return np.where(seconds <= bound * (1 + ROUNDING), seconds, np.inf)


def _check(num_layers: int, num_stages: int, num_microbatches: int) -> int:
    """How many layers a stage can have, if every other has at least one."""
    if num_stages < 1 or num_microbatches < 1:
        raise InputError(
            f"{num_stages} stages and {num_microbatches} microbatches given; both must be at least 1"
        )
    if num_stages > num_layers:
        raise Infeasible(
            f"{num_layers} layers cannot fill {num_stages} stages",
            least_change=f"use at most {num_layers} stages",
        )
    return num_layers - num_stages + 1


def _best_cut(seconds: Array, num_microbatches: int) -> StagePartition:
    """The cut of least T; ``seconds[s, a, n]`` is stage s with n + 1 layers from layer s + a on."""
    return _fastest(lambda bound: _most_even(_within(seconds, bound)), _bottleneck(seconds), num_microbatches)


def _bottleneck(seconds: Array) -> float:
    """What the slowest stage takes at least [s]; raises `Infeasible` where there is no cut."""
    bottleneck = float(_ahead(seconds, np.maximum)[0, 0])
    if np.isinf(bottleneck):
        num_stages, width, _ = seconds.shape
        full = [stage for stage in range(num_stages) if np.isinf(seconds[stage]).all()]
        raise Infeasible(_why_no_cut(num_stages + width - 1, num_stages, full))
    return bottleneck


def _ahead(seconds: Array, combine: Combine) -> Array:
    """[s, a]: the least that stages s, s + 1, .. take where stage s begins with layer s + a."""
    num_stages, width, most = seconds.shape
    least = np.full((num_stages + 1, width), np.inf)
    least[-1, -1] = 0.0
    for stage in reversed(range(num_stages)):
        least[stage] = combine(seconds[stage], _behind(least[stage + 1], most)).min(axis=1)
    return least


def _behind(least: Array, most: int) -> Array:
    """[a, n]: the least of the stages behind one that begins with its layer a and has n + 1 <= ``most`` of them."""
    padded = np.concatenate((least, np.full(most, np.inf)))
    return np.lib.stride_tricks.sliding_window_view(padded, most)[: len(least)]


def _most_even(seconds: Array) -> StagePartition:
    """Of the cuts of least sum, the one with the least sum of squared layer counts."""
    num_stages, _, most = seconds.shape
    ahead, squares = _ahead(seconds, np.add), np.full_like(seconds, np.inf)
    counts = np.square(np.arange(1.0, most + 1))
    for stage in range(num_stages):
        through = seconds[stage] + _behind(ahead[stage + 1], most)
        squares[stage] = np.where(through <= ahead[stage][:, None] * (1 + ROUNDING), counts, np.inf)
    uneven = _ahead(squares, np.add)
    stages, times, first = [], [], 0
    for stage in range(num_stages):
        more = int((squares[stage, first] + _behind(uneven[stage + 1], most)[first]).argmin())
        stages.append((stage + first, stage + first + more + 1))
        times.append(float(seconds[stage, first, more]))
        first += more
    return StagePartition(tuple(stages), tuple(times))


def _why_no_cut(num_layers: int, num_stages: int, full: Sequence[int]) -> str:
    cut = f"no cut of {num_layers} layers into {num_stages} stages fits"
    return f"{cut}; stage {full[0]} fits with no number of layers" if full else cut


class Slot(NamedTuple):
    """Where a submesh may lie: with ``least`` to ``most`` devices from its first on to the end of the pipeline."""

    size: int
    least: int
    most: int


def slots_of(pools: Sequence[int], submeshes: Sequence[Submesh]) -> tuple[Slot, ...]:
    """By submesh, where it may lie."""
    after = [sum(pools[k + 1 :]) for k in range(len(pools))]
    return tuple(Slot(size, after[k] + size, after[k] + pools[k]) for size, k in submeshes)


def cover(seconds: Array, slots: tuple[Slot, ...], num_devices: int, combine: Combine, parts: int) -> Array:
    """[part, s, k, d]: the least that s stages take to hold layers k and later on exactly d devices.

    ``seconds[after, submesh, ..., start, end]``: what a stage is known by may be several numbers, for ``combine``. So
    may be what stages take: of so many ``parts`` each is least by itself.
    """
    most, num_ends = seconds.shape[0], seconds.shape[-1]
    least = np.full((parts, most + 1, num_ends, num_devices + 1), np.inf)
    least[:, 0, -1, 0] = 0.0
    for stages in range(1, most + 1):
        for submesh, (size, low, high) in enumerate(slots):
            rest = least[:, stages - 1, None, :, low - size : max(low, high + 1) - size]
            if np.isinf(rest).all():
                continue
            taken = combine(seconds[stages - 1, submesh, ..., None], rest).min(axis=2)
            here = least[:, stages, :, low : high + 1]
            np.minimum(here, taken, out=here)
    return least

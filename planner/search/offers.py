"""What the ranks of a pool's equal submeshes offer when layers are dealt out: seconds and bytes of every layer."""

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from planner.evaluation.evaluator import Evaluator
from planner.evaluation.memory import device_memory
from planner.evaluation.rank import kept_share, stages_gathered
from planner.evaluation.stages import StageCost, StageShape
from planner.evaluation.tails import tail_of
from planner.inter_op.partition import Array
from planner.inter_op.ranks import Rank, Rates
from planner.plans import Parallelism
from planner.search.submeshes import PoolPrices, Share, surely_held

FULL = 0.5
"""Share of a device's memory that activations take where it is measured what more of them, and more layers, take."""

ROUNDING = 1e-9
"""Seconds without layers that are less than this share of a stage's are none."""

MORE = 1.001
"""How many times as many activations for that."""


class Measured(NamedTuple):
    """One way to run stages, measured on a few of them."""

    rates: Rates
    first: Array
    """[pass]: of a stage with the embedding, besides its layers [s]."""
    last: Array
    """[pass]: of a stage with the head, likewise."""
    boundary: float
    """What a stage hands on [bytes]."""


class Offered(NamedTuple):
    """A rank for the dealer, and what its offers stand for."""

    rank: Rank
    ways: tuple[Measured, ...]
    locals: tuple[Parallelism, ...]
    """Degrees and rematerialisation of each offer."""
    boundary: float
    """What a stage hands on at least [bytes]."""


class Offers:
    """What the submeshes of all pools offer; each is measured once."""

    def __init__(self, evaluator: Evaluator, prices: Sequence[PoolPrices]) -> None:
        """Nothing is measured yet."""
        self.kinds = sorted(set(evaluator.graph.sequence))
        self._counts = np.array([evaluator.graph.sequence.count(kind) for kind in self.kinds], np.float64)
        self._evaluator, self._prices = evaluator, prices
        self._timed: dict[tuple[int, int, Share], tuple[tuple[_Timed, ...], ...]] = {}
        self._rates: dict[tuple[int, int, Share], Array] = {}
        self._lightest: dict[tuple[int, int, Share], Offered] = {}
        self._known: dict[tuple[int, int, Share, int], Offered] = {}

    def of(self, pool: int, size: int, share: Share, stages: int) -> Offered | None:
        """What a rank with ``stages`` stages offers on so many devices of a pool; None where nothing runs there."""
        meshes = self._prices[pool].meshes(size, share)
        if not meshes:
            return None
        several = meshes[0].model_copy(update={"virtual_stages": stages})
        # A rank's memory depends on how many of its stages are gathered, and on nothing else that is not in flight.
        gathered = stages_gathered(several, self._evaluator.software)
        key = pool, size, share, gathered
        if key not in self._known:
            held = {"virtual_stages": gathered}
            self._known[key] = _offered(
                self._prices[pool],
                [mesh.model_copy(update=held) for mesh in meshes],
                self._ways(pool, size, share),
                _memory,
            )
        return self._known[key]

    def lightest(self, pool: int, size: int, share: Share) -> Offered | None:
        """The same with no more memory than is surely taken, which is soon told.

        That is so of all but one of the micro-batches in flight if these are all that there are in a step.
        """
        meshes, key = self._prices[pool].meshes(size, share), (pool, size, share)
        if not meshes:
            return None
        if key not in self._lightest:
            ways = self._ways(pool, size, share)
            self._lightest[key] = _offered(self._prices[pool], meshes, ways, _least_memory)
        return self._lightest[key]

    def rates(self, pool: int, share: Share) -> Array:
        """Least seconds of every kind of layer, all of it, of the embedding and of the head, if the whole pool worked
        on it in submeshes of one size; infinite where it cannot. Memory, which takes longest to measure, is not looked
        at.
        """
        least: Array = np.min(
            [self.rates_of_size(pool, size, share) for size in self._prices[pool].sizes], axis=0
        )
        return least

    def rates_of_size(self, pool: int, size: int, share: Share) -> Array:
        """The same in submeshes of this size."""
        key = pool, size, share
        if key not in self._rates:
            ways = self._ways(pool, size, share)
            layers = [[one.a_layer.sum() for one in way] for way in ways] or [[np.inf] * len(self.kinds)]
            ends = [[one.first.sum(), one.last.sum()] for way in ways for one in way] or [[np.inf] * 2]
            least = np.concatenate((self._counts * np.min(layers, axis=0), np.min(ends, axis=0)))
            self._rates[key] = least * size / self._prices[pool].devices
        return self._rates[key]

    def _ways(self, pool: int, size: int, share: Share) -> tuple[tuple["_Timed", ...], ...]:
        """Seconds by mesh and kind of layer, however many stages a rank has."""
        key, prices = (pool, size, share), self._prices[pool]
        if key not in self._timed:
            meshes = prices.meshes(size, share)
            self._timed[key] = tuple(
                tuple(_Timed(prices, mesh, kind) for kind in self.kinds) for mesh in meshes
            )
        return self._timed[key]


def _offered(
    prices: PoolPrices,
    local_plans: Sequence[Parallelism],
    ways: Sequence[Sequence["_Timed"]],
    memory: "MemoryOf",
) -> Offered:
    """What suits some stage best, the fastest ways first."""
    measured = [
        _measured([(one, memory(prices, local, one)) for one in way])
        for local, way in zip(local_plans, ways, strict=True)
    ]
    kept = _least([np.concatenate([np.ravel(part) for part in (*one.rates, *one[1:])]) for one in measured])
    kept.sort(key=lambda k: float(measured[k].rates.seconds.sum()))
    offers = tuple(measured[k] for k in kept)
    rank = Rank(
        offers=tuple(way.rates for way in offers),
        first=np.min([way.first for way in offers], axis=0),
        last=np.min([way.last for way in offers], axis=0),
        room=prices.limit,
    )
    boundary = min(way.boundary for way in offers)
    return Offered(rank, offers, tuple(local_plans[k] for k in kept), boundary)


def _least(numbers: Sequence[Array]) -> list[int]:
    """Which are not above another one in every number; of equals the first."""
    table, kept = np.array(numbers), list[int]()
    for k, row in enumerate(table):
        if not (table[kept] <= row).all(axis=1).any():
            kept.append(k)
    return kept


def _measured(kinds: Sequence[tuple["_Timed", "_Memory"]]) -> Measured:
    """Of stages of any kind of layer."""
    timed, memory = zip(*kinds, strict=True)
    return Measured(
        Rates(
            seconds=np.array([one.a_layer for one in timed]),
            fixed=np.min([one.fixed for one in timed], axis=0),
            after=np.array([one.after for one in timed]),
            states=np.array([one.layer for one in memory]),
            kept=np.array([one.kept for one in memory]),
            memory=np.min([one.beside for one in memory], axis=0),
        ),
        first=np.min([one.first for one in timed], axis=0),
        last=np.min([one.last for one in timed], axis=0),
        boundary=min(one.some.boundary_bytes for one in timed),
    )


class _Timed:
    """Stages as if the model had layers of this kind only: half of them, one more, and beside embedding and head."""

    def __init__(self, prices: PoolPrices, local: Parallelism, kind: str) -> None:
        """Prices them."""
        self._evaluator, self._local = prices.evaluator, local
        self.count = count = max(1, prices.evaluator.graph.sequence.count(kind) // 2)

        def stage(layers: int, first: bool = False, last: bool = False) -> StageCost:
            return prices.cost(local, StageShape(((kind, layers),), first, last))[0]

        self.some, self.more = stage(count), stage(count + 1)
        self.embedding, self.head = stage(count, first=True), stage(count, last=True)
        self.a_layer = _seconds(self.more) - _seconds(self.some)
        self.fixed, self.first, self.last = map(self._beside_layers, (self.some, self.embedding, self.head))

    def _beside_layers(self, cost: StageCost) -> Array:
        rest = _seconds(cost) - self.count * self.a_layer
        return np.where(np.abs(rest) < ROUNDING * _seconds(self.some), 0.0, rest)

    @cached_property
    def after(self) -> float:
        """What a layer adds to the time after the last backward [s]."""
        setting, local, mesh = self._evaluator.setting, self._local, self._evaluator.mesh(self._local)
        more, some = (tail_of(setting, local, mesh, [cost]).optimizer for cost in (self.more, self.some))
        return more - some


class _Memory(NamedTuple):
    """A plane below the memory of stages of one kind of layer [bytes]."""

    layer: float
    """What a layer takes throughout."""
    kept: float
    """What it keeps for each micro-batch in flight."""
    beside: Array
    """What there is without layers, and what embedding and head add."""


MemoryOf = Callable[[PoolPrices, Parallelism, _Timed], _Memory]


def _memory(prices: PoolPrices, local: Parallelism, timed: _Timed) -> _Memory:
    """A plane below the true memory, which is convex: it holds for any number of layers and activations."""
    evaluator, mesh = prices.evaluator, prices.evaluator.mesh(local)
    half = FULL * evaluator.cluster.device.memory
    # The allocator gives back what it can only where the device is full, which no plan that leaves headroom is.
    limit = math.inf if evaluator.job.memory_headroom else -math.inf

    def bytes_of(cost: StageCost, activations: float) -> float:
        job, software = evaluator.job, evaluator.software
        return device_memory([cost], activations, job, local, mesh, software, limit).total

    def line(cost: StageCost, total: float) -> tuple[float, float]:
        """Bytes with no activations, and for each of their bytes, as it is where these are most of all."""
        held = (bytes_of(cost, MORE * half) - total) / ((MORE - 1) * half)
        return total - held * half, held

    in_all = bytes_of(timed.some, half)
    total, held = line(timed.some, in_all)
    layer = bytes_of(timed.more, half) - in_all
    # What stages at the ends hold of results grows with what is in flight, and is little where that is little.
    ends = [line(end, bytes_of(end, half))[0] - total for end in (timed.embedding, timed.head)]
    kept = held * kept_share(local) * (timed.more.saved_bytes - timed.some.saved_bytes)
    return _Memory(layer, kept, np.array([total - timed.count * layer, *ends]))


def _least_memory(prices: PoolPrices, local: Parallelism, timed: _Timed) -> _Memory:
    """States and activations: a plane below the true memory where not all micro-batches are in flight at once."""
    some, more, *ends = (
        surely_held(prices.evaluator, local, cost)
        for cost in (timed.some, timed.more, timed.embedding, timed.head)
    )
    layer, kept = more - some, kept_share(local) * (timed.more.saved_bytes - timed.some.saved_bytes)
    return _Memory(layer, kept, np.array([some - timed.count * layer, *(end - some for end in ends)]))


def _seconds(cost: StageCost) -> Array:
    return np.array([cost.forward, cost.backward_input, cost.backward_weight])

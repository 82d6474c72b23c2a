"""What the ranks of a pool's equal submeshes offer when layers are dealt out: seconds and bytes of every layer."""

import math
from collections.abc import Sequence
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
from planner.search.submeshes import PoolPrices, Share

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
        self._known: dict[tuple[int, int, Share, int], Offered | None] = {}

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
            local_plans = [mesh.model_copy(update={"virtual_stages": gathered}) for mesh in meshes]
            self._known[key] = _offered(self._prices[pool], local_plans, self.kinds)
        return self._known[key]

    def rates(self, pool: int, share: Share) -> list[float]:
        """Least seconds of every kind of layer, all of it, of the embedding and of the head, if the whole pool worked
        on it in submeshes of one size; infinite where it cannot. Memory, which takes longest to measure, is not looked
        at.
        """
        prices = self._prices[pool]
        found = [
            self._rates(prices, meshes) * size
            for size in prices.sizes
            if (meshes := prices.meshes(size, share))
        ]
        none = np.full(len(self.kinds) + 2, np.inf)
        least: list[float] = (np.min([none, *found], axis=0) / prices.devices).tolist()
        return least

    def _rates(self, prices: PoolPrices, meshes: Sequence[Parallelism]) -> Array:
        """Least seconds of a micro-batch in all layers of each kind, in the embedding, and in the head."""
        timed = [[_Timed(prices, mesh, kind) for kind in self.kinds] for mesh in meshes]
        layers = np.min([[one.a_layer.sum() for one in way] for way in timed], axis=0)
        ends = np.min([[one.first.sum(), one.last.sum()] for way in timed for one in way], axis=0)
        return np.concatenate((self._counts * layers, ends))


def _offered(prices: PoolPrices, local_plans: Sequence[Parallelism], kinds: Sequence[str]) -> Offered:
    """What suits some stage best, the fastest ways first.

    Memory is a plane below the true one, which is convex: it holds for any number of layers and activations.
    """
    measured = [_measured(prices, local, kinds) for local in local_plans]
    kept = _least([np.concatenate([np.ravel(part) for part in (*one.rates, *one[1:])]) for one in measured])
    kept.sort(key=lambda k: float(measured[k].rates.seconds.sum()))
    ways = tuple(measured[k] for k in kept)
    rank = Rank(
        offers=tuple(way.rates for way in ways),
        first=np.min([way.first for way in ways], axis=0),
        last=np.min([way.last for way in ways], axis=0),
        room=prices.limit,
    )
    return Offered(rank, ways, tuple(local_plans[k] for k in kept), min(way.boundary for way in ways))


def _least(numbers: Sequence[Array]) -> list[int]:
    """Which are not above another one in every number; of equals the first."""
    table, kept = np.array(numbers), list[int]()
    for k, row in enumerate(table):
        if not (table[kept] <= row).all(axis=1).any():
            kept.append(k)
    return kept


def _measured(prices: PoolPrices, local: Parallelism, kinds: Sequence[str]) -> Measured:
    of_kind = [_of_kind(prices, local, kind) for kind in kinds]
    rates = [one.rates for one in of_kind]
    return Measured(
        Rates(
            seconds=np.concatenate([rate.seconds for rate in rates]),
            fixed=np.min([rate.fixed for rate in rates], axis=0),
            after=np.concatenate([rate.after for rate in rates]),
            states=np.concatenate([rate.states for rate in rates]),
            kept=np.concatenate([rate.kept for rate in rates]),
            memory=np.min([rate.memory for rate in rates], axis=0),
        ),
        first=np.min([one.first for one in of_kind], axis=0),
        last=np.min([one.last for one in of_kind], axis=0),
        boundary=min(one.boundary for one in of_kind),
    )


class _Timed:
    """Stages as if the model had layers of this kind only: half of them, one more, and beside embedding and head."""

    def __init__(self, prices: PoolPrices, local: Parallelism, kind: str) -> None:
        """Prices them."""
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


def _of_kind(prices: PoolPrices, local: Parallelism, kind: str) -> Measured:
    """As if the model had layers of this kind only."""
    evaluator, timed = prices.evaluator, _Timed(prices, local, kind)
    some, more, mesh = timed.some, timed.more, evaluator.mesh(local)
    half = FULL * evaluator.cluster.device.memory
    # The allocator gives back what it can only where the device is full, which no plan that leaves headroom is.
    limit = math.inf if evaluator.job.memory_headroom else -math.inf

    def bytes_of(cost: StageCost, activations: float) -> float:
        job, software = evaluator.job, evaluator.software
        return device_memory([cost], activations, job, local, mesh, software, limit).total

    def after(cost: StageCost) -> float:
        return tail_of(evaluator.setting, local, mesh, [cost]).optimizer

    def line(cost: StageCost, total: float) -> tuple[float, float]:
        """Bytes with no activations, and for each of their bytes, as it is where these are most of all."""
        held = (bytes_of(cost, MORE * half) - total) / ((MORE - 1) * half)
        return total - held * half, held

    in_all = bytes_of(some, half)
    total, held = line(some, in_all)
    layer = bytes_of(more, half) - in_all
    # What stages at the ends hold of results grows with what is in flight, and is little where that is little.
    ends = [line(end, bytes_of(end, half))[0] - total for end in (timed.embedding, timed.head)]
    return Measured(
        Rates(
            seconds=timed.a_layer[None],
            fixed=timed.fixed,
            after=np.array([after(more) - after(some)]),
            states=np.array([layer]),
            kept=np.array([held * kept_share(local) * (more.saved_bytes - some.saved_bytes)]),
            memory=np.array([total - timed.count * layer, *ends]),
        ),
        first=timed.first,
        last=timed.last,
        boundary=some.boundary_bytes,
    )


def _seconds(cost: StageCost) -> Array:
    return np.array([cost.forward, cost.backward_input, cost.backward_weight])

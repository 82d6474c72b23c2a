"""What the ranks of a pool's equal submeshes offer when layers are dealt out: seconds and bytes of every layer."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from planner.evaluation.evaluator import StageShape
from planner.evaluation.memory import device_memory
from planner.evaluation.moments import kept_share
from planner.evaluation.stages import StageCost
from planner.evaluation.step import tail_of
from planner.inter_op.dealing import Rank, Rates
from planner.inter_op.partition import Array
from planner.plans import Parallelism
from planner.search.submeshes import PoolPrices, Share

FULL = 0.5
"""Share of a device's memory that activations take where it is measured what more of them, and more layers, take."""

MORE = 1.001
"""How many times as many activations for that."""


class Offered(NamedTuple):
    """A rank for the dealer, and what its offers stand for."""

    rank: Rank
    least: Rank
    """The same with one offer that takes the least of each: quicker to deal with, and never above it."""
    locals: tuple[Parallelism, ...]
    """Degrees and rematerialisation of each offer."""
    boundary: float
    """What a stage hands on at least [bytes]."""


class _Measured(NamedTuple):
    """One way to run stages, measured on a few of them."""

    rates: Rates
    first: Array
    last: Array
    memory: Array
    """Of no layers; of the embedding; of the head [bytes]."""
    boundary: float


def offered(prices: PoolPrices, size: int, share: Share, kinds: Sequence[str], stages: int) -> Offered | None:
    """What a rank with ``stages`` stages offers on a submesh of so many devices; None where nothing runs there.

    Memory is a plane below the true one, which is convex: it holds for any number of layers and activations.
    """
    found: list[tuple[_Measured, Array, Parallelism]] = []
    for mesh in prices.meshes(size, share):
        local = mesh.model_copy(update={"virtual_stages": stages})
        measured = _measured(prices, local, kinds)
        numbers = np.concatenate([np.ravel(part) for part in (*measured.rates, *measured[1:])])
        if not any((other <= numbers).all() for _, other, _ in found):
            found.append((measured, numbers, local))
    if not found:
        return None
    all_measured, _, local_plans = zip(*found, strict=True)
    fixed, first, last = np.min([measured.memory for measured in all_measured], axis=0).tolist()
    rank = Rank(
        offers=tuple(measured.rates for measured in all_measured),
        first=np.min([measured.first for measured in all_measured], axis=0),
        last=np.min([measured.last for measured in all_measured], axis=0),
        room=prices.limit - fixed,
        first_bytes=first,
        last_bytes=last,
    )
    rates = (measured.rates for measured in all_measured)
    best = Rates(*(np.min(column, axis=0) for column in zip(*rates, strict=True)))
    return Offered(
        rank, rank._replace(offers=(best,)), local_plans, min(measured.boundary for measured in all_measured)
    )


def _measured(prices: PoolPrices, local: Parallelism, kinds: Sequence[str]) -> _Measured:
    of_kind = [_of_kind(prices, local, kind) for kind in kinds]
    rates = [one.rates for one in of_kind]
    return _Measured(
        Rates(
            seconds=np.concatenate([rate.seconds for rate in rates]),
            fixed=np.min([rate.fixed for rate in rates], axis=0),
            after=np.concatenate([rate.after for rate in rates]),
            states=np.concatenate([rate.states for rate in rates]),
            kept=np.concatenate([rate.kept for rate in rates]),
        ),
        first=np.min([one.first for one in of_kind], axis=0),
        last=np.min([one.last for one in of_kind], axis=0),
        memory=np.min([one.memory for one in of_kind], axis=0),
        boundary=min(one.boundary for one in of_kind),
    )


def _of_kind(prices: PoolPrices, local: Parallelism, kind: str) -> _Measured:
    """As if the model had layers of this kind only."""
    evaluator = prices.evaluator
    mesh, count = evaluator.mesh(local), max(1, evaluator.graph.sequence.count(kind) // 2)

    def stage(layers: int, first: bool = False, last: bool = False) -> StageCost:
        return prices.cost(local, StageShape(((kind, layers),), first, last))[0]

    one, two, embedding, head = stage(1), stage(2), stage(1, first=True), stage(1, last=True)
    half = FULL * evaluator.cluster.device.memory
    # The allocator gives back what it can only where the device is full, which no plan that leaves headroom is.
    limit = math.inf if evaluator.job.memory_headroom else -math.inf

    def bytes_of(cost: StageCost, activations: float) -> float:
        job, software = evaluator.job, evaluator.software
        return device_memory([cost], activations, job, local, mesh, software, limit).total

    def after(cost: StageCost) -> float:
        return tail_of(evaluator.setting, local, mesh, [cost]).optimizer

    some = bytes_of(stage(count), half)
    layer = bytes_of(stage(count + 1), half) - some
    held = (bytes_of(stage(count), MORE * half) - some) / ((MORE - 1) * half)
    ends = [bytes_of(stage(count, **{end: True}), half) - some for end in ("first", "last")]
    a_layer = _seconds(two) - _seconds(one)
    return _Measured(
        Rates(
            seconds=a_layer[None],
            fixed=_seconds(one) - a_layer,
            after=np.array([after(two) - after(one)]),
            states=np.array([layer]),
            kept=np.array([held * kept_share(local) * one.saved_bytes]),
        ),
        first=_seconds(embedding) - _seconds(one),
        last=_seconds(head) - _seconds(one),
        memory=np.array([some - count * layer - held * half, *ends]),
        boundary=one.boundary_bytes,
    )


def _seconds(cost: StageCost) -> Array:
    return np.array([cost.forward, cost.backward_input, cost.backward_weight])

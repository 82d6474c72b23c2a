"""Unlike stages under schedules that the dynamic program does not know: several on each rank, or split backwards.

What a rank holds there depends on all others. Each pool is cut into equal submeshes, with a mesh and rematerialisation
for each rank, and layers are dealt out to all stages. For every such arrangement ranks are filled up
(`planner.inter_op.filling`), and where that may be the fastest a linear program says what no cut can be below
(`planner.inter_op.dealing`); its answer is rounded to whole layers, and layers are moved while the simulated step gets
shorter.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np

from cluster_specs.topology import route
from cost_models.collectives import send
from planner.errors import InputError
from planner.evaluation.evaluator import Evaluator
from planner.evaluation.step import Tail, stage_wait, straggling
from planner.inter_op.dealing import Dealer, Dealt, Order, Rank
from planner.inter_op.filling import filled
from planner.inter_op.ordered import pools_bound
from planner.pipeline.dependencies import moments_in_flight
from planner.pipeline.generators import is_written_out, refusal, schedule_entry, schedule_label, stage_to_rank
from planner.pipeline.questions import AUTOMATIC
from planner.plans import Parallelism, Pins
from planner.search.branches import Answer, Best, Branch, Known, priced
from planner.search.offers import Offered, Offers
from planner.search.placing import device_ranges, mesh_of, placed, sharding_of
from planner.search.recomputing import by_rank
from planner.search.space import searched_schedules, stage_policies
from planner.search.submeshes import Choice, PoolPrices, Share

ONE_BY_ONE = ("1f1b", "eager-1f1b", "gpipe")
"""One stage to a rank, and what a stage holds depends only on those behind it, which the dynamic program knows."""

MOST_VIRTUAL = 4
"""Stages on each rank that are tried at most, if their number is not pinned."""

LOOKED_AT = 24
"""Arrangements that are made plans of at most, in the order of their bounds."""

FEW = 8
"""Stages of which each may give a layer to any other."""

LESS = 1 - 1e-9
"""What counts as faster."""


class Way(NamedTuple):
    """A schedule, and how many stages each rank has in it."""

    schedule: str
    virtual_stages: int


class Arrangement(NamedTuple):
    """What is decided before layers are dealt out."""

    share: Share
    way: Way
    pools: tuple[int, ...]
    """Of every rank."""
    sizes: tuple[int, ...]
    """Devices of every rank."""


def only_others(pins: Pins) -> bool:
    """Whether the pins leave none of `ONE_BY_ONE`."""
    return (pins.virtual_stages or 1) > 1 or pins.schedule not in (None, AUTOMATIC, *ONE_BY_ONE)


def ways(evaluator: Evaluator, pins: Pins) -> tuple[Way, ...]:
    """Other schedules that the pins allow: the pinned one, or those that the stack has and the search looks at.

    Raises ``InputError`` where stages that differ cannot have what is pinned.
    """
    if pins.schedule and pins.schedule != AUTOMATIC:
        _check(pins.schedule)
    if stage_policies(pins):
        if only_others(pins):
            raise InputError(
                f"--recompute {pins.recompute}: where stages differ, for {', '.join(ONE_BY_ONE)} only"
            )
        return ()
    found = []
    for name in searched_schedules(evaluator.software, pins):
        least, most = schedule_entry(name).stages_per_rank
        numbers = range(least, min(most or MOST_VIRTUAL, MOST_VIRTUAL) + 1)
        found += [Way(name, v) for v in ([pins.virtual_stages] if pins.virtual_stages else numbers)]
    return tuple(way for way in found if way.virtual_stages > 1 or way.schedule not in ONE_BY_ONE)


def _check(name: str) -> None:
    if is_written_out(name):
        raise InputError(
            f"--schedule {schedule_label(name)}: where stages differ give it to the plan that is found "
            f"(meshwright evaluate PLAN --schedule FILE)"
        )
    if schedule_entry(name).copies > 1:
        raise InputError(f"--schedule {name} holds every stage twice, which needs stages that are alike")


class Rescheduling:
    """One search over arrangements."""

    def __init__(
        self, evaluator: Evaluator, pins: Pins, prices: Sequence[PoolPrices], offers: Offers
    ) -> None:
        """Nothing is dealt yet. Raises as `ways`."""
        self._evaluator, self._pins, self._prices, self._all_offers = evaluator, pins, prices, offers
        self.ways = ways(evaluator, pins)
        self._dealer = Dealer()
        sequence = evaluator.graph.sequence
        self._counts = [sequence.count(kind) for kind in offers.kinds]
        self._looked_at = self.evaluated = 0

    def branches(self, order: tuple[int, ...], share: Share, best: Best) -> Iterator[tuple[float, Branch]]:
        """All arrangements of the pools in this order, each with its first bound."""
        if not self.ways:
            return
        rates = [self._all_offers.rates(pool, share) for pool in order]
        least = pools_bound(np.array(rates), share.num_microbatches, waits=False)
        for arrangement in self._arrangements(order, share):
            beside, slower = self._beside(arrangement)
            yield (least + beside) * slower, self._branch(arrangement, best)

    def _branch(self, arrangement: Arrangement, best: Best) -> Branch:
        """Bounds of an arrangement, the quickest first, then a plan."""
        quick = self._offers(arrangement, 1)
        if quick is None:
            return
        yield Known(self._filled(arrangement, quick))
        offers = self._offers(arrangement, arrangement.way.virtual_stages)
        assert offers is not None  # what runs does so with more stages, if with less memory
        dealt = self._dealt(arrangement, offers, best.seconds)
        yield Known(dealt.bound)
        self._looked_at += 1
        looks = self._looked_at <= LOOKED_AT
        yield Known(dealt.bound, self._answer(arrangement, offers, dealt) if looks else None, last=True)

    def _arrangements(self, order: tuple[int, ...], share: Share) -> Iterator[Arrangement]:
        """Every way to cut the pools into equal submeshes, under every schedule."""
        totals = [self._prices[k].devices for k in order]
        for sizes in product(*(self._prices[k].sizes for k in order)):
            counts = [total // size for total, size in zip(totals, sizes, strict=True)]
            pools = tuple(k for k, count in zip(order, counts, strict=True) for _ in range(count))
            each = tuple(size for size, count in zip(sizes, counts, strict=True) for _ in range(count))
            for way in self.ways:
                if self._exists(way, len(pools), share.num_microbatches):
                    yield Arrangement(share, way, pools, each)

    def _exists(self, way: Way, ranks: int, microbatches: int) -> bool:
        enough = ranks * way.virtual_stages <= self._evaluator.graph.num_layers
        pinned = self._pins.pipeline in (None, ranks)
        return (
            ranks > 1
            and pinned
            and enough
            and not refusal(way.schedule, ranks, way.virtual_stages, microbatches)
        )

    # --- bounds ---------------------------------------------------------------------------------------

    def _filled(self, arrangement: Arrangement, offers: Sequence[Offered]) -> float:
        """What no deal of the layers can be below, by `filled` [s]."""
        order, (beside, slower) = _order(arrangement), self._beside(arrangement)
        ranks, hops = [one.rank for one in offers], self._hops(arrangement, offers)
        return (filled(order, ranks, self._counts, hops, moments_in_flight(*order)) + beside) * slower

    def _beside(self, arrangement: Arrangement) -> tuple[float, float]:
        """What comes on top of the pipeline at least [s], and how many times longer stragglers make all of it."""
        settings = [self._prices[k].evaluator.setting for k in arrangement.pools]
        slower = 1 + min(straggling(setting, sum(arrangement.sizes)) for setting in settings)
        setting, m = self._evaluator.setting, arrangement.share.num_microbatches
        waits = stage_wait(setting, len(arrangement.pools), arrangement.way.virtual_stages, m)
        return waits + setting.software.step_overhead, slower

    def _dealt(self, arrangement: Arrangement, offers: Sequence[Offered], enough: float) -> Dealt:
        """Layers dealt out by the linear program; infinite where nothing fits."""
        order, hops = _order(arrangement), self._hops(arrangement, offers)
        beside, slower = self._beside(arrangement)
        pipeline = enough / slower - beside
        found = self._dealer.deal(order, [one.rank for one in offers], self._counts, hops, pipeline)
        return found._replace(bound=(found.bound + beside) * slower)

    def _offers(self, arrangement: Arrangement, stages: int) -> list[Offered] | None:
        """Of every rank as if it had so many stages; None where one has none."""
        of_pool = {
            pool: self._all_offers.of(pool, size, arrangement.share, stages)
            for pool, size in zip(arrangement.pools, arrangement.sizes, strict=True)
        }
        found = [of_pool[pool] for pool in arrangement.pools]
        return [one for one in found if one is not None] if None not in found else None

    def _hops(self, arrangement: Arrangement, offers: Sequence[Offered]) -> list[float]:
        """Passing a micro-batch on, by boundary between stages, at least [s]."""
        homes = _homes(arrangement)
        places = device_ranges(self._evaluator, arrangement.sizes, arrangement.pools)
        seconds = []
        for a, b in pairwise(homes):
            most = max(offers[a].boundary, offers[b].boundary)
            across = route(self._evaluator.whole, places[a], places[b]) if a != b else None
            seconds.append(send(most, across).seconds if across else 0.0)
        return seconds

    # --- plans ----------------------------------------------------------------------------------------

    def _answer(self, arrangement: Arrangement, offers: Sequence[Offered], dealt: Dealt) -> Answer | None:
        """The dealt layers as a plan, moved while that helps; None where it does not fit."""
        if not dealt.layers:
            return None
        chosen = _chosen(arrangement, offers, dealt)
        layers = self._dealer.whole(
            _order(arrangement),
            [_only(one, mesh_of(local)) for one, local in zip(offers, chosen, strict=True)],
            self._counts,
            self._hops(arrangement, offers),
        )
        ends = _rounded(layers or [float(layers.sum()) for layers in dealt.layers])
        plan = self._plan(arrangement, chosen, ends)
        best = self._priced(by_rank(self._evaluator, plan))
        improving = best is not None
        while improving and best is not None:
            improving = False
            for moved in _moved(self._evaluator.cuts(best.plan)):
                answer = self._priced(self._recut(best.plan, arrangement, chosen, moved))
                if answer is not None and answer.seconds < LESS * best.seconds:
                    best, improving = answer, True
        return best

    def _plan(
        self, arrangement: Arrangement, chosen: Sequence[Parallelism], ends: Sequence[int]
    ) -> Parallelism:
        """The arrangement with every rank's mesh, layers cut at ``ends``."""
        prices = [self._prices[pool] for pool in arrangement.pools]
        choices = [
            Choice(0.0, Tail(0.0, 0.0), 0.0, local, price.shardings(local))
            for price, local in zip(prices, chosen, strict=True)
        ]
        ranks = tuple(pairwise(range(len(prices) + 1)))
        plan = placed(self._evaluator, arrangement.share, ranks, choices, arrangement.pools)
        homes = _homes(arrangement)
        written = {"schedule": arrangement.way.schedule, "virtual_stages": arrangement.way.virtual_stages}
        stages = tuple(plan.stages[home] for home in homes)
        return self._recut(plan.model_copy(update={**written, "stages": stages}), arrangement, chosen, ends)

    def _recut(
        self,
        plan: Parallelism,
        arrangement: Arrangement,
        chosen: Sequence[Parallelism],
        ends: Sequence[int],
    ) -> Parallelism:
        """The plan with its layers cut at ``ends``; stages recompute as before."""
        stages = []
        for home, stage, layers in zip(_homes(arrangement), plan.stages, pairwise(ends), strict=True):
            shardings = self._prices[arrangement.pools[home]].shardings(chosen[home])
            sharding = sharding_of(self._evaluator.graph, shardings, layers)
            stages.append(stage.model_copy(update={"blocks": layers, "sharding": sharding}))
        return plan.model_copy(update={"stages": tuple(stages)})

    def _priced(self, plan: Parallelism) -> Answer | None:
        self.evaluated += 1
        return priced(self._evaluator, plan)


def _order(arrangement: Arrangement) -> Order:
    schedule, v = arrangement.way
    return Order(schedule, len(arrangement.pools), v, arrangement.share.num_microbatches)


def _only(offers: Offered, mesh: Mapping[str, int]) -> Rank:
    """The rank with one mesh."""
    rates = zip(offers.rank.offers, offers.locals, strict=True)
    return offers.rank._replace(offers=tuple(rate for rate, local in rates if mesh_of(local) == mesh))


def _homes(arrangement: Arrangement) -> tuple[int, ...]:
    """The rank of every stage."""
    return stage_to_rank(*_order(arrangement)[:3])


def _chosen(arrangement: Arrangement, offers: Sequence[Offered], dealt: Dealt) -> tuple[Parallelism, ...]:
    """For the ranks of each pool the mesh that most layers were dealt to."""
    homes = _homes(arrangement)
    layers: dict[tuple[int, tuple[int, ...]], float] = {}
    local_plans: dict[tuple[int, tuple[int, ...]], Parallelism] = {}
    for home, share in zip(homes, dealt.layers, strict=True):
        for local, count in zip(offers[home].locals, share.sum(axis=1).tolist(), strict=True):
            mesh = arrangement.pools[home], tuple(mesh_of(local).values())
            layers[mesh] = layers.get(mesh, 0.0) + count
            local_plans.setdefault(mesh, local)
    best = {
        pool: max((mesh for mesh in layers if mesh[0] == pool), key=lambda mesh: layers[mesh])
        for pool in arrangement.pools
    }
    return tuple(local_plans[best[pool]] for pool in arrangement.pools)


def _rounded(layers: Sequence[float]) -> tuple[int, ...]:
    """Boundaries next to those in fractions of layers, with at least one layer for every stage."""
    total, ends = round(sum(layers)), [0]
    for stage, end in enumerate(np.cumsum(layers).tolist(), start=1):
        after = len(layers) - stage
        ends.append(min(max(round(end), ends[-1] + 1), total - after))
    return tuple(ends)


def _moved(ends: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """The boundaries where one stage gives a layer to another one; those between them move along.

    Of many stages only neighbours do.
    """
    stages = range(1, len(ends))
    for a, b in ((a, b) for a, b in product(stages, repeat=2) if len(stages) <= FEW or abs(a - b) == 1):
        step = 1 if a > b else -1
        low, high = min(a, b), max(a, b)
        moved = tuple(end + step * (low <= s < high) for s, end in enumerate(ends))
        if a != b and all(start < end for start, end in pairwise(moved)):
            yield moved

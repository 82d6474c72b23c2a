"""Unlike stages under schedules that the dynamic program does not know: several on each rank, or split backwards.

What a rank holds there depends on all others. Each pool is cut into equal submeshes, with a mesh and rematerialisation
for each rank, and layers are dealt out to all stages. For every such arrangement ranks are filled up
(`planner.inter_op.filling`), and where that may be the fastest a linear program says what no cut can be below
(`planner.inter_op.dealing`); its answer is rounded to whole layers, and layers are moved while the simulated step gets
shorter.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise, permutations, product
from typing import NamedTuple

import numpy as np

from planner.errors import InputError
from planner.evaluation.evaluator import Evaluator
from planner.evaluation.step import handed_on, stage_wait, straggling
from planner.evaluation.tails import Tail
from planner.inter_op.dealing import Dealer, Dealt
from planner.inter_op.filling import filled
from planner.inter_op.ordered import pools_bound
from planner.inter_op.ranks import Order
from planner.pipeline.dependencies import moments_in_flight
from planner.pipeline.generators import is_written_out, refusal, schedule_entry, schedule_label, stage_to_rank
from planner.pipeline.questions import AUTOMATIC
from planner.plans import Parallelism, Pins
from planner.search.branches import Answer, Best, Branch, Known, priced
from planner.search.offers import Offered, Offers
from planner.search.placing import device_ranges, placed, sharding_of
from planner.search.recomputing import by_rank
from planner.search.space import searched_schedules, stage_policies
from planner.search.submeshes import Choice, PoolPrices, Share

ONE_BY_ONE = ("1f1b", "eager-1f1b", "gpipe")
"""One stage to a rank, and what a stage holds depends only on those behind it, which the dynamic program knows."""

MOST_VIRTUAL = 4
"""Stages on each rank that are tried at most, if their number is not pinned."""

LOOKED_AT = 150
"""Parts of an arrangement that are looked into at most."""

ALTOGETHER = 1000
"""Parts of all arrangements, in the order of their bounds."""

MOST_ACTIONS = 1_000_000
"""Of pipelines that are simulated to improve a deal."""

PROMISING = 1.05
"""How many times as long as the best a step may take to be improved."""

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
        anyhow = pools_bound(np.array(rates), share.num_microbatches, waits=False)
        for sizes in product(*(self._prices[k].sizes for k in order)):
            of_size = [
                self._all_offers.rates_of_size(k, size, share) for k, size in zip(order, sizes, strict=True)
            ]
            least = pools_bound(np.array(of_size), share.num_microbatches, waits=False)
            least = least if np.isfinite(least) else anyhow  # whoever looks into these sees that nothing runs
            for arrangement in self._arrangements(order, share, sizes):
                beside, slower = self._beside(arrangement)
                yield (least + beside) * slower, self._branch(arrangement, best)

    def _branch(self, arrangement: Arrangement, best: Best) -> Branch:
        """Bounds of an arrangement, the quickest first, then a plan."""
        lightest = self._offers(arrangement, self._all_offers.lightest)
        if lightest is None:
            return
        yield Known(self._filled(arrangement, lightest))
        quick = self._offers(arrangement, partial(self._all_offers.of, stages=1))
        assert quick is not None
        yield Known(self._filled(arrangement, quick))
        several = partial(self._all_offers.of, stages=arrangement.way.virtual_stages)
        offers = self._offers(arrangement, several)
        assert offers is not None  # what runs does so with more stages, if with less memory
        beside, slower = self._beside(arrangement)
        deals = self._dealer.deal(
            _order(arrangement),
            [one.rank for one in offers],
            self._counts,
            self._hops(arrangement, offers),
            lambda: best.seconds / slower - beside,
        )
        seen = set[tuple[object, ...]]()
        for looked_at, dealt in enumerate(deals, start=1):
            self._looked_at += 1
            bound, answer = (dealt.bound + beside) * slower, None
            if dealt.layers and dealt[1:] not in seen:
                answer = self._answer(arrangement, offers, dealt, PROMISING * best.seconds)
                seen.add(dealt[1:])
            yield Known(bound, answer, last=looked_at >= LOOKED_AT or self._looked_at >= ALTOGETHER)

    def _answer(
        self, arrangement: Arrangement, offers: Sequence[Offered], dealt: Dealt, promising: float
    ) -> Answer | None:
        """The deal as a plan; if its step is below ``promising`` [s], with layers moved while it gets shorter."""
        plan = self._plan(arrangement, offers, dealt)
        best = self._priced(plan) or self._priced(by_rank(self._evaluator, plan))
        actions = 2 * len(dealt.layers) * arrangement.share.num_microbatches
        left, improving = MOST_ACTIONS // actions, best is not None and best.seconds < promising
        while improving and best is not None:
            improving = False
            for a, b in _neighbours(len(dealt.layers), len(arrangement.pools)):
                layers = list(dealt.layers)
                layers[a], layers[b] = layers[a] - 1, layers[b] + 1
                if layers[a] == 0 or left == 0:
                    continue
                left -= 1
                moved = dealt._replace(layers=tuple(layers))
                answer = self._priced(self._recut(best.plan, arrangement, offers, moved), LESS * best.seconds)
                if answer is not None:
                    best, dealt, improving = answer, moved, True
            answer = self._priced(by_rank(self._evaluator, best.plan), LESS * best.seconds)
            if answer is not None:
                best, improving = answer, True
        return best

    def _arrangements(
        self, order: tuple[int, ...], share: Share, sizes: tuple[int, ...]
    ) -> Iterator[Arrangement]:
        """The pools cut into submeshes of these sizes, under every schedule."""
        counts = [self._prices[k].devices // size for k, size in zip(order, sizes, strict=True)]
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

    def _offers(
        self, arrangement: Arrangement, offers_of: Callable[[int, int, Share], Offered | None]
    ) -> list[Offered] | None:
        """Of every rank; None where one has none."""
        of_pool = {
            pool: offers_of(pool, size, arrangement.share)
            for pool, size in zip(arrangement.pools, arrangement.sizes, strict=True)
        }
        found = [of_pool[pool] for pool in arrangement.pools]
        return [one for one in found if one is not None] if None not in found else None

    def _hops(self, arrangement: Arrangement, offers: Sequence[Offered]) -> tuple[float, ...]:
        """Passing a micro-batch on, by boundary between stages, at least [s]."""
        homes = _homes(arrangement)
        places = device_ranges(self._evaluator, arrangement.sizes, arrangement.pools)
        most = [max(offers[a].boundary, offers[b].boundary) for a, b in pairwise(homes)]
        return handed_on(self._evaluator.whole, most, [places[home] for home in homes])

    # --- plans ----------------------------------------------------------------------------------------

    def _plan(self, arrangement: Arrangement, offers: Sequence[Offered], dealt: Dealt) -> Parallelism:
        """The arrangement with the layers that are dealt out to each stage."""
        prices = [self._prices[pool] for pool in arrangement.pools]
        chosen = [one.locals[way] for one, way in zip(offers, dealt.ways, strict=True)]
        choices = [
            Choice(0.0, Tail(0.0, 0.0), 0.0, local, price.shardings(local))
            for price, local in zip(prices, chosen, strict=True)
        ]
        ranks = tuple(pairwise(range(len(prices) + 1)))
        plan = placed(self._evaluator, arrangement.share, ranks, choices, arrangement.pools)
        stages = tuple(plan.stages[home] for home in _homes(arrangement))
        written = {"schedule": arrangement.way.schedule, "virtual_stages": arrangement.way.virtual_stages}
        return self._recut(plan.model_copy(update={**written, "stages": stages}), arrangement, offers, dealt)

    def _recut(
        self, plan: Parallelism, arrangement: Arrangement, offers: Sequence[Offered], dealt: Dealt
    ) -> Parallelism:
        """The plan with the layers of the deal; stages recompute as before."""
        stages, ends = [], np.cumsum((0, *dealt.layers)).tolist()
        for home, stage, layers in zip(_homes(arrangement), plan.stages, pairwise(ends), strict=True):
            local = offers[home].locals[dealt.ways[home]]
            shardings = self._prices[arrangement.pools[home]].shardings(local)
            sharding = sharding_of(self._evaluator.graph, shardings, layers)
            stages.append(stage.model_copy(update={"blocks": layers, "sharding": sharding}))
        return plan.model_copy(update={"stages": tuple(stages)})

    def _priced(self, plan: Parallelism, below: float = float("inf")) -> Answer | None:
        self.evaluated += 1
        return priced(self._evaluator, plan, below)


def _order(arrangement: Arrangement) -> Order:
    schedule, v = arrangement.way
    return Order(schedule, len(arrangement.pools), v, arrangement.share.num_microbatches)


def _homes(arrangement: Arrangement) -> tuple[int, ...]:
    """The rank of every stage."""
    return stage_to_rank(*_order(arrangement)[:3])


def _neighbours(stages: int, ranks: int) -> Iterator[tuple[int, int]]:
    """Pairs of stages that follow each other, in the order or on a rank."""
    return ((a, b) for a, b in permutations(range(stages), 2) if abs(a - b) in (1, ranks))

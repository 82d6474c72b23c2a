"""Stages that differ: pools of unlike devices one after the other, each cut into submeshes, each stage its own mesh.

For every order of two or more pools, size of a micro-batch and ZeRO stage, the dynamic program cuts layers into stages
and pools into submeshes, with the evaluator's own seconds and memory for every stage; each stage runs with the mesh,
sharding and rematerialisation that is fastest for it within its device's memory. Cuts come in the order of what their
steps cannot be below, and are simulated while they may be the fastest. Plans of one pool alone come from the search
over equal stages.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, permutations
from math import gcd
from typing import NamedTuple

import numpy as np

from planner.errors import InputError
from planner.evaluation.evaluator import Evaluator
from planner.evaluation.stages import StageShape
from planner.evaluation.step import stage_wait, straggling
from planner.inter_op.ordered import Bounded, cuts_in_order, pools_bound
from planner.inter_op.partition import Array, StagePartition, Submesh
from planner.plans import Pins, Sharding, ZeroStage
from planner.search.branches import Answer, Best, Branch, Known, Progress, Searched, priced, search
from planner.search.numbers import divisors
from planner.search.offers import Offered, Offers
from planner.search.placing import placed
from planner.search.rescheduling import ONE_BY_ONE, Rescheduling, only_others
from planner.search.space import most_sequences, stage_policies
from planner.search.stage_tables import all_shapes, least_tables
from planner.search.submeshes import MOST_STAGES, Choice, PoolPrices, Share, in_flight

MAX_SEQUENCES = 64
"""Of a micro-batch on each data rank of the largest stage; more where `most_sequences` are, as they are short."""

LOOKED_AT = 48
"""Of the cuts in the order of their bounds, so many are simulated for a combination at most."""

LESS = 1 - 1e-9
"""What counts as faster."""


class Combination(NamedTuple):
    """What is decided before layers are cut."""

    order: tuple[int, ...]
    """Pools in the order in which a micro-batch passes them."""
    share: Share


class Stage(NamedTuple):
    """One stage: its layers and its submesh."""

    end: int
    submesh: int


class _Tables(NamedTuple):
    """[stages after, submesh, start, end] -> seconds at least, infinite where there is no such stage."""

    work: Array
    """Of a micro-batch."""
    after: Array
    """After the last backward: all of it on the first stage, on others only what nothing can hide."""


class UnequalOutcome(NamedTuple):
    """Plans, best first; the bound below which no step of the space is; how many were simulated and excluded."""

    found: tuple[Answer, ...]
    bound: float
    evaluated: int
    excluded: int


class UnequalSearch:
    """One search over stages that differ."""

    def __init__(self, evaluator: Evaluator, pins: Pins, devices: Sequence[int] | None = None) -> None:
        """Nothing is priced yet. Of each pool exactly so many ``devices`` are used; if not given, all of two or more.

        Raises ``InputError`` for pins that such stages cannot have.
        """
        _check(evaluator, pins)
        self.evaluator, self.pins, self._policies = evaluator, pins, stage_policies(pins)
        self._stages = pins.pipeline or len(self._policies) or None
        most = MOST_STAGES * len(evaluator.pools)
        batch = evaluator.job.global_batch
        self._only_others = only_others(pins)
        self._base = next((name for name in ONE_BY_ONE if name == pins.schedule), "1f1b")
        held = batch if self._base == "gpipe" else min(batch, 2 * most)
        self._used = devices
        counts = devices or [pool.cluster.num_devices for pool in evaluator.pools]
        self.prices = tuple(
            PoolPrices(pool, pins, held, count) for pool, count in zip(evaluator.pools, counts, strict=True)
        )
        self._offers = Offers(evaluator, self.prices)
        self._rescheduling = Rescheduling(evaluator, pins, self.prices, self._offers)
        self.evaluated = 0
        self._shapes = all_shapes(evaluator, self._offers.kinds)

    def combinations(self) -> Iterator[Combination]:
        """Every order of the pools, size of a micro-batch and ZeRO stage that the pins allow."""
        evaluator, pins = self.evaluator, self.pins
        pools, batch = range(len(evaluator.pools)), evaluator.job.global_batch
        least = 1 if len(pools) == 1 else 2
        most = max(MAX_SEQUENCES, most_sequences(evaluator.job))
        orders = [o for n in range(least, len(pools) + 1) for o in permutations(pools, n)]
        if self._used is not None:
            orders = list(permutations(k for k in pools if self._used[k]))
        for order in orders:
            widest = max(max(self.prices[k].sizes) for k in order)
            for sequences in (s for s in divisors(batch) if s <= most * widest):
                for zero, sharding in _states(evaluator, pins):
                    share = Share(sequences, batch // sequences, zero, sharding, self._base)
                    yield Combination(order, share)

    def run(self, known: float = float("inf"), progress: Progress | None = None) -> UnequalOutcome:
        """The best plan of every combination that may be faster than ``known`` [s] and the others, best first.

        Cuts with one stage on each rank come first: they are soon looked through, and exclude most other schedules.
        """
        best, cuts, others = Best(known), list[tuple[float, Branch]](), list[tuple[float, Branch]]()
        for combination in self.combinations():
            if not self._only_others:
                cuts.append((self.bound(combination), self._branch(combination, best)))
            others += self._rescheduling.branches(combination.order, combination.share, best)
        first, second = search(cuts, best, progress), search(others, best, progress)
        return UnequalOutcome(
            found=tuple(sorted((*first.found, *second.found), key=lambda answer: answer.seconds)),
            bound=min(first.bound, second.bound),
            evaluated=self.evaluated + self._rescheduling.evaluated,
            excluded=first.excluded + second.excluded,
        )

    # --- one combination ------------------------------------------------------------------------------

    def bound(self, combination: Combination) -> float:
        """What no step of the combination can be below [s], by `pools_bound`."""
        order, share = combination
        rates = np.array([self._offers.rates(pool, share) for pool in order])
        least = pools_bound(rates, share.num_microbatches, waits=not self._only_others)
        return (least + self._beside(combination, len(order))) * (1 + self._slower(combination))

    def solve(self, combination: Combination, known: float = float("inf")) -> Searched:
        """The fastest plan of the combination that may be faster than ``known`` [s], and what bounds all of them."""
        best = Best(known)
        return search([(0.0, self._branch(combination, best))], best)

    def _branch(self, combination: Combination, best: Best) -> Branch:
        """Cuts in the order of their bounds, simulated in turn, unless offers with the least memory tell enough.

        A stage is priced when it is first used; where that is dearer than the tables say, they learn it, and the order
        is made anew.
        """
        submeshes = self.submeshes(combination)
        if not submeshes:
            return
        yield Known(self._lightest(combination, submeshes, best.seconds))
        tables = self._tables(combination, submeshes)
        seen: dict[StagePartition, Answer | None] = {}
        bound, answer, order = 0.0, None, self._in_order(combination, tables, submeshes, best.seconds)
        while (first := next(order, None)) is not None:
            bound = max(bound, first.bound)
            yield Known(bound, answer)
            answer, cut = None, first.cut
            if self._learnt(combination, tables, submeshes, cut):
                order = self._in_order(combination, tables, submeshes, best.seconds)
            elif cut not in seen:
                seen[cut] = answer = self.priced(combination, submeshes, _stages(cut))
            if len(seen) == LOOKED_AT:
                yield Known(bound, self._improved(combination, submeshes, seen), last=True)
                return
        yield Known(float("inf"), answer)

    def _in_order(
        self, combination: Combination, tables: _Tables, submeshes: Sequence[Submesh], enough: float
    ) -> Iterator[Bounded]:
        """Cuts by what their steps cannot be below, where that is below ``enough`` [s]."""
        pinned, m = self._stages, combination.share.num_microbatches
        factor = 1 + self._slower(combination)
        extra = [
            self._beside(combination, stages) if pinned in (None, stages) else float("inf")
            for stages in range(1, len(tables.work) + 1)
        ]
        unit = gcd(*(submesh.size for submesh in submeshes))
        pools = [self.prices[k].devices // unit for k in combination.order]
        smaller = [submesh._replace(size=submesh.size // unit) for submesh in submeshes]
        held = self._held(combination)
        for bound, cut in cuts_in_order(*tables, pools, smaller, m, held, extra, enough / factor):
            yield Bounded(bound * factor, cut)

    def _beside(self, combination: Combination, stages: int) -> float:
        """What comes on top of a pipeline of so many stages in any plan of the combination, before stragglers [s]."""
        setting, m = self.evaluator.setting, combination.share.num_microbatches
        return stage_wait(setting, stages, 1, m) + setting.software.step_overhead

    def _slower(self, combination: Combination) -> float:
        """Relative slow-down by stragglers, at least."""
        pools = [self.prices[k] for k in combination.order]
        devices = sum(pool.devices for pool in pools)
        return min(straggling(pool.evaluator.setting, devices) for pool in pools)

    def submeshes(self, combination: Combination) -> list[Submesh]:
        """Of every pool in the order, by place in it."""
        return [
            Submesh(size, place)
            for place, pool in enumerate(combination.order)
            for size in self.prices[pool].sizes
        ]

    def choice(
        self, combination: Combination, submesh: Submesh, shape: StageShape, stages_after: int
    ) -> Choice | None:
        """How a stage runs on a submesh with so many stages behind it."""
        share = combination.share
        held = in_flight(share.schedule, stages_after, share.num_microbatches)
        policy = None
        if self._policies:
            if stages_after >= len(self._policies):
                return None
            policy = self._policies[-1 - stages_after]
        prices = self.prices[combination.order[submesh.pool]]
        return prices.choice(shape, submesh.size, share, held, policy)

    def _lightest(self, combination: Combination, submeshes: Sequence[Submesh], enough: float) -> float:
        """What no cut can be below, by the least memory that is sure; ``enough`` where that is not below it [s].

        It is soon told, and excludes most combinations.
        """
        share = combination.share
        held = [h - (h == share.num_microbatches > 1) for h in self._held(combination)]
        offers = [self._offers.lightest(combination.order[k.pool], k.size, share) for k in submeshes]
        tables = self._least(combination, submeshes, offers, held)
        order = self._in_order(combination, tables, submeshes, enough)
        return next((one.bound for one in order), enough)

    def _tables(self, combination: Combination, submeshes: Sequence[Submesh]) -> _Tables:
        """What every stage takes at least, before any is priced."""
        order, share = combination
        offers = [self._offers.of(order[k.pool], k.size, share, 1) for k in submeshes]
        return self._least(combination, submeshes, offers, self._held(combination))

    def _held(self, combination: Combination) -> list[int]:
        """Micro-batches in flight at most, by stages after."""
        order, share = combination
        most = min(MOST_STAGES * len(order), self.evaluator.graph.num_layers)
        return [in_flight(share.schedule, after, share.num_microbatches) for after in range(most)]

    def _least(
        self,
        combination: Combination,
        submeshes: Sequence[Submesh],
        offers: Sequence[Offered | None],
        held: Sequence[int],
    ) -> _Tables:
        limits = [self.prices[combination.order[submesh.pool]].limit for submesh in submeshes]
        return _Tables(*least_tables(offers, self._shapes, held, limits).of_cuts(self._shapes))

    def _learnt(
        self, combination: Combination, tables: _Tables, submeshes: Sequence[Submesh], cut: StagePartition
    ) -> bool:
        """Whether stages of the cut take longer than the tables said; now these say what they take."""
        dearer = False
        for number, (start, end) in enumerate(cut.stages):
            after, k = len(cut.stages) - 1 - number, cut.submeshes[number]
            shape = self._shapes.number[start, end]
            choice = self.choice(combination, submeshes[k], self._shapes.shapes[shape], after)
            work, tail = float("inf"), float("inf")
            if choice is not None:
                work, tail = choice.work, choice.tail.optimizer + (choice.tail.data if start == 0 else 0.0)
            at = after, k, start, end
            if work > tables.work[at] / LESS or tail > tables.after[at] / LESS:
                dearer = True
                alike = self._shapes.number == shape
                tables.work[after, k, alike], tables.after[after, k, alike] = work, tail
        return dearer

    def _improved(
        self,
        combination: Combination,
        submeshes: Sequence[Submesh],
        seen: Mapping[StagePartition, Answer | None],
    ) -> Answer | None:
        """The best of these cuts, its boundaries moved by a layer while the simulated step gets shorter."""
        fitting = [(answer.seconds, _stages(cut)) for cut, answer in seen.items() if answer is not None]
        if not fitting:
            return None
        (least, stages), best = min(fitting), None
        improving = True
        while improving:
            improving = False
            for moved in _moved(stages):
                answer = self.priced(combination, submeshes, moved)
                if answer is not None and answer.seconds < LESS * least:
                    best, least, stages, improving = answer, answer.seconds, moved, True
        return best

    def priced(
        self, combination: Combination, submeshes: Sequence[Submesh], stages: Sequence[Stage]
    ) -> Answer | None:
        """The stages as a plan with its estimate; None where one does not fit."""
        choices, shapes = [], []
        for number, (start, end) in enumerate(pairwise((0, *(stage.end for stage in stages)))):
            shape = self.evaluator.shape(start, end)
            after = len(stages) - 1 - number
            choice = self.choice(combination, submeshes[stages[number].submesh], shape, after)
            if choice is None:
                return None
            choices.append(choice)
            shapes.append((start, end))
        pools = [combination.order[submeshes[stage.submesh].pool] for stage in stages]
        plan = placed(self.evaluator, combination.share, shapes, choices, pools)
        self.evaluated += 1
        return priced(self.evaluator, plan)


def _stages(cut: StagePartition) -> tuple[Stage, ...]:
    return tuple(Stage(end, k) for (_, end), k in zip(cut.stages, cut.submeshes, strict=True))


def _moved(stages: tuple[Stage, ...]) -> Iterator[tuple[Stage, ...]]:
    """The stages with one boundary moved by one layer."""
    ends = [0, *(stage.end for stage in stages)]
    for s in range(len(stages) - 1):
        for end in (ends[s + 1] - 1, ends[s + 1] + 1):
            if ends[s] < end < ends[s + 2]:
                yield (*stages[:s], stages[s]._replace(end=end), *stages[s + 1 :])


def _states(evaluator: Evaluator, pins: Pins) -> list[tuple[ZeroStage, Sharding]]:
    """ZeRO stages and PyTorch's names for them, sharded over all data ranks of a stage."""
    table: list[tuple[ZeroStage, Sharding]] = [
        (0, "NO_SHARD"),
        (1, "NO_SHARD"),
        (2, "SHARD_GRAD_OP"),
        (3, "FULL_SHARD"),
    ]
    free = pins.zero_stage is None and pins.sharding is None
    return [
        (zero, name)
        for zero, name in table
        if (zero in evaluator.software.zero_stages if free else True)
        and pins.zero_stage in (None, zero)
        and pins.sharding in (None, name)
    ]


def _check(evaluator: Evaluator, pins: Pins) -> None:
    if pins.sharding == "HYBRID_SHARD":
        raise InputError("--sharding HYBRID_SHARD: stages that differ shard over all their data ranks")

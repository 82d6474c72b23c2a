"""Stages that differ: pools of unlike devices one after the other, each cut into submeshes, each stage its own mesh.

For every order of two or more pools, size of a micro-batch and ZeRO stage, the dynamic program cuts layers into stages
and pools into submeshes, with the evaluator's own seconds and memory for every stage; each stage runs with the mesh,
sharding and rematerialisation that is fastest for it within its device's memory. The cuts that may be the fastest are
then simulated, and their boundaries moved while that helps. Plans of one pool alone come from the search over equal
stages. Every combination that its bound does not exclude is looked at.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, pairwise, permutations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.errors import Infeasible, InputError
from planner.evaluation.evaluator import Evaluator, StageShape
from planner.evaluation.step import stage_wait, straggling
from planner.inter_op.ordered import Bounded, cuts_in_order, pools_bound
from planner.inter_op.partition import Array, StagePartition, Submesh, submesh_cuts
from planner.plans import Pins, Sharding, ZeroStage
from planner.search.placing import placed
from planner.search.rescheduling import ONE_BY_ONE, Answer, Rescheduling, only_others, priced
from planner.search.space import divisors, stage_policies
from planner.search.submeshes import MOST_STAGES, Choice, PoolPrices, Share, in_flight

Numbers = NDArray[np.int64]
Progress = Callable[[int, int], None]

MAX_SEQUENCES = 64
"""Of a micro-batch on each data rank of the largest stage."""

SIMULATED = 4
"""Of the cuts with the least time by the closed form, so many are simulated and improved."""

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


class Solution(NamedTuple):
    """Of one combination."""

    answer: Answer | None
    """None where nothing fits that may be faster than what is known."""
    bound: float
    """What no step of the combination can be below [s]; infinite where it holds nothing that was not known."""


class _Tables(NamedTuple):
    """[stages after, submesh, start, end] -> seconds, infinite where there is no such stage."""

    seconds: Array
    """Of a micro-batch, with its part of what follows the last backward."""
    work: Array
    """Of a micro-batch alone."""
    after: Array
    """After the last backward, at least: all of it on the first stage, on others only what nothing can hide."""


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
        self._rescheduling = Rescheduling(evaluator, pins, self.prices)
        self.evaluated = 0
        self._shapes, self._shape_of = _all_shapes(evaluator)

    def combinations(self) -> Iterator[Combination]:
        """Every order of the pools, size of a micro-batch and ZeRO stage that the pins allow."""
        evaluator, pins = self.evaluator, self.pins
        pools, batch = range(len(evaluator.pools)), evaluator.job.global_batch
        least = 1 if len(pools) == 1 else 2
        orders = [o for n in range(least, len(pools) + 1) for o in permutations(pools, n)]
        if self._used is not None:
            orders = list(permutations(k for k in pools if self._used[k]))
        for order in orders:
            widest = max(max(self.prices[k].sizes) for k in order)
            for sequences in (s for s in divisors(batch) if s <= MAX_SEQUENCES * widest):
                for zero, sharding in _states(evaluator, pins):
                    share = Share(sequences, batch // sequences, zero, sharding, self._base)
                    yield Combination(order, share)

    def run(self, known: float = float("inf"), progress: Progress | None = None) -> UnequalOutcome:
        """The best plan of every combination that may be faster than ``known`` [s] and the others, best first."""
        bounded = sorted(
            ((self.bound(c), n, c) for n, c in enumerate(self.combinations())), key=lambda b: b[:2]
        )
        found: list[Answer] = []
        best, proven, excluded = known, float("inf"), 0
        for looked, (bound, _, combination) in enumerate(() if self._only_others else bounded):
            if progress is not None:
                progress(looked, len(bounded))
            if bound >= best:
                excluded = len(bounded) - looked
                break
            solution = self.solve(combination, best)
            proven = min(proven, max(bound, solution.bound))
            if solution.answer is not None:
                found.append(solution.answer)
                best = min(best, _seconds(solution.answer))
        if self._rescheduling.ways:
            orders = [(combination.order, combination.share) for _, _, combination in bounded]
            others = self._rescheduling.run(orders, best)
            found += others.found
            proven = min(proven, others.bound)
        found.sort(key=_seconds)
        evaluated = self.evaluated + self._rescheduling.evaluated
        return UnequalOutcome(tuple(found), min(proven, best), evaluated, excluded)

    # --- one combination ------------------------------------------------------------------------------

    def bound(self, combination: Combination) -> float:
        """What no step of the combination can be below [s], by `pools_bound`."""
        prices, share = [self.prices[k] for k in combination.order], combination.share
        rates = np.array([pool.rates(share, pool.sizes) for pool in prices])
        least = pools_bound(rates, share.num_microbatches, waits=not self._only_others)
        return (least + self._beside(combination, len(prices))) * (1 + self._slower(combination))

    def solve(self, combination: Combination, known: float = float("inf")) -> Solution:
        """The fastest plan of the combination that may be faster than ``known`` [s], and what bounds all of them."""
        submeshes = self.submeshes(combination)
        pools = [self.prices[k].devices for k in combination.order]
        if not submeshes:
            return Solution(None, float("inf"))
        m = combination.share.num_microbatches
        tables = self._tables(combination, submeshes, known / m)
        ordered = self._in_order(combination, tables, pools, submeshes)
        first = next(ordered, None)
        if first is None or first.bound >= known:
            return Solution(None, float("inf"))
        best = min(self._by_closed_form(combination, tables, pools, submeshes), key=_seconds, default=None)
        return self._closed_in(combination, submeshes, chain([first], ordered), best, known)

    def _by_closed_form(
        self, combination: Combination, tables: _Tables, pools: Sequence[int], submeshes: Sequence[Submesh]
    ) -> list[Answer]:
        """The cuts of least time by the closed form, simulated and improved."""
        m = combination.share.num_microbatches
        try:
            cuts = submesh_cuts(tables.seconds, pools, submeshes, m, self._stages)
        except Infeasible:
            return []
        answers = (self._improved(combination, submeshes, cut) for cut in cuts[:SIMULATED])
        return [answer for answer in answers if answer is not None]

    def _in_order(
        self, combination: Combination, tables: _Tables, pools: Sequence[int], submeshes: Sequence[Submesh]
    ) -> Iterator[Bounded]:
        """Cuts by what their steps cannot be below."""
        pinned, m = self._stages, combination.share.num_microbatches
        factor = 1 + self._slower(combination)
        extra = [
            self._beside(combination, stages) if pinned in (None, stages) else float("inf")
            for stages in range(1, len(tables.work) + 1)
        ]
        for bound, cut in cuts_in_order(tables.work, tables.after, pools, submeshes, m, extra):
            yield Bounded(bound * factor, cut)

    def _closed_in(
        self,
        combination: Combination,
        submeshes: Sequence[Submesh],
        ordered: Iterator[Bounded],
        best: Answer | None,
        known: float,
    ) -> Solution:
        """Cuts in the order of their bounds, simulated until none that is left can be faster."""
        for looked, (bound, cut) in enumerate(ordered):
            least = known if best is None else min(known, _seconds(best))
            if bound >= least:
                return Solution(best, least)
            if looked == LOOKED_AT:
                return Solution(best, bound)
            answer = self.priced(combination, submeshes, _stages(cut))
            if answer is not None and (best is None or _seconds(answer) < _seconds(best)):
                best = answer
        return Solution(best, float("inf") if best is None else _seconds(best))

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

    def _tables(self, combination: Combination, submeshes: Sequence[Submesh], slowest: float) -> _Tables:
        """What is known of every stage; those slower than ``slowest`` are left out."""
        most = min(MOST_STAGES * len(combination.order), self.evaluator.graph.num_layers)
        size = (most, len(submeshes), len(self._shapes) + 1)
        seconds, work, tail = (np.full(size, np.inf) for _ in range(3))
        for k, submesh in enumerate(submeshes):
            prices = self.prices[combination.order[submesh.pool]]
            for number, shape in enumerate(self._shapes):
                least = sum(
                    count * prices.layer_seconds(name, submesh.size, combination.share)
                    for name, count in shape.layers
                )
                if least > slowest:
                    continue
                for after in range(1) if shape.last else range(1, most):
                    choice = self.choice(combination, submesh, shape, after)
                    if choice is not None:
                        at = after, k, number
                        seconds[at], work[at], tail[at] = choice.seconds, choice.work, choice.tail.optimizer
                        tail[at] += choice.tail.data if shape.first else 0.0
        return _Tables(*(table[:, :, self._shape_of] for table in (seconds, work, tail)))

    def _improved(
        self, combination: Combination, submeshes: Sequence[Submesh], cut: StagePartition
    ) -> Answer | None:
        """The cut as a plan, its boundaries moved by a layer while the simulated step gets shorter."""
        stages = _stages(cut)
        best = self.priced(combination, submeshes, stages)
        improving = best is not None
        while improving:
            improving = False
            for moved in _moved(stages):
                answer = self.priced(combination, submeshes, moved)
                if answer is not None and best is not None and _seconds(answer) < LESS * _seconds(best):
                    best, stages, improving = answer, moved, True
        return best

    def priced(
        self, combination: Combination, submeshes: Sequence[Submesh], stages: Sequence[Stage]
    ) -> Answer | None:
        """The stages as a plan with its estimate; None where one does not fit."""
        choices, shapes = [], []
        for number, (start, end) in enumerate(pairwise((0, *(stage.end for stage in stages)))):
            shape = self._shapes[self._shape_of[start, end]]
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


def _seconds(answer: Answer) -> float:
    return answer.estimate.step_time_s


def _moved(stages: tuple[Stage, ...]) -> Iterator[tuple[Stage, ...]]:
    """The stages with one boundary moved by one layer."""
    ends = [0, *(stage.end for stage in stages)]
    for s in range(len(stages) - 1):
        for end in (ends[s + 1] - 1, ends[s + 1] + 1):
            if ends[s] < end < ends[s + 2]:
                yield (*stages[:s], stages[s]._replace(end=end), *stages[s + 1 :])


def _all_shapes(evaluator: Evaluator) -> tuple[tuple[StageShape, ...], Numbers]:
    """Every stage that layers can be cut into, and its number by start and end; the number after them is none."""
    layers = evaluator.graph.num_layers
    numbers: dict[StageShape, int] = {}
    shape_of = np.full((layers + 1, layers + 1), -1)
    for start in range(layers):
        for end in range(start + 1, layers + 1):
            shape = evaluator.shape(start, end)
            shape_of[start, end] = numbers.setdefault(shape, len(numbers))
    return tuple(numbers), shape_of


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

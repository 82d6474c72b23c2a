"""Unlike stages under other schedules: the ranks of a plan that was found for 1F1B, their layers dealt out anew.

What a rank holds under a schedule with several stages on it, or with a split backward, depends on all the others, so
the dynamic program over submeshes does not know it. It finds ranks; here their devices and meshes stay, layers are cut
into as many stages as the schedule has, each rank recomputes as much as its memory needs under that schedule, and
boundaries are moved while the simulated step gets shorter.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from cluster_specs.topology import pool_of
from planner.errors import InputError
from planner.evaluation.evaluator import Evaluator
from planner.evaluation.sites import seen_by
from planner.inter_op.partition import partition_layers
from planner.pipeline.generators import is_written_out, refusal, schedule_entry, schedule_label, stage_to_rank
from planner.pipeline.questions import AUTOMATIC
from planner.plans import Estimate, Parallelism, Pins
from planner.search.placing import sharding_of
from planner.search.recomputing import by_rank
from planner.search.space import searched_schedules, stage_policies
from planner.search.submeshes import PoolPrices

ONE_BY_ONE = ("1f1b", "eager-1f1b", "gpipe")
"""One stage to a rank, and what a stage holds depends only on those behind it, which the dynamic program knows."""

MOST_VIRTUAL = 4
"""Stages on each rank that are tried at most, if their number is not pinned."""

LESS = 1 - 1e-9
"""What counts as faster."""


class Way(NamedTuple):
    """A schedule, and how many stages each rank has in it."""

    schedule: str
    virtual_stages: int


class Answer(NamedTuple):
    """A plan with its price."""

    plan: Parallelism
    estimate: Estimate


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


def under(evaluator: Evaluator, prices: Sequence[PoolPrices], plan: Parallelism, way: Way) -> Answer | None:
    """The ranks of ``plan`` under another schedule; None where it does not exist for them or they have no room."""
    p, v, m = plan.pipeline, way.virtual_stages, plan.num_microbatches
    if p == 1 or p * v > evaluator.graph.num_layers or refusal(way.schedule, p, v, m):
        return None
    ranks = _Ranks(evaluator, prices, plan, way)
    best = priced(evaluator, by_rank(evaluator, ranks.laid_out(ranks.cut())))
    improving = best is not None
    while improving and best is not None:
        improving = False
        for ends in moved_ends(evaluator.cuts(best.plan)):
            answer = priced(evaluator, ranks.laid_out(ends, like=best.plan))
            if answer is not None and answer.estimate.step_time_s < LESS * best.estimate.step_time_s:
                best, improving = answer, True
    return best


class _Ranks:
    """The ranks of a plan, for stages of another schedule."""

    def __init__(
        self, evaluator: Evaluator, prices: Sequence[PoolPrices], plan: Parallelism, way: Way
    ) -> None:
        self._evaluator, self._plan, self._way = evaluator, plan, way
        self._homes = stage_to_rank(way.schedule, plan.pipeline, way.virtual_stages)
        self._locals = [seen_by(plan, stage) for stage in plan.stages]
        self._pools = [prices[pool_of(evaluator.whole, stage.devices)] for stage in plan.stages]

    def cut(self) -> tuple[int, ...]:
        """Boundaries that make the slowest stage fast, each on its rank's devices."""

        def seconds(start: int, end: int, stage: int) -> float:
            rank = self._homes[stage]
            shape = self._evaluator.shape(start, end)
            return self._pools[rank].cost(self._locals[rank], shape)[0].seconds

        layers, m = self._evaluator.graph.num_layers, self._plan.num_microbatches
        found = partition_layers(layers, len(self._homes), seconds, lambda *_: True, m)
        return (0, *(end for _, end in found.stages))

    def laid_out(self, ends: Sequence[int], like: Parallelism | None = None) -> Parallelism:
        """The plan with these boundaries; stages recompute as in ``like``, or as their ranks did."""
        stages = []
        for s, (layers, rank) in enumerate(zip(pairwise(ends), self._homes, strict=True)):
            shardings = self._pools[rank].shardings(self._locals[rank])
            stage = self._plan.stages[rank] if like is None else like.stages[s]
            sharding = sharding_of(self._evaluator.graph, shardings, layers)
            stages.append(stage.model_copy(update={"blocks": layers, "sharding": sharding}))
        changed = {
            "schedule": self._way.schedule,
            "virtual_stages": self._way.virtual_stages,
            "stages": tuple(stages),
        }
        return (like or self._plan).model_copy(update=changed)


def priced(evaluator: Evaluator, plan: Parallelism) -> Answer | None:
    """The plan with its estimate; None where it does not fit."""
    estimate = evaluator.estimate(plan)
    return Answer(plan, estimate) if estimate.fits_with(evaluator.job.memory_headroom) else None


def moved_ends(ends: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """The boundaries with one of them moved by a layer."""
    for s in range(1, len(ends) - 1):
        for end in (ends[s] - 1, ends[s] + 1):
            if ends[s - 1] < end < ends[s + 1]:
                yield (*ends[:s], end, *ends[s + 1 :])

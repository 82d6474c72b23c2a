"""The recommendation where stages may differ: pools together, each pool alone, and why.

For the time of a step all devices of the pools are together; for its cost or the number of devices any even part of
each pool in whole nodes is tried beside any other, those first that cost or number least.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

from cluster_specs.cluster import ClusterSpec
from planner.errors import Infeasible, InputError
from planner.evaluation.beyond_stack import families_beyond
from planner.evaluation.evaluator import Evaluator
from planner.plans import Objective, Optimality, Parallelism, Pins, Plan
from planner.search.best_first import Outcome, Progress, Search
from planner.search.branches import Answer
from planner.search.finishing import MOST_MOVED, finished_plans
from planner.search.pins import check_choices
from planner.search.recommend import alternative, warnings_of, what_limits, why_memory
from planner.search.space import device_counts
from planner.search.stack_limits import within_stack
from planner.search.unequal import UnequalSearch

_NOTHING = (float("inf"), float("inf"))
"""What is worse than any plan."""


class _Alone(NamedTuple):
    """What a search over one pool has found, with the others idle."""

    search: Search
    outcome: Outcome
    pool: int
    start: int
    """The first device of the pool."""


class _Together(NamedTuple):
    """Plans on several pools, a value that none is below, and how many were priced and excluded."""

    found: tuple[Answer, ...]
    bound: tuple[float, ...]
    evaluated: int
    excluded: int


def plan_pools(
    evaluator: Evaluator,
    pins: Pins,
    objective: Objective = "time",
    top: int = 5,
    progress: Progress | None = None,
) -> Plan:
    """The fastest plan on a cluster of pools, or one whose stages may differ on a cluster of one.

    Raises:
        InputError: pins that contradict model or job, the cost of pools whose prices are not known.
        Infeasible: nothing fits.
    """
    cluster = evaluator.whole
    check_choices(evaluator, pins)
    pins = within_stack(evaluator, pins)
    value = Value(cluster, objective)
    alone = _alone(evaluator, pins, objective, top, progress)
    known = min((value.of_alone(one) for one in alone), default=_NOTHING)
    outcome = _together(evaluator, pins, value, known, progress)
    shown = _distinct(sorted(outcome.found, key=value.of_answer))[:top]
    least = value.of_answer(shown[-1]) if len(shown) == top else _NOTHING
    near = (one for one in alone if value.of_alone(one, 1 - MOST_MOVED) <= least)
    answers = (answer for one in near for answer in _finished(evaluator, one))
    found = _distinct(sorted((*shown, *answers), key=value.of_answer))[:top]
    if not found:
        raise Infeasible(
            f"{evaluator.graph.name} does not fit on the pools of {cluster.name}, alone or together",
            _alone_says(cluster),
        )
    best = found[0]
    return Plan(
        model=evaluator.model,
        cluster=cluster,
        job=evaluator.job,
        plan=best.plan,
        estimate=best.estimate,
        optimality=_optimality(value.of_answer(best), outcome, [one.outcome.optimality for one in alone]),
        alternatives=tuple(alternative(other, best.estimate, objective) for other in found[1:]),
        explanation=" ".join(
            [
                f"Stages: {stage_list(cluster, best.plan)}.",
                why_memory(best.plan, best.estimate),
                what_limits(best.estimate),
            ]
        ),
        warnings=(
            *families_beyond(cluster, evaluator.software),
            *warnings_of(
                best.plan, best.estimate, evaluator.software, evaluator.graph, evaluator.cluster.device
            ),
        ),
    )


def _alone_says(cluster: ClusterSpec) -> str:
    """How to learn what is lacking, as of unlike stages no plan is kept that needs the least memory."""
    if not cluster.others:
        return (
            "`meshwright fit` without --unequal-stages says how far it is from fitting, and what would help"
        )
    return "`meshwright fit` on one of the pools says how far it is from fitting there, and what would help"


class Value:
    """What an objective makes of a plan on pools: less is better, in the first number and then in the next."""

    def __init__(self, cluster: ClusterSpec, objective: Objective) -> None:
        """Raises ``InputError`` where costs are asked for and a pool has no price."""
        self.objective, self._pools = objective, cluster.pools
        self._prices = _prices(cluster) if objective == "cost" else [0.0] * len(cluster.pools)

    def of(self, devices: Sequence[int] | None, seconds: float) -> tuple[float, ...]:
        """Of a step on so many devices of each pool that takes ``seconds``."""
        if self.objective == "time" or devices is None:
            return (seconds,)
        if self.objective == "devices":
            return (float(sum(devices)), seconds)
        hourly = sum(count * price for count, price in zip(devices, self._prices, strict=True))
        return (seconds * hourly, seconds)

    def of_answer(self, answer: Answer) -> tuple[float, ...]:
        """Of a plan with its estimate."""
        used = {stage.devices for stage in answer.plan.stages}
        counts, start = [], 0
        for pool in self._pools:
            end = start + pool.num_devices
            counts.append(sum(b - a for a, b in used if start <= a < end))
            start = end
        return self.of(counts, answer.estimate.step_time_s)

    def of_alone(self, one: _Alone, faster: float = 1.0) -> tuple[float, ...]:
        """Of the best plan on one pool; if its step took so many times as long."""
        best, counts = one.outcome.found[0], [0] * len(self._pools)
        counts[one.pool] = best.plan.num_devices
        return self.of(counts, faster * best.estimate.step_time_s)

    def seconds_for(self, devices: Sequence[int] | None, value: tuple[float, ...]) -> float:
        """Steps on the part have to be shorter than this for less than ``value`` [s]."""
        if devices is None:
            return value[-1]
        if self.objective == "cost":
            return value[0] / self.of(devices, 1.0)[0]
        if self.objective == "devices" and value[0] != sum(devices):
            return 0.0 if value[0] < sum(devices) else float("inf")
        return value[-1]


def _prices(cluster: ClusterSpec) -> list[float]:
    """Of a device of each pool for an hour, by list."""
    priced = [pool.price for pool in cluster.pools]
    for pool, price in zip(cluster.pools, priced, strict=True):
        if price is None or not price.per_device_hour:
            raise InputError(
                f"--objective cost: no price of {pool.device.name} in {pool.name} is known; give it a [price] with "
                f"per_device_hour in a cluster file"
            )
    known = [price for price in priced if price is not None]
    if len({price.currency for price in known}) > 1:
        raise InputError("--objective cost: prices of the pools are in different currencies")
    return [price.per_device_hour for price in known]


def _distinct(answers: Sequence[Answer]) -> list[Answer]:
    """The first of those that differ in no more than how many layers their stages have."""
    first: dict[tuple[object, ...], Answer] = {}
    for answer in answers:
        devices = tuple(stage.devices for stage in answer.plan.stages)
        first.setdefault((answer.plan.model_copy(update={"stages": ()}), devices), answer)
    return list(first.values())


def _parts(cluster: ClusterSpec, objective: Objective) -> list[tuple[int, ...] | None]:
    """Devices of each pool that may be used together; None where it is all of them or of some pools."""
    if objective == "time":
        return [None]
    counts = [
        [0, *(n for n in device_counts(pool, Pins(), objective) if n % pool.devices_per_node == 0)]
        for pool in cluster.pools
    ]
    several = min(2, len(counts))
    return [part for part in product(*counts) if sum(count > 0 for count in part) >= several]


def _together(
    evaluator: Evaluator,
    pins: Pins,
    value: Value,
    best: tuple[float, ...],
    progress: Progress | None,
) -> _Together:
    """Plans on several pools that may be better than the ``best`` on one; on the cheapest or smallest parts first."""
    found: list[Answer] = []
    bound, evaluated, excluded = best, 0, 0
    parts = _parts(evaluator.whole, value.objective)
    for part in sorted(parts, key=lambda part: value.of(part, 1.0)):
        known = value.seconds_for(part, best)
        if known <= 0:
            continue
        outcome = UnequalSearch(evaluator, pins, part).run(known, progress)
        found += outcome.found
        best = min([best, *(value.of_answer(answer) for answer in outcome.found)])
        if outcome.bound < known:
            bound = min(bound, value.of(part, outcome.bound))
        evaluated, excluded = evaluated + outcome.evaluated, excluded + outcome.excluded
    return _Together(tuple(found), min(bound, best), evaluated, excluded)


def _alone(
    evaluator: Evaluator, pins: Pins, objective: Objective, top: int, progress: Progress | None
) -> list[_Alone]:
    """The best plans on each pool by itself, as they come from the search."""
    found, start = list[_Alone](), 0
    for number, pool in enumerate(evaluator.whole.pools):
        search = Search(Evaluator(evaluator.model, pool, evaluator.job), pins, objective)
        if outcome := search.if_any(top, progress):
            found.append(_Alone(search, outcome, number, start))
        start += pool.num_devices
    return found


def _finished(evaluator: Evaluator, one: _Alone) -> Iterator[Answer]:
    """The plans on one pool where they run, with their stages written out."""
    for answer in finished_plans(one.search, one.outcome):
        plan = _shifted(answer.plan, one.start)
        yield Answer(plan, evaluator.estimate(plan))


def _shifted(plan: Parallelism, start: int) -> Parallelism:
    """The plan on devices that begin with ``start``."""
    stages = tuple(
        stage.model_copy(update={"devices": (stage.devices[0] + start, stage.devices[1] + start)})
        for stage in plan.stages
    )
    return plan.model_copy(update={"stages": stages})


def _optimality(best: tuple[float, ...], outcome: _Together, proofs: Sequence[Optimality]) -> Optimality:
    """Proven where no bound is below the answer; else how far it may be from the best."""
    ratios = (value / least - 1 for value, least in zip(best, outcome.bound, strict=True) if least != value)
    gap = max(0.0, next(ratios, 0.0))
    return Optimality(
        proven=gap == 0,
        gap=gap,
        evaluated=outcome.evaluated + sum(proof.evaluated for proof in proofs),
        pruned=outcome.excluded + sum(proof.pruned for proof in proofs),
    )


def stage_list(cluster: ClusterSpec, plan: Parallelism) -> str:
    """Layers and devices of every stage, in a phrase."""
    return "; ".join(_stages(cluster, plan))


def _stages(cluster: ClusterSpec, plan: Parallelism) -> Iterator[str]:
    for stage in plan.stages:
        start, end = stage.devices
        first = 0
        for pool in cluster.pools:
            if first <= start < first + pool.num_devices:
                layers = stage.blocks[1] - stage.blocks[0]
                yield f"{layers} {'layer' if layers == 1 else 'layers'} on {end - start} x {pool.device.name}"
            first += pool.num_devices

"""Rematerialisation by stage: early stages hold more micro-batches, so late ones need not recompute as much.

Beside the plan's own policy each rank may have a cheaper one. With one stage on each rank, the layers are cut again for
that, by dynamic programming: a stage takes as long as under the fastest policy that fits there.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import combinations

from planner.errors import Infeasible
from planner.evaluation import sites
from planner.evaluation.cuts import copies_of, ranks_of
from planner.evaluation.evaluator import Evaluator, Shardings
from planner.evaluation.memory import activation_peaks, device_memory, steady_microbatches
from planner.evaluation.stages import StageCost, StageShape
from planner.evaluation.step import stage_wait, straggling
from planner.graph import counted
from planner.inter_op.partition import partition_layers
from planner.pipeline.dependencies import peak_in_flight, programs
from planner.plans import Parallelism, StagePlan
from planner.search.bounds import busiest_within, waits_behind
from planner.search.space import SEARCHED_POLICIES

LAYERS_TO_MOVE = 3
"""Layers on each stage from which on it is tried to move some: with fewer, one is too much."""

MOST_CUTS = 200_000
"""Stages, by place and by their first and last layer, that are priced to cut layers again."""


def relaxed(
    evaluator: Evaluator,
    plan: Parallelism,
    shardings: Shardings,
    limit: float,
    known: float = float("inf"),
) -> Parallelism:
    """The plan, or a faster one that recomputes less on some ranks within ``limit`` bytes on each device.

    One that cannot take less than ``known`` [s] is not simulated.
    """
    if plan.pipeline == 1 or plan.recompute not in SEARCHED_POLICIES[1:] or copies_of(plan) > 1:
        return plan
    slowest = slowest_within(evaluator, plan, shardings, known)
    options = [by_rank(evaluator, plan, shardings, slowest)]
    if is_cut_anew(evaluator, plan):
        options.append(_recut(evaluator, plan, shardings, limit, slowest))
    options = [option for option in options if option is not plan]
    floors = [(evaluator.floor(option, shardings, evaluator.cuts(option)), option) for option in options]
    if all(floor >= known for floor, _ in floors):
        return plan
    estimate = evaluator.estimate(plan)
    best, least = plan, estimate.step_time_s if estimate.memory_bytes <= limit else float("inf")
    for floor, option in floors:
        if floor >= min(least, known):
            continue
        estimate = evaluator.estimate(option)
        if estimate.memory_bytes <= limit and estimate.step_time_s < least:
            best, least = option, estimate.step_time_s
    return best


def is_cut_anew(evaluator: Evaluator, plan: Parallelism) -> bool:
    """Whether `relaxed` moves layers, so that where a plan has them does not matter."""
    layers = evaluator.graph.num_layers
    few = plan.pipeline * (layers - plan.pipeline + 1) ** 2 <= MOST_CUTS
    return plan.virtual_stages == 1 and few and layers >= LAYERS_TO_MOVE * plan.pipeline


def with_policies(plan: Parallelism, policies: Sequence[str]) -> Parallelism:
    """The plan with a policy for each of its stages; the commonest is the plan's own."""
    common = Counter(policies).most_common(1)[0][0]
    stages = tuple(
        stage.model_copy(update={"recompute": None if policy == common else policy})
        for stage, policy in zip(plan.stages, policies, strict=True)
    )
    return plan.model_copy(update={"recompute": common, "stages": stages})


def slowest_within(evaluator: Evaluator, plan: Parallelism, shardings: Shardings, known: float) -> float:
    """What no rank can take for a micro-batch if the step is to be below ``known`` [s], however layers are cut."""
    setting, p, m = evaluator.setting, plan.pipeline, plan.num_microbatches
    span = known / (1 + straggling(setting, plan.num_devices)) - setting.software.step_overhead
    span -= stage_wait(setting, p, plan.virtual_stages, m)
    if not waits_behind(plan.schedule, p, m):
        return span / m
    whole = StageShape(counted(evaluator.graph.sequence), True, True)
    work = evaluator.stage(plan, whole, SEARCHED_POLICIES[0], shardings).seconds
    return min(span / m, busiest_within(span, work, p, m))


def by_rank(
    evaluator: Evaluator,
    plan: Parallelism,
    shardings: Shardings | None = None,
    slowest: float = float("inf"),
) -> Parallelism:
    """The same cut, every rank with the policies that are fastest for it; what a rank holds is its own affair.

    The plan itself where a rank takes more than ``slowest`` [s] for a micro-batch under any that fit. Stages that are
    alike have ``shardings``, which are then not read from each of them.
    """
    costs = _Mixed(evaluator, plan, shardings)
    chosen = [plan.recompute] * len(plan.stages)
    for rank, stages in enumerate(ranks_of(plan)):
        policies = costs.fastest(rank, slowest)
        if policies is None and slowest < float("inf"):
            return plan
        for s in stages:
            chosen[s] = policies[s] if policies else chosen[s]
    return with_policies(plan, chosen)


class _Mixed:
    """A plan's stages under all `_mixtures` of policies."""

    def __init__(self, evaluator: Evaluator, plan: Parallelism, shardings: Shardings | None) -> None:
        """Nothing is known of memory yet."""
        self._plan, self._room = plan, 1 - evaluator.job.memory_headroom
        self._places = {policy: _places(evaluator, plan, policy, shardings) for policy in SEARCHED_POLICIES}
        self._mixtures = [
            (policies, [self._places[policy][s] for s, policy in enumerate(policies)])
            for policies in _mixtures(plan)
        ]
        self._peaks: dict[int, Sequence[float]] = {}

    def fastest(self, rank: int, slowest: float) -> list[str] | None:
        """Of all stages, the mixture that is fastest on the rank of those that fit there within ``slowest`` [s]."""
        stages = ranks_of(self._plan)[rank]
        seconds = [sum(places[s].cost.seconds for s in stages) for _, places in self._mixtures]
        for n in sorted(range(len(seconds)), key=seconds.__getitem__):
            if seconds[n] > slowest:
                return None
            policies, places = self._mixtures[n]
            limit = self._room * places[stages[0]].setting.cluster.device.memory
            if sites.memory_of(places, stages, self._in_flight(n)[rank]).total <= limit:
                return policies
        return None

    def _in_flight(self, n: int) -> Sequence[float]:
        """Most that is in flight on each rank under a mixture [bytes]."""
        if n not in self._peaks:
            self._peaks[n] = activation_peaks(self._plan, [place.cost for place in self._mixtures[n][1]])
        return self._peaks[n]


def _places(
    evaluator: Evaluator, plan: Parallelism, policy: str, shardings: Shardings | None
) -> Sequence[sites.Site]:
    """The plan's stages, all under one policy."""
    if shardings is None:
        return evaluator.sites(with_policies(plan, [policy] * len(plan.stages)))
    bare, mesh = plan.model_copy(update={"stages": (), "recompute": policy}), evaluator.mesh(plan)
    return [
        sites.Site(evaluator.setting, bare, mesh, cost, stage.devices)
        for cost, stage in zip(
            evaluator.stages(bare, shardings, evaluator.cuts(plan)), plan.stages, strict=True
        )
    ]


def _mixtures(plan: Parallelism) -> Iterator[list[str]]:
    """Policies of all stages: one for all, or another for the first few of each rank, which hold most."""
    for policy in SEARCHED_POLICIES:
        yield [policy] * len(plan.stages)
    turn = {s: place for stages in ranks_of(plan) for place, s in enumerate(stages)}
    for less, more in combinations(SEARCHED_POLICIES, 2):
        for count in range(1, plan.virtual_stages):
            yield [more if turn[s] < count else less for s in range(len(plan.stages))]


class OwnPolicies:
    """Stages of one plan by layers, one on each rank, each with the fastest of its policies that fits."""

    def __init__(
        self,
        evaluator: Evaluator,
        plan: Parallelism,
        shardings: Shardings,
        limit: float,
        policies: Sequence[Sequence[str]],
        slowest: float = float("inf"),
    ) -> None:
        """``policies`` are those that each stage may have; none may take more than ``slowest`` [s]."""
        self._evaluator, self._plan, self._shardings, self._limit = evaluator, plan, shardings, limit
        self._policies, self._slowest = [tuple(of_stage) for of_stage in policies], slowest
        order = programs(plan.schedule, plan.pipeline, 1, steady_microbatches(plan))
        self._in_flight = peak_in_flight(order)
        self._known: dict[tuple[object, ...], tuple[float, str] | None] = {}

    def best(self, start: int, end: int, stage: int) -> tuple[float, str] | None:
        """Seconds and policy; None where no policy fits."""
        shape = self._evaluator.shape(start, end)
        key = (shape, self._in_flight[stage], self._policies[stage])
        if key not in self._known:
            costs = {
                policy: self._evaluator.stage(self._plan, shape, policy, self._shardings)
                for policy in self._policies[stage]
            }
            ways = sorted((cost.seconds, policy) for policy, cost in costs.items())
            self._known[key] = next(
                (
                    way
                    for way in ways
                    if way[0] <= self._slowest
                    and self._memory(costs[way[1]], self._in_flight[stage]) <= self._limit
                ),
                None,
            )
        return self._known[key]

    def _memory(self, cost: StageCost, in_flight: int) -> float:
        """Of a device that runs one such stage [bytes]."""
        evaluator, mesh = self._evaluator, self._evaluator.mesh(self._plan)
        job, software, capacity = evaluator.job, evaluator.software, evaluator.cluster.device.memory
        held = in_flight * cost.saved_bytes
        return device_memory([cost], held, job, self._plan, mesh, software, capacity).total

    def seconds(self, start: int, end: int, stage: int) -> float:
        """Of a stage that fits, for one micro-batch [s]."""
        best = self.best(start, end, stage)
        assert best is not None  # asked only where the stage fits
        return best[0]

    def fits(self, start: int, end: int, stage: int) -> bool:
        """Whether any of its policies does."""
        return self.best(start, end, stage) is not None


def _recut(
    evaluator: Evaluator, plan: Parallelism, shardings: Shardings, limit: float, slowest: float
) -> Parallelism:
    """Layers cut anew, stages with policies of their own, none above ``slowest`` [s]; the plan where there is none."""
    bare, free = plan.model_copy(update={"stages": ()}), [SEARCHED_POLICIES] * plan.pipeline
    stages, layers = OwnPolicies(evaluator, bare, shardings, limit, free, slowest), evaluator.graph.num_layers
    starts = _starts(stages, layers, plan.pipeline)
    if starts is None:
        return plan

    def fits(start: int, end: int, stage: int) -> bool:
        return start in starts[stage] and end in starts[stage + 1] and stages.fits(start, end, stage)

    try:
        cut = partition_layers(layers, plan.pipeline, stages.seconds, fits, plan.num_microbatches)
    except Infeasible:
        return plan
    moved = tuple(_moved(evaluator, plan, s, layers) for s, layers in enumerate(cut.stages))
    chosen = [stages.best(start, end, s) for s, (start, end) in enumerate(cut.stages)]
    return with_policies(
        plan.model_copy(update={"stages": moved}), [best[1] for best in chosen if best is not None]
    )


def _starts(own: OwnPolicies, num_layers: int, num_stages: int) -> list[range] | None:
    """By stage, and after the last, where it may start if all layers are to find room; None where they find none.

    What fits on a stage fits there without its first or last layers too: stages that take as many as they can, one
    after the other, go as far as any.
    """
    latest, earliest = [0], [num_layers]
    for s in range(num_stages - 1):
        ends = range(latest[-1] + 1, num_layers - (num_stages - 1 - s) + 1)
        fitting = _fitting(ends, partial(own.fits, latest[-1], stage=s))
        if not fitting:
            return None
        latest.append(fitting[-1])
    for s in reversed(range(num_stages)):
        starts = range(earliest[-1] - 1, s - 1, -1) if s else range(1)
        fitting = _fitting(starts, partial(own.fits, end=earliest[-1], stage=s))
        if not fitting:
            return None
        earliest.append(fitting[-1])
    found = [range(a, b + 1) for a, b in zip(reversed(earliest), [*latest, num_layers], strict=True)]
    return found if all(found) else None


def _fitting(boundaries: range, fits: Callable[[int], bool]) -> range:
    """The first of the boundaries, up to the last that fits."""
    return boundaries[: bisect_left(boundaries, True, key=lambda boundary: not fits(boundary))]


def _moved(evaluator: Evaluator, plan: Parallelism, stage: int, layers: tuple[int, int]) -> StagePlan:
    """A stage of the plan with other layers, split as the plan splits such layers."""
    graph = evaluator.graph
    splits = {name: split for other in plan.stages for name, split in other.sharding.items()}
    names = set(graph.sequence[slice(*layers)])
    names |= {graph.first} if stage == 0 and graph.first else set()
    names |= {graph.last} if stage == len(plan.stages) - 1 and graph.last else set()
    sharding = {name: splits[name] for name in sorted(names) if name in splits}
    return plan.stages[stage].model_copy(update={"blocks": layers, "sharding": sharding})

"""Rematerialisation by stage: early stages hold more micro-batches, so late ones need not recompute as much.

Beside the plan's own policy each rank may have a cheaper one. With one stage on each rank, the layers are cut again for
that, by dynamic programming: a stage takes as long as under the fastest policy that fits there.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations

from planner.errors import Infeasible
from planner.evaluation import sites
from planner.evaluation.evaluator import Evaluator, Shardings
from planner.evaluation.memory import activation_peaks, device_memory, steady_microbatches
from planner.evaluation.setting import copies_of, ranks_of
from planner.inter_op.partition import partition_layers
from planner.pipeline.dependencies import peak_in_flight, programs
from planner.plans import Parallelism, StagePlan
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
    options = [by_rank(evaluator, plan)]
    layers = evaluator.graph.num_layers
    few = plan.pipeline * (layers - plan.pipeline + 1) ** 2 <= MOST_CUTS
    if plan.virtual_stages == 1 and few and layers >= LAYERS_TO_MOVE * plan.pipeline:
        options.append(_recut(evaluator, plan, shardings, limit, known / plan.num_microbatches))
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


def with_policies(plan: Parallelism, policies: Sequence[str]) -> Parallelism:
    """The plan with a policy for each of its stages; the commonest is the plan's own."""
    common = Counter(policies).most_common(1)[0][0]
    stages = tuple(
        stage.model_copy(update={"recompute": None if policy == common else policy})
        for stage, policy in zip(plan.stages, policies, strict=True)
    )
    return plan.model_copy(update={"recompute": common, "stages": stages})


def by_rank(evaluator: Evaluator, plan: Parallelism) -> Parallelism:
    """The same cut, every rank with the policies that are fastest for it; what a rank holds is its own affair."""
    room = 1 - evaluator.job.memory_headroom
    chosen = [plan.recompute] * len(plan.stages)
    best = [float("inf")] * plan.pipeline
    alike = {
        policy: evaluator.sites(with_policies(plan, [policy] * len(plan.stages)))
        for policy in SEARCHED_POLICIES
    }
    for policies in _mixtures(plan):
        places = [alike[policy][s] for s, policy in enumerate(policies)]
        peaks = activation_peaks(plan, [place.cost for place in places])
        for rank, stages in enumerate(ranks_of(plan)):
            seconds = sum(places[s].cost.seconds for s in stages)
            limit = room * places[stages[0]].setting.cluster.device.memory
            if seconds < best[rank] and sites.memory_of(places, stages, peaks[rank]).total <= limit:
                best[rank] = seconds
                for s in stages:
                    chosen[s] = policies[s]
    return with_policies(plan, chosen)


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
            found = []
            for policy in self._policies[stage]:
                cost = self._evaluator.stage(self._plan, shape, policy, self._shardings)
                if cost.seconds > self._slowest:
                    continue
                held = self._in_flight[stage] * cost.saved_bytes
                evaluator, mesh = self._evaluator, self._evaluator.mesh(self._plan)
                job, software, capacity = evaluator.job, evaluator.software, evaluator.cluster.device.memory
                memory = device_memory([cost], held, job, self._plan, mesh, software, capacity)
                if memory.total <= self._limit:
                    found.append((cost.seconds, policy))
            self._known[key] = min(found, default=None)
        return self._known[key]

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
    try:
        cut = partition_layers(layers, plan.pipeline, stages.seconds, stages.fits, plan.num_microbatches)
    except Infeasible:
        return plan
    moved = tuple(_moved(evaluator, plan, s, layers) for s, layers in enumerate(cut.stages))
    chosen = [stages.best(start, end, s) for s, (start, end) in enumerate(cut.stages)]
    return with_policies(
        plan.model_copy(update={"stages": moved}), [best[1] for best in chosen if best is not None]
    )


def _moved(evaluator: Evaluator, plan: Parallelism, stage: int, layers: tuple[int, int]) -> StagePlan:
    """A stage of the plan with other layers, split as the plan splits such layers."""
    graph = evaluator.graph
    splits = {name: split for other in plan.stages for name, split in other.sharding.items()}
    names = set(graph.sequence[slice(*layers)])
    names |= {graph.first} if stage == 0 and graph.first else set()
    names |= {graph.last} if stage == len(plan.stages) - 1 and graph.last else set()
    sharding = {name: splits[name] for name in sorted(names) if name in splits}
    return plan.stages[stage].model_copy(update={"blocks": layers, "sharding": sharding})

"""A schedule made for a plan's own stages: their times, links and memory."""

from collections.abc import Sequence
from typing import NamedTuple

from planner.errors import InputError
from planner.evaluation import sites
from planner.evaluation.cuts import copies_of, ranks_of
from planner.evaluation.evaluator import Evaluator
from planner.evaluation.memory import device_memory
from planner.evaluation.rank import kept_share
from planner.evaluation.setting import Setting
from planner.evaluation.stages import StageCost
from planner.evaluation.step import ports_of, send_seconds, stage_times, step_floor
from planner.pipeline.activations import held
from planner.pipeline.automatic import Conditions, find_schedule
from planner.pipeline.generators import refusal, schedule_entry, stage_to_rank
from planner.pipeline.questions import AUTOMATIC
from planner.pipeline.schedule import to_csv
from planner.plans import Parallelism
from planner.sharding.mesh import Mesh

MOST_ACTIONS = 30_000
"""Of a pipeline that a schedule is made for within a search: some sixty orders of them are tried."""

HALVINGS = 40
"""Of the interval in which the room for activations is sought."""


def with_schedule(evaluator: Evaluator, plan: Parallelism, schedule: str) -> Parallelism:
    """The plan under another schedule: one of `SCHEDULES`, one that is written out, or `AUTOMATIC`.

    Raises ``InputError`` where the schedule does not exist for the plan's pipeline.
    """
    if plan.pipeline == 1:
        raise InputError(f"--schedule {schedule.splitlines()[0]}: the plan has no pipeline")
    if schedule == AUTOMATIC:
        return found_schedule(evaluator, plan)
    reason = refusal(schedule, plan.pipeline, plan.virtual_stages, plan.num_microbatches)
    if reason:
        raise InputError(reason)
    moved = plan.model_copy(update={"schedule": schedule})
    homes = [stage_to_rank(p.schedule, p.pipeline, p.virtual_stages) for p in (plan, moved)]
    if plan.stages and homes[0] != homes[1]:
        raise InputError(
            "the schedule puts stages on other ranks than the plan: leave out the plan's `stages`"
        )
    return moved


def found_schedule(evaluator: Evaluator, plan: Parallelism) -> Parallelism:
    """The plan with the fastest schedule that can be found for it within its devices' memory, written out.

    The plan itself where none is faster. Raises ``InputError`` for a plan that holds every stage twice.
    """
    if copies_of(plan) > 1:
        raise InputError(f"a schedule is found for stages that are held once, not for {plan.schedule}")
    ranks, costs, sends = _pipeline(evaluator, plan)
    saved = [kept_share(plan) * cost.saved_bytes for cost in costs]
    schedule = find_schedule(
        stage_times(costs),
        sends,
        [_room(rank, evaluator.job.memory_headroom) for rank in ranks],
        plan.num_microbatches,
        held=held(saved, [cost.until_weight_bytes for cost in costs]),
        homes=stage_to_rank(plan.schedule, plan.pipeline, plan.virtual_stages),
        conditions=Conditions(ports=ports_of(evaluator.whole)),
    )
    option = plan.model_copy(update={"schedule": to_csv(schedule)})
    before, after = evaluator.estimate(plan), evaluator.estimate(option)
    return option if after.fits and after.step_time_s < before.step_time_s else plan


def tailored_schedule(evaluator: Evaluator, plan: Parallelism, known: float) -> Parallelism:
    """The plan under a schedule made for it, where that may take less than ``known`` [s] and is little work."""
    actions = 3 * plan.pipeline * plan.virtual_stages * plan.num_microbatches
    if plan.pipeline == 1 or copies_of(plan) > 1 or actions > MOST_ACTIONS:
        return plan
    waves = schedule_entry(plan.schedule).placement == "wave"
    # Whatever the order, forwards have to come through the ranks before: as in a schedule that splits backwards.
    split = "zb-v" if waves else "interleaved-zb"
    shortest = plan.model_copy(update={"schedule": split})
    floor = step_floor(evaluator.setting, shortest, evaluator.mesh(plan), evaluator.stages(plan))
    return plan if floor >= known else found_schedule(evaluator, plan)


class _Rank(NamedTuple):
    """What decides how many activations a pipeline rank has room for."""

    stages: Sequence[StageCost]
    setting: Setting
    plan: Parallelism
    mesh: Mesh


def _pipeline(
    evaluator: Evaluator, plan: Parallelism
) -> tuple[list[_Rank], list[StageCost], tuple[float, ...]]:
    """Ranks, stages, and the time to pass a micro-batch on to each [s]."""
    if evaluator.differs(plan):
        places = evaluator.sites(plan)
        ranks = []
        for ss in ranks_of(plan):
            first = places[ss[0]]
            ranks.append(_Rank([places[s].cost for s in ss], first.setting, first.plan, first.mesh))
        return ranks, [place.cost for place in places], sites.send_seconds(evaluator.whole, places)
    setting, mesh, costs = evaluator.setting, evaluator.mesh(plan), evaluator.stages(plan)
    ranks = [_Rank([costs[s] for s in ss], setting, plan, mesh) for ss in ranks_of(plan)]
    return ranks, list(costs), send_seconds(setting, plan, costs)


def _room(rank: _Rank, headroom: float) -> float:
    """Most activations that the rank can hold [bytes]; memory grows with them."""
    stages, setting, plan, mesh = rank
    capacity = setting.cluster.device.memory
    limit = capacity * (1 - headroom)

    def total(activations: float) -> float:
        memory = device_memory(stages, activations, setting.job, plan, mesh, setting.software, capacity)
        return memory.total

    low, high = 0.0, limit
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if total(middle) <= limit else (low, middle)
    return low

"""The recommendation where stages may differ: pools together, each pool alone, and why."""

from collections.abc import Iterator, Sequence

from cluster_specs.cluster import ClusterSpec
from planner.errors import Infeasible, InputError
from planner.evaluation.evaluator import Evaluator
from planner.plans import Alternative, Estimate, Objective, Optimality, Parallelism, Pins, Plan
from planner.search.best_first import Progress, Search
from planner.search.pins import check_choices
from planner.search.recommend import differences, finished, warnings_of, what_limits, why_memory, with_stages
from planner.search.rescheduling import Answer
from planner.search.unequal import UnequalOutcome, UnequalSearch


def plan_pools(
    evaluator: Evaluator,
    pins: Pins,
    objective: Objective = "time",
    top: int = 5,
    progress: Progress | None = None,
) -> Plan:
    """The fastest plan on a cluster of pools, or one whose stages may differ on a cluster of one.

    Raises:
        InputError: pins that contradict model or job, another objective than time.
        Infeasible: nothing fits.
    """
    if objective != "time":
        raise InputError(f"--objective {objective}: where stages differ, plans are searched for time only")
    cluster = evaluator.whole
    check_choices(evaluator, pins)
    search = UnequalSearch(evaluator, pins)
    alone, proofs = _alone(evaluator, pins, top, progress)
    known = min((answer.estimate.step_time_s for answer in alone), default=float("inf"))
    outcome = search.run(known, progress)
    found = sorted((*alone, *outcome.found), key=lambda answer: answer.estimate.step_time_s)[:top]
    if not found:
        raise Infeasible(
            f"{evaluator.graph.name} does not fit on the pools of {cluster.name}, alone or together",
            "more or larger devices, a shorter sequence, or an optimizer with smaller states",
        )
    best = found[0]
    return Plan(
        model=evaluator.model,
        cluster=cluster,
        job=evaluator.job,
        plan=best.plan,
        estimate=best.estimate,
        optimality=_optimality(best.estimate, known, outcome, proofs),
        alternatives=tuple(_alternative(other, best.estimate) for other in found[1:]),
        explanation=" ".join(
            [
                f"Stages: {stage_list(cluster, best.plan)}.",
                why_memory(best.plan, best.estimate),
                what_limits(best.estimate),
            ]
        ),
        warnings=warnings_of(best.plan, best.estimate),
    )


def _alone(
    evaluator: Evaluator, pins: Pins, top: int, progress: Progress | None
) -> tuple[list[Answer], list[Optimality]]:
    """The best plans on each pool by itself, with the others idle."""
    answers: list[Answer] = []
    proofs: list[Optimality] = []
    start = 0
    for pool in evaluator.whole.pools:
        search = Search(Evaluator(evaluator.model, pool, evaluator.job), pins, "time")
        try:
            outcome = search.run(top, progress)
        except Infeasible:
            outcome = None
        if outcome is not None:
            proofs.append(outcome.optimality)
            best, *others = outcome.found
            written = [finished(search, best), *(with_stages(search, found) for found in others)]
            plans = (_shifted(plan, start) for plan in written)
            answers += [Answer(plan, evaluator.estimate(plan)) for plan in plans]
        start += pool.num_devices
    return answers, proofs


def _shifted(plan: Parallelism, start: int) -> Parallelism:
    """The plan on devices that begin with ``start``."""
    stages = tuple(
        stage.model_copy(update={"devices": (stage.devices[0] + start, stage.devices[1] + start)})
        for stage in plan.stages
    )
    return plan.model_copy(update={"stages": stages})


def _optimality(
    best: Estimate, known: float, outcome: UnequalOutcome, proofs: Sequence[Optimality]
) -> Optimality:
    """Proven where no bound is below the answer; else how far it may be from the best."""
    bound = min(outcome.bound, known, best.step_time_s)
    gap = best.step_time_s / bound - 1
    return Optimality(
        proven=gap == 0,
        gap=gap,
        evaluated=outcome.evaluated + sum(proof.evaluated for proof in proofs),
        pruned=outcome.excluded + sum(proof.pruned for proof in proofs),
    )


def _alternative(other: Answer, best: Estimate) -> Alternative:
    losses = [
        f"{name.replace('_', ' ')} +{s:.2f} s" for name, s in differences(other.estimate, best)[:2] if s > 0
    ]
    slower = other.estimate.step_time_s / best.step_time_s - 1
    reason = f"{slower:+.1%} step time: " + (", ".join(losses) or "no single part stands out")
    return Alternative(plan=other.plan, estimate=other.estimate, loses_because=reason)


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
                yield f"{layers} layers on {end - start} x {pool.device.name}"
            first += pool.num_devices

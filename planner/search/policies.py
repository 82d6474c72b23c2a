"""Rematerialisation that the user fixes for each stage: ``full,full,selective,none``, in the order of the layers."""

from collections.abc import Sequence
from functools import cache
from itertools import pairwise

from planner.errors import Infeasible
from planner.evaluation.evaluator import Evaluator, Shardings
from planner.evaluation.stages import StageShape
from planner.inter_op.partition import partition_layers
from planner.plans import Parallelism, StagePlan
from planner.search.recomputing import OwnPolicies


def with_bare_stages(plan: Parallelism, cuts: Sequence[int], policies: Sequence[str]) -> Parallelism:
    """The plan with stages that say no more than their layers and policies."""
    stages = (
        StagePlan.model_construct(blocks=blocks, devices=(0, 0), mesh={}, sharding={}, recompute=policy)
        for blocks, policy in zip(pairwise(cuts), policies, strict=True)
    )
    return plan.model_copy(update={"stages": tuple(stages)})


def cut_by_policy(
    evaluator: Evaluator, plan: Parallelism, shardings: Shardings, policies: Sequence[str], limit: float
) -> tuple[int, ...]:
    """Boundaries that make the slowest stage fast, each under its policy; with one stage on each rank all fit, if
    that is possible.
    """
    num_layers, m = evaluator.graph.num_layers, plan.num_microbatches
    if plan.virtual_stages == 1:
        stages = OwnPolicies(evaluator, plan, shardings, limit, [(policy,) for policy in policies])
        try:
            found = partition_layers(num_layers, plan.pipeline, stages.seconds, stages.fits, m)
            return (0, *(end for _, end in found.stages))
        except Infeasible:
            pass

    @cache
    def priced(shape: StageShape, policy: str) -> float:
        return evaluator.stage(plan, shape, policy, shardings).seconds

    def seconds(start: int, end: int, stage: int) -> float:
        return priced(evaluator.shape(start, end), policies[stage])

    found = partition_layers(num_layers, len(policies), seconds, lambda *_: True, m)
    return (0, *(end for _, end in found.stages))

"""Cutting the layers of a candidate into stages, by dynamic programming on the evaluator's own costs."""

from functools import lru_cache

from planner.evaluation.evaluator import Evaluator, Shardings, StageShape
from planner.evaluation.setting import even_cuts
from planner.inter_op.partition import partition_homogeneous
from planner.plans import Parallelism

RESOLUTION = 8
"""Costs are compared in this fraction of the commonest layer's: finer differences move no boundary."""


def cut_layers(evaluator: Evaluator, plan: Parallelism, shardings: Shardings) -> tuple[int, ...]:
    """Boundaries of the stages that minimise sum plus slowest stage, embedding and head counted where they are."""
    graph = evaluator.graph
    num_stages = plan.pipeline * plan.virtual_stages
    if plan.pipeline == 1:
        return even_cuts(graph.num_layers, num_stages)

    def seconds(layers: tuple[tuple[str, int], ...], first: bool, last: bool) -> float:
        return evaluator.stage(plan, StageShape(layers, first, last), plan.recompute, shardings).seconds

    by_block = {run.block: seconds(((run.block, 1),), False, False) for run in graph.layers}
    unit = max(by_block.values())
    first = seconds((), True, False) / unit if graph.first else 0.0
    last = seconds((), False, True) / unit if graph.last else 0.0
    steps = tuple(round(by_block[name] / unit * RESOLUTION) for name in graph.sequence)
    return _cuts(steps, num_stages, round(first * RESOLUTION), round(last * RESOLUTION))


@lru_cache(maxsize=4096)
def _cuts(steps: tuple[int, ...], num_stages: int, first: int, last: int) -> tuple[int, ...]:
    # The sum over stages is the same for every cut, so any two micro-batches ask for the slowest to be fast.
    found = partition_homogeneous(steps, num_stages, 2, first, last)
    return (0, *(end for _, end in found.stages))

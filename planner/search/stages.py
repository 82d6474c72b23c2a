"""Cutting the layers of a candidate into stages, by dynamic programming on the evaluator's own costs."""

import numpy as np

from planner.evaluation.evaluator import Evaluator, Shardings, StageShape, even_cuts
from planner.inter_op.partition import partition_layers
from planner.plans import Parallelism


def cut_layers(evaluator: Evaluator, plan: Parallelism, shardings: Shardings) -> tuple[int, ...]:
    """Boundaries of the stages that minimise the slowest stage, embedding and head counted where they are."""
    graph = evaluator.graph
    num_stages = plan.pipeline * plan.virtual_stages
    if plan.pipeline == 1:
        return even_cuts(graph.num_layers, num_stages)

    def seconds(layers: tuple[tuple[str, int], ...], first: bool, last: bool) -> float:
        return evaluator.stage(plan, StageShape(layers, first, last), plan.recompute, shardings).seconds

    by_block = {run.block: seconds(((run.block, 1),), False, False) for run in graph.layers}
    layer_seconds = np.array([by_block[name] for name in graph.sequence])
    found = partition_layers(
        graph.num_layers,
        num_stages,
        layer_seconds=layer_seconds,
        first_extra=seconds((), True, False) if graph.first else 0.0,
        last_extra=seconds((), False, True) if graph.last else 0.0,
        num_microbatches=plan.num_microbatches,
    )
    return tuple(found.cuts)

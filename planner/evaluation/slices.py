"""What a slice of a sequence takes on a pipeline stage: the times that TeraPipe's slices are chosen by."""

from collections.abc import Callable

from cluster_specs.cluster import ClusterSpec
from planner.errors import InputError
from planner.evaluation.evaluator import Evaluator
from planner.evaluation.stages import StageShape
from planner.models.model import Model
from planner.plans import Job, Parallelism


def slice_seconds(
    model: Model, cluster: ClusterSpec, job: Job, plan: Parallelism, granularity: int
) -> Callable[[int, int], float]:
    """Forward and backward of a slice on one stage [s], by its length and what comes before it [tokens].

    A slice takes as long as a sequence of its length alone, where its matrices are small; or, if that is more, as long
    as it adds to a sequence that ends with it, which counts the keys before it. Both are multiples of ``granularity``.
    Raises ``InputError`` where the stages have no layer each.
    """
    known: dict[int, float] = {0: 0.0}

    def whole(tokens: int) -> float:
        if tokens not in known:
            evaluator = Evaluator(model, cluster, job.model_copy(update={"seq_len": tokens}))
            layers = evaluator.graph.num_layers / plan.pipeline
            if layers < 1:
                raise InputError(
                    f"{plan.pipeline} stages need as many layers, {evaluator.graph.name} has fewer"
                )
            shape = StageShape(((evaluator.main_layer, round(layers)),), False, False)
            known[tokens] = evaluator.stage(plan, shape, plan.recompute, {}).seconds
        return known[tokens]

    if granularity < 1:
        raise InputError(f"--granularity {granularity}: slices have at least 1 token")
    return lambda length, before: max(whole(length), whole(before + length) - whole(before))

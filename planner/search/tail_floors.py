"""What no cut of a pipeline's layers can be below, with what comes after its last backward.

The first rank ends last where backwards are whole, and its tail comes on top. A cut that leaves it little to reduce
leaves the others more to do.
"""

from collections import Counter
from operator import lt

from planner.evaluation.evaluator import Evaluator, Shardings
from planner.evaluation.stages import StageCost, StageShape
from planner.evaluation.states import Sync
from planner.evaluation.step import ROUNDING
from planner.evaluation.tails import least_tail, least_update
from planner.pipeline.generators import schedule_entry
from planner.plans import Parallelism
from planner.search.candidates import Candidate, splits_backward


def passes_whole(c: Candidate) -> bool:
    """Whether every stage is there once and its backward is not split, so that the first rank ends last."""
    return schedule_entry(c.schedule).copies == 1 and not splits_backward(c)


def with_tail(
    evaluator: Evaluator,
    plan: Parallelism,
    shardings: Shardings,
    whole: StageCost,
    span: float,
    lightest: float,
) -> float:
    """Least seconds of a pipeline and its tail.

    ``whole`` is the model as one stage, ``span`` [s] what no cut's pipeline is below, ``lightest`` [s] the least that
    a layer takes forth and back. With ``k`` layers on the first rank the others have the rest, and each waits for a
    layer or more of every rank before it, forth and back: their mean is below the longest. What ``k`` layers leave to
    reduce is convex in ``k``, and so is the sum: its least is looked for between ever nearer bounds.
    """
    first = _FirstRank(evaluator, plan, shardings)
    m, p = plan.num_microbatches, plan.pipeline
    span = max(span, m * whole.seconds / p + (p - 1) / 2 * lightest)

    def least(layers: int) -> float:
        others = m * (whole.seconds - first.seconds(layers)) / (p - 1) + p / 2 * lightest
        return max(span, others) + first.tail(layers)

    fewest, most = plan.virtual_stages, evaluator.graph.num_layers - (p - 1) * plan.virtual_stages
    while fewest < most:
        middle = (fewest + most) // 2
        if least(middle) <= least(middle + 1):
            most = middle
        else:
            fewest = middle + 1
    # The host steps what is offloaded, which the search counts apart.
    stepped = (
        0.0
        if "optimizer" in plan.offload
        else least_update(evaluator.setting, plan, evaluator.mesh(plan), whole)
    )
    return least(fewest) + stepped


class _FirstRank:
    """What a pipeline's first rank does, by the number of its layers."""

    def __init__(self, evaluator: Evaluator, plan: Parallelism, shardings: Shardings) -> None:
        """Layers of each kind alone, and the embedding."""
        self._setting, self._plan = evaluator.setting, plan
        kinds = Counter(evaluator.graph.sequence)

        def alone(layers: tuple[tuple[str, int], ...], first: bool) -> StageCost:
            return evaluator.stage(plan, StageShape(layers, first, False), plan.recompute, shardings)

        self._layers = {name: alone(((name, 1),), False) for name in kinds}
        self._embedding = alone((), True) if evaluator.graph.first else None
        main, _ = kinds.most_common(1)[0]
        self._sync = self._layers[main].sync.times(1 - ROUNDING)  # less than of any that is alike
        self._others = sum(
            number for name, number in kinds.items() if any(map(lt, self._layers[name].sync, self._sync))
        )
        """Layers that may leave less than the commonest."""

    def seconds(self, layers: int) -> float:
        """Of a micro-batch, or more."""
        return self._most(layers, "seconds")

    def tail(self, layers: int) -> float:
        """What shows of its gradients and weights, or less [s]; nothing of layers that may leave less."""
        sync = self._sync.times(max(0, layers - self._others))
        sync = sync.plus(self._embedding.sync if self._embedding else Sync())
        backward = self._most(layers, "backward_input") + self._most(layers, "backward_weight")
        return least_tail(self._setting, self._plan, sync, self._most(layers, "forward"), backward)

    def _most(self, layers: int, name: str) -> float:
        ends: float = getattr(self._embedding, name) if self._embedding else 0.0
        layer: float = max(getattr(layer, name) for layer in self._layers.values())
        return ends + layers * layer

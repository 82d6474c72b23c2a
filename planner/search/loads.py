"""What layers, embedding and head put on the ranks that have them, before layers are cut into stages."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from planner.evaluation.blocks import left_gathered
from planner.evaluation.evaluator import Evaluator, Shardings
from planner.evaluation.memory import held_in_backward, model_states
from planner.evaluation.rank import stages_gathered
from planner.evaluation.states import gathered_weight_bytes, least_gathered_bytes
from planner.graph import counted, tied_share
from planner.plans import Parallelism
from planner.search.fullest import Load


class Part(NamedTuple):
    """Layers of one kind, or embedding or head, as one device has them."""

    number: int
    states: Mapping[str, float]
    elements: float
    saved: float
    """For one micro-batch [bytes]."""
    workspace: float
    gathered: float
    """Elements of one that are surely whole at once."""
    boundary: float
    """What one hands to the next for one micro-batch [bytes]."""


class Parts(NamedTuple):
    """What bounds the memory of every cut of a candidate."""

    layers: tuple[Part, ...]
    ends: tuple[Part | None, Part | None]
    """Embedding and head."""


class RankLoads(NamedTuple):
    """What ranks hold of their layers, and of embedding and head; and the least beside that [bytes]."""

    layers: tuple[Load, ...]
    ends: tuple[float, float]
    beside: float
    boundary: float
    """The least that any stage hands on for one micro-batch."""


def parts_of(evaluator: Evaluator, plan: Parallelism, shardings: Shardings, policies: Sequence[str]) -> Parts:
    """Those of a plan whose stages have these ``policies``, or all the plan's own where there are none."""
    graph, own = evaluator.graph, set(policies) or {plan.recompute}
    layers = (_part(evaluator, plan, name, count, shardings, own) for name, count in counted(graph.sequence))
    first, last = (
        _part(evaluator, plan, name, 1, shardings, {"none"}) if name else None
        for name in (graph.first, graph.last)
    )
    return Parts(tuple(layers), (first, last))


def _part(
    evaluator: Evaluator, plan: Parallelism, name: str, count: int, shardings: Shardings, policies: set[str]
) -> Part:
    costs = [evaluator.block(plan, name, policy, shardings) for policy in sorted(policies)]
    weights = costs[0].weights
    if ends := evaluator.keepers[name]:
        untied = 1 - tied_share(evaluator.graph, name, ends)
        weights = tuple(group.times(untied) for group in weights)
    return Part(
        count,
        model_states(weights, evaluator.job, plan, evaluator.mesh(plan), evaluator.software),
        sum(group.elements for group in weights),
        min(cost.saved_bytes - cost.compiled.looped for cost in costs),
        min(cost.workspace_bytes for cost in costs),
        min(left_gathered(cost) for cost in costs),
        costs[0].boundary_bytes,
    )


def loads_of(parts: Parts, evaluator: Evaluator, plan: Parallelism) -> RankLoads:
    """What there is of ``parts`` to be spread over the ranks."""
    job, software, (layers, ends) = evaluator.job, evaluator.software, parts

    def held(part: Part | None, looked_up: bool = False) -> float:
        if part is None:
            return 0.0
        late = part.elements if looked_up else 0.0
        return held_in_backward(part.states, part.elements, job, plan, software, late)

    kept = 0.0 if "activations" in plan.offload else 1.0
    beside = min(part.workspace for part in layers)
    if plan.zero_stage == 3 and stages_gathered(plan, software) == 1:
        gathered = min(software.live_parameters, *(part.gathered for part in layers))
        beside += gathered * least_gathered_bytes(job, software, gathered_weight_bytes(job, software))
    loads = tuple(Load(part.number, held(part), kept * part.saved) for part in layers)
    boundary = min(part.boundary for part in layers)
    return RankLoads(loads, (held(ends[0], looked_up=True), held(ends[1])), beside, boundary)

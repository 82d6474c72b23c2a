"""Stages of a plan as frameworks see them: how layers are cut, what is recomputed where, who splits operators how."""

from collections.abc import Iterator

from planner.evaluation.cuts import even_cuts, with_cuts
from planner.evaluation.setting import graph_of
from planner.models.catalog import build_graph
from planner.plans import Parallelism, Plan
from planner.sharding.layouts import named_layout
from planner.sharding.mesh import Mesh
from planner.sharding.spec import Sizes


def num_layers(plan: Plan) -> int:
    """Layers of the plan's model."""
    return build_graph(plan.model, plan.job.seq_len).num_layers


def has_experts(plan: Plan) -> bool:
    """Whether the plan's model is a mixture of experts."""
    return "experts" in build_graph(plan.model, plan.job.seq_len).dims


def cuts_of(plan: Plan) -> tuple[int, ...]:
    """Boundaries of the stages in layers, from 0 to all of them: as written, or even."""
    p = plan.plan
    if p.stages:
        return (0, *(stage.blocks[1] for stage in p.stages))
    return even_cuts(num_layers(plan), p.pipeline * p.virtual_stages)


def policies_of(plan: Parallelism) -> frozenset[str]:
    """Recomputation policies that occur in the plan."""
    return frozenset(stage.recompute or plan.recompute for stage in plan.stages) or frozenset(
        {plan.recompute}
    )


def normal_form(plan: Plan) -> Parallelism:
    """The plan's choices without what says nothing: even stages, Megatron's layout, sequence parallelism of one rank.

    Two plans that a framework runs alike have the same. Stages that differ in their operators or policies stay.
    """
    p = plan.plan
    if p.tensor == 1 and not p.sequence_parallel:
        p = p.model_copy(update={"sequence_parallel": True})
    plain = len(policies_of(p)) == 1 and not any(departures(plan))
    if not plain:
        return p
    uniform = p.model_copy(update={"recompute": next(iter(policies_of(p)))})
    return with_cuts(uniform, num_layers(plan), cuts_of(plan))


def departures(plan: Plan) -> Iterator[str]:
    """Operators (``block.operator``) that the plan splits in another way than the named layout."""
    p = plan.plan
    if not any(stage.sharding for stage in p.stages):
        return
    graph = graph_of(plan.model, plan.job)
    mesh = Mesh(plan.cluster, p.axes)
    sizes = Sizes(graph, mesh, p.micro_batch * p.data)
    given = {name: ops for stage in p.stages for name, ops in stage.sharding.items()}
    for name, ops in given.items():
        named = named_layout(graph.block[name], sizes, p.sequence_parallel, p.experts_over_tensor)
        for op, split in ops.items():
            if {a: d for a, d in split.items() if a in mesh.axes} != dict(named.get(op, ())):
                yield f"{name}.{op}"

"""Where a plan puts every parameter: what all exporters read of it.

A plan splits dims of operators over the axes ``tensor``, ``context``, ``expert`` and ``data``. A framework
wants to know how each *parameter* lies. A parameter's dim is split by the axes that split it in its operator
(`Dim.axes`); on top of that, ZeRO shards states over data-parallel ranks (`DataMesh`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from cluster_specs.errors import InputError
from planner.errors import Unsupported
from planner.evaluation.setting import graph_of
from planner.graph import Block, Graph, Op, Tensor
from planner.plans import Parallelism, Plan, StagePlan
from planner.sharding.layouts import named_layout
from planner.sharding.mesh import AXES, Mesh
from planner.sharding.spec import Sizes, Strategy

LAYER = "{layer}"
"""Stands for the layer's number in a parameter's path."""

MATRIX_KINDS = ("matmul", "conv")
"""Kinds of operators whose weights torch stores outputs first."""


class Dim(NamedTuple):
    """One dim of a parameter."""

    name: str
    extent: int
    axes: tuple[str, ...]
    """Axes of `AXES` that split it, outermost first."""
    copied_over: tuple[str, ...] = ()
    """Axes that split the dim that it follows into more parts than it has: groups of their ranks hold copies."""


class Parameter(NamedTuple):
    """One parameter of the model; ``{layer}`` in its path stands for the number of each layer of its block.

    Its dims are told apart by their part in the operator that reads it.
    """

    path: str
    block: str
    op: Op
    weights: tuple[Tensor, ...]
    """The graph's weights that it holds; more than one where the framework fuses them along their outputs."""
    shared: tuple[Dim, ...]
    """Dims of inputs and outputs alike: experts, or what a norm scales."""
    inputs: tuple[Dim, ...]
    """Dims of the inputs alone (or looked up): summed over."""
    outputs: tuple[Dim, ...]
    """Dims of the outputs alone."""

    @property
    def groups(self) -> tuple[tuple[Dim, ...], ...]:
        """Dims by role, inputs before outputs, roles without any left out."""
        return tuple(group for group in (self.shared, self.inputs, self.outputs) if group)

    @property
    def dims(self) -> tuple[Dim, ...]:
        """All dims, inputs before outputs."""
        return (*self.shared, *self.inputs, *self.outputs)

    @property
    def is_matrix(self) -> bool:
        """Whether it multiplies: torch stores such a parameter outputs first, JAX inputs first."""
        return self.op.kind in MATRIX_KINDS and bool(self.inputs and self.outputs)

    @property
    def is_table(self) -> bool:
        """Whether its inputs are looked up."""
        return not self.is_matrix and len(self.groups) > 1


class DataMesh(NamedTuple):
    """Data-parallel ranks as ``replicate`` x ``shard`` x ``expert``, and who shares the states."""

    replicate: int
    """Groups of ranks that each hold all states."""
    shard: int
    """Ranks of such a group, less the expert axis."""
    expert: int
    over_expert: bool = False
    """States that the expert axis does not split are sharded over it."""
    over_context: bool = False
    """States are sharded over the context axis as well."""
    expert_copies: int = 1
    """Parts of the expert axis that each hold all states, where they are sharded over its nearest ranks only."""
    context_copies: int = 1
    """The same of the context axis."""


@dataclass(frozen=True)
class Layout:
    """The one stage of a plan without a pipeline, ready to be exported."""

    plan: Plan
    graph: Graph
    axes: Mapping[str, int]
    """Size of each of `AXES`."""
    strategies: Mapping[str, Mapping[str, Strategy]]
    """Block -> operator -> (axis, dim) pairs of axes larger than 1."""
    data: DataMesh

    @cached_property
    def layers(self) -> Mapping[str, tuple[int, ...]]:
        """Block -> the numbers that ``{layer}`` takes in its parameters' paths."""
        numbers: dict[str, list[int]] = {}
        reached: dict[str, int] = {}
        prefix = {b.name: layer_prefix(b) for b in self.graph.blocks}
        for name in self.graph.sequence:
            number = reached.get(prefix[name], 0)
            numbers.setdefault(name, []).append(number)
            reached[prefix[name]] = number + 1
        return {name: tuple(found) for name, found in numbers.items()}

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """Every parameter of every kind of block, in the order of the model; of tied ones the first."""
        tied = {second for _, second in self.graph.tied}
        found: dict[tuple[str, str], Parameter] = {}
        for block, _ in self.graph.instances():
            for op in block.ops:
                for weight in (block.tensor[name] for name in op.weights):
                    if f"{block.name}.{weight.name}" not in tied:
                        parameter = self._parameter(block, op, weight)
                        key = (block.name, parameter.path)
                        found[key] = fuse(found[key], parameter) if key in found else parameter
        return tuple(found.values())

    def _parameter(self, block: Block, op: Op, weight: Tensor) -> Parameter:
        if not weight.path:
            raise Unsupported(f"block {block.name}, weight {weight.name}: no path of a framework's parameter")
        strategy = self.strategies[block.name].get(op.name, ())
        inputs = {d for name in op.inputs for d in block.tensor[name].dims}
        outputs = {d for name in op.outputs for d in block.tensor[name].dims}
        dims = {d: Dim(d, self.graph.dims[d], *self._split(d, strategy)) for d in weight.dims}
        return Parameter(
            weight.path,
            block.name,
            op,
            (weight,),
            tuple(dim for d, dim in dims.items() if d in inputs and d in outputs),
            tuple(dim for d, dim in dims.items() if d not in outputs),
            tuple(dim for d, dim in dims.items() if d in outputs and d not in inputs),
        )

    def _split(self, dim: str, strategy: Strategy) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Axes on ``dim``, outermost first, and those for which a follower is too small."""
        leader = self.graph.follows.get(dim, dim)
        axes = tuple(a for a in reversed(AXES) if (a, leader) in strategy or (a, dim) in strategy)
        degree = math.prod(self.axes[a] for a in axes)
        return (axes, ()) if dim == leader or self.graph.dims[dim] % degree == 0 else ((), axes)


def fuse(first: Parameter, second: Parameter) -> Parameter:
    """Two weights in one parameter, one after the other along their outputs."""
    parts = (first, second)
    outputs = [p.outputs or p.shared for p in parts]
    axes = [{a for d in dims for a in d.axes} for dims in outputs]
    split = tuple(a for a in reversed(AXES) if all(a in found for found in axes))
    name = "+".join("*".join(d.name for d in dims) for dims in outputs)
    fused = (Dim(name, sum(math.prod(d.extent for d in dims) for dims in outputs), split),)
    weights = (*first.weights, *second.weights)
    if first.outputs:
        return first._replace(weights=weights, outputs=fused)
    return first._replace(weights=weights, shared=fused)


def layer_prefix(block: Block) -> str:
    """Path of the modules that hold ``block``, up to and with ``{layer}``; empty outside of layers."""
    paths = [t.path for t in block.tensors if t.role == "weight"]
    numbered = [p[: p.index(LAYER) + len(LAYER)] for p in paths if LAYER in p]
    return min(numbered, key=len, default="")


def state_mesh(plan: Parallelism) -> DataMesh:
    """Cut the data-parallel ranks as the plan shards its states: over the nearest ranks, context ones first.

    As `planner.sharding.mesh.Mesh.inner_outer` cuts them. Raises ``InputError`` where the degrees contradict each
    other.
    """
    degree = plan.state_shards
    experts, rest = plan.axes["expert"], plan.axes["data"]
    context = math.gcd(degree, plan.context)
    expert = math.gcd(degree // context, experts)
    shard = math.gcd(degree // (context * expert), rest)
    if context * expert * shard != degree:
        ranks = plan.data * plan.context
        raise InputError(f"plan: shard_degree {degree} does not divide {ranks} data and context ranks")
    return DataMesh(
        rest // shard,
        shard,
        experts,
        expert > 1,
        context > 1,
        experts // expert if expert > 1 else 1,
        plan.context // context if context > 1 else 1,
    )


def data_mesh(plan: Parallelism) -> DataMesh:
    """`state_mesh` of a plan whose states are sharded over whole groups of context and expert ranks, or not at all.

    Raises ``Unsupported`` where the sharding group cuts such a group, else as `state_mesh`.
    """
    degree, nearest = plan.state_shards, plan.context * plan.axes["expert"]
    if degree > 1 and degree % nearest:
        raise Unsupported(
            f"states sharded over {degree} ranks cut groups of {nearest} context- and expert-parallel ranks; "
            f"plan with a shard degree that {nearest} divides"
        )
    return state_mesh(plan)


def refuse_experts_over_context(plan: Parallelism) -> None:
    """Raise ``Unsupported`` for experts over context ranks, which no mesh of batch, sequence and experts apart has."""
    if plan.context_experts > 1:
        raise Unsupported(
            "experts over context ranks have no mesh that can be written down; plan again with an --expert that "
            f"divides data {plan.data}"
        )


def _strategies(plan: Plan, graph: Graph, stage: StagePlan | None) -> dict[str, dict[str, Strategy]]:
    """Explicit shardings of the stage, and the named layout for every other block."""
    p = plan.plan
    mesh = Mesh(plan.cluster, dict(stage.mesh) if stage else p.axes)
    sizes = Sizes(graph, mesh, p.micro_batch * p.data)
    explicit = stage.sharding if stage else {}
    found: dict[str, dict[str, Strategy]] = {}
    for block, _ in graph.instances():
        if block.name not in explicit:
            found[block.name] = named_layout(block, sizes, p.sequence_parallel, p.experts_over_tensor)
            continue
        chosen = explicit[block.name]
        unknown = sorted(set(chosen) - {op.name for op in block.ops})
        if unknown:
            raise InputError(f"plan, stage 0, block {block.name}: no operator named {', '.join(unknown)}")
        found[block.name] = {
            op: tuple((a, axes[a]) for a in mesh.axes if a in axes) for op, axes in chosen.items()
        }
    return found


def layout_of(plan: Plan, target: str, pipelines: bool = False) -> Layout:
    """Everything that an exporter needs to know of the parameters.

    Raises ``Unsupported`` for a plan with a pipeline where the target has no ``pipelines``, for one whose stages split
    the same block in different ways, for recomputation in some layers only, and for experts over context ranks;
    ``InputError`` for a plan that contradicts itself.
    """
    p = plan.plan
    if p.pipeline > 1 and not pipelines:
        raise Unsupported(
            f"target {target} has no pipeline, the plan has {p.pipeline} stages; plan again with --pipeline 1"
        )
    if p.recompute_every > 1:
        raise Unsupported(f"target {target} has no recomputation in one of {p.recompute_every} layers only")
    refuse_experts_over_context(p)
    graph = graph_of(plan.model, plan.job)
    stage = _only_stage(p, target)
    axes = p.axes | (dict(stage.mesh) if stage else {})
    return Layout(plan, graph, axes, _strategies(plan, graph, stage), state_mesh(p))


def _only_stage(plan: Parallelism, target: str) -> StagePlan | None:
    """What the stages, if they are written down, have in common: all of it but their layers."""
    if not plan.stages:
        return None
    found: dict[str, Mapping[str, Mapping[str, str]]] = {}
    for stage in plan.stages:
        for block, split in stage.sharding.items():
            if found.setdefault(block, split) != split:
                raise Unsupported(
                    f"target {target} splits a block alike in all stages, the plan does not ({block})"
                )
    return plan.stages[0].model_copy(update={"sharding": found})

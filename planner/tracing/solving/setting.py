"""What is solved: a cleaned program on a mesh, and the tables of its options."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict, Unpack

from cluster_specs.adjusted import in_training
from cluster_specs.catalog import load_cluster
from cluster_specs.cluster import ClusterSpec
from planner.errors import InputError
from planner.garbage import uncollected
from planner.tracing.cleaning.passes import clean
from planner.tracing.layouts import NamedMesh
from planner.tracing.program import Program
from planner.tracing.solving.concatenation import joints
from planner.tracing.solving.evaluation import ProgramEstimate, evaluate_program
from planner.tracing.solving.nodes import NodeOption, Nodes, node_options, nodes_of
from planner.tracing.solving.pricing import ProgramPricer
from planner.tracing.solving.problem import LayoutProblem, layout_problem
from planner.tracing.solving.recomputing import agains
from planner.tracing.solving.repeats import alike

FOLD_FROM = 400
"""Nodes from which on repeated blocks share their choice unless asked otherwise."""


@dataclass(frozen=True)
class Setting:
    """What is solved: a cleaned program on a mesh, its nodes, and the tables of their options."""

    pricer: ProgramPricer
    nodes: Nodes
    problem: LayoutProblem
    memory_limit: float
    """[B]"""
    optimizer_share: float

    @property
    def program(self) -> Program:
        """The cleaned program."""
        return self.pricer.program

    @property
    def mesh(self) -> NamedMesh:
        """Where it is to run."""
        return self.pricer.mesh

    def estimate(self, chosen: Sequence[NodeOption]) -> ProgramEstimate:
        """Time and memory of a choice."""
        return evaluate_program(self.pricer, self.nodes, chosen, self.optimizer_share)


class Conditions(TypedDict, total=False):
    """What `shard` takes beside the program and the mesh."""

    memory_limit: float | None
    """For the arrays on one device [B]; the device's memory if left out."""
    optimizer_share: float
    """What an optimizer keeps beside each parameter that is not in the program, as a multiple of it (6 for Adam in
    fp32, with fp32 weights, beside bf16)."""
    recompute: bool
    """Where memory is short, operators may run again instead of keeping what they make (true if left out)."""
    fold: bool | None
    """Make repeated blocks share their choice; left out, large programs do."""


@uncollected()
def set_up(
    program: Program,
    cluster: ClusterSpec | str,
    mesh: Mapping[str, int] | None = None,
    **conditions: Unpack[Conditions],
) -> Setting:
    """Everything before the solver runs; arguments as in `shard`."""
    memory_limit, fold = conditions.get("memory_limit"), conditions.get("fold")
    optimizer_share = conditions.get("optimizer_share", 0.0)
    where = cluster if isinstance(cluster, ClusterSpec) else load_cluster(cluster)
    where = where.model_copy(update={"device": in_training(where.device)})
    limit = where.device.memory if memory_limit is None else memory_limit
    if limit <= 0 or optimizer_share < 0:
        raise InputError(
            f"memory_limit is {limit:g}, optimizer_share {optimizer_share:g}; they must be positive"
        )
    pricer = ProgramPricer(clean(program), NamedMesh(where, mesh or _axes_of(where)))
    _check_axes(pricer.program, pricer.mesh)
    nodes = nodes_of(pricer.program, joints=joints(pricer))
    return tabulated(pricer, nodes, limit, optimizer_share, fold)


def may_recompute(setting: Setting, fold: bool | None = None) -> Setting:
    """The same with second runs of operators among the choices."""
    nodes = nodes_of(setting.program, agains(setting.program), setting.nodes.joints, setting.mesh.sizes)
    return tabulated(setting.pricer, nodes, setting.memory_limit, setting.optimizer_share, fold)


def tabulated(
    pricer: ProgramPricer, nodes: Nodes, limit: float, optimizer_share: float, fold: bool | None
) -> Setting:
    """The tables of all options of ``nodes``; ``fold`` as in `Conditions`."""
    options = node_options(pricer.program, nodes, pricer.mesh)
    folded = len(options) >= FOLD_FROM if fold is None else fold
    group = alike(pricer.program, nodes, options) if folded else list(range(len(options)))
    problem = layout_problem(pricer, nodes, options, group, optimizer_share)
    return Setting(pricer, nodes, problem, limit, optimizer_share)


def _check_axes(program: Program, mesh: NamedMesh) -> None:
    """Refuse a mesh without the axes that the program names itself."""
    for op in program.operations:
        for axis, factor in (op.manual or {}).items():
            if mesh.axes.get(axis) != op.sizes[factor]:
                raise InputError(
                    f"operator {op.name} is in a shard_map over an axis {axis} of {op.sizes[factor]} devices; "
                    f"the mesh is {dict(mesh.axes)}"
                )


def _axes_of(cluster: ClusterSpec) -> dict[str, int]:
    sizes = {"node": cluster.nodes, "device": cluster.num_devices // cluster.nodes}
    return {name: n for name, n in sizes.items() if n > 1} or {"device": 1}

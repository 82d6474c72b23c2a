"""Plans as people write them: layouts for the inputs, and everything else follows.

Each operator takes what is cheapest next to what is already decided, first in the program's order, then again
until nothing changes: as a partitioner propagates annotations, and no worse. Last, products that are only added up
are summed once where that is cheaper, as when their weights stand side by side in one array, and products of one value
that are split alike run as one.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from planner.errors import InputError
from planner.intra_op.problem import Array
from planner.tracing.layouts import WHOLE, Layout, NamedMesh
from planner.tracing.program import Program, Value
from planner.tracing.solving.nodes import NodeOptions, Nodes
from planner.tracing.solving.options import Options, all_layouts
from planner.tracing.solving.problem import LayoutProblem
from planner.tracing.solving.tables import Moves

SWEEPS = 10

Rules = Mapping[str, Sequence[str | None | tuple[str, ...]]]
"""Regular expression for the path of an input -> arguments of a ``PartitionSpec``."""


def follow(problem: LayoutProblem, nodes: Nodes, fixed: Mapping[int, int]) -> list[int]:
    """An option per node, by number, where the nodes in ``fixed`` keep theirs."""
    around = _Around(problem)
    chosen: dict[int, int] = dict(fixed)

    def best(node: int) -> int:
        return int(np.where(around.parts[node], np.inf, around.costs(node, chosen)).argmin())

    order = _order(nodes)
    for _ in range(SWEEPS):
        before = dict(chosen)
        for node in order:
            if node not in fixed:
                chosen[node] = best(node)
        if chosen == before:
            break
    first = len(nodes.inputs)
    made = {name: first + i for i, op in enumerate(nodes.operations) for name in op.outputs}
    for i, op in enumerate(nodes.operations):
        if op.addends:
            chosen |= around.summed_once(first + i, [made[name] for name in op.addends], chosen)
    chosen |= {node: best(node) for node in range(nodes.first_joint, len(problem.options))}
    return [chosen[node] for node in range(len(problem.options))]


class _Around:
    """What the options of a node cost next to those chosen for others."""

    def __init__(self, problem: LayoutProblem) -> None:
        self.seconds = problem.seconds
        self.links: list[list[tuple[int, Moves]]] = [[] for _ in problem.options]
        for u, v, moves in problem.links:
            self.links[u].append((v, moves))
            self.links[v].append((u, moves.back))
        self.parts = [_in_parts(options) for options in problem.options]

    def costs(self, node: int, chosen: Mapping[int, int]) -> Array:
        """By option [s]."""
        costs = self.seconds[node].copy()
        for other, moves in self.links[node]:
            if other == node:
                costs = costs + moves.table[moves.rows, moves.columns]
            elif other in chosen:
                costs = costs + moves.table[:, moves.columns[chosen[other]]][moves.rows]
        return costs

    def summed_once(
        self, kernel: int, products: Sequence[int], chosen: Mapping[int, int]
    ) -> Mapping[int, int]:
        """The best choice for a kernel and the products that it adds up, left in parts, if that is better."""
        without = {n: c for n, c in chosen.items() if n not in (kernel, *products)}
        joint, partners = self.costs(kernel, without), []
        for product in products:
            moves = next(m for other, m in self.links[kernel] if other == product)
            both = moves.full + self.costs(product, without)[None, :]
            partners.append(both.argmin(axis=1))
            joint = joint + both.min(axis=1)
        best = int(joint.argmin())
        if joint[best] >= joint[chosen[kernel]] or not self.parts[kernel][best]:
            return {}
        return {kernel: best, **{p: int(at[best]) for p, at in zip(products, partners, strict=True)}}


def _in_parts(options: NodeOptions) -> npt.NDArray[np.bool_]:
    """Options with arrays that are left, or arrive, in parts."""
    if isinstance(options, Options):
        return np.asarray(options.parts.any(axis=1))
    return np.zeros(len(options), np.bool_)


def _order(nodes: Nodes) -> list[int]:
    """Inputs, then operators, each after the copies that begin with it."""
    first_copy = len(nodes.inputs) + len(nodes.operations)
    copies: dict[int, list[int]] = {}
    for k, copy in enumerate(nodes.copies):
        copies.setdefault(copy.first, []).append(first_copy + k)
    order = list(range(len(nodes.inputs)))
    for i in range(len(nodes.operations)):
        order += [*copies.get(i, ()), len(nodes.inputs) + i]
    return order


def data_parallel(value: Value, program: Program, mesh: NamedMesh) -> Layout:
    """Parameters and what is kept with them whole; data split along its first dim over as many axes as divide it."""
    whole = (WHOLE,) * len(mesh.sizes)
    if not value.shape or value.name in program.kept:
        return whole
    return _along(value.shape, 0, mesh)


def zero_3(value: Value, program: Program, mesh: NamedMesh) -> Layout:
    """As `data_parallel`, with parameters and states in shards of the dim that splits over most axes.

    The first dim of an array of three or more is left whole if another does as well: layers are stacked in it.
    """
    if not value.shape or value.name not in program.kept:
        return data_parallel(value, program, mesh)
    found = [_along(value.shape, d, mesh) for d in range(len(value.shape))]
    return max(
        reversed(found), key=lambda layout: mesh.degree([a for a, d in enumerate(layout) if d != WHOLE])
    )


BASELINES: Mapping[str, Callable[[Value, Program, NamedMesh], Layout]] = {
    "data parallel": data_parallel,
    "ZeRO-3": zero_3,
}
"""Name -> layout of each input."""


def by_rules(rules: Rules, axes: Sequence[str]) -> Callable[[Value, Program, NamedMesh], Layout]:
    """Layouts by the first rule whose expression is found in the input's path; without one, whole.

    Raises ``InputError`` for an axis that the mesh does not have.
    """

    def layout(value: Value, program: Program, mesh: NamedMesh) -> Layout:
        found = [WHOLE] * len(axes)
        parts = next((p for expression, p in rules.items() if re.search(expression, value.path)), ())
        for dim, part in enumerate(parts):
            for axis in () if part is None else (part,) if isinstance(part, str) else part:
                if axis not in axes:
                    raise InputError(f"{value.path}: the mesh has no axis {axis!r}; it has {', '.join(axes)}")
                found[axes.index(axis)] = dim
        return tuple(found)

    return layout


def fixed_inputs(
    problem: LayoutProblem,
    nodes: Nodes,
    program: Program,
    mesh: NamedMesh,
    layout: Callable[[Value, Program, NamedMesh], Layout],
) -> dict[int, int]:
    """The inputs' nodes, each with the number of its layout; raises ``InputError`` where one does not divide."""
    fixed = {}
    for node, name in enumerate(nodes.inputs):
        value = program.value[name]
        wanted = layout(value, program, mesh)
        if wanted not in problem.options[node]:
            raise InputError(
                f"{value.path or name} of shape {value.shape} cannot lie as {wanted} on {dict(mesh.axes)}"
            )
        fixed[node] = problem.options[node].index(wanted)
    return fixed


def _along(shape: tuple[int, ...], dim: int, mesh: NamedMesh) -> Layout:
    """Split over one dim, by as many axes as divide it, outer ones first."""
    layout, degree = [WHOLE] * len(mesh.sizes), 1
    for axis, size in enumerate(mesh.sizes):
        if size > 1 and shape[dim] % (degree * size) == 0:
            layout[axis] = dim
            degree *= size
    assert tuple(layout) in all_layouts(shape, mesh.sizes) or math.prod(mesh.sizes) == 1
    return tuple(layout)

"""Every way to run one operator on a mesh, in one of two spaces.

``roles``: each axis splits only what its name says, and the tensor axis splits the weights of every product, so
that a plan's degrees mean what people mean by them; the named layout is always among them, also where it keeps
weights whole (routers, latent down-projections), so that no choice is worse than it for want of a strategy. A weight
that two blocks share lies in one way only, so both have the named layout's.
``free``: any axis splits any dim; degrees are what comes out.
"""

import itertools
from typing import Literal

from planner.graph import TOKEN_DIMS, Block, Op
from planner.operators import operator_rule
from planner.sharding.layouts import ROLES, named_strategy
from planner.sharding.mesh import AXES, EXPERT_AXES
from planner.sharding.spec import Sizes, Strategy, has_dim

Space = Literal["roles", "free"]


def _role_dims(op: Op, block: Block, sizes: Sizes, axis: str, splittable: tuple[str, ...]) -> list[str]:
    """Dims of ``op`` that ``axis`` may split by its role."""
    graph = sizes.graph
    if axis in EXPERT_AXES:
        spread = "expert_ffn" in splittable
        return [d for d in splittable if d in ROLES[axis] and (d == "experts") == spread]
    if axis != "tensor":
        return [d for d in splittable if d in ROLES[axis]]
    if any(f"{block.name}.{w}" in pair for pair in graph.tied for w in op.weights):
        named = named_strategy(op, block, sizes, sequence_parallel=True)
        return [d for d in splittable if (axis, d) in named]
    weights = [block.tensor[w] for w in op.weights if len(block.tensor[w].dims) > 1]
    if weights:
        return [d for d in splittable if d in ROLES[axis] and all(has_dim(graph, w, d) for w in weights)]
    return [d for d in splittable if d in ROLES[axis] or d in TOKEN_DIMS]


def legality(sizes: Sizes, space: Space) -> tuple[object, ...]:
    """All that `strategies` depends on besides the operator.

    By roles only the data and expert axes split the batch: how large either is does not matter then, only whether
    there are data ranks and whether the batch divides.
    """
    *inner, expert, data = (sizes.mesh.size(a) for a in AXES)
    if space == "free":
        return *inner, expert, data, sizes.batch
    return *inner, expert, data > 1, sizes.batch % (expert * data) == 0


def strategies(op: Op, block: Block, sizes: Sizes, space: Space = "roles") -> tuple[Strategy, ...]:
    """Legal strategies of ``op``, in a fixed order; never empty, since replicating is always legal.

    By roles, an axis that can split something does: only the tensor axis may also replicate an operator
    without weights.
    """
    splittable = operator_rule(op).splittable(op, block, sizes.graph)
    choices: list[list[tuple[str, str] | None]] = []
    for axis in sizes.mesh.axes:
        by_role = _role_dims(op, block, sizes, axis, splittable)
        dims = list(splittable) if space == "free" else by_role
        legal: list[tuple[str, str] | None] = [(axis, d) for d in dims if sizes.legal(op, ((axis, d),))]
        optional = space == "free" or (axis == "tensor" and not op.weights)
        choices.append([*legal, None] if optional or not legal else legal)
    found = [tuple(s for s in combination if s is not None) for combination in itertools.product(*choices)]
    if space == "roles":
        found.append(named_strategy(op, block, sizes, sequence_parallel=True))
    return tuple(dict.fromkeys(s for s in found if sizes.legal(op, s))) or ((),)

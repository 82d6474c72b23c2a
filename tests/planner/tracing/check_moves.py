"""Moves of an array of 64 x 64 x 64 between layouts on a mesh, as XLA compiles them: one line of JSON for each.

python check_moves.py '{"a": 2, "b": 4}'
"""

import itertools
import json
import math
import os
import sys
from collections import Counter

from planner.verification.with_program import FLAGS

AXES = json.loads(sys.argv[1])
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = " ".join(FLAGS).format(math.prod(AXES.values()))

import jax  # noqa: E402

from planner.tracing.applying.places import between  # noqa: E402
from planner.tracing.layouts import WHOLE  # noqa: E402
from planner.verification.programs.hlo import listed_collectives  # noqa: E402

SIZE, DIMS = 64, 3


def partition(layout):
    """Axes of each dim."""
    return tuple(tuple(a for a, dim in zip(AXES, layout, strict=True) if dim == d) for d in range(DIMS))


def compiled_bytes(mesh, source, target):
    """By kind, of whole arrays."""

    def placed(place):
        return jax.NamedSharding(mesh, jax.P(*place))

    def moved(array):
        array = array * 1.5
        for place in (*between(partition(source), partition(target), tuple(AXES)), partition(target)):
            array = jax.lax.with_sharding_constraint(array, placed(place))
        return array

    shape = jax.ShapeDtypeStruct((SIZE,) * DIMS, "float32")
    text = jax.jit(moved, in_shardings=placed(partition(source))).lower(shape).compile().as_text()
    found = Counter()
    for collective in listed_collectives(text, mesh.size):
        found[collective.kind] += collective.full_bytes
    return found


def new_dims_in_order(source, target):
    """Whether dims come in their order, so that of moves that are alike only one is compiled."""
    seen = list(dict.fromkeys(dim for dim in (*source, *target) if dim != WHOLE))
    return seen == list(range(len(seen)))


if __name__ == "__main__":
    kind = jax.sharding.AxisType.Auto
    devices = jax.make_mesh(tuple(AXES.values()), tuple(AXES), axis_types=(kind,) * len(AXES))
    layouts = list(itertools.product(range(WHOLE, DIMS), repeat=len(AXES)))
    for source, target in itertools.permutations(layouts, 2):
        if new_dims_in_order(source, target):
            print(json.dumps([source, target, compiled_bytes(devices, source, target)]))

"""Partial sums as JAX can have them under ``jax.jit``: a leading dim that is sharded over the axes of the sum.

A product whose contracted dim is split runs once per part of that dim, each on its own devices, and is not added up;
views and additions run part by part; then the leading dim is summed, which is the one collective of them all.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from planner.tracing.program import Dims


class Parts(NamedTuple):
    """An array as the sum of others, over its leading dim."""

    array: Any


class Loops(NamedTuple):
    """How a product is split: which axis cuts which factor, and how its arrays are indexed."""

    mesh: Any
    split: Mapping[str, int]
    reads: Sequence[Dims]
    writes: Dims


def product_in_parts(equation: Any, operands: Sequence[Any], loops: Loops, axes: Sequence[str]) -> Parts:
    """A matrix product that is not added up over ``axes``."""
    contracting, batch = equation.params["dimension_numbers"]
    cut = [_cut(x, dims, loops, axes) for x, dims in zip(operands, loops.reads, strict=True)]

    def moved(dims: Sequence[int]) -> tuple[int, ...]:
        return tuple(1 + d for d in dims)

    numbers = (
        (moved(contracting[0]), moved(contracting[1])),
        ((0, *moved(batch[0])), (0, *moved(batch[1]))),
    )
    made = equation.primitive.bind(*cut, **{**equation.params, "dimension_numbers": numbers})
    return Parts(_lie(made, loops, axes, loops.writes))


def each_part(equation: Any, operands: Sequence[Any]) -> list[Parts]:
    """An equation on arrays in parts, part by part; what is whole is the same for each."""
    import jax

    def run(*arrays: Any) -> Any:
        made = equation.primitive.bind(*arrays, **equation.params)
        return made if equation.primitive.multiple_results else [made]

    places = [0 if isinstance(x, Parts) else None for x in operands]
    arrays = (x.array if isinstance(x, Parts) else x for x in operands)
    return [Parts(x) for x in jax.vmap(run, in_axes=places)(*arrays)]


def added_up(parts: Parts) -> Any:
    """The array itself."""
    import jax

    zero = jax.numpy.zeros((), parts.array.dtype)
    return jax.lax.reduce(parts.array, zero, jax.lax.add, (0,))


def _cut(array: Any, dims: Dims, loops: Loops, axes: Sequence[str]) -> Any:
    """An operand with one leading dim, made of what each axis cuts off the dim that it splits."""
    import jax

    shape: list[int] = []
    front: dict[str, int] = {}
    for size, factors in zip(array.shape, dims, strict=True):
        rest = size
        for axis in axes:
            if factors and loops.split[axis] == factors[0]:
                front[axis] = len(shape)
                shape.append(loops.mesh.shape[axis])
                rest //= loops.mesh.shape[axis]
        shape.append(rest)
    leading = math.prod(loops.mesh.shape[a] for a in axes)
    array = jax.numpy.moveaxis(array.reshape(shape), [front[a] for a in axes], range(len(axes)))
    return _lie(array.reshape((leading, *array.shape[len(axes) :])), loops, axes, dims)


def _lie(array: Any, loops: Loops, axes: Sequence[str], dims: Dims) -> Any:
    """The leading dim over ``axes``, the others as the loops say."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    rest = {a: f for a, f in loops.split.items() if a not in axes}
    others = (tuple(a for a, f in rest.items() if dim and dim[0] == f) for dim in dims)
    spec = PartitionSpec(tuple(axes), *others)
    return jax.lax.with_sharding_constraint(array, NamedSharding(loops.mesh, spec))

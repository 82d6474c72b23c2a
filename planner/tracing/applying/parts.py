"""Partial sums as JAX can have them under ``jax.jit``: a leading dim that is sharded over the axes of the sum.

A product whose contracted dim is split runs once per part of that dim, each on its own devices, and is not added up;
views and additions run part by part; then the leading dim is summed, which is the one collective of them all.
"""

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from planner.tracing.applying.literals import plain
from planner.tracing.layouts import Partition
from planner.tracing.program import Dims
from planner.tracing.sharded import spec_arguments


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
    import jax

    cut = [_cut(plain(x), dims, loops, axes) for x, dims in zip(operands, loops.reads, strict=True)]
    if is_grouped(equation) and loops.split[axes[0]] == loops.reads[0][0][0]:
        cut[2] = _lie(sizes_in_parts(cut[2], cut[0].shape[1]), loops, axes, loops.reads[2])
    made = jax.vmap(functools.partial(equation.primitive.bind, **equation.params))(*cut)
    return Parts(_lie(made, loops, axes, loops.writes))


def is_grouped(equation: Any) -> bool:
    """Whether it multiplies rows by group."""
    return bool(equation.primitive.name == "ragged_dot_general")


def sizes_in_parts(sizes: Any, rows: int) -> Any:
    """How many rows of each group are among the ``rows`` of each part, of sizes [part, group] of the groups."""
    import jax.numpy as jnp

    first = rows * jnp.arange(len(sizes), dtype=sizes.dtype)[:, None]
    ends = jnp.clip(jnp.cumsum(sizes, axis=1, dtype=sizes.dtype), first, first + rows)
    return jnp.diff(ends, axis=1, prepend=first)


REDUCTIONS = frozenset({"reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_prod", "reduce_sum"})
"""Primitives that make one number of many, in any order."""


def reduces_several(equation: Any, loops: Loops) -> tuple[str, ...]:
    """The axes that split what is reduced, if they do in several dims: XLA would reduce these one after another."""
    if equation.primitive.name not in REDUCTIONS or not loops.reads:  # of numbers alone
        return ()
    kept = {f for dim in loops.writes for f in dim}
    at = {
        a: place
        for place, dim in enumerate(loops.reads[0])
        for a, f in loops.split.items()
        if dim[:1] == (f,)
    }
    axes = tuple(a for a in loops.mesh.shape if a in at and loops.split[a] not in kept)
    return axes if len({at[a] for a in axes}) > 1 else ()


def reduced_at_once(equation: Any, operand: Any, loops: Loops, axes: Sequence[str]) -> Any:
    """What each part makes, and then what these make together."""
    import jax

    cut = _cut(operand, loops.reads[0], loops, axes)
    params = dict(equation.params)
    each = _lie(
        jax.vmap(functools.partial(equation.primitive.bind, **params))(cut), loops, axes, loops.writes
    )
    return equation.primitive.bind(each, **{**params, "axes": (0,)})


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


def as_parts(array: Any, known: Any) -> Any:
    """``array`` as the first of as many parts as another array is in, if that is in parts; the others are zero."""
    import jax.numpy as jnp

    if not isinstance(known, Parts) or isinstance(array, Parts):
        return array
    return Parts(jnp.zeros((len(known.array), *array.shape), array.dtype).at[0].set(array))


class Sum(NamedTuple):
    """Axes over which parts are added up together, and how the array lies once they are."""

    axes: tuple[str, ...]
    after: Partition


def batches(reads: Sequence[Dims], writes: Dims) -> set[int]:
    """Loops that index all arrays of a product."""
    return set.intersection(*({f for dim in dims for f in dim} for dims in (*reads, writes)))


def sums_in_turn(split: Mapping[str, int], reads: Sequence[Dims], writes: Dims, end: Partition) -> list[Sum]:
    """Sums of a product that end in several dims, or in one and everywhere; those that are scattered come first.

    ``end`` is how the product is left. XLA would add up the whole array over all axes, and then cut it.
    """
    made = {f for dim in writes for f in dim}
    read = {f for dims in reads for dim in dims for f in dim}
    summed = [a for a, f in split.items() if f in read - made]
    place = {a: dim for dim, axes in enumerate(end) for a in axes}
    ends = sorted({place.get(a, -1) for a in summed}, reverse=True)
    found: list[Sum] = []
    left = set(summed)
    for dim in ends:
        axes = tuple(a for a in summed if place.get(a, -1) == dim)
        left -= set(axes)
        found.append(Sum(axes, tuple(tuple(a for a in axes if a not in left) for axes in end)))
    return found


def added_in_turn(parts: Parts, axes: Sequence[str], sums: Sequence[Sum], mesh: Any) -> Any:
    """The array itself, of parts over ``axes``, major first; those of one sum side by side."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    stage = {a: number for number, one in enumerate(sums) for a in one.axes}
    # Axes that are added up together are one dim: two would be two collectives.
    runs = [tuple(run) for _, run in itertools.groupby(axes, key=lambda a: stage[a])]
    sizes = tuple(math.prod(mesh.shape[a] for a in run) for run in runs)
    array = parts.array.reshape(sizes + parts.array.shape[1:])
    zero = jax.numpy.zeros((), array.dtype)
    for number, one in enumerate(sums):
        over = tuple(i for i, run in enumerate(runs) if stage[run[0]] == number)
        array = jax.lax.reduce(array, zero, jax.lax.add, over)
        runs = [run for run in runs if stage[run[0]] != number]
        spec = PartitionSpec(*runs, *spec_arguments(one.after))
        array = jax.lax.with_sharding_constraint(array, NamedSharding(mesh, spec))
    return array


def _cut(array: Any, dims: Dims, loops: Loops, axes: Sequence[str]) -> Any:
    """An operand with one leading dim, of ``axes`` in their order: what each cuts off the dim that it splits.

    Where none splits it, the whole once more for each.
    """
    import jax

    shape: list[int] = []
    front: dict[str, int] = {}
    for size, factors in zip(array.shape, dims, strict=True):
        rest = size
        for axis in (a for a in loops.mesh.shape if a in axes):
            if factors and loops.split[axis] == factors[0]:
                front[axis] = len(shape)
                shape.append(loops.mesh.shape[axis])
                rest //= loops.mesh.shape[axis]
        shape.append(rest)
    leading = math.prod(loops.mesh.shape[a] for a in axes)
    if not front:  # sizes of groups
        return _lie(jax.numpy.broadcast_to(array, (leading, *array.shape)), loops, axes, dims)
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

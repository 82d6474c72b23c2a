"""Attention as a front end finds it whole: how its loops index queries, keys, values and results."""

from collections.abc import Sequence
from typing import NamedTuple

from numpy import broadcast_shapes

from planner.tracing.factors import Loops, Rule, Shape
from planner.tracing.program import Attention, Dims, Reduction


class Operands(NamedTuple):
    """Arrays of an attention: ``[*batch, heads, positions, size]``, of keys and values perhaps fewer heads.

    A missing dim, or one of size 1, is stretched to that of the others.
    """

    query: Shape
    key: Shape
    value: Shape
    mask: Shape | None
    """To be stretched to ``[*batch, heads, queries, keys]``."""


def attention(operands: Operands, causal: bool, backward: bool, dtype: str, biased: bool = False) -> Rule:
    """A fused kernel: scores stay inside, and are made anew backward.

    Forward it reads its operands and writes the result and a number per query; backward it reads the result's gradient,
    the operands, the result and those numbers, and writes gradients of queries, keys and values, and of the mask where
    it is ``biased`` by one that is learned. Where queries are split, gradients of keys and values are sums.
    """
    loops = Loops()
    arrays = operands[:3]
    batch = tuple(loops.new(n) for n in broadcast_shapes(*(s[:-3] for s in arrays)))
    query_heads, *others = (s[-3] if len(s) > 2 else 1 for s in arrays)
    key_heads = loops.new(max(others))
    heads = (*key_heads, *loops.new(max(1, query_heads // max(others))))
    rows, keys = loops.new(operands.query[-2]), loops.new(operands.key[-2], False)
    width, depth = loops.new(operands.query[-1], False), loops.new(operands.value[-1], False)
    full = (*batch, heads, rows)
    query = _stretched(operands.query, (*full, width))
    key = _stretched(operands.key, (*batch, key_heads, keys, width))
    value = _stretched(operands.value, (*batch, key_heads, keys, depth))
    mask = () if operands.mask is None else (_stretched(operands.mask, (*full, keys)),)
    sums = full[len(full) + 1 - max(map(len, arrays)) :]
    result: Dims = (*sums, depth)
    read = (query, key, value, *mask)
    gradients = (query, key, value, *(mask if biased else ()))
    if backward:
        rule = loops.rule("attention", (result, *read, result, sums), gradients)
    else:
        rule = loops.rule("attention", read, (result, sums))
    per_query = _flat(full)
    summed = [(_flat(d), tuple(f for f in per_query if f not in _flat(d))) for d in gradients]
    per_key = (*heads[len(key_heads) :], *rows)
    return rule._replace(
        reductions=tuple(Reduction(dims=d, over=o, dtype=dtype) for d, o in summed if backward and o),
        attention=Attention(
            queries=per_key,
            keys=keys,
            width=width,
            depth=depth,
            causal=causal,
            backward=backward,
            kernel="flash",
        ),
    )


def _stretched(shape: Shape, dims: Dims) -> Dims:
    """The last ones of ``dims``, none for a size of 1."""
    last = dims[len(dims) - len(shape) :]
    return tuple(() if n == 1 else dim for n, dim in zip(shape, last, strict=True))


def _flat(dims: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(f for dim in dims for f in dim)

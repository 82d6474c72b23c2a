"""Attention as a front end finds it whole: how its loops index queries, keys, values and results."""

from collections.abc import Sequence
from typing import NamedTuple

from planner.tracing.factors import Loops, Rule, Shape
from planner.tracing.program import Attention, Dims, Reduction


class Operands(NamedTuple):
    """Arrays of an attention: ``[*batch, heads, positions, size]``, of keys and values perhaps fewer heads."""

    query: Shape
    key: Shape
    value: Shape
    mask: Shape | None
    """To be stretched to ``[*batch, heads, queries, keys]``."""


def attention(operands: Operands, causal: bool, backward: bool, dtype: str) -> Rule:
    """A fused kernel: scores stay inside, and are made anew backward.

    Forward it reads its operands and writes the result and a number per query; backward it reads the result's gradient,
    the operands, the result and those numbers, and writes gradients of queries, keys and values. Where queries are
    split, gradients of keys and values are sums.
    """
    loops = Loops()
    batch = tuple(loops.new(n) for n in operands.query[:-3])
    key_heads = loops.new(operands.key[-3])
    heads = (*key_heads, *loops.new(operands.query[-3] // operands.key[-3]))
    rows, keys = loops.new(operands.query[-2]), loops.new(operands.key[-2], False)
    width, depth = loops.new(operands.query[-1], False), loops.new(operands.value[-1], False)
    query: Dims = (*batch, heads, rows, width)
    key: Dims = (*batch, key_heads, keys, width)
    value: Dims = (*batch, key_heads, keys, depth)
    result: Dims = (*batch, heads, rows, depth)
    sums: Dims = (*batch, heads, rows)
    scores = (*batch, heads, rows, keys)
    mask = () if operands.mask is None else (_stretched(operands.mask, operands, scores),)
    read = (query, key, value, *mask)
    if backward:
        rule = loops.rule("attention", (result, *read, result, sums), (query, key, value))
    else:
        rule = loops.rule("attention", read, (result, sums))
    per_key = (*heads[len(key_heads) :], *rows)
    summed = (Reduction(dims=_flat(d), over=per_key, dtype=dtype) for d in (key, value))
    return rule._replace(
        reductions=tuple(summed) if backward and per_key else (),
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


def _stretched(mask: Shape, operands: Operands, scores: Dims) -> Dims:
    """Its own dims, the last ones of the scores', where it is not of size 1."""
    full = (*operands.query[:-1], operands.key[-2])
    tail = zip(mask, full[len(full) - len(mask) :], scores[len(full) - len(mask) :], strict=True)
    return tuple(dim if n == size else () for n, size, dim in tail)


def _flat(dims: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(f for dim in dims for f in dim)

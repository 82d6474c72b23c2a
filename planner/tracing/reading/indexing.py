"""Gathers and scatters as loops: embeddings, picking one entry, tokens to experts."""

from collections.abc import Sequence
from typing import NamedTuple

from planner.tracing.factors import Loops, Rule, Shape


class Lookup(NamedTuple):
    """Which dims are what; as ``lax.GatherDimensionNumbers``, the index vector being the indices' last dim."""

    window: Sequence[int]
    """Dims of the result (updates) that come from a slice of the operand."""
    collapsed: Sequence[int]
    """Dims of the operand of which one entry is taken, not among the batch."""
    operand_batch: Sequence[int]
    indices_batch: Sequence[int]
    indexed: Sequence[int]
    """Dims of the operand that the index vector addresses."""


def lookup(operand: Shape, indices: Shape, result: Shape, slices: Sequence[int], how: Lookup) -> Rule:
    """A gather. A split of a dim of which one entry is taken (a vocabulary) leaves partial sums."""
    loops = Loops()
    table, rows, out = _index(loops, operand, indices, result, slices, how)
    return loops.rule("lookup", (table, rows), (out,))


def accumulation(operand: Shape, indices: Shape, updates: Shape, how: Lookup, adds: bool) -> Rule:
    """A scatter into ``operand``; where it adds, a split of the updates leaves partial sums."""
    loops = Loops()
    window = [n for i, n in enumerate(updates) if i in how.window]
    kept = [i for i in range(len(operand)) if i not in (*how.collapsed, *how.operand_batch)]
    slices = [1] * len(operand)
    for i, n in zip(kept, window, strict=True):
        slices[i] = n
    table, rows, out = _index(loops, operand, indices, updates, slices, how)
    if not adds:
        loops.whole += [f for dims in rows for f in dims if f not in {g for d in table for g in d}]
    return loops.rule("accumulate", (table, rows, out), (table,))


def _index(
    loops: Loops, operand: Shape, indices: Shape, result: Shape, slices: Sequence[int], how: Lookup
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """How operand, indices and result (or updates) are indexed."""
    rows = [*(loops.new(n) for n in indices[:-1]), loops.new(indices[-1], False)]
    table: list[tuple[int, ...]] = [() for _ in operand]
    for i, j in zip(how.operand_batch, how.indices_batch, strict=True):
        table[i] = rows[j]
    out: list[tuple[int, ...]] = [() for _ in result]
    outer = iter(rows[:-1])
    for k in range(len(result)):
        if k not in how.window:
            out[k] = next(outer)
    kept = [i for i in range(len(operand)) if i not in (*how.collapsed, *how.operand_batch)]
    for i, k in zip(kept, how.window, strict=True):
        if slices[i] == operand[i]:
            table[i] = out[k] = loops.new(operand[i])
        else:
            table[i], out[k] = loops.new(operand[i], False), loops.new(slices[i], False)
    for i in how.collapsed:
        table[i] = loops.new(operand[i])
    return tuple(table), tuple(rows), tuple(out)

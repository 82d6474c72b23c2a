"""How the operators that all frameworks share index their arrays: one function per family.

Each takes shapes and returns a `Rule`; a front end has only to say which family an operator is of.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from planner.errors import Unsupported
from planner.tracing.program import Attention, Dims, Halo, Kind, Reduction

Shape = tuple[int, ...]


class Rule(NamedTuple):
    """What an `Operation` says about its loops; fields as there."""

    kind: Kind
    sizes: tuple[int, ...]
    reads: tuple[Dims, ...]
    writes: tuple[Dims, ...]
    whole: tuple[int, ...] = ()
    reductions: tuple[Reduction, ...] = ()
    halos: tuple[Halo, ...] = ()
    implied: Mapping[int, tuple[int, ...]] = {}
    attention: Attention | None = None


@dataclass
class Loops:
    """Factors as they are made up."""

    sizes: list[int] = field(default_factory=list)
    whole: list[int] = field(default_factory=list)

    def new(self, size: int, splittable: bool = True) -> tuple[int, ...]:
        """The indices of a dim of this size: one new factor, none for size 1."""
        if size == 1:
            return ()
        self.sizes.append(size)
        if not splittable:
            self.whole.append(len(self.sizes) - 1)
        return (len(self.sizes) - 1,)

    def rule(self, kind: Kind, reads: Sequence[Dims], writes: Sequence[Dims]) -> Rule:
        """These loops with their arrays."""
        return Rule(kind, tuple(self.sizes), tuple(reads), tuple(writes), tuple(self.whole))


def elementwise(inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Rule:
    """Every output element from the input elements at its place; sizes of 1 and missing dims are stretched."""
    loops = Loops()
    full = max(outputs, key=len)
    dims = tuple(loops.new(n) for n in full)
    reads = [_stretched(shape, full, dims) for shape in inputs]
    return loops.rule("loop", reads, [_stretched(shape, full, dims) for shape in outputs])


def _stretched(shape: Shape, full: Shape, dims: Dims) -> Dims:
    tail = dims[len(dims) - len(shape) :]
    return tuple(() if n == 1 else d for n, d in zip(shape, tail, strict=True))


def retyped(rule: Rule, before: str, after: str) -> Rule:
    """A view that changes the type of what it shows is work: it is written anew, and may move in its new width."""
    return rule._replace(kind="loop") if rule.kind == "view" and before != after else rule


def created(outputs: Sequence[Shape]) -> Rule:
    """Made of nothing: constants, counters, random bits."""
    loops = Loops()
    return loops.rule("loop", (), [tuple(loops.new(n) for n in shape) for shape in outputs])


def rows_of(length: int, row: Shape, lead: Shape, slices: bool) -> Rule:
    """One row of a stack; the stack's first dim, behind those of devices, stays whole."""
    loops = Loops()
    devices, inner = (tuple(loops.new(n) for n in shape) for shape in (lead, row))
    stack = (*devices, loops.new(length, False), *inner)
    one = (*devices, *inner)
    return loops.rule("boundary", (stack,) if slices else (one,), (one,) if slices else (stack,))


def no_rule(operator: str, why: str = "") -> Unsupported:
    """The error for an operator that is not known; ``why`` says what it does, where that is why."""
    return Unsupported(
        f"operator {operator} {why or 'has no rule for how it can be split'}; "
        "replicate_unknown=True (--replicate-unknown) computes it alike on every device, and lists it"
    )


def opaque(inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Rule:
    """Nothing is known: no dim can be split."""
    loops = Loops()
    reads = [tuple(loops.new(n, False) for n in shape) for shape in inputs]
    return loops.rule("loop", reads, [tuple(loops.new(n, False) for n in shape) for shape in outputs])


def reduction(shape: Shape, axes: Sequence[int], dtype: str, keep: bool = False, outputs: int = 1) -> Rule:
    """Sum, maximum and the like over ``axes``; all outputs alike (the place of a maximum beside it)."""
    loops = Loops()
    dims = tuple(loops.new(n) for n in shape)
    left = tuple(() if i in axes else d for i, d in enumerate(dims) if keep or i not in axes)
    over = tuple(f for i in axes for f in dims[i])
    rule = loops.rule("loop", (dims,), (left,) * outputs)
    inner = Reduction(dims=tuple(f for d in left for f in d), over=over, dtype=dtype)
    return rule._replace(reductions=(inner,) * outputs if over else ())


def transposed(shape: Shape, permutation: Sequence[int]) -> Rule:
    """Dims in another order."""
    loops = Loops()
    dims = tuple(loops.new(n) for n in shape)
    return loops.rule("view", (dims,), (tuple(dims[i] for i in permutation),))


def paired(shape: Shape, result: Shape) -> Rule:
    """Complex numbers seen as their two parts, or the other way round: one side has a last dim of 2 more."""
    loops = Loops()
    plain: Dims = tuple(loops.new(n) for n in min(shape, result, key=len))
    parts: Dims = (*plain, loops.new(2, False))
    reads, writes = (parts, plain) if len(shape) > len(result) else (plain, parts)
    return loops.rule("view", (reads,), (writes,))


def broadcast(shape: Shape, result: Shape, places: Sequence[int]) -> Rule:
    """Dim i of the operand is dim ``places[i]`` of the result; the others repeat it."""
    loops = Loops()
    dims = tuple(loops.new(n) for n in result)
    reads = tuple(() if n == 1 else dims[p] for n, p in zip(shape, places, strict=True))
    return loops.rule("view", (reads,), (dims,))


def reshaped(shape: Shape, result: Shape) -> Rule:
    """The same elements in the same order under other dims.

    Dims that are cut or joined evenly share factors; what cannot be said so is one whole factor per dim.
    """
    loops = Loops()
    reads: list[tuple[int, ...]] = [() for _ in shape]
    writes: list[tuple[int, ...]] = [() for _ in result]
    for before, after in segments(shape, result):
        pieces = common_cuts([shape[i] for i in before], [result[j] for j in after])
        if pieces is None:
            for i in before:
                reads[i] = loops.new(shape[i], False)
            for j in after:
                writes[j] = loops.new(result[j], False)
            return loops.rule("loop", (tuple(reads),), (tuple(writes),))
        factors = [loops.new(n)[0] for n in pieces]
        _deal(factors, loops.sizes, [(reads, i, shape[i]) for i in before])
        _deal(factors, loops.sizes, [(writes, j, result[j]) for j in after])
    return loops.rule("view", (tuple(reads),), (tuple(writes),))


def segments(shape: Shape, result: Shape) -> list[tuple[list[int], list[int]]]:
    """Runs of dims on either side with equal products, as short as possible; dims of size 1 are left out.

    Those of an empty array are one run.
    """
    found, before, after = [], list[int](), list[int]()
    left, right = [i for i, n in enumerate(shape) if n != 1], [j for j, n in enumerate(result) if n != 1]
    if 0 in shape:
        return [(left, right)]
    a = b = 1
    while left or right or a != b:
        if (a <= b and left) or not right:
            before.append(left.pop(0))
            a *= shape[before[-1]]
        else:
            after.append(right.pop(0))
            b *= result[after[-1]]
        if a == b:
            found.append((before, after))
            before, after, a, b = [], [], 1, 1
    return found


def common_cuts(first: Sequence[int], second: Sequence[int]) -> list[int] | None:
    """Sizes, major first, of which both lists are made; None where their cuts do not nest, or nothing is there."""
    ends = sorted(
        {math.prod(first[i:]) for i in range(len(first))}
        | {math.prod(second[i:]) for i in range(len(second))}
    )
    if math.prod(first) != math.prod(second) or not math.prod(first):
        return None
    inner, pieces = 1, list[int]()
    for end in ends:
        if end % inner:
            return None
        if end > inner:
            pieces.insert(0, end // inner)
        inner = end
    return pieces


def _deal(
    factors: Sequence[int], sizes: Sequence[int], dims: Sequence[tuple[list[tuple[int, ...]], int, int]]
) -> None:
    """Give each dim, in order, the factors that make up its size."""
    rest = list(factors)
    for side, place, size in dims:
        taken, product = [], 1
        while product < size:
            taken.append(rest.pop(0))
            product *= sizes[taken[-1]]
        side[place] = tuple(taken)


def stacked(inputs: Sequence[Shape], output: Shape, axis: int) -> Rule:
    """Arrays of one shape along a new dim."""
    loops = Loops()
    dims = [loops.new(n) for n in inputs[0]]
    result = (*dims[:axis], loops.new(output[axis], False), *dims[axis:])
    return loops.rule("loop", (tuple(dims),) * len(inputs), (result,))


def aligned(inputs: Sequence[Shape], outputs: Sequence[Shape], touched: Sequence[int] = ()) -> Rule:
    """Arrays of equal rank side by side: slices, pads, concatenations, sorts, running sums.

    A dim that is ``touched``, or has not the same size everywhere, cannot be split. Scalars beside them (start
    indices) are read as they are.
    """
    loops = Loops()
    rank = max(len(s) for s in (*inputs, *outputs))
    arrays = [s for s in (*inputs, *outputs) if len(s) == rank]
    shared: list[tuple[int, ...] | None] = []
    for axis in range(rank):
        sizes = {s[axis] for s in arrays}
        shared.append(loops.new(sizes.pop()) if len(sizes) == 1 and axis not in touched else None)

    def dims(shape: Shape) -> Dims:
        if len(shape) < rank:
            return tuple(loops.new(n, False) for n in shape)
        return tuple(loops.new(n, False) if d is None else d for n, d in zip(shape, shared, strict=True))

    reads = [dims(s) for s in inputs]
    return loops.rule("loop", reads, [dims(s) for s in outputs])

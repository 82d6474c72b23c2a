"""Products of one value that may run as one: queries, keys and values; gates and what they gate; their gradients.

``x A`` and ``x B`` are ``x [A B]``. Where each device's part of a product is too small to fill it, one kernel for
several is faster, though it costs a copy: the other operands are put side by side first. Each device does so with what
it holds, so that columns lie as they did (heads stay whole), nothing is exchanged, and results are cut apart where
they are. It is a choice of the program: products that run as one split the value that they share alike.

Source: XLA does the same to the program of one device, after it was partitioned (openxla/xla, dot_merger.h).
"""

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from planner.tracing.layouts import WHOLE, Layouts, as_layouts
from planner.tracing.program import Dims, Operation, Program
from planner.tracing.solving.options import Options, splits_of
from planner.tracing.solving.pricing import ProgramPricer
from planner.tracing.solving.recomputing import clusters

OWN = -2
"""Instead of a factor of the shared value: the axis splits what a product does not share."""

Pattern = tuple[int, ...]
"""Per mesh axis, the factor of the shared value that it splits (as its dims count them), or `OWN`, or `WHOLE`."""


class Joint(NamedTuple):
    """Products that may run as one."""

    operations: tuple[int, ...]
    """Their positions, ascending."""
    place: int
    """Which operand is the shared one."""
    patterns: tuple[Pattern, ...] = ()
    """Splits under which that saves time."""
    saved: tuple[float, ...] = ()
    """How much, by pattern, over all times [s]."""


def joints(pricer: ProgramPricer) -> tuple[Joint, ...]:
    """Those that save time under some split."""
    known: dict[tuple[object, ...], tuple[tuple[Pattern, ...], tuple[float, ...]]] = {}
    found = []
    for joint in _candidates(pricer.program):
        key = _likeness(pricer.program, joint)
        if key not in known:
            known[key] = _worthwhile(pricer, joint)
        patterns, saved = known[key]
        if patterns:
            found.append(joint._replace(patterns=patterns, saved=saved))
    return tuple(found)


def patterns_of(op: Operation, place: int, split: Layouts) -> Layouts:
    """The pattern of each split; [option, axis]."""
    shared = [f for dim in op.reads[place] for f in dim]
    number = np.full(len(op.sizes) + 1, OWN)
    number[[*shared, WHOLE]] = [*range(len(shared)), WHOLE]
    return number[split]


def _candidates(program: Program) -> Iterator[Joint]:
    """Near products that read one value alike and do not wait for one another."""
    before = _waits(program)
    for name, readers in program.readers.items():
        alike: dict[tuple[object, ...], list[int]] = {}
        for i in readers:
            if (use := _use(program, program.operations[i], name)) is not None:
                alike.setdefault(use, []).append(i)
        for (place, *_), group in alike.items():
            for near in clusters(program.operations, group):
                apart = tuple(i for i in near if not any(before[i] >> j & 1 for j in near))
                if len(apart) > 1:
                    yield Joint(apart, 1 if place else 0)


def _use(program: Program, op: Operation, name: str) -> tuple[object, ...] | None:
    """The shared operand's place, and what else products have in common that can be one; None for what cannot."""
    product = op.kind == "product" and not op.primitive.startswith("conv")
    if not product or len(set(op.inputs)) != 2 or op.whole or op.manual is not None:
        return None
    place = op.inputs.index(name)
    shared = op.reads[place]
    mine, theirs, result = ({f for dim in dims for f in dim} for dims in (*_both(op, place), op.writes[0]))
    if mine & theirs & result:
        return None  # a batch of products is many already
    summed = tuple(tuple(f in theirs for f in dim) for dim in shared)
    sizes = tuple(tuple(op.sizes[f] for f in dim) for dim in shared)
    dtypes = tuple(program.value[n].dtype for n in (*op.inputs, *op.outputs))
    return place, summed, sizes, op.times, op.body, dtypes


def _both(op: Operation, place: int) -> tuple[Dims, Dims]:
    return op.reads[place], op.reads[1 - place]


def _waits(program: Program) -> list[int]:
    """Per operator, bit j: operator j must run before."""
    found: list[int] = []
    for op in program.operations:
        bits = 0
        for i in {program.producer[n] for n in op.inputs if n in program.producer}:
            bits |= found[i] | 1 << i
        found.append(bits)
    return found


def _likeness(program: Program, joint: Joint) -> tuple[object, ...]:
    """Joints of which this is the same save the same."""
    ops = [program.operations[i] for i in joint.operations]
    loops = tuple((op.sizes, op.reads, op.writes, op.times) for op in ops)
    return loops, joint.place, tuple(program.value[n].dtype for n in (*ops[0].inputs, *ops[0].outputs))


def _worthwhile(pricer: ProgramPricer, joint: Joint) -> tuple[tuple[Pattern, ...], tuple[float, ...]]:
    """Patterns that all of them can have and that save time, and how much."""
    ops = [pricer.program.operations[i] for i in joint.operations]
    splits = [splits_of(op, pricer.mesh) for op in ops]
    patterns = [patterns_of(op, joint.place, split) for op, split in zip(ops, splits, strict=True)]
    rows = _first_with_common(patterns)
    taken = [Options.split_so(op, split[row]) for op, split, row in zip(ops, splits, rows, strict=True)]
    saved = pricer.saved_as_one(ops, taken, joint.place)
    worth = np.flatnonzero(saved > 0)
    return as_layouts(patterns[0][rows[0][worth]]), tuple(saved[worth].tolist())


def _first_with_common(patterns: Sequence[Layouts]) -> list[npt.NDArray[np.intp]]:
    """Of each, the first rows that have the patterns that all have, these in the order in which the first has them."""
    base = 1 + max(int(rows.max(initial=0)) for rows in patterns) - OWN
    axes = patterns[0].shape[1]
    firsts = []
    for rows in patterns:
        first = np.full(base**axes, len(rows))  # few, so that they need no sorting
        np.minimum.at(first, (rows - OWN) @ base ** np.arange(axes), np.arange(len(rows)))
        firsts.append(first)
    common = np.flatnonzero(
        reduce(np.logical_and, [f < len(r) for f, r in zip(firsts, patterns, strict=True)])
    )
    order = common[np.argsort(firsts[0][common])]
    return [first[order] for first in firsts]

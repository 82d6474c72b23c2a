"""What every stage that layers can be cut into takes on every submesh, at least.

Seconds and bytes of a stage are planes over its numbers of layers of each kind (`planner.search.offers`), so tables of
thousands of stages cost a few products of arrays. Memory may be more than its plane says; whoever is about to use a
stage prices it, and writes down what it takes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.evaluation.evaluator import Evaluator
from planner.evaluation.stages import StageShape
from planner.inter_op.partition import Array
from planner.search.offers import Measured, Offered

Numbers = NDArray[np.int64]


class Shapes(NamedTuple):
    """Every stage that layers can be cut into."""

    shapes: tuple[StageShape, ...]
    number: Numbers
    """[start, end]: which of ``shapes`` it is; -1 where it ends before it starts."""
    layers: Array
    """[shape, kind]"""
    first: Array
    last: Array


def all_shapes(evaluator: Evaluator, kinds: Sequence[str]) -> Shapes:
    """Of the evaluator's model, whose layers are of these ``kinds``."""
    count = evaluator.graph.num_layers
    numbers: dict[StageShape, int] = {}
    number = np.full((count + 1, count + 1), -1)
    for start in range(count):
        for end in range(start + 1, count + 1):
            number[start, end] = numbers.setdefault(evaluator.shape(start, end), len(numbers))
    shapes = tuple(numbers)
    layers = np.array(
        [[dict(shape.layers).get(kind, 0) for kind in kinds] for shape in shapes], dtype=np.float64
    )
    first, last = (
        np.array([getattr(shape, end) for shape in shapes], np.float64) for end in ("first", "last")
    )
    return Shapes(shapes, number, layers, first, last)


class StageTables(NamedTuple):
    """[stages after, submesh, shape] -> seconds at least, infinite where there is no such stage."""

    work: Array
    """Of a micro-batch."""
    after: Array
    """After the last backward, only what nothing can hide."""

    def of_cuts(self, shapes: Shapes) -> tuple[Array, Array]:
        """The same by first layer and end."""
        none = np.full((*self.work.shape[:2], 1), np.inf)
        work, after = (np.concatenate((table, none), axis=2)[:, :, shapes.number] for table in self)
        return work, after


def least_tables(
    offers: Sequence[Offered | None],
    shapes: Shapes,
    held: Sequence[int],
    limits: Sequence[float],
) -> StageTables:
    """Of the submeshes with these ``offers`` and ``limits`` [bytes] of memory; ``held[after]`` micro-batches are in
    flight in a stage with so many behind it.
    """
    size = (len(held), len(offers), len(shapes.shapes))
    tables = StageTables(np.full(size, np.inf), np.full(size, np.inf))
    for k, (offered, limit) in enumerate(zip(offers, limits, strict=True)):
        for way in offered.ways if offered else ():
            work, after, memory = _planes(way, shapes, held)
            fits = memory <= limit
            tables.work[:, k] = np.minimum(tables.work[:, k], np.where(fits, work, np.inf))
            tables.after[:, k] = np.minimum(tables.after[:, k], np.where(fits, after, np.inf))
    # Behind the last stage there is none, and behind the others there is one.
    for table in tables:
        table[1:, :, shapes.last > 0] = np.inf
        table[0, :, shapes.last == 0] = np.inf
    return tables


def _planes(way: Measured, shapes: Shapes, held: Sequence[int]) -> tuple[Array, Array, Array]:
    """Seconds of each shape for a micro-batch, and after the last one; bytes by stages after and shape."""
    rates = way.rates
    work = rates.fixed.sum() + shapes.layers @ rates.seconds.sum(axis=1)
    work += shapes.first * way.first.sum() + shapes.last * way.last.sum()
    fixed, first, last = rates.memory
    memory = fixed + shapes.layers @ rates.states + shapes.first * first + shapes.last * last
    in_flight = np.asarray(held, dtype=np.float64)[:, None] * (shapes.layers @ rates.kept)
    return work, shapes.layers @ rates.after, memory + in_flight

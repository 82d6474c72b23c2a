"""Seconds of matrix products under many options, of all products of a program at once.

A block has some twenty products, and each call of an array function takes as long for one of them as for all.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cluster_specs.cluster import DeviceSpec
from cost_models.matmul import matmul_seconds
from cost_models.products import products_seconds
from planner.intra_op.problem import Array
from planner.tracing.layouts import Codes, Layouts, degrees
from planner.tracing.program import Dims, Operation, elements

ROWS, COLUMNS, DEPTH, BATCH, NONE = range(5)
"""What a loop of a product is: of the left operand and the result, of the right one and the result, summed over, of
all three; or read by one operand alone, or implied by others."""

FEW = 8
"""Products that take no longer one by one than as arrays."""


class Loops(NamedTuple):
    """Sizes of products, each once where options follow each other that split them alike."""

    sizes: Codes
    """[product, 4]: rows, columns, depth and batch on one device."""
    of: npt.NDArray[np.intp]
    """[option]: its product."""


def loops_of_products(runs: Sequence[tuple[Operation, Layouts]], sizes: tuple[int, ...]) -> list[Loops]:
    """Of each product under its splits [option, axis], on a mesh of these ``sizes``."""
    roles = [_roles(op) for op, _ in runs]
    at = np.concatenate([role[split] for role, (_, split) in zip(roles, runs, strict=True)])
    begins = np.cumsum([0, *(len(split) for _, split in runs)])
    numbers = at @ (NONE + 1) ** np.arange(at.shape[1])
    changes = np.diff(numbers, prepend=-1) != 0
    changes[begins[:-1]] = True
    first, of = np.flatnonzero(changes), np.cumsum(changes) - 1
    cut = np.stack([degrees(sizes, at[first] == role) for role in range(NONE)], axis=1)
    ends = np.searchsorted(first, begins)
    found = []
    for k, (op, _) in enumerate(runs):
        extents = [
            elements(n for n, role in zip(op.sizes, roles[k], strict=False) if role == r) for r in range(NONE)
        ]
        found.append(Loops(extents // cut[ends[k] : ends[k + 1]], of[begins[k] : begins[k + 1]] - ends[k]))
    return found


def multiplied(loops: Sequence[Codes], device: DeviceSpec, rate: str, element_bytes: float) -> list[Array]:
    """Seconds of products of each of these sizes, [product, 4] as of `Loops`, once [s]."""
    every = np.concatenate(loops)
    if len(every) > FEW:
        seconds = products_seconds(every, device, rate, element_bytes)
    else:
        alone = (
            matmul_seconds(m, n, k, device, rate, batch, element_bytes) for m, n, k, batch in every.tolist()
        )
        seconds = np.array([product.seconds for product in alone])
    return np.split(seconds, np.cumsum([len(sizes) for sizes in loops])[:-1])


def _roles(op: Operation) -> Codes:
    """Per factor, what it is; the last entry is of no factor."""
    left, right, result = (_indexed(dims, op.implied) for dims in _operands(op))
    roles = np.full(len(op.sizes) + 1, NONE)
    for role, factors in (
        (ROWS, result - right),
        (COLUMNS, (result & right) - left),
        (DEPTH, (right if len(op.reads) > 1 else left) - result),
        (BATCH, result & left & right),
    ):
        roles[list(factors)] = role
    return roles


def _operands(op: Operation) -> tuple[Dims, Dims, Dims]:
    right = op.reads[1] if len(op.reads) > 1 else ()
    return op.reads[0] if op.reads else (), right, op.writes[0]


def _indexed(dims: Dims, implied: Mapping[int, Sequence[int]]) -> set[int]:
    return {g for dim in dims for f in dim for g in implied.get(f, (f,))}

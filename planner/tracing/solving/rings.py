"""Attention whose queries, keys and values all lie in parts: keys and values go round in a ring of devices.

A mesh axis that splits the *keys* of an attention splits the positions of queries too. What indexes keys alone (keys,
values, their gradients) lies in parts and is passed on, device by device, beside the work on the part before;
everything else is split along queries. An axis that splits the positions of queries alone has all keys gathered.

Source: Liu et al., Ring Attention, arXiv:2310.01889, for fused kernels; Li et al., Sequence Parallelism,
arXiv:2105.13120, section 3.2, for products with a softmax over whole rows between them.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from planner.tracing.layouts import WHOLE, Layouts
from planner.tracing.program import Attention, Dims, Operation, elements


class Ring(NamedTuple):
    """The loops of an attention that can go round in a ring."""

    rows: int
    """Positions of queries."""
    keys: int
    inner: frozenset[int]
    """What scores sum over, and the width of values: keys, values and their gradients have one of them."""

    def passes(self, loops: Iterable[int]) -> bool:
        """Whether an array over these loops goes round: by keys and not by queries, unless it is a mask."""
        found = set(loops)
        return self.keys in found and self.rows not in found and bool(found & self.inner)

    def along(self, loops: Iterable[int], split: Layouts) -> Layouts:
        """[option, axis]: the factors by which the axes split an array over these loops."""
        return split if self.passes(loops) else np.where(split == self.keys, self.rows, split)

    def of_axes(self, split: Mapping[str, int], axes: Iterable[str], loops: Iterable[int]) -> dict[str, int]:
        """The same of one option by names, of which ``axes`` are in the ring and split ``rows``."""
        passed = self.passes(loops)
        return {a: self.keys if passed and a in axes else f for a, f in split.items()}


def ring_of(op: Operation) -> Ring | None:
    """How an operator may run in a ring, or None: it is no attention, or its loops cannot be cut so."""
    how = op.attention
    if how is None or len(how.keys) != 1:
        return None
    rows, keys = positions(op, how), how.keys[0]
    minor = {f for dims in (*op.reads, *op.writes) for dim in dims for f in dim[1:]}
    if rows == WHOLE or {rows, keys} & minor or rows in op.whole:
        return None
    return Ring(rows, keys, frozenset((*how.width, *how.depth)))


def from_both_ends(how: Attention, part: int) -> bool:
    """Whether devices of a ring get an early and a late chunk each, rather than ``part`` positions in order.

    Under a causal mask a device with the last positions works on all keys, one with the first on its own: dealt out
    from both ends, all work on half of every part but their own. Kernels that skip no masked pairs gain nothing.

    Source: Brandon et al., Striped Attention, arXiv:2311.09431, section 3 (the imbalance); Llama 3,
    arXiv:2407.21783, section 3.3.2 (2 n chunks, the i-th and the i-th from the end to device i).
    """
    return how.causal and how.kernel == "flash" and part % 2 == 0


def positions(op: Operation, how: Attention) -> int:
    """Of the loops that only queries have, the one over positions: as long as keys are, else the longest."""
    keys = elements(op.sizes[f] for f in how.keys)
    return max(how.queries, key=lambda f: (op.sizes[f] == keys, op.sizes[f]), default=WHOLE)


def loops_of(dims: Dims) -> list[int]:
    """All that index an array."""
    return [f for dim in dims for f in dim]

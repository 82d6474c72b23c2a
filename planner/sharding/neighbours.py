"""What lies around an array between the operators that make it and read it, as far as collectives depend on that."""

from collections.abc import Sequence
from typing import NamedTuple

from planner.graph import Block
from planner.sharding.depths import is_product


class Around(NamedTuple):
    """Operators around one array on its way to one reader, as far as its price depends on them."""

    made: tuple[bool, ...] | None
    """Whether each product that makes it has a ring; None where no product does."""
    is_product: bool
    """Whether the reader is one."""
    widened: float | None
    """An element of its gradient over one of its own, where the last block's has a type of its own."""
    rings: tuple[bool, ...]
    """Of each gradient by the reader."""
    plain: int
    """Sums of its gradient without a ring."""
    zeros: bool
    """An earlier ring of one shape sent the parts that are zeros."""
    zeros_back: bool
    """The same in the backward."""
    summed_back: bool
    """A gradient of one shape is summed in a ring there."""
    gathered_before: bool
    """For an earlier product that reads it too."""
    gathered_after: bool
    """Its gradient, for what a later product made."""


def handed_back(block: Block, name: str) -> str:
    """The activation whose gradient is that of ``name``: the last of sums of which each is read by the next alone."""
    readers = [op for op in block.ops if name in op.inputs]
    if len(readers) == 1 and readers[0].kind == "add" and name not in block.outputs:
        return handed_back(block, readers[0].outputs[0])
    return name


def plain_sums(rings: Sequence[bool], later: Sequence[bool] = ()) -> int:
    """Sums between ranks of what products without ``rings`` make of one gradient; 1 where no product makes it.

    Gradients are added up from the last product to the first: parts of sums before these are made, until the sum of a
    ring is among them, or what no product made (BERT's residuals). ``later`` says so of each gradient by a later
    operator, of which the last makes what is added up first.
    """
    if not rings:
        return 1
    order = (*rings, *later)
    first_ring = max((i for i, ring in enumerate(order) if ring), default=-1)
    apart = sum(not ring for ring in rings[: max(0, first_ring)])
    return apart + (not later and first_ring < len(rings) - 1)


def gradient_in_common(block: Block, name: str) -> bool:
    """Whether the gradient of what a product made is that of what a later one made, too: it is gathered once."""
    made = [output for op in block.ops if is_product(op) for output in op.outputs]
    later = made[made.index(name) + 1 :] if name in made else ()
    return handed_back(block, name) in {handed_back(block, other) for other in later}

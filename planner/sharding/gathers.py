"""Which weights of a block a partitioner gathers beside one product alone, and which once more in the backward.

Source: programs compiled for slices of TPU v5e, v5p and v6e (jax 0.10.2, libtpu 0.0.52), docs/communication.md.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

from planner.graph import HEAD_DIMS, Block
from planner.sharding.depths import is_product

if TYPE_CHECKING:
    from planner.sharding.pricing import Pricer


class Lone(NamedTuple):
    """Shares of a block's weights that one product reads, beside which they may be gathered in a ring.

    Where the tensor axis splits products as well, only those of which it leaves no sum to be made have one.
    """

    forward: float
    backward: float
    """Weights of repeated operators are read by two products there."""
    apart: float = 0.0
    """Share of which both of these gather their own in the backward, where others read one array."""


def lone_gathers(pricer: "Pricer", block: Block, repeated: Collection[str], summed: Collection[str]) -> Lone:
    """Where some operators are ``repeated`` in the backward, and some leave parts to be ``summed``.

    Tensor ranks of a partitioner gather weights of queries apart that are normed and made again, not those of keys.
    """

    def elements(names: Collection[str]) -> float:
        return sum(pricer.graph.elements(block.tensor[name]) for name in names)

    everything = elements([name for op in block.ops for name in op.weights]) or 1.0
    forward = sum(elements(op.weights) for op in block.ops if op.name not in summed)
    backward = sum(
        elements(op.weights)
        for op in block.ops
        if op.name not in repeated and (op.name in summed or not summed)
    )
    splits = pricer.partitioned is not None and pricer.mesh.size("tensor") > 1
    apart = elements(_of_normed_queries(block, repeated)) if splits else 0.0
    return Lone(forward / everything, backward / everything, apart / everything)


def _of_normed_queries(block: Block, repeated: Collection[str]) -> list[str]:
    """Weights of queries of which each head is normed, where their product is ``repeated``."""
    normed = {name for op in block.ops if op.kind == "norm" for name in op.inputs}
    makers = [op for op in block.ops if op.name in repeated and is_product(op) and normed & {*op.outputs}]
    return [
        name for op in makers for name in op.weights if not set(HEAD_DIMS).isdisjoint(block.tensor[name].dims)
    ]

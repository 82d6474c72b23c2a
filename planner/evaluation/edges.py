"""Uses of activations, inside a block and between blocks."""

from typing import NamedTuple

from planner.graph import Block


class Edge(NamedTuple):
    """A tensor on its way from ``producer`` (None: the block before) to ``consumer`` ("": the block after)."""

    producer: str | None
    tensor: str
    consumer: str


def edges_of(block: Block) -> tuple[Edge, ...]:
    """Every use of an activation; a block input comes from the block before (producer None)."""
    return tuple(
        Edge(block.producer.get(name), name, op.name)
        for op in block.ops
        for name in op.inputs
        if block.tensor[name].role == "activation"
    )

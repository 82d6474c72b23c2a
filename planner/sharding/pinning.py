"""Which inputs exported programs pin as gathered over the tensor axis, because XLA does worse unless told.

Where context and tensor axes both split sequences, XLA gathers whole activations for gradients of weights. Beside data
ranks, where several tensor ranks hold the same part of a weight (fewer heads of keys and values than tensor ranks), it
makes gradients of what the weight multiplies of all data ranks' tokens, by columns, and exchanges them for rows. A
gathered input stays until the backward, which does not gather it again.

Source: programs compiled for TPU topologies (jax 0.10.2, libtpu 0.0.52), docs/communication.md.
"""

from collections.abc import Callable

from planner.graph import Block, Graph, Op
from planner.sharding.depths import copied_parts, is_product


def pins_gathered(graph: Graph, block: Block, op: Op, size: Callable[[str], int]) -> bool:
    """Whether programs pin what the product ``op`` reads of a split sequence; ``size`` of an axis, in ranks."""
    tensor = size("tensor")
    if not is_product(op) or tensor == 1:
        return False
    copied = any(copied_parts(graph, block.tensor[name], tensor) for name in op.weights)
    return size("context") > 1 or (copied and size("data") > 1)

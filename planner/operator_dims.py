"""Which dims of an operator a mesh axis may split."""

from collections.abc import Iterable

from planner.flops import union_dims
from planner.graph import BATCH, Block, Graph, Op

INNER_DIMS = frozenset(
    {
        "head_dim",
        "qk_dim",
        "v_dim",
        "rope_dim",
        "kv_down",
        "kv_up",
        "kernel",
        "group_heads",
        "state_keys",
        "state_values",
        "chunk",
        "buckets",
        "positions",
        "encoder_positions",
        "token_types",
    }
)
"""Dims that no mesh axis splits: inside a head, a fused latent, a filter or a lookup table."""


def _free(dims: Iterable[str], graph: Graph) -> tuple[str, ...]:
    """Splittable ones among ``dims``, each once; a follower stands for the dim that it follows."""
    return tuple(dict.fromkeys(graph.follows.get(d, d) for d in dims if d not in INNER_DIMS))


def no_dims(op: Op, block: Block) -> tuple[str, ...]:
    """None."""
    return ()


def all_dims(op: Op, block: Block, graph: Graph) -> tuple[str, ...]:
    """Of all that it reads and makes."""
    return _free(union_dims((*op.inputs, *op.weights, *op.outputs), block), graph)


def output_dims(op: Op, block: Block, graph: Graph) -> tuple[str, ...]:
    """Of what it makes."""
    return _free(union_dims(op.outputs, block), graph)


def channel_dims(op: Op, block: Block, graph: Graph) -> tuple[str, ...]:
    """Batch and the channels: splitting the image would need halo exchange."""
    return _free((BATCH, *union_dims(op.weights, block)), graph)


def query_dims(op: Op, block: Block, graph: Graph) -> tuple[str, ...]:
    """Of queries: keys and values are there for all of them."""
    return _free(block.tensor[op.inputs[0]].dims, graph)


def recurrence_dims(op: Op, block: Block, graph: Graph) -> tuple[str, ...]:
    """Not the steps; sequences alone where what one step made is multiplied by weights in the next."""
    if op.attributes["products"]:
        return (BATCH,)
    return tuple(d for d in output_dims(op, block, graph) if d != op.attributes["over"])


def scan_dims(op: Op, block: Block, graph: Graph) -> tuple[str, ...]:
    """Sequences and groups of heads: a state goes through the whole sequence."""
    return (BATCH, "state_groups")


def norm_dims(op: Op, block: Block, graph: Graph) -> tuple[str, ...]:
    """What it does not sum over."""
    over = {graph.follows.get(d, d) for d in str(op.attributes["over"]).split()}
    return tuple(d for d in output_dims(op, block, graph) if d not in over)

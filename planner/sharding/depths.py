"""How many elements products with weights contract, and which weights tensor ranks have several times."""

import math

from planner.flops import matmul_dims
from planner.graph import Block, Graph, Op, Tensor
from planner.operators import operator_rule


def is_product(op: Op) -> bool:
    """Whether ``op`` multiplies activations with weights."""
    return bool(op.weights) and operator_rule(op).arithmetic == "matmul"


def depths(graph: Graph, block: Block, op: Op, backward: bool = False, ranks: int = 1) -> tuple[float, ...]:
    """Elements that each product of ``op`` contracts, or the gradients of its input do; none of other operators.

    Weights that lie in one array have one product. Those of which ``ranks`` hold parts several times are left out.
    """
    if operator_rule(op).arithmetic != "matmul":
        return ()
    arrays: dict[str, list[float]] = {}
    for weight, dims in matmul_dims(op, block):
        if copied_parts(graph, weight, ranks):
            continue
        names = dims.columns if backward else dims.contracted
        summed = math.prod(float(graph.dims[d]) for d in names)
        arrays.setdefault(weight.path or weight.name, []).append(summed)
    return tuple(sum(found) if backward else found[0] for found in arrays.values())


def copied_parts(graph: Graph, tensor: Tensor, ranks: int) -> int:
    """Parts of a tensor of which each is on several of so many tensor ranks; 0 where none is, or it is whole on all."""
    parts = min((math.gcd(ranks, graph.dims[d]) for d in tensor.dims if d in graph.follows), default=ranks)
    return parts if 1 < parts < ranks else 0


def copied_whole(graph: Graph, dim: str, ranks: int) -> bool:
    """Whether so many tensor ranks hold the whole of ``dim`` each, as it follows one that they split: a lone head."""
    return dim in graph.follows and ranks > 1 and math.gcd(ranks, graph.dims[dim]) == 1

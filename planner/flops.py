"""FLOPs of operators: multiplications and additions of matrix products, convolutions and attention.

Counts are for one sequence (``batch`` = 1). What only moves bytes counts as none, as in torch's counter.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from cost_models.scans import ScanShape
from cost_models.scans import recurrence_flops as defined_flops
from cost_models.scans import scan_flops as chunked_flops
from planner.graph import BATCH, Block, Graph, Op, Tensor

AttentionKernel = Literal["flash", "plain"]


class Counting(NamedTuple):
    """Conventions of a FLOP count."""

    causal: bool = True
    """Skip masked pairs of queries and keys (causal, sliding window, chunk); torch's counter does not."""
    attention_kernel: AttentionKernel = "flash"
    """``flash`` recomputes the scores in its backward: five products where ``plain`` does four."""
    chunked: bool = True
    """Count recurrences as kernels compute them, chunk by chunk; not: as they are defined, with twice that backward."""


class OpFlops(NamedTuple):
    """FLOPs of one operator on one sequence."""

    forward: float = 0.0
    backward_input: float = 0.0
    """Gradient of the inputs (dgrad)."""
    backward_weight: float = 0.0
    """Gradient of the weights (wgrad)."""
    spared: float = 0.0
    """Gradient that frozen weights would have, and have not."""

    @property
    def backward(self) -> float:
        """Both gradients."""
        return self.backward_input + self.backward_weight


class MatmulDims(NamedTuple):
    """Roles of the dims in the product of an input with one weight."""

    grouped: tuple[str, ...]
    """In input, weight and output: one product for each (experts)."""
    rows: tuple[str, ...]
    """Of the input only: tokens."""
    columns: tuple[str, ...]
    """Of the weight and the output."""
    contracted: tuple[str, ...]


def _size(dims: Iterable[str], graph: Graph) -> float:
    return math.prod(graph.dims[d] for d in dims if d != BATCH)


def union_dims(names: Iterable[str], block: Block) -> tuple[str, ...]:
    """Union of the dims of the named tensors, in order of appearance."""
    return tuple(dict.fromkeys(d for name in names for d in block.tensor[name].dims))


def no_flops(op: Op, block: Block, graph: Graph, counting: Counting) -> OpFlops:
    """Nothing: the operator only moves bytes."""
    return OpFlops()


def reduced_dims(op: Op, block: Block) -> tuple[str, ...]:
    """Dims of the inputs or weights that no output has."""
    kept = set(union_dims(op.outputs, block))
    return tuple(d for d in union_dims((*op.inputs, *op.weights), block) if d not in kept)


def _product_weights(op: Op, block: Block) -> Iterator[Tensor]:
    """Weights that multiply the input; a bias has none of the contracted dims."""
    contracted = set(reduced_dims(op, block))
    return (w for w in (block.tensor[name] for name in op.weights) if not contracted.isdisjoint(w.dims))


def matmul_dims(op: Op, block: Block) -> tuple[tuple[Tensor, MatmulDims], ...]:
    """Each weight of a matrix product (biases left out) with the roles of its dims."""
    x = block.tensor[op.inputs[0]]
    reduced = reduced_dims(op, block)
    result = []
    for w in _product_weights(op, block):
        contracted = tuple(d for d in x.dims if d in w.dims and d in reduced)
        grouped = tuple(d for d in x.dims if d in w.dims and d not in reduced)
        rows = tuple(d for d in x.dims if d not in w.dims)
        columns = tuple(d for d in w.dims if d not in x.dims)
        result.append((w, MatmulDims(grouped, rows, columns, contracted)))
    return tuple(result)


def matmul_flops(op: Op, block: Block, graph: Graph, counting: Counting) -> OpFlops:
    """Sum over weights of 2 x elements of (input dims united with weight dims)."""
    x = block.tensor[op.inputs[0]]
    products = [
        (w, 2 * x.scale * w.scale * _size(dict.fromkeys((*x.dims, *w.dims)), graph))
        for w in _product_weights(op, block)
    ]
    return _products(x, products)


def product_flops(op: Op, block: Block, graph: Graph, counting: Counting) -> OpFlops:
    """2 x elements of all dims, of each of which the two operands and the result have some; data has no gradient."""
    tensors = [block.tensor[name] for name in (*op.inputs, *op.outputs)]
    forward = 2 * _size(union_dims((*op.inputs, *op.outputs), block), graph)
    varying = len(op.inputs) - sum(t.role == "input" for t in tensors)
    return OpFlops(forward, forward * (2 if len(op.inputs) == 1 else varying))


def recurrence_flops(op: Op, block: Block, graph: Graph, counting: Counting) -> OpFlops:
    """Steps x the products of one of them with weights."""
    forward = graph.dims[str(op.attributes["over"])] * float(op.attributes["step_flops"])
    return OpFlops(
        forward, forward, forward if any(block.tensor[w].role == "weight" for w in op.weights) else 0.0
    )


def scan_flops(op: Op, block: Block, graph: Graph, counting: Counting) -> OpFlops:
    """Products of states and of chunks (`cost_models.scans`)."""
    rule, dims = str(op.attributes["rule"]), graph.dims
    groups = dims["state_groups"]
    shape = ScanShape(
        tokens=graph.dims["seq"],
        groups=groups,
        heads=groups * dims["group_heads"],
        key_dim=dims["state_keys"],
        value_dim=dims["state_values"],
        chunk=dims["chunk"],
    )
    if not counting.chunked:
        forward = defined_flops(rule, shape)
        return OpFlops(forward, 2 * forward)
    return OpFlops(chunked_flops(rule, shape), chunked_flops(rule, shape, "backward"))


def conv_flops(op: Op, block: Block, graph: Graph, counting: Counting) -> OpFlops:
    """2 x points x input channels x output channels x filter taps; of channels by themselves one dim for both.

    Points of the output, each of which sums over all taps; of the input where that is smaller, each of which a
    transposed convolution adds to as many places (Dumoulin and Visin, arXiv:1603.07285, section 4).
    """
    x, y = block.tensor[op.inputs[0]], block.tensor[op.outputs[0]]
    products = [
        (w, 2 * min(_size(dict.fromkeys((*image.dims, *w.dims)), graph) for image in (x, y)))
        for w in _product_weights(op, block)
    ]
    return _products(x, products)


def _products(x: Tensor, products: Iterable[tuple[Tensor, float]]) -> OpFlops:
    """Of products of ``x`` with weights, each with the FLOPs of its forward; frozen ones have no gradient."""
    products = tuple(products)
    forward = sum(flops for _, flops in products)
    trained = sum(flops for w, flops in products if w.role == "weight")
    return OpFlops(forward, forward if x.role == "activation" else 0.0, trained, forward - trained)


def keys_per_query(op: Op, graph: Graph, counting: Counting) -> float:
    """Mean number of keys that a query attends to.

    Causal: ``n/2``, the usual convention (exactly ``(n+1)/2``); with a window ``w < n``: ``w - w^2/(2n)``;
    in chunks, or documents, of ``c < n``: ``c/2``.
    """
    keys = float(graph.dims[str(op.attributes["kv_dim"])])
    if not counting.causal:
        return keys
    chunk = min(keys, *(float(op.attributes.get(name, 0)) or keys for name in ("chunk", "documents")))
    window = min(float(op.attributes.get("window", 0)) or chunk, chunk)
    if not op.attributes["causal"]:
        return window
    return window - window * window / (2 * chunk)


def attention_flops(op: Op, block: Block, graph: Graph, counting: Counting) -> OpFlops:
    """Forward ``QK'`` and ``PV``; backward dQ, dK, dP, dV, and the scores again in a flash kernel.

    Source: FlashAttention-2 (arXiv:2307.08691), section 3.1.2, and its benchmark's count of 2.5 x forward.
    """
    keys = keys_per_query(op, graph, counting)
    scores = 2 * keys * graph.elements(block.tensor[op.inputs[0]])
    values = 2 * keys * graph.elements(block.tensor[op.outputs[0]])
    recomputed = scores if counting.attention_kernel == "flash" else 0.0
    return OpFlops(scores + values, 2 * (scores + values) + recomputed, 0.0)

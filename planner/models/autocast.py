"""A graph as PyTorch's autocast runs it over fp32 weights: products in 16 bits, what layers hand on in fp32.

Embeddings, norms and learned positions make fp32 of fp32 weights, but for norms that return the type that they were
given (batch norms, and Gemma's); a sum has the widest type of its terms, so that what layers hand on stays in it.
Rotary tables have that type as well. Each module casts what it multiplies, and its weight; the backward reads these
casts, not what they were made of. Grouped products of experts are none of the operators that autocast knows.

Source: PyTorch documentation, "Automatic Mixed Precision package" (ops that autocast to the lower type, and promotion);
pytorch/pytorch ``aten/src/ATen/autocast_mode.cpp`` (``cached_cast``: casts of weights are shared, those of activations
are not); huggingface/transformers modeling_llama.py (``LlamaRotaryEmbedding``: tables in the type of the embedding),
modeling_gemma3.py (``Gemma3RMSNorm``: ``type_as``), integrations/moe.py (``grouped_mm`` is not autocast-enabled).
"""

from collections.abc import Mapping
from types import MappingProxyType

from planner.errors import Unsupported
from planner.flops import reduced_dims
from planner.graph import Block, Graph, Op, Tensor
from planner.operators import operator_rule

LOWERED = frozenset({"matmul", "product", "attention"})
"""Arithmetic of operators that autocast runs in 16 bits."""

UNKNOWN = frozenset({"scan", "recurrence"})
"""Arithmetic of kernels of others, of which autocast knows nothing."""

WIDENED_PASSES: Mapping[str, float] = MappingProxyType({"norm": 28 / 8, "rotary": 30 / 6, "add": 1.0})
"""Memory traffic of operators that make fp32, kernel by kernel, over that of one fused kernel.

Bytes per element in modeling_llama.py: of a norm square 4+4, mean 4+0, product with the root 4+4, with the weight 4+4;
of rotary positions product with the cosine 2+4, negated half 1+1, concatenation 2+2, product with the sine 2+4, sum
8+4. Layer norms, which have two statistics a row, are one kernel of PyTorch's own in any type.
"""


def autocast(graph: Graph, fused: bool) -> Graph:
    """``graph`` with the types that autocast leads to. Raises ``Unsupported`` for operators that it does not know.

    Where a compiler makes the kernels (``fused``), what only products read is written in their type, and nothing is
    cast by itself: Inductor of torch 2.13 makes one kernel of a residual sum, the norm behind it and its cast.
    """
    first = graph.block[graph.first] if graph.first is not None else None
    handed = first is not None and not _wide(first, False).isdisjoint(first.outputs)
    blocks = []
    for block in graph.blocks:
        wide = _wide(block, handed and block is not first)
        blocks.append(_cast(block, wide - _only_multiplied(block) if fused else wide))
    fields = {name: getattr(graph, name) for name in Graph.model_fields}
    return Graph(**fields | {"blocks": tuple(blocks)})


def _only_multiplied(block: Block) -> frozenset[str]:
    """What operators of ``block`` make and only its products read."""
    readers: dict[str, list[Op]] = {name: [] for op in block.ops for name in op.outputs}
    for op in block.ops:
        for name in set(op.inputs) & readers.keys():
            readers[name].append(op)
    return frozenset(
        name
        for name, ops in readers.items()
        if ops and name not in block.outputs and all(operator_rule(op).arithmetic in LOWERED for op in ops)
    )


def _wide(block: Block, receives: bool) -> frozenset[str]:
    """Tensors of ``block`` that are fp32; whether what it ``receives`` is."""
    wide = {t.name for t in block.tensors if t.dtype == "fp32"} | set(block.inputs if receives else ())
    for op in block.ops:
        arithmetic = operator_rule(op).arithmetic
        if arithmetic in UNKNOWN or any("experts" in block.tensor[name].dims for name in _factors(op, block)):
            raise Unsupported(
                f"operator {op.name!r} of block {block.name} is not priced under autocast: leave autocast out, so that "
                "weights are cast as they are gathered"
            )
        widens = _widens(op, block) or (receives and _rotates(op))
        if arithmetic not in LOWERED and (widens or not wide.isdisjoint(op.inputs)):
            wide |= {name for name in op.outputs if block.tensor[name].dtype == "compute"}
    return frozenset(wide)


def _cast(block: Block, wide: frozenset[str]) -> Block:
    """``block`` with ``wide`` tensors in fp32, and casts of what its products read."""
    widened = {"dtype": "fp32", "narrow": False}
    tensors = {t.name: t.model_copy(update=widened) if t.name in wide else t for t in block.tensors}
    ops: list[Op] = []
    for op in block.ops:
        passes = None if _centres(op, block) else WIDENED_PASSES.get("rotary" if _rotates(op) else op.kind)
        if passes and not wide.isdisjoint(op.outputs):
            op = op.model_copy(update={"attributes": {**op.attributes, "eager_passes": passes}})
        if operator_rule(op).arithmetic in LOWERED:
            weights = [_lowered(tensors[name], op) for name in _factors(op, block)]
            read = {name: _lowered(tensors[name], op) for name in op.inputs if name in wide}
            tensors |= {t.name: t for t in (*weights, *read.values())}
            ops += [_cast_of(name, made, _modules(op, block)) for name, made in read.items()]
            op = op.model_copy(
                update={
                    "inputs": tuple(read[name].name if name in read else name for name in op.inputs),
                    "attributes": {**op.attributes, "weight_casts": " ".join(t.name for t in weights)},
                }
            )
        ops.append(op)
    fields = {name: getattr(block, name) for name in Block.model_fields}
    return Block(**fields | {"tensors": tuple(tensors.values()), "ops": tuple(ops)})


def _widens(op: Op, block: Block) -> bool:
    """Whether it makes fp32 of fp32 weights, whatever it reads."""
    if op.kind != "norm":
        return bool(op.weights)
    spanned = {dim for name in op.weights for dim in block.tensor[name].dims}
    return not spanned.isdisjoint(str(op.attributes["over"]).split()) and not op.attributes.get("wide")


def _centres(op: Op, block: Block) -> bool:
    """Whether it is a norm that subtracts the mean, of which its backward needs another number a row."""
    statistics = op.attributes.get("statistics")
    return statistics is not None and block.tensor[str(statistics)].scale > 1


def _rotates(op: Op) -> bool:
    """Whether it multiplies queries and keys with tables of positions."""
    return op.name.endswith("rotary")


def _factors(op: Op, block: Block) -> tuple[str, ...]:
    """Weights that are multiplied: not biases."""
    contracted = set(reduced_dims(op, block))
    return tuple(name for name in op.weights if not contracted.isdisjoint(block.tensor[name].dims))


def _modules(op: Op, block: Block) -> int:
    """Modules that a product stands for, each of which casts its own input."""
    return len({block.tensor[name].path for name in _factors(op, block)}) or 1


def _lowered(tensor: Tensor, reader: Op) -> Tensor:
    update = {
        "name": f"{tensor.name}_{reader.name}_cast",
        "dtype": "compute",
        "role": "activation",
        "path": "",
    }
    return tensor.model_copy(update=update)


def _cast_of(name: str, made: Tensor, times: int) -> Op:
    attributes = {"linear": True, "casts": times}
    return Op(name=made.name, kind="elementwise", inputs=(name,), outputs=(made.name,), attributes=attributes)

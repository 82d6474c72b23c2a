"""The model as data: tensors with named dims, operators over them, blocks that repeat.

Sizes are those of one training sequence; the dim ``batch`` has no size here and is bound when a plan is
priced. A tensor's elements are the product of its dims' sizes times ``scale``. An operator iterates over
the union of the dims of its tensors; a dim that is in an input or weight but in no output is contracted.
"""

import math
from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping
from functools import cached_property, lru_cache
from typing import Literal

from pydantic import Field, model_validator

from cluster_specs.record import Record

BATCH = "batch"

TOKEN_DIMS = ("seq", "encoder_seq")
"""Dims along which positions of a sequence lie."""

HEAD_DIMS = ("heads", "window_heads")
"""Dims along which heads of queries lie: those of most layers, and of layers with a window that have others."""

KV_HEAD_DIMS = ("kv_heads", "window_kv_heads")
"""The same of keys and values."""

TensorRole = Literal["activation", "weight", "frozen", "input"]
"""A ``frozen`` weight is read as any other, but training leaves it as it is."""


class Tensor(Record):
    """An array with named dims. ``()`` is a scalar."""

    name: str
    dims: tuple[str, ...]
    role: TensorRole = "activation"
    dtype: Literal["compute", "fp32", "int32", "bool"] = "compute"
    """``compute`` is the job's precision (bf16, fp16; fp8 activations are kept in bf16)."""
    narrow: bool = False
    """In the job's precision, whatever ``dtype`` says, where modules are those of transformers."""
    scale: float = Field(default=1.0, gt=0)
    """Elements per product of dims: topk/experts for routed tokens, 2 for a fused gate and up."""
    stepped: bool = True
    """Weights: an optimizer steps it; else it gets a gradient that nothing reads, as frozen ones beside trained do."""
    path: str = ""
    """Weights: the parameter's dotted path in the framework's module, ``{layer}`` for the layer's number."""

    @property
    def is_parameter(self) -> bool:
        """Whether it is a weight, trained or not."""
        return self.role in ("weight", "frozen")


class Op(Record):
    """One operator; ``kind`` is a key of ``planner.operators.OPERATORS``."""

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: tuple[str, ...] = ()
    attributes: Mapping[str, bool | int | float | str] = {}


class Block(Record):
    """Operators that always run together and repeat: an embedding, a transformer layer, a head."""

    name: str
    tensors: tuple[Tensor, ...]
    ops: tuple[Op, ...]
    """In an order in which they can run."""
    inputs: tuple[str, ...] = ()
    """Tensors received from the block before."""
    outputs: tuple[str, ...] = ()
    """Tensors handed to the block after; same dims as the inputs of it."""

    @cached_property
    def tensor(self) -> Mapping[str, Tensor]:
        """Tensors by name."""
        return {t.name: t for t in self.tensors}

    @cached_property
    def producer(self) -> Mapping[str, str]:
        """Name of the operator that makes each tensor; block inputs and weights have none."""
        return {t: op.name for op in self.ops for t in op.outputs}

    @cached_property
    def seen(self) -> Mapping[str, str]:
        """Tensor that a view makes -> the tensor that it is another name of."""
        return {op.outputs[0]: op.inputs[0] for op in self.ops if op.kind == "view"}

    @cached_property
    def saved(self) -> dict[Hashable, tuple[str, ...]]:
        """Names of tensors that are kept for the backward, as far as `planner.operators.saved_tensors` was asked."""
        return {}

    @model_validator(mode="after")
    def _closed(self) -> "Block":
        known = {t.name for t in self.tensors}
        have = set(self.inputs) | {t.name for t in self.tensors if t.role != "activation"}
        for op in self.ops:
            for name in (*op.inputs, *op.weights, *op.outputs):
                if name not in known:
                    raise ValueError(f"block {self.name}, operator {op.name}: no tensor named {name!r}")
            missing = [name for name in (*op.inputs, *op.weights) if name not in have]
            if missing:
                raise ValueError(f"block {self.name}, operator {op.name}: {missing} used before it is made")
            have |= set(op.outputs)
        return self


class Run(Record):
    """``count`` consecutive layers of the same block."""

    block: str
    count: int = Field(gt=0)


class Graph(Record):
    """A model as blocks: an optional ``first`` (embedding), the layers, an optional ``last`` (head and loss)."""

    name: str
    dims: Mapping[str, int]
    """Global size of every dim but ``batch``."""
    follows: Mapping[str, str] = {}
    """A dim that is split whenever another is, up to its own size (kv_heads follows heads)."""
    blocks: tuple[Block, ...]
    layers: tuple[Run, ...]
    """The repeated part, in order; a pipeline cuts between its elements."""
    first: str | None = None
    """Block that runs before the layers, on the first stage."""
    last: str | None = None
    """Block that runs after the layers, on the last stage."""
    tied: tuple[tuple[str, str], ...] = ()
    """Weights that are one parameter, as ("block.tensor", "block.tensor"); stored once, counted once."""
    token_dim: str = "seq"
    """The dim whose size times the batch is a step's token count."""

    @cached_property
    def block(self) -> Mapping[str, Block]:
        """Blocks by name."""
        return {b.name: b for b in self.blocks}

    @cached_property
    def followers(self) -> Mapping[str, frozenset[str]]:
        """Dims that follow a dim."""
        return {
            leader: frozenset(d for d, other in self.follows.items() if other == leader)
            for leader in self.follows.values()
        }

    @cached_property
    def num_layers(self) -> int:
        """Length of the repeated part."""
        return sum(run.count for run in self.layers)

    @cached_property
    def sequence(self) -> tuple[str, ...]:
        """Block name of every layer, in order."""
        return tuple(run.block for run in self.layers for _ in range(run.count))

    def elements(self, tensor: Tensor) -> float:
        """Elements of ``tensor`` for a batch of one sequence."""
        return tensor.scale * math.prod(self.dims[d] for d in tensor.dims if d != BATCH)

    def instances(self) -> Iterator[tuple[Block, int]]:
        """Every block with the number of times it occurs."""
        if self.first is not None:
            yield self.block[self.first], 1
        counts: dict[str, int] = {}
        for run in self.layers:
            counts[run.block] = counts.get(run.block, 0) + run.count
        for name, count in counts.items():
            yield self.block[name], count
        if self.last is not None:
            yield self.block[self.last], 1

    @model_validator(mode="after")
    def _consistent(self) -> "Graph":
        names = {b.name for b in self.blocks}
        used = {run.block for run in self.layers} | {b for b in (self.first, self.last) if b is not None}
        if used - names:
            raise ValueError(f"layers name blocks that do not exist: {sorted(used - names)}")
        for b in self.blocks:
            for t in b.tensors:
                unknown = [d for d in t.dims if d != BATCH and d not in self.dims]
                if unknown:
                    raise ValueError(f"block {b.name}, tensor {t.name}: dims {unknown} have no size")
        bad = [d for d, n in self.dims.items() if n <= 0]
        if bad:
            raise ValueError(f"dims must be positive: {bad}")
        return self


@lru_cache(maxsize=1 << 14)
def counted(layers: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
    """How many there are of each kind, in the order of the first of each."""
    return tuple(Counter(layers).items())


def has_scans(graph: Graph) -> bool:
    """Whether some layers have a linear recurrence over the sequence."""
    return any(op.kind == "scan" for block in graph.blocks for op in block.ops)


def commonest_layer(graph: Graph) -> str:
    """The commonest layer: between any two blocks the activations lie as it leaves them."""
    return min(graph.sequence, key=lambda name: (-graph.sequence.count(name), name))


def tied_share(graph: Graph, block: str, others: Collection[str] | None = None) -> float:
    """Share of the weights of ``block`` that are tied to those of another, or of one of the ``others``."""
    if not graph.tied:
        return 0.0
    weights = [t for t in graph.block[block].tensors if t.is_parameter]
    owner = {second: first for first, second in graph.tied}
    holders = {(owner.get(tensor, tensor), tensor.split(".", 1)[0]) for pair in graph.tied for tensor in pair}
    tied = {name for name, at in holders if at != block and (others is None or at in others)}
    shared = sum(graph.elements(t) for t in weights if owner.get(key := f"{block}.{t.name}", key) in tied)
    return shared / sum(graph.elements(t) for t in weights) if shared else 0.0


def keepers(graph: Graph, block: str) -> tuple[str, ...]:
    """Ends of the model that keep weights of ``block`` where they are beside it: one parameter is stored once.

    What both ends have is the first one's.
    """
    if block == graph.first:
        return ()
    ends = (graph.first,) if block == graph.last else (graph.first, graph.last)
    return tuple(end for end in ends if end and tied_share(graph, block, (end,)))


def count_parameters(graph: Graph) -> int:
    """Trainable parameters, tied ones once."""
    total = 0.0
    for block, count in graph.instances():
        total += count * sum(graph.elements(t) for t in block.tensors if t.role == "weight" and t.stepped)
    for _, second in graph.tied:
        block_name, tensor_name = second.split(".", 1)
        tensor = graph.block[block_name].tensor[tensor_name]
        total -= graph.elements(tensor) if tensor.role == "weight" else 0.0
    return round(total)


def trained_weights(op: Op, block: Block) -> tuple[str, ...]:
    """Weights of ``op`` that have gradients."""
    return tuple(name for name in op.weights if block.tensor[name].role == "weight")

"""Tensor parallelism of a block in torch's words: a style per module, or the reason why there is none.

torch splits whole modules: a linear layer by its outputs (`ColwiseParallel`) or its inputs
(`RowwiseParallel`), a norm by the tokens that it sees (`SequenceParallel`). Between modules a tensor is whole
or split along the sequence; inside a pair of linear layers it stays split as the first one left it.
`module_styles` finds these patterns in a plan's strategies and raises ``Unsupported`` for every other (sums
over split dims, resharding in the middle of a block), so that what is exported is what was priced.

Source: torch 2.13, torch/distributed/tensor/parallel/style.py.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from planner.errors import Unsupported
from planner.exporters.placements import LAYER, MATRIX_KINDS, Layout, layer_prefix
from planner.graph import TOKEN_DIMS, Block, Op, Tensor
from planner.operators import operator_rule
from planner.sharding.spec import has_dim, input_spec, output_spec

TENSOR = "tensor"

SUM = "+"
"""Layout of a tensor that is a pending sum over the tensor axis."""

SEQUENCE = "Shard(1)"
WHOLE = "Replicate()"

Styles = dict[str, str]
"""Module, relative to its block (or to the model) -> style, as code."""


@dataclass(slots=True)
class _Walk:
    """One block on its way through `module_styles`."""

    layout: Layout
    block: Block
    left: dict[str, str | None] = field(default_factory=dict)
    """Tensor -> dim that the tensor axis splits as its maker leaves it, `SUM`, or None (whole)."""
    read: dict[str, str | None] = field(default_factory=dict)
    """A pending sum or a block's input -> dim in which its readers want it."""
    gathered: set[str] = field(default_factory=set)
    """Operators that read a tensor whole which was left split along the sequence."""

    def dim(self, op: Op) -> str | None:
        """Dim of ``op`` that the tensor axis splits."""
        strategy = self.layout.strategies[self.block.name].get(op.name, ())
        return next((d for axis, d in strategy if axis == TENSOR), None)

    def wanted(self, op: Op, tensor: Tensor) -> str | None:
        """Dim along which ``op`` reads ``tensor`` split."""
        return input_spec(self.layout.graph, tensor, ((TENSOR, d),) if (d := self.dim(op)) else ()).on(TENSOR)

    def leaves(self, op: Op, tensor: Tensor) -> str | None:
        """Dim along which ``op`` leaves its output split, or `SUM`."""
        contracted = frozenset(operator_rule(op).contracted(op, self.block))
        strategy = ((TENSOR, d),) if (d := self.dim(op)) else ()
        return output_spec(self.layout.graph, tensor, strategy, contracted).on(TENSOR)

    def refuse(self, op: Op, why: str) -> Unsupported:
        """The error for ``op``."""
        return Unsupported(
            f"torch's tensor parallelism cannot express the plan: block {self.block.name}, "
            f"operator {op.name} {why}; plan with --tensor 1"
        )


def module_styles(layout: Layout, block: Block) -> Styles:
    """Styles of the modules of one kind of layer, or of the head.

    Raises ``Unsupported`` where the strategies are not a composition of torch's styles.
    """
    walk = _Walk(layout, block)
    for op in block.ops:
        for tensor in (block.tensor[name] for name in op.inputs):
            if tensor.role == "activation":
                _read(walk, op, tensor)
        for tensor in (block.tensor[name] for name in op.outputs):
            walk.left[tensor.name] = walk.leaves(op, tensor)
    _check_residual(walk)
    styles: Styles = {}
    for op in block.ops:
        styles |= _styles(walk, op)
    return styles


def _read(walk: _Walk, op: Op, tensor: Tensor) -> None:
    """Match how a tensor was left with how ``op`` wants it."""
    want = walk.wanted(op, tensor)
    left = walk.left.get(tensor.name, SUM)  # a block's input comes as its readers want it
    if left == SUM:
        if tensor.name in walk.left and want not in (None, *TOKEN_DIMS):
            raise walk.refuse(op, f"reads the sum {tensor.name} split along {want}")
        left = walk.read.setdefault(tensor.name, want)
    if left == want:
        return
    if left in TOKEN_DIMS and want is None and op.kind in MATRIX_KINDS:
        walk.gathered.add(op.name)
        return
    raise walk.refuse(op, f"reads {tensor.name} {_words(want)}, which was left {_words(left)}")


def _words(dim: str | None) -> str:
    return "whole" if dim is None else f"split along {dim}"


def _check_residual(walk: _Walk) -> None:
    """A layer must leave its result as the next one reads it."""
    for name in walk.block.inputs:
        for result in walk.block.outputs:
            left, want = walk.left[result], walk.read.get(name)
            if walk.block.name in walk.layout.graph.sequence and left not in (want, SUM):
                maker = next(op for op in walk.block.ops if result in op.outputs)
                why = f"leaves {result} {_words(left)}, but the next layer reads it {_words(want)}"
                raise walk.refuse(maker, why)


def reads_sequence_split(layout: Layout, block: Block) -> bool:
    """Whether a layer receives hidden states split along the sequence over the tensor axis."""
    walk = _Walk(layout, block)
    readers = [op for op in block.ops if block.inputs and block.inputs[0] in op.inputs]
    return any(walk.wanted(op, block.tensor[block.inputs[0]]) in TOKEN_DIMS for op in readers)


def _modules(walk: _Walk, op: Op) -> Mapping[str, Tensor]:
    """Modules of the operator's weights (biases belong to the same), relative to the layer."""
    prefix = layer_prefix(walk.block)
    found: dict[str, Tensor] = {}
    for weight in (walk.block.tensor[name] for name in op.weights):
        path = weight.path.removeprefix(prefix + ".") if LAYER in weight.path else weight.path
        module = path.rpartition(".")[0]
        if module in found and weight.path == found[module].path:
            raise walk.refuse(op, f"splits {weight.path}, in which several projections are fused")
        found.setdefault(module, weight)
    return found


def _styles(walk: _Walk, op: Op) -> Iterator[tuple[str, str]]:
    """Styles of the modules of one operator."""
    dim = walk.dim(op)
    if dim is None and op.name in walk.gathered:
        raise walk.refuse(op, "is whole on every rank, but its input is split along the sequence")
    if dim is None or not op.weights:
        return
    modules = _modules(walk, op)
    split = [w for w in modules.values() if has_dim(walk.layout.graph, w, dim)]
    if op.kind in MATRIX_KINDS and len(split) == len(modules):
        yield from _linear(walk, op, modules)
    elif op.kind == "norm" and not split:
        x = walk.block.tensor[op.inputs[0]]
        position = next(i for i, d in enumerate(x.dims) if walk.layout.graph.follows.get(d, d) == dim)
        for module in modules:
            yield module, f"SequenceParallel(sequence_dim={position}, use_local_output=True)"
    else:
        raise walk.refuse(op, f"({op.kind}) is split along {dim}")


def _linear(walk: _Walk, op: Op, modules: Mapping[str, Tensor]) -> Iterator[tuple[str, str]]:
    """Linear layers split by outputs or inputs; an input that is split along the sequence is gathered."""
    _check_even(walk, op)
    output = op.outputs[0]
    if walk.left[output] == SUM:
        placement = SEQUENCE if walk.read.get(output) in TOKEN_DIMS else WHOLE
        for module in modules:
            yield module, f"RowwiseParallel(output_layouts={placement})"
        return
    parent = _common_parent(modules)
    arguments = []
    if op.name in walk.gathered and parent:
        yield parent, "GatherSequence()"
    elif op.name in walk.gathered:
        arguments.append(f"input_layouts={SEQUENCE}")
    if any(reader.kind == "cross_entropy" and output in reader.inputs for reader in walk.block.ops):
        arguments.append("use_local_output=False")  # the vocabulary-parallel loss wants to know the layout
    for module in modules:
        yield module, f"ColwiseParallel({', '.join(arguments)})"


def embedding_styles(layout: Layout, block: Block) -> Styles:
    """Styles of the block before the layers: tables split by rows or columns; their results are whole.

    Whole, because models derive positions and masks from the embedding's shape; the first layer takes its
    part of the sequence. Everything else here runs alike on every rank of the tensor axis.
    """
    walk = _Walk(layout, block)
    styles: Styles = {}
    for op in block.ops:
        dim = walk.dim(op)
        for module, weight in _modules(walk, op).items():
            if dim is None or not has_dim(layout.graph, weight, dim):
                continue
            if op.kind != "embedding":
                raise walk.refuse(op, f"({op.kind}) is split along {dim}")
            rows = walk.leaves(op, block.tensor[op.outputs[0]]) == SUM
            style = "RowwiseParallel(input_layouts=Replicate(), " if rows else "ColwiseParallel("
            styles[module] = f"{style}output_layouts={WHOLE})"
    return styles


def _check_even(walk: _Walk, op: Op) -> None:
    graph, degree = walk.layout.graph, walk.layout.axes[TENSOR]
    for name in op.weights:
        for d in walk.block.tensor[name].dims:
            if graph.follows.get(d, d) == walk.dim(op) and d != "vocab" and graph.dims[d] % degree:
                raise walk.refuse(op, f"splits {d} = {graph.dims[d]} unevenly over {degree} ranks")


def _common_parent(modules: Mapping[str, Tensor]) -> str:
    """The module that holds all of several linear layers; none where there is one layer or no such module."""
    parents = {module.rpartition(".")[0] for module in modules}
    return parents.pop() if len(parents) == 1 and len(modules) > 1 else ""

"""Which mesh axes split each dim of each array: GSPMD's view of a plan, before it is written down.

The plan's axis ``data`` becomes two mesh axes: ``data`` (whole copies of the states) and ``fsdp`` (ranks that
share them). ZeRO adds ``fsdp`` to one dim of each parameter or state. Where states are sharded over a part of the
expert or context axis only, that axis becomes two as well: copies of the states, and ranks that share them. So does
the tensor axis where it has more ranks than there are heads of keys and values: ranks that hold a copy of the same.

Source: Xu et al., GSPMD, arXiv:2105.04663, sections 3.1 and 5.1.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType

from planner.errors import Unsupported
from planner.exporters.placements import LAYER, Dim, Layout, Parameter
from planner.graph import BATCH, TOKEN_DIMS, Block, Op, Tensor
from planner.operators import operator_rule
from planner.sharding.mesh import AXES
from planner.sharding.pinning import pins_gathered
from planner.sharding.spec import ShardingSpec, input_spec, output_spec

MESH_AXES = ("data", "fsdp", "expert_copy", "expert", "context_copy", "context", "tensor", "tensor_copy")
"""Axes of the exported mesh, outermost first; all of them always, so that the names are stable, but for `COPIES`."""

COPIES = ("expert_copy", "context_copy", "tensor_copy")
"""Axes that a mesh has only where they are larger than 1."""

PARTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "data": ("data", "fsdp"),
        "expert": ("expert_copy", "expert"),
        "context": ("context_copy", "context"),
        "tensor": ("tensor", "tensor_copy"),
    }
)
"""Axis of a plan -> the mesh axes that it becomes, where it is not one of the same name."""

Entry = tuple[str, ...]
"""Mesh axes that split one dim, outermost first."""

PartitionSpec = tuple[Entry, ...]
"""One entry per dim."""


def mesh_sizes(layout: Layout) -> dict[str, int]:
    """Size of each axis of the mesh, in the order of `MESH_AXES`."""
    data, context, tensor = layout.data, layout.axes["context"], layout.axes["tensor"]
    copies = tensor_copies(layout)
    sizes = (
        data.replicate,
        data.shard,
        data.expert_copies,
        data.expert // data.expert_copies,
        data.context_copies,
        context // data.context_copies,
        tensor // copies,
        copies,
    )
    return {a: n for a, n in zip(MESH_AXES, sizes, strict=True) if n > 1 or a not in COPIES}


def tensor_copies(layout: Layout) -> int:
    """Neighbours on the tensor axis that hold the same, of dims that have fewer parts than it has ranks."""
    dims = (
        dim for parameter in layout.parameters for dim in parameter.dims if dim.copied_over == ("tensor",)
    )
    return layout.axes["tensor"] // math.gcd(layout.axes["tensor"], *(dim.extent for dim in dims))


def _entry(layout: Layout, axes: Iterable[str]) -> Entry:
    """The plan's axes as those mesh axes that are larger than 1."""
    sizes = mesh_sizes(layout)
    return tuple(part for a in axes for part in PARTS.get(a, (a,)) if sizes.get(part, 1) > 1)


def _degree(layout: Layout, entry: Entry) -> int:
    sizes = mesh_sizes(layout)
    return math.prod(sizes[a] for a in entry)


def batch_spec(layout: Layout) -> PartitionSpec:
    """Of token ids (batch, seq)."""
    return _entry(layout, ("data", "expert")), _entry(layout, ("context",))


def parameter_spec(layout: Layout, parameter: Parameter, sharded: bool) -> PartitionSpec:
    """Mesh axes on each dim of a parameter; ``sharded`` adds those over which ZeRO shards it.

    ZeRO takes the largest dim that it divides evenly, whole ones first (GSPMD asks for even splits of
    arguments), and the rows of a table last: ranks with columns of it find parts of all tokens, which they exchange,
    where ranks with rows would sum what they find. A parameter that has none, which is a small one, stays whole.
    Raises ``Unsupported`` where the plan splits a dim unevenly.
    """
    entries = [_split_dim(layout, parameter, dim) for dim in parameter.dims]
    extra = _state_axes(layout, {a for entry in entries for a in entry}) if sharded else ()
    if not extra:
        return tuple(entries)
    local = [dim.extent // _degree(layout, entry) for dim, entry in zip(parameter.dims, entries, strict=True)]
    fitting = [i for i, extent in enumerate(local) if extent % _degree(layout, extra) == 0]
    if fitting:
        looked_up = parameter.inputs if parameter.is_table else ()
        best = min(fitting, key=lambda i: (parameter.dims[i] in looked_up, bool(entries[i]), -local[i]))
        entries[best] = (*entries[best], *extra)
    return tuple(entries)


def _state_axes(layout: Layout, used: Collection[str]) -> Entry:
    """Mesh axes over which ZeRO shards what lies on the axes ``used`` already, outermost first.

    Experts have states over fewer ranks than other parameters have, because the expert axis counts among theirs; an
    axis that is more than is left of them is taken whole.
    """
    sizes = mesh_sizes(layout)
    shares = {"fsdp": True, "expert": layout.data.over_expert, "context": layout.data.over_context}
    free = [a for a in MESH_AXES if shares.get(a) and a not in used and sizes[a] > 1]
    left = layout.plan.plan.shard_degree // math.prod(sizes.get(a, 1) for a in PARTS["expert"] if a in used)
    found: list[str] = []
    for axis in reversed(free):
        if left > 1:
            found.insert(0, axis)
            left //= sizes[axis]
    return tuple(found)


def _split_dim(layout: Layout, parameter: Parameter, dim: Dim) -> Entry:
    entry = _entry(layout, dim.axes)
    if dim.copied_over == ("tensor",):
        entry = _uncopied(_entry(layout, dim.copied_over))
    degree = _degree(layout, entry)
    if dim.extent % degree:
        raise Unsupported(
            f"target jax splits evenly, but {dim.name} = {dim.extent} of {parameter.path} is split {degree} "
            f"ways; pad it to {math.ceil(dim.extent / degree) * degree} in the model's configuration"
        )
    return entry


def _uncopied(entry: Entry) -> Entry:
    return tuple(a for a in entry if a not in COPIES)


def keyed_parameters(layout: Layout) -> Iterator[tuple[str, Parameter]]:
    """Parameters, each under its own pattern: layer numbers replace ``{layer}`` where blocks disagree."""
    by_path: dict[str, list[Parameter]] = {}
    for parameter in layout.parameters:
        by_path.setdefault(parameter.path, []).append(parameter)
    for path, found in by_path.items():
        if all(p.groups == found[0].groups for p in found):
            yield path, found[0]
            continue
        for parameter in found:
            yield path.replace(LAYER, _ranges(layout.layers[parameter.block])), parameter


def _ranges(numbers: Iterable[int]) -> str:
    """``{0-2,7}`` for 0, 1, 2, 7."""
    spans: list[tuple[int, int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1] = (spans[-1][0], number)
        else:
            spans.append((number, number))
    return "{" + ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans) + "}"


def activation_specs(layout: Layout, block: Block) -> Iterator[tuple[Tensor, PartitionSpec]]:
    """Every activation between operators of ``block``, as its maker leaves it.

    A pending sum is given as its first reader wants it, so that the compiler sums and reshards in one step; so are
    tokens on their way to experts, because handing them over is what a dispatch is for.
    """
    for tensor in block.tensors:
        readers = [op for op in block.ops if tensor.name in op.inputs]
        maker = next((op for op in block.ops if tensor.name in op.outputs), None)
        if tensor.role != "activation" or not tensor.dims or not (maker or readers):
            continue
        spec = _activation(layout, block, tensor, maker, readers)
        yield tensor, _spec(layout, tensor, spec)


def summed_spec(layout: Layout, block: Block, tensor: Tensor) -> PartitionSpec | None:
    """What a product leaves of ``tensor`` once it is summed, where it is then split along tokens; None elsewhere.

    The gradient of the product's weight reads that of ``tensor`` so. Only where context and tensor axes both split
    tokens: there GSPMD does not scatter the sum of a product of which one side is split further than the other.
    """
    maker = next((op for op in block.ops if tensor.name in op.outputs), None)
    if maker is None or maker.kind != "matmul" or not _splits_twice(layout):
        return None
    strategy = layout.strategies[block.name].get(maker.name, ())
    left = output_spec(
        layout.graph, tensor, strategy, frozenset(operator_rule(maker).contracted(maker, block))
    )
    return _spec(layout, tensor, left) if "tensor" in left.partial else None


def gathered_spec(layout: Layout, block: Block, tensor: Tensor) -> PartitionSpec | None:
    """How a product reads ``tensor`` that lies split along tokens by the tensor axis; None unless it is pinned so.

    See `planner.sharding.pinning`.
    """
    size = layout.axes.__getitem__
    readers = [
        op for op in block.ops if tensor.name in op.inputs and pins_gathered(layout.graph, block, op, size)
    ]
    made = [op for op in block.ops if tensor.name in op.outputs]
    if not readers or not made:
        return None
    lies, read = (
        input_spec(layout.graph, tensor, layout.strategies[block.name].get(op.name, ()))
        for op in (made[0], readers[0])
    )
    split = lies.on("tensor") in TOKEN_DIMS and read.on("tensor") is None
    return _spec(layout, tensor, read) if split else None


def _splits_twice(layout: Layout) -> bool:
    return layout.axes["context"] > 1 and layout.axes["tensor"] > 1


def _spec(layout: Layout, tensor: Tensor, spec: ShardingSpec) -> PartitionSpec:
    return tuple(_activation_entry(layout, spec, d) for d in tensor.dims)


def _activation(
    layout: Layout, block: Block, tensor: Tensor, maker: Op | None, readers: list[Op]
) -> ShardingSpec:
    strategies = layout.strategies[block.name]
    if maker is not None:
        contracted = frozenset(operator_rule(maker).contracted(maker, block))
        left = output_spec(layout.graph, tensor, strategies.get(maker.name, ()), contracted)
        handed_over = bool(left.partial) or maker.kind == "dispatch"
        if not handed_over or not readers:
            return left
    return input_spec(layout.graph, tensor, strategies.get(readers[0].name, ()))


def _activation_entry(layout: Layout, spec: ShardingSpec, dim: str) -> Entry:
    """Mesh axes on a dim: all, those without copies, or none, as they divide it evenly."""
    leader = layout.graph.follows.get(dim, dim)
    entry = _entry(layout, (a for a in reversed(AXES) if spec.on(a) in (dim, leader)))
    ways = (entry, _uncopied(entry), ())
    return next(e for e in ways if dim == BATCH or layout.graph.dims[dim] % _degree(layout, e) == 0)

"""Which family of operators each ATen operator belongs to.

A rule takes the call's arguments with every tensor replaced by its shape; it never touches a tensor.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from planner.tracing.factors import (
    Loops,
    Rule,
    Shape,
    aligned,
    broadcast,
    created,
    elementwise,
    opaque,
    paired,
    reduction,
    reshaped,
    stacked,
    transposed,
)
from planner.tracing.program import Dims, Reduction
from planner.tracing.reading.attention import Operands, attention
from planner.tracing.reading.products import Convolution, convolution, grouped_product, product


class Call(NamedTuple):
    """One call of an ATen operator."""

    arguments: Sequence[Any]
    """As written, tensors as `Operand`."""
    inputs: Sequence[Shape]
    """Of all tensors among the arguments, in order."""
    outputs: Sequence[Shape]
    dtype: str
    """Of the first result."""


class Operand(NamedTuple):
    """A tensor among the arguments."""

    shape: Shape


TorchRule = Callable[[Call], Rule]

ELEMENTWISE = """
    _conj abs acos acosh add addcdiv addcmul asin asinh atan atan2 atanh bitwise_and bitwise_not bitwise_or
    bitwise_xor ceil clamp clamp_max clamp_min cos cosh div elu eq erf exp expm1 fill floor fmod full_like ge gelu
    gelu_backward gt hardtanh isinf isnan le leaky_relu log log10 log1p log2 logical_and logical_not logical_or
    logical_xor lt masked_fill maximum minimum mul native_dropout ne neg ones_like polar pow reciprocal relu
    remainder round rsqrt rsub sigmoid sigmoid_backward sign silu silu_backward sin sinh sqrt sub tan tanh
    tanh_backward threshold_backward tril triu trunc where zeros_like
"""

SAME = "_to_copy alias clone contiguous copy detach lift_fresh_copy"
"""The same tensor, or the same numbers in another type."""

CREATED = "arange empty empty_permuted full ones rand randn scalar_tensor zeros"

SHAPES = "_unsafe_view reshape squeeze unsqueeze view"

REDUCTIONS = "all amax amin any argmax argmin max mean min prod sum var var_mean"


def _elementwise(call: Call) -> Rule:
    return elementwise(call.inputs, call.outputs)


def _same(call: Call) -> Rule:
    return elementwise(call.inputs[:1], call.outputs)._replace(kind="view")


def _created(call: Call) -> Rule:
    return created(call.outputs)


def _reshape(call: Call) -> Rule:
    return reshaped(call.inputs[0], call.outputs[0])


def _paired(call: Call) -> Rule:
    return paired(call.inputs[0], call.outputs[0])


def _permute(call: Call) -> Rule:
    rank = len(call.inputs[0])
    return transposed(call.inputs[0], [int(i) % rank for i in call.arguments[1]])


def _transpose(call: Call) -> Rule:
    order = list(range(len(call.inputs[0])))
    first, second = call.arguments[1:3] if len(call.arguments) > 2 else (0, 1)
    order[first], order[second] = order[second], order[first]
    return transposed(call.inputs[0], order)


def _expand(call: Call) -> Rule:
    more = len(call.outputs[0]) - len(call.inputs[0])
    return broadcast(call.inputs[0], call.outputs[0], [i + more for i in range(len(call.inputs[0]))])


def _reduction(call: Call) -> Rule:
    rank = len(call.inputs[0])
    over = call.arguments[1] if len(call.arguments) > 1 else None
    axes = [over] if isinstance(over, int) else over or range(rank)
    keep = rank > 0 and len(call.outputs[0]) == rank
    return reduction(call.inputs[0], [a % rank for a in axes if rank], call.dtype, keep, len(call.outputs))


def _within(call: Call, axes: Sequence[int], count: int) -> Rule:
    """Element-wise, with reductions over some dims on the way."""
    rule = elementwise(call.inputs, call.outputs[:1])
    full = rule.writes[0]
    over = tuple(f for a in axes for f in full[a])
    dims = tuple(f for d in full for f in d if f not in over)
    inner = Reduction(dims=dims, over=over, dtype="float32")
    return rule._replace(reductions=(inner,) * count if over else ())


def _softmax(count: int, place: int) -> TorchRule:
    return lambda call: _within(call, [int(call.arguments[place])], count)


def _layer_norm(call: Call) -> Rule:
    rank, inner = len(call.inputs[0]), len(call.arguments[1])
    rule = _within(call, range(rank - inner, rank), 2)
    kept = rule.writes[0][: rank - inner] + ((),) * inner
    return rule._replace(writes=(rule.writes[0], *(kept for _ in call.outputs[1:])))


def _batch_norm(call: Call) -> Rule:
    """Over all dims but the second; scales, shifts and statistics are per channel."""
    image = call.inputs[0]
    rule = _within(call._replace(inputs=[image]), [a for a in range(len(image)) if a != 1], 2)
    channel = (rule.writes[0][1],)
    reads = (rule.reads[0], *(channel for _ in call.inputs[1:]))
    return rule._replace(
        reads=reads, writes=(rule.writes[0], *(channel if s else ((),) for s in call.outputs[1:]))
    )


def _mm(call: Call) -> Rule:
    return product(call.inputs[0], call.inputs[1], ((1,), (0,)), ((), ()))


def _bmm(call: Call) -> Rule:
    return product(call.inputs[0], call.inputs[1], ((2,), (1,)), ((0,), (0,)))


def _grouped(call: Call) -> Rule:
    """Rows by expert, where each expert's end: the third tensor; of two matrices, rows are columns of the first."""
    left, right, ends = call.inputs[:3]
    turned = len(right) == 2
    rule = grouped_product(left[::-1] if turned else left, right, ends[0], call.outputs[0])
    if rule is None:
        return opaque(call.inputs, call.outputs)
    first, *others = rule.reads
    return rule._replace(reads=(first[::-1] if turned else first, *others))


def _mv(call: Call) -> Rule:
    return product(call.inputs[0], call.inputs[1], ((1,), (0,)), ((), ()))


def convolved(left: Shape, right: Shape, result: Shape, call: Call, first: int) -> Rule:
    """A convolution whose stride, padding, dilation, transposition and groups begin at argument ``first``.

    A transposed one has the input's channels first in its filter; in groups of channels it is not split.
    """
    stride, _, dilation, flipped, _, groups = call.arguments[first : first + 6]
    order = range(len(left))
    if flipped and groups > 1:
        return opaque([left, right], [result])
    filters = (1, 0, *order[2:]) if flipped else order
    images = len(left) - 2
    strides = list(stride) if len(stride) == images else list(stride) * images
    plain = not flipped and all(d == 1 for d in dilation)
    return convolution(left, right, result, Convolution(order, filters, order, strides, plain, groups))


def _convolution(call: Call) -> Rule:
    return convolved(call.inputs[0], call.inputs[1], call.outputs[0], call, 3)


def _rows_of_table(table: Shape, rows: Shape) -> tuple[Loops, Dims, Dims, Dims]:
    """Loops over a table's rows by index: the table, the indices, and what lies at them."""
    loops = Loops()
    at = tuple(loops.new(n) for n in rows)
    inner = tuple(loops.new(n) for n in table[1:])
    return loops, (loops.new(table[0]), *inner), at, (*at, *inner)


def _embedding(call: Call) -> Rule:
    loops, table, rows, found = _rows_of_table(call.inputs[0], call.inputs[1])
    return loops.rule("lookup", (table, rows), (found,))


def _index(call: Call) -> Rule:
    """Rows of the first dim by one tensor of indices; anything else stays whole."""
    if len(call.inputs) != 2 or len(call.arguments[1]) != 1:
        return aligned_or_whole(call)
    return _embedding(call)


def _index_put(call: Call) -> Rule:
    if len(call.inputs) != 3 or len(call.arguments[1]) != 1:
        return aligned_or_whole(call)
    loops, table, rows, found = _rows_of_table(call.inputs[0], call.inputs[1])
    if len(call.arguments) < 4 or not call.arguments[3]:
        loops.whole += [f for d in rows for f in d]
    return loops.rule("accumulate", (table, rows, found), (table,))


def _attention(first: int, arrays: int) -> TorchRule:
    """Operands begin at argument ``first``; a mask that is a constant is not among the ``arrays`` that are read."""

    def rule(call: Call) -> Rule:
        query, key, value, mask = call.arguments[first : first + 4]
        read = None if mask is None or len(call.inputs) < arrays else mask.shape
        operands = Operands(query.shape, key.shape, value.shape, read)
        causal = bool(call.arguments[-1])
        return attention(operands, causal, backward=first > 0, dtype=call.dtype)

    return rule


def _embedding_backward(call: Call) -> Rule:
    loops, table, rows, found = _rows_of_table(call.outputs[0], call.inputs[1])
    return loops.rule("accumulate", (found, rows), (table,))


def _along(operand: Shape, indices: Shape, axis: int) -> tuple[Loops, Dims, Dims]:
    """Entries along one dim by index; the other dims side by side where they are equal."""
    loops, table, found = Loops(), list[tuple[int, ...]](), list[tuple[int, ...]]()
    for i, (n, m) in enumerate(zip(operand, indices, strict=True)):
        same = n == m and i != axis
        found.append(loops.new(m, same or i == axis))
        table.append(found[-1] if same else loops.new(n, i == axis))
    return loops, tuple(table), tuple(found)


def _gather(call: Call) -> Rule:
    loops, table, found = _along(call.inputs[0], call.inputs[1], call.arguments[1] % len(call.inputs[0]))
    return loops.rule("lookup", (table, found), (found,))


def _scatter_add(call: Call) -> Rule:
    loops, table, found = _along(call.inputs[0], call.inputs[1], call.arguments[1] % len(call.inputs[0]))
    return loops.rule("accumulate", (table, found, found), (table,))


def _scatter(call: Call) -> Rule:
    """Entries written along one dim by index, of a tensor or one number: whole where they are written."""
    loops, table, found = _along(call.inputs[0], call.inputs[1], call.arguments[1] % len(call.inputs[0]))
    loops.whole += [f for dim in found for f in dim if dim not in table]
    return loops.rule("accumulate", (table, *(found for _ in call.inputs[1:])), (table,))


def _index_select(call: Call) -> Rule:
    """Rows along one dim, by one tensor of indices."""
    axis = call.arguments[1] % len(call.inputs[0])
    loops = Loops()
    found = tuple(loops.new(n) for n in call.outputs[0])
    table = tuple(loops.new(n) if i == axis else found[i] for i, n in enumerate(call.inputs[0]))
    return loops.rule("lookup", (table, (found[axis],)), (found,))


def _group_norm(call: Call) -> Rule:
    """Over images and the channels of each group; statistics are per sequence and group, scales per channel."""
    image, statistics = call.inputs[0], call.outputs[1]
    loops = Loops()
    batch, group = loops.new(image[0]), loops.new(statistics[1])
    channel = (*group, *loops.new(image[1] // statistics[1]))
    full = (batch, channel, *(loops.new(n) for n in image[2:]))
    rule = loops.rule(
        "loop",
        (full, *((channel,) for _ in call.inputs[1:])),
        (full, *((batch, group) for _ in call.outputs[1:])),
    )
    over = tuple(f for dim in full for f in dim if f not in (*batch, *group))
    return rule._replace(reductions=(Reduction(dims=(*batch, *group), over=over, dtype="float32"),) * 2)


def _whole(call: Call) -> Rule:
    return opaque(call.inputs, call.outputs)


def _transformed(call: Call) -> Rule:
    return aligned(call.inputs, call.outputs, [a % len(call.inputs[0]) for a in call.arguments[1]])


def aligned_or_whole(call: Call) -> Rule:
    """Side by side where ranks are equal; else nothing can be split."""
    ranks = {len(s) for s in (*call.inputs, *call.outputs)}
    if len(ranks) == 1:
        return aligned(call.inputs, call.outputs)
    loops = Loops()
    reads = [tuple(loops.new(n, False) for n in s) for s in call.inputs]
    return loops.rule("loop", reads, [tuple(loops.new(n, False) for n in s) for s in call.outputs])


def _select(call: Call) -> Rule:
    rule = stacked(call.outputs, call.inputs[0], call.arguments[1] % len(call.inputs[0]))
    return rule._replace(reads=rule.writes, writes=rule.reads)


def _touching(place: int) -> TorchRule:
    def rule(call: Call) -> Rule:
        axis = call.arguments[place] if len(call.arguments) > place else 0
        return aligned(call.inputs, call.outputs, (int(axis) % len(call.inputs[0]),))

    return rule


def _slice(call: Call) -> Rule:
    return aligned(call.inputs[:1], call.outputs)


def _images(call: Call) -> Rule:
    """Windows over the dims after the first two."""
    rank = len(call.inputs[0])
    return aligned(call.inputs, call.outputs, range(2, rank))


IMAGES = """
    _adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d avg_pool2d avg_pool2d_backward avg_pool3d
    avg_pool3d_backward max_pool2d_with_indices max_pool2d_with_indices_backward max_pool3d_with_indices
    max_pool3d_with_indices_backward reflection_pad1d reflection_pad2d reflection_pad3d replication_pad2d
    replication_pad3d upsample_bilinear2d upsample_bilinear2d_backward upsample_nearest2d upsample_nearest2d_backward
"""
"""Each result from a window, or places, of its own image and channel."""

WHOLE = """
    as_strided as_strided_scatter diagonal diagonal_scatter histc masked_scatter nonzero randperm select_scatter unfold
    unfold_backward
"""
"""Along no dim can they be split."""


TORCH_RULES: Mapping[str, TorchRule] = MappingProxyType(
    {
        **dict.fromkeys(ELEMENTWISE.split(), _elementwise),
        **dict.fromkeys(SAME.split(), _same),
        **dict.fromkeys(CREATED.split(), _created),
        **dict.fromkeys(SHAPES.split(), _reshape),
        **dict.fromkeys(REDUCTIONS.split(), _reduction),
        **dict.fromkeys(IMAGES.split(), _images),
        **dict.fromkeys(WHOLE.split(), _whole),
        "_fft_c2c": _transformed,
        "_fft_c2r": _transformed,
        "_fft_r2c": _transformed,
        "_grouped_mm": _grouped,
        "transformers.grouped_mm_fallback": _grouped,
        "_log_softmax": _softmax(2, 1),
        "_log_softmax_backward_data": _softmax(1, 2),
        "_softmax": _softmax(2, 1),
        "_softmax_backward_data": _softmax(1, 2),
        "_native_batch_norm_legit": _batch_norm,
        "_native_batch_norm_legit_functional": _batch_norm,
        "_native_batch_norm_legit_no_training": _batch_norm,
        "attention": _attention(0, 4),
        "attention_backward": _attention(1, 7),
        "bmm": _bmm,
        "cat": _touching(1),
        "constant_pad_nd": _slice,
        "convolution": _convolution,
        "cumsum": _touching(1),
        "embedding": _embedding,
        "embedding_dense_backward": _embedding_backward,
        "expand": _expand,
        "flip": _transformed,
        "gather": _gather,
        "index": _index,
        "index_put": _index_put,
        "index_select": _index_select,
        "mm": _mm,
        "mv": _mv,
        "native_group_norm": _group_norm,
        "native_layer_norm": _layer_norm,
        "permute": _permute,
        "repeat": aligned_or_whole,
        "scatter": _scatter,
        "scatter_add": _scatter_add,
        "select": _select,
        "slice": _slice,
        "slice_scatter": aligned_or_whole,
        "sort": _touching(1),
        "split_with_sizes": _touching(2),
        "t": _transpose,
        "topk": _touching(2),
        "transpose": _transpose,
        "view_as_complex": _paired,
        "view_as_real": _paired,
    }
)
"""Rule of every operator that is known, by its name without ``aten.`` and overload."""

"""Which family of operators each ATen operator belongs to.

A rule takes the call's arguments with every tensor replaced by its shape; it never touches a tensor.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

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
from planner.tracing.reading.products import grouped_product, product
from planner.tracing.reading.torch_calls import Call, TorchRule
from planner.tracing.reading.torch_convolutions import convolved
from planner.tracing.reading.torch_lookups import LOOKUPS, aligned_or_whole

ELEMENTWISE = """
    _conj bernoulli cauchy complex empty_like exponential fill full_like geometric log_normal native_dropout normal
    normal_functional ones_like polar rand_like randint_like randn_like random rrelu_with_noise_backward
    rrelu_with_noise_functional tril triu uniform zeros_like
"""
"""Those that PyTorch does not tag as such (``torch.Tag.pointwise``)."""

SAME = "_to_copy alias clone contiguous copy detach lift_fresh_copy"
"""The same tensor, or the same numbers in another type."""

CREATED = """
    _efficientzerotensor arange empty empty_permuted empty_strided eye full linspace logspace ones rand randint randn
    scalar_tensor tril_indices triu_indices zeros
"""

SHAPES = "_unsafe_view reshape squeeze unsqueeze view"

REDUCTIONS = """
    all amax amin any argmax argmin count_nonzero kthvalue linalg_vector_norm max mean median min mode nanmedian nansum
    prod std std_mean sum var var_mean
"""


def pointwise(call: Call) -> Rule:
    """Every element by itself."""
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
    return transposed(call.inputs[0], call.axes("dims"))


def _transpose(call: Call) -> Rule:
    order = list(range(len(call.inputs[0])))
    first, second = (call.arguments.get(name, i) for i, name in enumerate(("dim0", "dim1")))
    order[first], order[second] = order[second], order[first]
    return transposed(call.inputs[0], order)


def _expand(call: Call) -> Rule:
    more = len(call.outputs[0]) - len(call.inputs[0])
    return broadcast(call.inputs[0], call.outputs[0], [i + more for i in range(len(call.inputs[0]))])


def _reduction(call: Call) -> Rule:
    keep = 0 < len(call.inputs[0]) == len(call.outputs[0])
    return reduction(call.inputs[0], call.axes(), call.dtype, keep, len(call.outputs))


def _within(call: Call, axes: Sequence[int], count: int) -> Rule:
    """Element-wise, with reductions over some dims on the way."""
    rule = elementwise(call.inputs, call.outputs[:1])
    full = rule.writes[0]
    over = tuple(f for a in axes for f in full[a])
    dims = tuple(f for d in full for f in d if f not in over)
    inner = Reduction(dims=dims, over=over, dtype="float32")
    return rule._replace(reductions=(inner,) * count if over else ())


def _softmax(count: int) -> TorchRule:
    return lambda call: _within(call, [call.axis()], count)


def _layer_norm(call: Call) -> Rule:
    rank, inner = len(call.inputs[0]), len(call.arguments["normalized_shape"])
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


def _settled_batch_norm(call: Call) -> Rule:
    """By statistics that are given: nothing is summed."""
    return _batch_norm(call)._replace(reductions=())


def _mm(call: Call) -> Rule:
    return product(call.inputs[0], call.inputs[1], ((1,), (0,)), ((), ()))


def _scaled(call: Call) -> Rule:
    """A product of narrow numbers, and what all of it, or each of its rows or columns, is scaled by, or each block."""
    rule, made = _mm(call), call.outputs[0]
    if any(n not in (1, m) for s in call.inputs[2:] for n, m in zip(s[::-1], made[::-1], strict=False)):
        return opaque(call.inputs, call.outputs)
    dims = rule.writes[0]
    scales = [
        tuple(() if n == 1 else d for n, d in zip(s, dims[2 - len(s) :], strict=True))
        for s in call.inputs[2:]
    ]
    return rule._replace(reads=(*rule.reads, *scales))


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


def _trilinear(call: Call) -> Rule:
    """A product of three, each whole along the dims that were expanded, summed over some."""
    loops, known = Loops(), dict[int, tuple[int, ...]]()
    reads = []
    for number, shape in enumerate(call.inputs, 1):
        missing = call.arguments[f"expand{number}"]
        places = [d for d in range(len(shape) + len(missing)) if d not in missing]
        for d, size in zip(places, shape, strict=True):
            if d not in known:
                known[d] = loops.new(size)
        reads.append(tuple(known[d] for d in places))
    made = tuple(known[d] for d in sorted(known) if d not in call.arguments["sumdim"])
    return loops.rule("product", reads, (made,))


def _convolution(call: Call) -> Rule:
    return convolved(call.inputs[0], call.inputs[1], call.outputs[0], call)


def _attention(arrays: int, backward: bool) -> TorchRule:
    """A mask that is a constant is not among the ``arrays`` that are read."""

    def rule(call: Call) -> Rule:
        query, key, value, mask = (call.arguments[name] for name in ("query", "key", "value", "mask"))
        read = None if mask is None or len(call.inputs) < arrays else mask.shape
        operands = Operands(query.shape, key.shape, value.shape, read)
        causal, biased = bool(call.arguments["causal"]), bool(call.arguments.get("biased"))
        return attention(operands, causal, backward, call.dtype, biased)

    return rule


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


def _turned(call: Call) -> Rule:
    return aligned(call.inputs, call.outputs, call.axes("dims"))


def _transformed(call: Call) -> Rule:
    return aligned(call.inputs, call.outputs, call.axes())


def _leading(count: int) -> TorchRule:
    """Whatever an operator makes of each entry of the first ``count`` dims (of all but the last ``-count``)."""

    def rule(call: Call) -> Rule:
        loops, first = Loops(), call.inputs[0][:count]
        shared = [loops.new(n) for n in first]

        def dims(shape: Shape) -> Dims:
            same = len(first) if shape[: len(first)] == first else 0
            return (*shared[:same], *(loops.new(n, False) for n in shape[same:]))

        return loops.rule("loop", [dims(s) for s in call.inputs], [dims(s) for s in call.outputs])

    return rule


def _select(call: Call) -> Rule:
    rule = stacked(call.outputs, call.inputs[0], call.axis())
    return rule._replace(reads=rule.writes, writes=rule.reads)


def _along(call: Call) -> Rule:
    """Not to be split along the one dim that it works along."""
    return aligned(call.inputs, call.outputs, (call.axis(),))


def _slice(call: Call) -> Rule:
    return aligned(call.inputs[:1], call.outputs)


def _images(call: Call) -> Rule:
    """Windows over the dims after the first two."""
    rank = len(call.inputs[0])
    return aligned(call.inputs, call.outputs, range(2, rank))


IMAGES = """
    _adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d _adaptive_avg_pool3d_backward
    _upsample_bicubic2d_aa _upsample_bicubic2d_aa_backward _upsample_bilinear2d_aa _upsample_bilinear2d_aa_backward
    adaptive_max_pool2d adaptive_max_pool2d_backward adaptive_max_pool3d adaptive_max_pool3d_backward avg_pool2d
    avg_pool2d_backward avg_pool3d avg_pool3d_backward max_pool2d_with_indices max_pool2d_with_indices_backward
    max_pool3d_with_indices max_pool3d_with_indices_backward max_unpool2d max_unpool3d reflection_pad1d
    reflection_pad2d reflection_pad3d replication_pad2d replication_pad3d upsample_bicubic2d
    upsample_bicubic2d_backward upsample_bilinear2d upsample_bilinear2d_backward upsample_nearest2d
    upsample_nearest2d_backward upsample_trilinear3d upsample_trilinear3d_backward
"""
"""Each result from a window, or places, of its own image and channel."""

ALONG = """
    cat cummax cummin cumprod cumsum logcumsumexp multinomial sort split_with_sizes topk
"""
"""What lies at a place of one dim depends on all of it."""

MATRICES = """
    _cdist_backward _cdist_forward _linalg_det _linalg_eigh _linalg_slogdet _linalg_solve_ex _linalg_svd
    cholesky_solve linalg_cholesky_ex linalg_eig linalg_inv_ex linalg_ldl_factor_ex linalg_lu linalg_lu_factor_ex
    linalg_lu_solve linalg_matrix_exp linalg_qr linalg_solve_triangular triangular_solve
"""
"""Of all but the last two dims, each entry by itself."""

IMAGE_BY_IMAGE = (
    "grid_sampler_2d grid_sampler_2d_backward grid_sampler_3d grid_sampler_3d_backward im2col col2im"
)
"""Of the first dim, each entry by itself."""

WHOLE = """
    as_strided as_strided_scatter diagonal diagonal_scatter histc masked_scatter masked_scatter_backward nonzero put
    randperm repeat_interleave select_scatter unfold unfold_backward
"""
"""Along no dim can they be split."""


TORCH_RULES: Mapping[str, TorchRule] = MappingProxyType(
    {
        **dict.fromkeys(ELEMENTWISE.split(), pointwise),
        **dict.fromkeys(SAME.split(), _same),
        **dict.fromkeys(CREATED.split(), _created),
        **dict.fromkeys(SHAPES.split(), _reshape),
        **dict.fromkeys(REDUCTIONS.split(), _reduction),
        **dict.fromkeys(IMAGES.split(), _images),
        **dict.fromkeys(WHOLE.split(), _whole),
        **dict.fromkeys(ALONG.split(), _along),
        **dict.fromkeys(MATRICES.split(), _leading(-2)),
        **dict.fromkeys(IMAGE_BY_IMAGE.split(), _leading(1)),
        **LOOKUPS,
        "_fft_c2c": _transformed,
        "_fft_c2r": _transformed,
        "_fft_r2c": _transformed,
        "_grouped_mm": _grouped,
        "_int_mm": _mm,
        "transformers.grouped_mm_fallback": _grouped,
        "_log_softmax": _softmax(2),
        "_log_softmax_backward_data": _softmax(1),
        "_softmax": _softmax(2),
        "_trilinear": _trilinear,
        "_scaled_mm": _scaled,
        "_softmax_backward_data": _softmax(1),
        "_native_batch_norm_legit": _batch_norm,
        "_native_batch_norm_legit_functional": _batch_norm,
        "_native_batch_norm_legit_no_training": _settled_batch_norm,
        "attention": _attention(4, backward=False),
        "attention_backward": _attention(7, backward=True),
        "bmm": _bmm,
        "constant_pad_nd": _slice,
        "convolution": _convolution,
        "expand": _expand,
        "flip": _turned,
        "mm": _mm,
        "mv": _mv,
        "native_group_norm": _group_norm,
        "native_layer_norm": _layer_norm,
        "permute": _permute,
        "repeat": aligned_or_whole,
        "select": _select,
        "slice": _slice,
        "slice_scatter": aligned_or_whole,
        "t": _transpose,
        "transpose": _transpose,
        "view_as_complex": _paired,
        "view_as_real": _paired,
    }
)
"""Rule of every operator that is known, by its name without ``aten.`` and overload."""

"""Which family of operators each JAX primitive belongs to.

A rule takes the equation's parameters and the shapes on both sides; it never touches an array.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from planner.tracing.factors import (
    Loops,
    Rule,
    Shape,
    aligned,
    broadcast,
    created,
    elementwise,
    opaque,
    reduction,
    reshaped,
    stacked,
    transposed,
)
from planner.tracing.program import Dims
from planner.tracing.reading.indexing import Lookup, accumulation, lookup
from planner.tracing.reading.products import Convolution, convolution, grouped_product, product

Params = Mapping[str, Any]
JaxRule = Callable[[Params, Sequence[Shape], Sequence[Shape], str], Rule]
"""(parameters, input shapes, output shapes, result's dtype) -> loops."""

ELEMENTWISE = """
    abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e bitcast_convert_type cbrt ceil
    clamp clz complex conj copy cos cosh digamma div eq eq_to erf erf_inv erfc exp exp2 expm1 floor ge gt igamma
    igammac imag integer_pow is_finite le lgamma log log1p logistic lt max min mul ne neg nextafter not or
    population_count pow real reduce_precision rem round rsqrt select_n shift_left shift_right_arithmetic
    shift_right_logical sign igamma_grad_a le_to lt_to mulhi polygamma regularized_incomplete_beta sin sinh sqrt
    square sub tan tanh threefry2x32 xor zeta
"""
"""Each output element from the input elements at its place."""

SAME = """
    convert_element_type copy_p device_put layout_constraint name optimization_barrier pcast pvary
    reshard sharding_constraint stop_gradient
"""
"""The same array, or the same numbers in another type."""

REDUCTIONS = "argmax argmin reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum reduce_xor"

CREATED = """
    empty empty2 iota platform_index random_bits random_clone random_fold_in random_gamma random_seed random_split
    random_unwrap random_wrap rng_bit_generator rng_uniform
"""
"""Made of a seed or of nothing."""

MATRICES = """
    cholesky cholesky_update eig eigh geqp3 geqrf hessenberg householder_product lu ormqr qr schur svd symmetric_product
    triangular_solve tridiagonal tridiagonal_solve
"""
"""One matrix, or pair, after another: the last two dims; vectors beside them have one less."""

ALONG = "cumlogsumexp cummax cummin cumprod cumsum"
"""One element after another along an axis."""


def _elementwise(params: Params, inputs: Sequence[Shape], outputs: Sequence[Shape], dtype: str) -> Rule:
    return elementwise(inputs, outputs)


def _same(params: Params, inputs: Sequence[Shape], outputs: Sequence[Shape], dtype: str) -> Rule:
    rule = elementwise(inputs, outputs)
    return rule._replace(kind="view") if len(inputs) == 1 else rule


def _reduction(params: Params, inputs: Sequence[Shape], outputs: Sequence[Shape], dtype: str) -> Rule:
    return reduction(inputs[0], params["axes"], dtype)


def _folded(params: Params, inputs: Sequence[Shape], outputs: Sequence[Shape], dtype: str) -> Rule:
    """A reduction by a function of its own, of several arrays at once: in one go over what it reduces."""
    loops = Loops()
    dims = tuple(loops.new(n, i not in params["dimensions"]) for i, n in enumerate(inputs[0]))
    left = tuple(d for i, d in enumerate(dims) if i not in params["dimensions"])
    count = len(outputs)
    return loops.rule("loop", [dims] * count + [()] * (len(inputs) - count), [left] * count)


def _created(params: Params, inputs: Sequence[Shape], outputs: Sequence[Shape], dtype: str) -> Rule:
    made, seeds = created(outputs), opaque(inputs, ())
    shift = len(made.sizes)
    reads = tuple(tuple(tuple(f + shift for f in dim) for dim in dims) for dims in seeds.reads)
    whole = (*made.whole, *(f + shift for f in seeds.whole))
    return made._replace(sizes=(*made.sizes, *seeds.sizes), reads=reads, whole=whole)


def _dot(params: Params, inputs: Sequence[Shape], outputs: Sequence[Shape], dtype: str) -> Rule:
    contracting, batch = params["dimension_numbers"]
    return product(inputs[0], inputs[1], contracting, batch)


def _scaled(params: Params, inputs: Sequence[Shape], outputs: Sequence[Shape], dtype: str) -> Rule:
    """A product of narrow numbers, rows by rows, with a scale for each block along the depth."""
    loops = Loops()
    batch, rows, columns = (loops.new(n) for n in outputs[0])
    blocks = inputs[2][2]
    depth, inner = loops.new(blocks), loops.new(inputs[0][2] // blocks, False)
    reads = [(batch, side, (*depth, *inner)) for side in (rows, columns)]
    reads += [(batch, side, depth) for side in (rows, columns)]
    return loops.rule("product", reads, [(batch, rows, columns)])


def _ragged(params: Params, inputs: Sequence[Shape], outputs: Sequence[Shape], dtype: str) -> Rule:
    (left, right), _ = params["ragged_dot_dimension_numbers"].dot_dimension_numbers
    depth = (left[0], right[0]) if len(inputs[1]) == 3 else (1, 1)
    found = grouped_product(inputs[0], inputs[1], inputs[2][-1], outputs[0], depth)
    return found or opaque(inputs, outputs)


def _convolution(params: Params, inputs: Sequence[Shape], outputs: Sequence[Shape], dtype: str) -> Rule:
    numbers = params["dimension_numbers"]
    how = Convolution(
        numbers.lhs_spec,
        numbers.rhs_spec,
        numbers.out_spec,
        params["window_strides"],
        [before for before, _ in params["padding"]],
        params["lhs_dilation"],
        params["rhs_dilation"],
        params["feature_group_count"],
        params["batch_group_count"],
    )
    rule = convolution(inputs[0], inputs[1], outputs[0], how)
    if not 1 < how.groups < inputs[0][how.left[1]]:
        return rule
    # XLA gathers the image where groups have several channels, but borders where each has one.
    image = {f for dim in how.result[2:] for f in rule.writes[0][dim]}
    return rule._replace(halos=(), whole=tuple(sorted({*rule.whole, *image})))


def _gather(params: Params, inputs: Sequence[Shape], outputs: Sequence[Shape], dtype: str) -> Rule:
    numbers = params["dimension_numbers"]
    how = Lookup(
        numbers.offset_dims,
        numbers.collapsed_slice_dims,
        numbers.operand_batching_dims,
        numbers.start_indices_batching_dims,
        numbers.start_index_map,
    )
    return lookup(inputs[0], inputs[1], outputs[0], params["slice_sizes"], how)


def _scatter(adds: bool) -> JaxRule:
    def rule(params: Params, inputs: Sequence[Shape], outputs: Sequence[Shape], dtype: str) -> Rule:
        numbers = params["dimension_numbers"]
        how = Lookup(
            numbers.update_window_dims,
            numbers.inserted_window_dims,
            numbers.operand_batching_dims,
            numbers.scatter_indices_batching_dims,
            numbers.scatter_dims_to_operand_dims,
        )
        return accumulation(inputs[0], inputs[1], inputs[2], how, adds)

    return rule


def _reshape(params: Params, inputs: Sequence[Shape], outputs: Sequence[Shape], dtype: str) -> Rule:
    return reshaped(inputs[0], outputs[0])


def _turned_reshape(params: Params, inputs: Sequence[Shape], outputs: Sequence[Shape], dtype: str) -> Rule:
    """With ``dimensions`` the operand is transposed first."""
    order = params.get("dimensions") or range(len(inputs[0]))
    rule = reshaped(tuple(inputs[0][i] for i in order), outputs[0])
    turned = dict(zip(order, rule.reads[0], strict=True))
    return rule._replace(reads=(tuple(turned[i] for i in range(len(inputs[0]))),))


def _transpose(params: Params, inputs: Sequence[Shape], outputs: Sequence[Shape], dtype: str) -> Rule:
    return transposed(inputs[0], params["permutation"])


def _broadcast(params: Params, inputs: Sequence[Shape], outputs: Sequence[Shape], dtype: str) -> Rule:
    if not inputs:
        return created(outputs)
    return broadcast(inputs[0], outputs[0], params["broadcast_dimensions"])


def _aligned(params: Params, inputs: Sequence[Shape], outputs: Sequence[Shape], dtype: str) -> Rule:
    return aligned(inputs, outputs)


def _along(params: Params, inputs: Sequence[Shape], outputs: Sequence[Shape], dtype: str) -> Rule:
    return aligned(inputs, outputs, (params["axis"],))


def _concatenate(params: Params, inputs: Sequence[Shape], outputs: Sequence[Shape], dtype: str) -> Rule:
    return aligned(inputs, outputs, (params["dimension"],))


def _stack(params: Params, inputs: Sequence[Shape], outputs: Sequence[Shape], dtype: str) -> Rule:
    return stacked(inputs, outputs[0], params["axis"])


def _unstack(params: Params, inputs: Sequence[Shape], outputs: Sequence[Shape], dtype: str) -> Rule:
    rule = stacked(outputs, inputs[0], params["axis"])
    return rule._replace(reads=rule.writes, writes=rule.reads)


def _reversed(params: Params, inputs: Sequence[Shape], outputs: Sequence[Shape], dtype: str) -> Rule:
    return aligned(inputs, outputs, params["dimensions"])


def _last(params: Params, inputs: Sequence[Shape], outputs: Sequence[Shape], dtype: str) -> Rule:
    rank = len(inputs[0])
    return aligned(inputs, outputs, (rank - 1,))


def _matrices(params: Params, inputs: Sequence[Shape], outputs: Sequence[Shape], dtype: str) -> Rule:
    """Dims before the matrices side by side; what is in a matrix stays whole."""
    loops = Loops()
    batch = tuple(loops.new(n) for n in max(inputs, key=len)[:-2])

    def dims(shape: Shape) -> Dims:
        return (*batch, *(loops.new(n, False) for n in shape[len(batch) :]))

    return loops.rule("loop", [dims(s) for s in inputs], [dims(s) for s in outputs])


def _transformed(params: Params, inputs: Sequence[Shape], outputs: Sequence[Shape], dtype: str) -> Rule:
    rank = len(inputs[0])
    return aligned(inputs, outputs, range(rank - len(params["fft_lengths"]), rank))


def _windows(params: Params, inputs: Sequence[Shape], outputs: Sequence[Shape], dtype: str) -> Rule:
    touched = [i for i, n in enumerate(params["window_dimensions"]) if n > 1]
    return aligned(inputs, outputs, touched)


JAX_RULES: Mapping[str, JaxRule] = MappingProxyType(
    {
        **dict.fromkeys(ELEMENTWISE.split(), _elementwise),
        **dict.fromkeys(SAME.split(), _same),
        **dict.fromkeys(REDUCTIONS.split(), _reduction),
        **dict.fromkeys(CREATED.split(), _created),
        **dict.fromkeys(ALONG.split(), _along),
        **dict.fromkeys(MATRICES.split(), _matrices),
        "fft": _transformed,
        "dot_general": _dot,
        "ragged_dot_general": _ragged,
        "scaled_matmul": _scaled,
        "scaled_matmul_wrapper": _scaled,
        "reduce": _folded,
        "conv_general_dilated": _convolution,
        "gather": _gather,
        "scatter": _scatter(adds=False),
        "scatter-add": _scatter(adds=True),
        "scatter-sub": _scatter(adds=True),
        "scatter-mul": _scatter(adds=False),
        "scatter_mul": _scatter(adds=False),
        "scatter-max": _scatter(adds=False),
        "scatter-min": _scatter(adds=False),
        "reshape": _turned_reshape,
        "squeeze": _reshape,
        "expand_dims": _reshape,
        "transpose": _transpose,
        "broadcast_in_dim": _broadcast,
        "slice": _aligned,
        "dynamic_slice": _aligned,
        "dynamic_update_slice": _aligned,
        "pad": _aligned,
        "tile": _aligned,
        "split": _aligned,
        "concatenate": _concatenate,
        "stack": _stack,
        "unstack": _unstack,
        "rev": _reversed,
        "sort": _concatenate,
        "top_k": _last,
        "approx_top_k": _last,
        "lu_pivots_to_permutation": _last,
        "reduce_window": _windows,
        "reduce_window_sum": _windows,
        "reduce_window_max": _windows,
        "reduce_window_min": _windows,
        "select_and_scatter": _windows,
        "select_and_scatter_add": _windows,
        "select_and_gather_add": _windows,
    }
)
"""Rule of every primitive that is known; calls and scans are followed instead (`from_jax`)."""

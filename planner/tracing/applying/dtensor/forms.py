"""Operators in a form that ``DTensor`` takes.

What sums or compares along a dim is several: so that a dim that is split is summed over its axes. As one operator,
``DTensor`` would gather what is split before it runs.

Source of the arithmetic: the documentation of ``torch.softmax``, ``torch.nn.functional.layer_norm``,
``group_norm`` and ``batch_norm``.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate

from planner.tracing.applying.dtensor.moves import dense


def _summed(x: Any) -> Any:
    """Whole where it is in parts, so that each of its readers does not add them up by itself."""
    if not isinstance(x, DTensor):
        return x
    return x.redistribute(placements=[Replicate() if p.is_partial() else p for p in x.placements])


def _widened(x: Tensor) -> Tensor:
    """At least fp32, in which norms and sums are made."""
    return x if x.dtype == torch.float64 else x.float()


def _softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    x = _widened(x) if half_to_float else x
    powers = (x - x.amax(dim, keepdim=True)).exp()
    return powers / powers.sum(dim, keepdim=True)


def _log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    x = _widened(x) if half_to_float else x
    x = x - x.amax(dim, keepdim=True)
    return x - x.exp().sum(dim, keepdim=True).log()


def _softmax_backward(of: Tensor, made: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    both = of * made
    return (both - made * both.sum(dim, keepdim=True)).to(dtype)


def _log_softmax_backward(of: Tensor, made: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    return (of - made.exp() * of.sum(dim, keepdim=True)).to(dtype)


def _moments(x: Tensor, dims: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Means, and variances without correction."""
    mean = _summed(x.mean(dims, keepdim=True))
    return mean, _summed((x - mean).square().mean(dims, keepdim=True))


def _layer_norm(x: Tensor, shape: Sequence[int], weight: Any, bias: Any, eps: float) -> Sequence[Tensor]:
    dims = [*range(x.ndim - len(shape), x.ndim)]
    mean, variance = _moments(_widened(x), dims)
    inverse = (variance + eps).rsqrt()
    made = (x - mean) * inverse
    made = made if weight is None else made * weight
    made = made if bias is None else made + bias
    return made.to(x.dtype), mean, inverse


def _normed(x: Tensor, mean: Any, variance: Any, weight: Any, bias: Any, eps: float) -> Sequence[Tensor]:
    """Of channels, and the inverse deviations."""
    channels = (1, -1, *(1 for _ in x.shape[2:]))
    inverse = (variance + eps).rsqrt()
    made = (_widened(x) - mean.reshape(channels)) * inverse.reshape(channels)
    made = made if weight is None else made * weight.reshape(channels)
    made = made if bias is None else made + bias.reshape(channels)
    return made.to(x.dtype), inverse


def _settled_batch_norm(
    x: Tensor, weight: Any, bias: Any, means: Any, variances: Any, momentum: float, eps: float
) -> Sequence[Tensor]:
    made, _ = _normed(x, means, variances, weight, bias, eps)
    return made, x.new_empty(0), x.new_empty(0)


def _group_norm(target: Any) -> Callable[..., Any]:
    """By the images and channels that there are, not by the sizes that are written in it."""

    def run(
        x: Any, weight: Any, bias: Any, count: int, channels: int, size: int, groups: int, eps: float
    ) -> Any:
        here = groups * x.shape[1] // channels
        return target(dense(x), weight, bias, x.shape[0], x.shape[1], size, here, eps)

    return run


def _split_group_norm(
    x: Tensor, weight: Any, bias: Any, count: int, channels: int, size: int, groups: int, eps: float
) -> Sequence[Tensor]:
    apart = dense(_widened(x)).unflatten(1, (groups, channels // groups))
    mean, variance = _moments(apart, [*range(2, apart.ndim)])
    inverse = (variance + eps).rsqrt()
    made, shape = ((apart - mean) * inverse).flatten(1, 2), (1, -1, *(1 for _ in x.shape[2:]))
    made = made if weight is None else made * weight.reshape(shape)
    made = made if bias is None else made + bias.reshape(shape)
    return made.to(x.dtype), mean.flatten(1), inverse.flatten(1)


def _batch_norm(
    x: Tensor,
    weight: Any,
    bias: Any,
    means: Any,
    variances: Any,
    training: bool,
    momentum: float,
    eps: float,
) -> Sequence[Tensor]:
    dims = [d for d in range(x.ndim) if d != 1]
    count = x.numel() // x.shape[1]
    mean, variance = _moments(_widened(x), dims)
    made, inverse = _normed(x, mean, variance, weight, bias, eps)
    flat, spread = mean.reshape(-1), variance.reshape(-1) * (count / max(1, count - 1))
    return (
        made,
        flat,
        inverse.reshape(-1),
        (1 - momentum) * means + momentum * flat,
        (1 - momentum) * variances + momentum * spread,
    )


SUMS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "_softmax": _softmax,
        "_log_softmax": _log_softmax,
        "_softmax_backward_data": _softmax_backward,
        "_log_softmax_backward_data": _log_softmax_backward,
        "native_group_norm": _split_group_norm,
        "native_layer_norm": _layer_norm,
        "_native_batch_norm_legit_functional": _batch_norm,
    }
)
"""What sums along a dim, by the operator's name; arguments are the operator's own."""


def _view(target: Any) -> Callable[..., Any]:
    """Of what has no gaps: what is cut out or exchanged has other strides than the whole."""
    return lambda x, *how: target(dense(x), *how)


def _over_all(target: Any) -> Callable[..., Any]:
    """An empty list stands for all dims: PyTorch 2.13's ``DTensor`` takes it for none."""

    def run(x: Any, *dims: Any, **how: Any) -> Any:
        return target(x, *([*range(x.ndim)] if given == [] else given for given in dims), **how)

    return run


def _copy(target: Any) -> Callable[..., Any]:
    return lambda to, values, *_: values.to(to.dtype).expand(to.shape)


def _scaled_product(target: Any) -> Callable[..., Any]:
    """Of narrow numbers: kernels take the second operand column after column."""
    return lambda left, right, *more, **how: target(dense(left), dense(right.t()).t(), *more, **how)


FORMS: Mapping[str, Callable[[Any], Callable[..., Any]]] = MappingProxyType(
    {
        "_unsafe_view": _view,
        "view": _view,
        "sum": _over_all,
        "mean": _over_all,
        "copy": _copy,
        "native_group_norm": _group_norm,
        "_scaled_mm": _scaled_product,
        "_native_batch_norm_legit_no_training": lambda _: _settled_batch_norm,
    }
)
"""Other forms of operators, by their names."""


def form_of(target: Any, kind: str, split: bool) -> Callable[..., Any]:
    """An operator, by its name; what it sums along may be ``split``."""
    if split and kind in SUMS:
        return SUMS[kind]
    return FORMS[kind](target) if kind in FORMS else target

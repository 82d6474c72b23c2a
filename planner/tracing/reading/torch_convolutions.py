"""Convolutions of a traced module, and their gradients, as loops."""

from collections.abc import Sequence

from planner.tracing.factors import Rule, Shape, reduction
from planner.tracing.reading.products import Convolution, convolution, halos_of, reach, reach_back
from planner.tracing.reading.torch_calls import Call


def convolved(left: Shape, right: Shape, result: Shape, call: Call) -> Rule:
    """A convolution, with the arguments of ``call``."""
    return convolution(left, right, result, _how(call, len(left)))


def gradients(call: Call) -> list[tuple[Rule, list[int]]]:
    """Of the input, the filter and the bias: their loops, and which operands they read.

    These are the gradient of what was made, the input, and the filter: the same loops, read and written otherwise.
    """
    gradient, image, window = call.inputs[:3]
    how = _how(call, len(image))
    forward = convolution(image, window, gradient, how)
    (left, right), (result,) = forward.reads, forward.writes
    back, again = halos_of(forward, window, how, reach_back, 0), halos_of(forward, window, how, reach, 1)
    return [
        (forward._replace(reads=(result, right), writes=(left,), halos=back), [0, 2]),
        (forward._replace(reads=(result, left), writes=(right,), halos=again), [0, 1]),
        (reduction(gradient, [a for a in range(len(gradient)) if a != 1], call.dtype), [0]),
    ]


def along_image(given: Sequence[int], images: int) -> list[int]:
    """A stride or a padding along each dim of an image, where one may stand for all."""
    return list(given) if len(given) == images else list(given) * images


def _how(call: Call, rank: int) -> Convolution:
    """A transposed one has the input's channels first in its filter."""
    dilation, flipped, groups = (call.arguments[name] for name in ("dilation", "transposed", "groups"))
    strides, padding = (along_image(call.arguments[name], rank - 2) for name in ("stride", "padding"))
    filters = (1, 0, *range(2, rank)) if flipped else range(rank)
    plain = not flipped and all(d == 1 for d in dilation)
    return Convolution(range(rank), filters, range(rank), strides, padding, plain, groups, flipped=flipped)

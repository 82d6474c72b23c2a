"""Convolutions of a traced module, and their gradients, as loops."""

from collections.abc import Sequence

from planner.tracing.factors import Rule, Shape, reduction
from planner.tracing.program import Halo
from planner.tracing.reading.products import Convolution, convolution, halo_width, reach_back
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
    again = tuple(halo.model_copy(update={"operand": 1}) for halo in forward.halos)
    back = _borders(forward, window, how)
    return [
        (forward._replace(reads=(result, right), writes=(left,), halos=back), [0, 2]),
        (forward._replace(reads=(result, left), writes=(right,), halos=again), [0, 1]),
        (reduction(gradient, [a for a in range(len(gradient)) if a != 1], call.dtype), [0]),
    ]


def along_image(given: Sequence[int], images: int) -> list[int]:
    """A stride or a padding along each dim of an image, where one may stand for all."""
    return list(given) if len(given) == images else list(given) * images


def _borders(forward: Rule, window: Shape, how: Convolution) -> tuple[Halo, ...]:
    """What neighbours exchange of the gradient of what was made."""
    found, ((image, _), (made,)) = list[Halo](), (forward.reads, forward.writes)
    for dim in range(len(window) - 2):
        way = how.along(dim)
        elements = halo_width(*reach_back(way.reaches(window[dim + 2]), way.stride, way.padding))
        parts = [f for f in made[dim + 2] if f in image[dim + 2]]
        found += [Halo(factor=f, operand=0, elements=elements) for f in parts if elements]
    return tuple(found)


def _how(call: Call, rank: int) -> Convolution:
    """A transposed one has the input's channels first in its filter."""
    flipped, groups = call.arguments["transposed"], call.arguments["groups"]
    strides, padding, dilation = (
        along_image(call.arguments[n], rank - 2) for n in ("stride", "padding", "dilation")
    )
    filters = (1, 0, *range(2, rank)) if flipped else range(rank)
    once = [1] * (rank - 2)
    return Convolution(
        range(rank), filters, range(rank), strides, padding, once, dilation, groups, flipped=flipped
    )

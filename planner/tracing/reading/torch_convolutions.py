"""Convolutions of a traced module, and their gradients: loops, and what neighbours exchange of an image in parts."""

from collections.abc import Callable, Sequence

from planner.tracing.factors import Rule, Shape, reduction
from planner.tracing.program import Halo
from planner.tracing.reading.products import Convolution, convolution
from planner.tracing.reading.torch_calls import Call

Reach = Callable[[int, int, int], tuple[int, int]]
"""Width of a window, stride and padding -> elements needed before and after a part."""


def reach(width: int, stride: int, padding: int) -> tuple[int, int]:
    """Elements of the image that windows of one part need before and after it; below zero: of its own that none does.

    A part has as many elements as its windows' strides take.
    """
    return padding, width - stride - padding


def reach_back(width: int, stride: int, padding: int) -> tuple[int, int]:
    """Elements of what was made that the gradient of a part of the image needs before and after its own."""
    return max(0, (width - 1 - padding) // stride), -(-padding // stride)


def convolved(left: Shape, right: Shape, result: Shape, call: Call) -> Rule:
    """A convolution, with the arguments of ``call``.

    A transposed one has the input's channels first in its filter.
    """
    dilation, flipped, groups = (call.arguments[name] for name in ("dilation", "transposed", "groups"))
    order = range(len(left))
    filters = (1, 0, *order[2:]) if flipped else order
    steps = steps_of(call.arguments["stride"], call.arguments["padding"], len(left) - 2)
    plain = not flipped and all(d == 1 for d in dilation)
    how = Convolution(order, filters, order, [step for step, _ in steps], plain, groups, flipped=flipped)
    rule = convolution(left, right, result, how)
    return rule._replace(halos=_borders(rule, right, steps, reach, 0))


def gradients(call: Call) -> list[tuple[Rule, list[int]]]:
    """Of the input, the filter and the bias: their loops, and which operands they read.

    These are the gradient of what was made, the input, and the filter: the same loops, read and written otherwise.
    """
    gradient, image, window = call.inputs[:3]
    forward = convolved(image, window, gradient, call)
    (left, right), (result,) = forward.reads, forward.writes
    steps = steps_of(call.arguments["stride"], call.arguments["padding"], len(image) - 2)
    back, again = _borders(forward, window, steps, reach_back, 0), _borders(forward, window, steps, reach, 1)
    return [
        (forward._replace(reads=(result, right), writes=(left,), halos=back), [0, 2]),
        (forward._replace(reads=(result, left), writes=(right,), halos=again), [0, 1]),
        (reduction(gradient, [a for a in range(len(gradient)) if a != 1], call.dtype), [0]),
    ]


def steps_of(stride: Sequence[int], padding: Sequence[int], images: int) -> list[tuple[int, int]]:
    """Stride and padding along each dim of an image."""
    each = (list(x) if len(x) == images else list(x) * images for x in (stride, padding))
    return [*zip(*each, strict=True)]


def _borders(
    rule: Rule, window: Shape, steps: Sequence[tuple[int, int]], reaching: Reach, operand: int
) -> tuple[Halo, ...]:
    """What neighbours exchange of an operand of a convolution, the loops of whose forward are ``rule``."""
    found = []
    for i, (stride, padding) in enumerate(steps, start=2):
        elements = sum(max(0, side) for side in reaching(window[i], stride, padding))
        split = [f for f in rule.writes[0][i] if f in rule.reads[0][i]]
        found += [Halo(factor=f, operand=operand, elements=elements) for f in split if elements]
    return tuple(found)

"""Matrix products and convolutions as loops."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from planner.tracing.factors import Loops, Rule, Shape
from planner.tracing.program import Dims, Halo


def product(
    left: Shape,
    right: Shape,
    contracting: tuple[Sequence[int], Sequence[int]],
    batch: tuple[Sequence[int], Sequence[int]],
) -> Rule:
    """A product over any dims: batch dims first in the result, then the free dims of the left and the right."""
    loops = Loops()
    first: list[tuple[int, ...]] = [() for _ in left]
    second: list[tuple[int, ...]] = [() for _ in right]
    for pairs in (batch, contracting):
        for i, j in zip(*pairs, strict=True):
            first[i] = second[j] = loops.new(left[i])
    free_left = [i for i in range(len(left)) if i not in (*contracting[0], *batch[0])]
    free_right = [j for j in range(len(right)) if j not in (*contracting[1], *batch[1])]
    for i in free_left:
        first[i] = loops.new(left[i])
    for j in free_right:
        second[j] = loops.new(right[j])
    result = (*(first[i] for i in batch[0]), *(first[i] for i in free_left), *(second[j] for j in free_right))
    return loops.rule("product", (tuple(first), tuple(second)), (result,))


def grouped_product(
    left: Shape, right: Shape, groups: int, result: Shape, contracting: Sequence[int] = (1, 1)
) -> Rule | None:
    """Rows that lie by group (tokens by expert), a matrix for each group; None where that is another product.

    ``[rows, depth] x [groups, depth, columns] -> [rows, columns]``, or, for the gradient of the matrices,
    ``[rows, depth] x [rows, columns] -> [groups, depth, columns]``; ``contracting`` says which dims are the depth.
    Groups are taken to have equally many rows for their arithmetic. How many they have is known only when it runs, so
    rows are split wherever they lie, with the matrices of all groups: those of one device may be of any group.
    """
    if len(left) != 2 or left[0] % groups or len(right) + len(result) != 5:
        return None
    loops = Loops()
    group = loops.new(groups)
    rows = (*loops.new(left[0] // groups), *group)
    depth, columns = loops.new(left[1]), loops.new(result[-1])
    matrices = (group, depth, columns) if contracting[1] < 2 else (group, columns, depth)
    pair = (matrices, (rows, columns)) if len(right) == 3 else ((rows, columns), matrices)
    return loops.rule("product", ((rows, depth), pair[0], (group,)), (pair[1],))


class Convolution(NamedTuple):
    """Which dims are what, and how windows lie: as ``lax.conv_general_dilated`` names them."""

    left: Sequence[int]
    """Dims of the input: batch, channels, then the image."""
    right: Sequence[int]
    """Dims of the filter: output channels, input channels, then the window."""
    result: Sequence[int]
    """Dims of the output: batch, channels, then the image."""
    strides: Sequence[int]
    padding: Sequence[int]
    """Before the image, along each of its dims."""
    plain: bool = True
    """Neither input nor filter is dilated."""
    groups: int = 1
    batch_groups: int = 1
    flipped: bool = False
    """The filter's groups are in its input channels, else in its output channels."""


def convolution(left: Shape, right: Shape, result: Shape, how: Convolution) -> Rule:
    """Channels are contracted, groups are a batch, images are split with an exchange of their borders.

    A gradient's window is as large as an image; it is not split.
    """
    loops = Loops()
    reads_left: list[tuple[int, ...]] = [() for _ in left]
    reads_right: list[tuple[int, ...]] = [() for _ in right]
    writes: list[tuple[int, ...]] = [() for _ in result]
    group, batch_group = loops.new(how.groups), loops.new(how.batch_groups)
    batch = loops.new(left[how.left[0]] // how.batch_groups)
    inner = loops.new(left[how.left[1]] // how.groups)
    outer = loops.new(result[how.result[1]] // how.groups // how.batch_groups)
    groups_of_inner, groups_of_outer = (group, ()) if how.flipped else ((), group)
    reads_left[how.left[0]] = (*batch_group, *batch)
    reads_left[how.left[1]] = (*group, *inner)
    reads_right[how.right[0]] = (*groups_of_outer, *batch_group, *outer)
    reads_right[how.right[1]] = (*groups_of_inner, *inner)
    writes[how.result[0]] = batch
    writes[how.result[1]] = (*group, *batch_group, *outer)
    implied = dict[int, tuple[int, ...]]()
    for i, j, k, stride in zip(how.left[2:], how.right[2:], how.result[2:], how.strides, strict=True):
        along = _along(loops, (left[i], right[j], result[k]), stride, how.plain)
        reads_left[i], reads_right[j], writes[k] = along.image, along.window, along.made
        implied |= along.implied
    rule = loops.rule("product", (_dims(reads_left), _dims(reads_right)), (_dims(writes),))
    return rule._replace(halos=halos_of(rule, right, how, reach, 0), implied=implied)


Reach = Callable[[int, int, int], tuple[int, int]]
"""Width of a window, stride and padding -> elements needed before and after a part."""


def reach(width: int, stride: int, padding: int) -> tuple[int, int]:
    """Elements of the image that windows of one part need before and after it; below zero: of its own that none does.

    A part has as many elements as its windows' strides take. XLA's partitioner exchanges the same.
    """
    return padding, width - stride - padding


def reach_back(width: int, stride: int, padding: int) -> tuple[int, int]:
    """Elements of what was made that the gradient of a part of the image needs before and after its own."""
    return max(0, (width - 1 - padding) // stride), -(-padding // stride)


def halos_of(
    forward: Rule, window: Shape, how: Convolution, reaching: Reach, operand: int
) -> tuple[Halo, ...]:
    """What neighbours exchange of an operand of a convolution, or of a gradient of it, by the loops of the first."""
    found = []
    (image, _), (made,) = forward.reads, forward.writes
    for i, j, k, stride, padding in zip(
        how.left[2:], how.right[2:], how.result[2:], how.strides, how.padding, strict=True
    ):
        elements = sum(max(0, side) for side in reaching(window[j], stride, padding))
        split = [f for f in made[k] if f in image[i]]
        found += [Halo(factor=f, operand=operand, elements=elements) for f in split if elements]
    return tuple(found)


class _Along(NamedTuple):
    """Loops over one dim of the image, of the window and of what is made."""

    image: tuple[int, ...]
    window: tuple[int, ...]
    made: tuple[int, ...]
    implied: Mapping[int, tuple[int, ...]] = {}


def _along(loops: Loops, sizes: tuple[int, int, int], stride: int, plain: bool) -> _Along:
    """Of the places on an image, in the window and in what is made any two say the third.

    The larger image's are left out, zeros between and around the elements of the smaller one are not multiplied; or
    the window's if it is larger still, as in the gradient of a transposed convolution's filter.
    """
    size, width, steps = sizes
    window = loops.new(width, False)
    if plain and width == stride and size == steps * stride:  # patches
        made = loops.new(steps)
        return _Along((*made, *window), window, made)
    if plain and steps > 1 and size == steps * stride and width <= steps:
        made, between = loops.new(steps), loops.new(stride, False)
        return _Along((*made, *between), window, made, dict.fromkeys(between, made))
    image, made = loops.new(size, False), loops.new(steps, False)
    few, many = (image, made) if size <= steps else (made, image)
    if not plain and width > max(size, steps):
        return _Along(image, window, made, dict.fromkeys(window, (*few, *many)))
    return _Along(image, window, made, dict.fromkeys(many, few))


def _dims(dims: Sequence[tuple[int, ...]]) -> Dims:
    return tuple(dims)

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
    input_dilation: Sequence[int]
    """From one element of the input to the next, along each dim of the image: zeros lie in between."""
    filter_dilation: Sequence[int]
    """The same of the filter."""
    groups: int = 1
    batch_groups: int = 1
    flipped: bool = False
    """As the gradient of another that has this stride: the filter's groups are in its input channels then, else in its
    output channels."""

    def along(self, dim: int) -> "Sliding":
        """How windows lie along a dim of the image."""
        dilations = self.input_dilation[dim], self.filter_dilation[dim]
        return Sliding(self.strides[dim], self.padding[dim], *dilations, self.flipped)


class Sliding(NamedTuple):
    """How windows lie along one dim of an image."""

    stride: int
    padding: int
    input_dilation: int
    filter_dilation: int
    flipped: bool = False

    @property
    def plain(self) -> bool:
        """Neither input nor filter is dilated."""
        return self.forward and self.filter_dilation == 1

    @property
    def forward(self) -> bool:
        """Whether each window meets elements of the image that are next to one another."""
        return self.input_dilation == 1 and not self.flipped

    @property
    def backward(self) -> bool:
        """Whether it is as the gradient of an image by a convolution of a stride, which its spread is."""
        return self.input_dilation > 1 and self.stride == self.filter_dilation == 1 and not self.flipped

    def reaches(self, width: int) -> int:
        """Elements from the first to the last of a window."""
        return (width - 1) * self.filter_dilation + 1

    def halo(self, width: int) -> int:
        """What a part of the image needs of its neighbours."""
        return halo_width(*reach(self.reaches(width), self.stride, self.padding))

    def halo_back(self, width: int) -> int:
        """The same of a gradient."""
        return halo_width(*reach_back(width, self.input_dilation, width - 1 - self.padding))


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
    halos = list[Halo]()
    for dim, i, j, k in zip(
        range(len(how.strides)), how.left[2:], how.right[2:], how.result[2:], strict=True
    ):
        along = _along(loops, (left[i], right[j], result[k]), how.along(dim))
        reads_left[i], reads_right[j], writes[k] = along.image, along.window, along.made
        implied |= along.implied
        halos += [Halo(factor=f, operand=0, elements=along.halo) for f in along.parts if along.halo]
    rule = loops.rule("product", (_dims(reads_left), _dims(reads_right)), (_dims(writes),))
    return rule._replace(halos=tuple(halos), implied=implied)


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


def halo_width(before: int, after: int) -> int:
    """Elements that a part lacks of its neighbours."""
    return max(0, before) + max(0, after)


class _Along(NamedTuple):
    """Loops over one dim of the image, of the window and of what is made."""

    image: tuple[int, ...]
    window: tuple[int, ...]
    made: tuple[int, ...]
    implied: Mapping[int, tuple[int, ...]] = {}
    parts: tuple[int, ...] = ()
    """The loop over parts of the image and of what is made, and what each part lacks of its neighbours."""
    halo: int = 0


def _along(loops: Loops, sizes: tuple[int, int, int], how: Sliding) -> _Along:
    """Of the places on an image, in the window and in what is made any two say the third.

    The larger image's are left out, zeros between and around the elements of the smaller one are not multiplied; or
    the window's if it is larger still, as in the gradient of a transposed convolution's filter.
    """
    size, width, steps = sizes
    window = loops.new(width, False)
    if how.plain and width == how.stride and size == steps * how.stride:  # patches
        made = loops.new(steps)
        return _Along((*made, *window), window, made, parts=made, halo=how.halo(width))
    if how.forward and steps > 1 and size == steps * how.stride and how.reaches(width) <= steps:
        made, between = loops.new(steps), loops.new(how.stride, False)
        implied = dict.fromkeys(between, made)
        return _Along((*made, *between), window, made, implied, made, how.halo(width))
    if how.backward and size > 1 and steps == size * how.input_dilation and width <= size:
        parts, between = loops.new(size), loops.new(how.input_dilation, False)
        implied = dict.fromkeys(between, parts)
        return _Along(parts, window, (*parts, *between), implied, parts, how.halo_back(width))
    image, made = loops.new(size, False), loops.new(steps, False)
    few, many = (image, made) if size <= steps else (made, image)
    if not how.plain and width > max(size, steps):
        return _Along(image, window, made, dict.fromkeys(window, (*few, *many)))
    return _Along(image, window, made, dict.fromkeys(many, few))


def _dims(dims: Sequence[tuple[int, ...]]) -> Dims:
    return tuple(dims)

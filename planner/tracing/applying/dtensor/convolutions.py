"""Convolutions, each device of the images and channels that it has.

Of images that lie in parts neighbours exchange halos: the borders that windows reach over. The gradient of the image
needs those of the gradient of what was made, that of the filter those of the image, as the forward does; it is a sum
over the parts.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from planner.tracing.applying.dtensor.arrays import Array
from planner.tracing.applying.dtensor.pieces import Alone
from planner.tracing.reading.products import Reach, reach, reach_back
from planner.tracing.reading.torch_convolutions import along_image

aten = torch.ops.aten


class Arguments(NamedTuple):
    """Those of a convolution after its filter and bias."""

    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    transposed: bool
    output_padding: Sequence[int]
    groups: int

    def here(self, channels: int, all_channels: int, padding: Sequence[int]) -> "Arguments":
        """On a device that has some of the image's channels, and so of the groups."""
        groups = 1 if self.groups == 1 else self.groups * channels // all_channels
        return self._replace(groups=groups, padding=padding)


class Halo(NamedTuple):
    """Along a dim that lies in parts."""

    dim: int
    axes: tuple[str, ...]
    size: int
    """Of all parts together."""
    width: int
    """From the first to the last element that a window meets."""
    stride: int
    padding: int
    before: int
    """Elements of neighbours that a part needs."""
    after: int
    """As many below zero are its own that it does not."""
    alike: bool
    """Whether the array is the same all along it: neighbours have nothing else, and nothing was priced."""


@dataclass
class Halos:
    """What one operator exchanges of one operand."""

    runner: Any
    padding: list[int]
    """Along each dim of the image, where no halo stands in for it."""
    each: tuple[Halo, ...] = ()
    alone: Alone = "yes"
    """``no`` where a part would need more than its neighbours have: then all is computed alike."""

    def places(self) -> list[Any]:
        """Positions along each dim in parts, which tell a device whether it has a neighbour."""
        return [self.runner.positions(halo.size, halo.axes) for halo in self.each]

    def with_neighbours(self, local: Any, places: Sequence[Any]) -> Any:
        """A part with what it needs of its neighbours, and zeros where it has none."""
        for halo, place in zip(self.each, places, strict=True):
            before, after = self._borders(local, halo)
            kept = local.narrow(halo.dim, 0, local.shape[halo.dim] + min(0, halo.after))
            first, last = place[0] == 0, place[-1] == halo.size - 1
            found = [torch.where(first, 0, before)] if halo.before else []
            found.append(kept)
            found += [torch.where(last, 0, after)] if halo.after > 0 else []
            local = torch.cat(found, halo.dim)
        return local

    def _borders(self, local: Any, halo: Halo) -> tuple[Any, Any]:
        """What the neighbours of a part have next to it."""
        after = max(0, halo.after)
        if halo.alike:
            return local.narrow(halo.dim, 0, halo.before), local.narrow(halo.dim, 0, after)
        borders: tuple[Any, Any] = self.runner.moves.borders(local, halo.dim, halo.before, after, halo.axes)
        return borders

    def image_of(self, shape: Sequence[int]) -> list[int]:
        """Of an image, of which a device has ``shape``, all that windows of what has its halo read."""
        found = list(shape)
        for halo in self.each:
            made = shape[halo.dim] // halo.stride + halo.before + max(0, halo.after)
            found[halo.dim] = (made - 1) * halo.stride + halo.width
        return found

    def own(self, gradient: Any, shape: Sequence[int]) -> Any:
        """A device's part of the gradient of such an image; nothing is read beyond its end."""
        for halo in self.each:
            start, count = halo.before * halo.stride + halo.padding, shape[halo.dim]
            missing = start + count - gradient.shape[halo.dim]
            if missing > 0:
                more = list(gradient.shape)
                more[halo.dim] = missing
                gradient = torch.cat([gradient, gradient.new_zeros(more)], halo.dim)
            gradient = gradient.narrow(halo.dim, start, count)
        return gradient


def _halos(
    runner: Any, title: str, operand: int, array: Array, window: Array, how: Arguments, reaching: Reach
) -> Halos:
    """Of an operand of an operator, an ``array``."""
    images, site = array.ndim - 2, runner.site(title)
    strides, padding, apart = (along_image(x, images) for x in (how.stride, how.padding, how.dilation))
    if site is None:
        return Halos(runner, padding)
    found, left = list[Halo](), list(padding)
    exchanged = {h.factor for h in site.operation.halos}
    for i, axes in enumerate(site.lies(site.reads[operand])[2:]):
        if not axes:
            continue
        size, width = array.shape[i + 2], (window.shape[i + 2] - 1) * apart[i] + 1
        before, after = reaching(width, strides[i], padding[i])
        if max(before, after) > size // math.prod(runner.sharded.mesh[a] for a in axes):
            return Halos(runner, padding, alone="no")
        alike = site.reads[operand][i + 2][0] not in exchanged
        found.append(Halo(i + 2, axes, size, width, strides[i], padding[i], before, after, alike))
        left[i] = 0
    return Halos(runner, left, tuple(found))


def forward(runner: Any, title: str, node: Any, given: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """A convolution, and the sum with its bias."""
    image, window, bias, *rest = given
    name, how = title if bias is None else f"{title}.product", Arguments(*rest)
    halos = _halos(runner, name, 0, image, window, how, reach)

    def product(left: Any, right: Any, *places: Any) -> Any:
        here = how.here(left.shape[1], image.shape[1], halos.padding)
        return aten.convolution(halos.with_neighbours(left, places), right, None, *here)

    made = runner.run(name, product, [image, window, *halos.places()], halos.alone)
    if bias is None:
        return made
    shape = (-1, *(1 for _ in made.shape[2:]))
    return runner.run(title, lambda x, more: x + more.reshape(shape), [made, bias])


def backward(runner: Any, title: str, node: Any, given: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Gradients of the input, the filter and the bias, each by itself."""
    gradient, image, window, sizes, *rest, wanted = given
    how, names = Arguments(*rest), [f"{title}:{k}" for k in range(3)]
    back = _halos(runner, names[0], 0, gradient, window, how, reach_back)
    again = _halos(runner, names[1], 1, image, window, how, reach)

    def part(place: int, left: Any, right: Any, of: Any, padding: Sequence[int]) -> Any:
        mask = [k == place for k in range(3)]
        here = how.here(left.shape[1], image.shape[1], padding)
        return aten.convolution_backward(of, left, right, sizes, *here, mask)[place]

    def shape(place: int, array: Array, halos: Halos) -> tuple[int, ...]:
        """What a device makes: all of it where it has all there is."""
        parts = halos.alone == "yes" and runner.site(names[place]) is not None
        return runner.shapes_here(names[place])[0] if parts else array.shape

    def of_image(of: Any, right: Any, *places: Any) -> Any:
        own, of = shape(0, image, back), back.with_neighbours(of, places)
        made = part(0, of.new_empty(1).expand(back.image_of(own)), right, of, back.padding)
        return back.own(made, own)

    def of_window(of: Any, left: Any, *places: Any) -> Any:
        like = of.new_empty(1).expand(shape(1, window, again))
        return part(1, again.with_neighbours(left, places), like, of, again.padding)

    others = [d for d in range(gradient.ndim) if d != 1]
    parts: tuple[tuple[Any, list[Any], Alone], ...] = (
        (of_image, [gradient, window, *back.places()], back.alone),
        (of_window, [gradient, image, *again.places()], again.alone),
        (lambda of: of.sum(others), [gradient], "perhaps"),
    )
    return [
        runner.run(name, *part) if needed else None
        for name, part, needed in zip(names, parts, wanted, strict=True)
    ]


CONVOLUTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {"convolution": forward, "convolution_backward": backward}
)
"""By what operators are called in a program."""

"""Convolutions of images that lie in parts: neighbours exchange the borders that windows reach over, then each its own.

The gradient of the image needs borders of the gradient of what was made, that of the filter those of the image, as the
forward does; it is a sum over the parts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from planner.tracing.applying.sites import Site
from planner.tracing.reading.torch_convolutions import Reach, reach, reach_back, steps_of

aten = torch.ops.aten


class Side(NamedTuple):
    """A dim of an image that lies in parts."""

    dim: int
    axes: tuple[str, ...]
    size: int
    """Of all parts together, of what is extended."""
    width: int
    """Of the window."""
    stride: int
    padding: int
    before: int
    """Elements of neighbours that a part needs."""
    after: int
    """As many below zero are its own that it does not."""


class Call(NamedTuple):
    """The arguments of a convolution after its filter and bias."""

    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    transposed: bool
    output_padding: Sequence[int]
    groups: int

    def without_padding(self, sides: Sequence[Side]) -> "Call":
        """The same where what is padded stands in for borders."""
        steps = steps_of(self.stride, self.padding, max(len(self.stride), len(self.padding)))
        padding = [p for _, p in steps]
        for side in sides:
            padding[side.dim - 2] = 0
        return self._replace(padding=padding)


@dataclass
class Windows:
    """What one operator of a convolution exchanges."""

    runner: Any
    sides: tuple[Side, ...]

    def places(self) -> list[Any]:
        """Positions along each dim in parts, which tell a device whether it has a neighbour."""
        return [self.runner.positions(side.size, side.axes) for side in self.sides]

    def extended(self, local: Any, places: Sequence[Any]) -> Any:
        """A part with the borders of its neighbours, and zeros where it has none."""
        for side, place in zip(self.sides, places, strict=True):
            before, after = self.runner.moves.borders(
                local, side.dim, side.before, max(0, side.after), side.axes
            )
            kept = local.narrow(side.dim, 0, local.shape[side.dim] + min(0, side.after))
            first, last = place[0] == 0, place[-1] == side.size - 1
            found = [torch.where(first, torch.zeros_like(before), before)] if side.before else []
            found.append(kept)
            found += [torch.where(last, torch.zeros_like(after), after)] if side.after > 0 else []
            local = torch.cat(found, side.dim)
        return local

    def image_of(self, shape: Sequence[int]) -> list[int]:
        """Of the image, of which a device has ``shape``, all that windows of what is extended read."""
        found = list(shape)
        for side in self.sides:
            made = shape[side.dim] // side.stride + side.before + max(0, side.after)
            found[side.dim] = (made - 1) * side.stride + side.width
        return found

    def own(self, gradient: Any, shape: Sequence[int]) -> Any:
        """A device's part of the gradient of such an image; nothing is read beyond its end."""
        for side in self.sides:
            start, count = side.before * side.stride + side.padding, shape[side.dim]
            missing = start + count - gradient.shape[side.dim]
            if missing > 0:
                more = list(gradient.shape)
                more[side.dim] = missing
                gradient = torch.cat([gradient, gradient.new_zeros(more)], side.dim)
            gradient = gradient.narrow(side.dim, start, count)
        return gradient


def windows_of(runner: Any, site: Site | None, operand: int, window: Any, call: Call) -> Windows | None:
    """What neighbours exchange of an operand; None where a border is more than a neighbour has."""
    return _windows(runner, site, operand, window, call, reach)


def windows_back(runner: Any, site: Site | None, window: Any, call: Call) -> Windows | None:
    """The same of the gradient of what was made, for that of the image."""
    return _windows(runner, site, 0, window, call, reach_back)


def _windows(
    runner: Any, site: Site | None, operand: int, window: Any, call: Call, reaching: Reach
) -> Windows | None:
    if site is None:
        return Windows(runner, ())
    sides, sizes = list[Side](), site.operation.sizes
    steps = steps_of(call.stride, call.padding, len(window.shape) - 2)
    lies = site.lies(site.reads[operand])
    for dim, (stride, padding) in enumerate(steps, start=2):
        if not lies[dim]:
            continue
        count = 1
        for factor in site.reads[operand][dim]:
            count *= sizes[factor]
        part = count
        for axis in lies[dim]:
            part //= runner.sharded.mesh[axis]
        before, after = reaching(window.shape[dim], stride, padding)
        if max(before, after) > part:
            return None
        sides.append(Side(dim, lies[dim], count, window.shape[dim], stride, padding, before, after))
    return Windows(runner, tuple(sides))

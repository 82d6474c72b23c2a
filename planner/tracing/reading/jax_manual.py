"""Bodies of ``shard_map``: operators on what each device holds, as operators on all of it.

What lies in parts over mesh axes has a dim more for each of them, which that axis splits, and nothing else splits
(`Operation.manual`): a product of local blocks is a batch of products. What enters or leaves is read by its specs;
a sum over an axis is a reduction of that dim, and what is gathered, scattered or exchanged over it changes its place.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from planner.errors import Unsupported
from planner.tracing.factors import Loops, Rule, Shape, elementwise
from planner.tracing.program import Dims, Halo, Kind, Reduction, elements

Axes = tuple[str, ...]


class Manual(NamedTuple):
    """Mesh axes that a ``shard_map`` names itself."""

    sizes: Mapping[str, int]
    """Those of a ``shard_map`` around it too."""
    checked: bool
    """Whether types say over which axes an array varies; else all do over all."""
    new: frozenset[str]
    """Axes that are its own."""

    def varying(self, aval: Any) -> Axes:
        """Axes over which the devices' parts of an array differ, in the mesh's order."""
        if not self.checked:
            return tuple(self.sizes)
        kind = getattr(aval, "manual_axis_type", None)
        found = aval.vma if kind is None else kind.varying
        return tuple(a for a in self.sizes if a in found)

    def lead(self, axes: Axes) -> Shape:
        """The dims that stand for axes."""
        return tuple(self.sizes[a] for a in axes)


class Laid(NamedTuple):
    """An operator on all devices' parts."""

    rule: Rule
    axes: tuple[Axes, ...]
    """Per output, those over which it varies."""
    splits: Mapping[str, int]
    """Axis -> factor."""


class Devices:
    """Loops of an operator, those over mesh axes first."""

    def __init__(self, manual: Manual, axes: Sequence[str]) -> None:
        self.loops = Loops()
        self.of = {a: self.loops.new(manual.sizes[a]) for a in manual.sizes if a in axes}

    def lead(self, axes: Axes) -> Dims:
        """The dims of an array that stand for axes."""
        return tuple(self.of[a] for a in axes)

    @property
    def splits(self) -> dict[str, int]:
        """What each axis splits."""
        return {a: f[0] for a, f in self.of.items() if f}


def manual_of(equation: Any, around: Manual | None = None) -> Manual:
    """The axes of a ``shard_map``, and those of the one ``around`` it."""
    params = equation.params
    named = params.get("newly_manual_axes", params.get("manual_axes"))
    mesh, outer = dict(params["mesh"].shape), {} if around is None else around.sizes
    new = frozenset(a for a in mesh if a not in outer and (named is None or a in named))
    sizes = {a: n for a, n in mesh.items() if a in new or a in outer}
    return Manual(sizes, bool(params.get("check_vma", True)), new)


def boundary(manual: Manual, spec: Any, shape: Shape, axes: Axes, enters: bool, around: Axes = ()) -> Laid:
    """What comes in or goes out by its spec; ``shape`` of one device's part, which varies over ``axes``.

    Out there it varies over the axes ``around``, of another ``shard_map``.

    Raises ``Unsupported`` for a spec that names one of these once more.
    """
    named = [() if n is None else (n,) if isinstance(n, str) else tuple(n) for n in spec]
    if twice := [a for names in named for a in names if a not in manual.new]:
        raise Unsupported(
            f"a shard_map splits by the axis {twice[0]}, which the one around it names: JAX writes that itself "
            "for derivatives, and cannot compile it; pass check_vma=False to both, or name all axes in one"
        )
    named += [()] * (len(shape) - len(named))
    mentioned = {*around, *(a for names in named for a in names)}
    devices = Devices(manual, (*axes, *mentioned))
    local = [devices.loops.new(n) for n in shape]
    parts = (
        (*(f for a in names for f in devices.of[a]), *dim) for names, dim in zip(named, local, strict=True)
    )
    outside, inside = (*devices.lead(around), *parts), (*devices.lead(axes), *local)
    # Of copies that are alike, one leaves.
    kind: Kind = "view" if enters or mentioned >= set(axes) else "loop"
    rule = devices.loops.rule(kind, (outside,) if enters else (inside,), (inside,) if enters else (outside,))
    return Laid(rule, (axes if enters else around,), devices.splits)


def spread(manual: Manual, shape: Shape, have: Axes, want: Axes) -> Laid:
    """The same on every device of more axes."""
    devices = Devices(manual, want)
    local = [devices.loops.new(n) for n in shape]
    rule = devices.loops.rule("view", ((*devices.lead(have), *local),), ((*devices.lead(want), *local),))
    return Laid(rule, (want,), devices.splits)


def on_all(manual: Manual, rule: Rule, given: Sequence[Axes]) -> Laid:
    """An operator that each device runs on its own parts."""
    axes = tuple(a for a in manual.sizes if any(a in of for of in given))
    devices = Devices(manual, axes)
    shift = len(devices.loops.sizes)

    def moved(dims: Dims) -> Dims:
        return tuple(tuple(f + shift for f in dim) for dim in dims)

    reductions = [
        r.model_copy(
            update={
                "dims": (*range(shift), *(f + shift for f in r.dims)),
                "over": tuple(f + shift for f in r.over),
            }
        )
        for r in rule.reductions
    ]
    lifted = rule._replace(
        sizes=(*devices.loops.sizes, *rule.sizes),
        reads=tuple((*devices.lead(of), *moved(r)) for of, r in zip(given, rule.reads, strict=True)),
        writes=tuple((*devices.lead(axes), *moved(w)) for w in rule.writes),
        whole=tuple(f + shift for f in rule.whole),
        reductions=tuple(reductions),
        implied={f + shift: tuple(g + shift for g in by) for f, by in rule.implied.items()},
        halos=(),  # no axis splits an image here
    )
    return Laid(lifted, (axes,) * len(rule.writes), devices.splits)


class Call(NamedTuple):
    """A collective, as it is called."""

    manual: Manual
    params: Mapping[str, Any]
    shapes: Sequence[Shape]
    given: Sequence[Axes]
    dtype: str

    @property
    def over(self) -> Axes:
        """Its axes; of groups of devices, those along which each group lies."""
        named = self.params.get("axes", self.params.get("axis_name"))
        axes = (named,) if isinstance(named, str) else tuple(named)
        groups = self.params.get("axis_index_groups")
        return axes if groups is None else _along(axes, self.manual.lead(axes), groups)

    def devices(self) -> Devices:
        """Loops over all axes."""
        return Devices(self.manual, (*self.over, *(a for of in self.given for a in of)))


def _along(axes: Axes, sizes: Shape, groups: Sequence[Sequence[int]]) -> Axes:
    """Those of the ``axes`` whose devices are a group each, in order, wherever the others stand.

    Raises ``Unsupported`` where there are none such.
    """
    places = np.arange(math.prod(sizes)).reshape(sizes)
    wanted = sorted(map(tuple, groups))
    for count in range(len(axes) + 1):
        for found in itertools.combinations(range(len(axes)), count):
            rest = [i for i in range(len(axes)) if i not in found]
            rows = places.transpose(*rest, *found).reshape(-1, math.prod(sizes[i] for i in found))
            if sorted(map(tuple, rows.tolist())) == wanted:
                return tuple(axes[i] for i in found)
    raise Unsupported(
        "a collective over some devices of an axis (axis_index_groups) has no rule; "
        "give the shard_map a mesh in which each group is an axis of its own, and name that axis"
    )


def _reduced(call: Call) -> Laid:
    """A sum, or maximum: in each device's order, then over devices."""
    devices, reads, writes, outs, found = call.devices(), [], [], [], []
    for shape, axes in zip(call.shapes, call.given, strict=True):
        local = [devices.loops.new(n) for n in shape]
        left = tuple(a for a in axes if a not in call.over)
        reads.append((*devices.lead(axes), *local))
        writes.append((*devices.lead(left), *local))
        outs.append(left)
        over = tuple(f for a in axes if a in call.over for f in devices.of[a])
        dims = tuple(f for dim in writes[-1] for f in dim)
        found.append(Reduction(dims=dims, over=over, dtype=call.dtype))
    rule = devices.loops.rule("loop", reads, writes)._replace(reductions=tuple(found))
    return Laid(rule, tuple(outs), devices.splits)


def _gathered(call: Call) -> Laid:
    """Parts side by side, on every device: wanted whole."""
    (shape,), (axes,) = call.shapes, call.given
    devices, at = call.devices(), call.params["all_gather_dimension"]
    local: list[tuple[int, ...]] = [devices.loops.new(n) for n in shape]
    parts = tuple(f for a in call.over for f in devices.of[a])
    made = list(local)
    if call.params["tiled"]:
        made[at] = (*parts, *local[at])
    else:
        made.insert(at, parts)
    left = tuple(a for a in axes if a not in call.over)
    rule = devices.loops.rule("loop", ((*devices.lead(axes), *local),), ((*devices.lead(left), *made),))
    splits = {a: f for a, f in devices.splits.items() if a in left}
    return Laid(rule._replace(whole=parts), (left,), splits)


def _cut(call: Call, devices: Devices, at: int) -> tuple[dict[str, tuple[int, ...]], list[tuple[int, ...]]]:
    """Loops over the local dims, of which one is cut into a part for each device: axis -> its parts, and all dims."""
    shape = call.shapes[0]
    parts = {a: devices.loops.new(call.manual.sizes[a]) for a in call.over}
    count = elements(call.manual.sizes[a] for a in call.over)
    local: list[tuple[int, ...]] = [
        devices.loops.new(n // count if i == at else n) for i, n in enumerate(shape)
    ]
    return parts, local


def _scattered(call: Call) -> Laid:
    """A sum of which each device gets a part."""
    (axes,), at = call.given, call.params["scatter_dimension"]
    devices = call.devices()
    parts, local = _cut(call, devices, at)
    read = list(local)
    read[at] = (*(f for a in call.over for f in parts[a]), *local[at])
    made = local if call.params["tiled"] else [*local[:at], *local[at + 1 :]]
    lead = tuple(parts.get(a, devices.of[a]) for a in axes)
    rule = devices.loops.rule("accumulate", ((*devices.lead(axes), *read),), ((*lead, *made),))
    return Laid(rule, (axes,), devices.splits)


def _exchanged(call: Call) -> Laid:
    """A part of one dim from every device, for a part of another."""
    (axes,), at, to = call.given, call.params["split_axis"], call.params["concat_axis"]
    devices = call.devices()
    parts, local = _cut(call, devices, at)
    read, made = list(local), list(local)
    read[at] = (*(f for a in call.over for f in parts[a]), *local[at])
    arrived = tuple(f for a in call.over for f in devices.of[a])
    if call.params["tiled"]:
        made[to] = (*arrived, *made[to])
    else:
        made.pop(at)
        made.insert(to, arrived)
    lead = tuple(parts.get(a, devices.of[a]) for a in axes)
    rule = devices.loops.rule("loop", ((*devices.lead(axes), *read),), ((*lead, *made),))
    splits = {a: parts.get(a, devices.of[a])[0] for a in devices.splits}
    return Laid(rule._replace(whole=arrived), (axes,), splits)


def _passed_on(call: Call) -> Laid:
    """What a device holds, to another one."""
    if len(call.over) != 1:
        raise Unsupported(f"ppermute over the axes {', '.join(call.over)} together has no rule; one has")
    laid = on_all(call.manual, elementwise(call.shapes, call.shapes), call.given)
    whole = tuple(laid.splits[a] for a in call.over if a in laid.splits)
    halos = tuple(Halo(factor=f, operand=0, elements=1) for f in whole)
    return laid._replace(rule=laid.rule._replace(halos=halos, whole=whole))


def _numbered(call: Call) -> Laid:
    """The place of each device."""
    devices = call.devices()
    return Laid(devices.loops.rule("loop", (), (devices.lead(call.over),)), (call.over,), devices.splits)


COLLECTIVES: Mapping[str, Callable[[Call], Laid]] = MappingProxyType(
    {
        **dict.fromkeys(("psum", "psum2", "psum_invariant", "pmax", "pmin"), _reduced),
        **dict.fromkeys(("all_gather", "all_gather_invariant"), _gathered),
        "reduce_scatter": _scattered,
        "all_to_all": _exchanged,
        "ppermute": _passed_on,
        "axis_index": _numbered,
    }
)
"""Primitive -> what it is on all devices' parts."""

LAID_BEFORE = frozenset({"all_gather", "all_gather_invariant", "all_to_all"})
"""Collectives that bring what lies in parts elsewhere: no plan may have it there already."""

LAID_AFTER = frozenset({"reduce_scatter"})
"""Those whose sums end where they are named."""

"""How a ``DTensor`` goes from one layout to another: the collectives that were priced, in their order.

``DTensor`` itself takes axes one by one, and gathers in between what then does not fit. Here parts are added up first,
then what is to be cut is cut, blocks change places where an outer axis comes or goes, axes that go from one dim to
another go together, and gathers come last (`planner.tracing.layouts.steps`).
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed._functional_collectives as funcol
from torch.distributed._local_tensor import local_tensor_mode
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from planner.tracing.layouts import Partition
from planner.tracing.reading.torch_calls import leaves


def placements(partition: Partition, axes: Sequence[str]) -> list[Any]:
    """Of an array that lies so on a mesh with ``axes``."""
    dims = {axis: dim for dim, named in enumerate(partition) for axis in named}
    return [Shard(dims[axis]) if axis in dims else Replicate() for axis in axes]


class Moves:
    """Moves on a mesh: its groups of axes are made once."""

    def __init__(self, mesh: Any) -> None:
        self.mesh, self.axes = mesh, tuple(mesh.mesh_dim_names)
        self.sizes = dict(zip(self.axes, mesh.shape, strict=True))
        self.groups = {
            axes: mesh[axes[0]] if count == 1 else mesh[axes]._flatten()
            for count in range(1, len(self.axes) + 1)
            for axes in itertools.combinations(self.axes, count)
        }

    def moved(self, array: Any, partition: Partition, waits: Sequence[str] = ()) -> Any:
        """``array`` as it is to lie; along the axes that wait, parts of a sum stay parts."""
        each = zip(self.axes, array.placements, placements(partition, self.axes), strict=True)
        wanted = [have if axis in waits and have.is_partial() else want for axis, have, want in each]
        if tuple(wanted) == tuple(array.placements):
            return array
        array = _plain(array)
        found = _Blocks(self, array.to_local(), _order(array.placements, self.axes))
        have, want = (dict(zip(self.axes, places, strict=True)) for places in (array.placements, wanted))
        found.add_up(have, want)
        found.settle(_order(wanted, self.axes))
        return _dense(found.local, array, wanted)

    def borders(self, local: Any, dim: int, before: int, after: int, axes: Sequence[str]) -> tuple[Any, Any]:
        """The last elements of the part before a device's, and the first of the one after it, in a circle."""
        mesh, count = self.groups[tuple(axes)], math.prod(self.sizes[a] for a in axes)
        ends = (local.narrow(dim, local.shape[dim] - before, before), local.narrow(dim, 0, after))
        turns = ([(k - 1) % count for k in range(count)], [(k + 1) % count for k in range(count)])
        found = [
            _sent(end.contiguous(), turn, mesh) if end.shape[dim] else end
            for end, turn in zip(ends, turns, strict=True)
        ]
        return found[0], found[1]


def dense(array: Any) -> Any:
    """``array`` without gaps on any device, as a view of it needs: what was cut out or exchanged has some."""
    if not isinstance(array, DTensor):
        return array.contiguous()
    return _dense(array.to_local(), array, array.placements)


def _dense(local: Any, like: Any, places: Sequence[Any]) -> Any:
    whole = torch.empty(like.shape, device="meta")
    layout = {"shape": whole.shape, "stride": whole.stride()}
    return DTensor.from_local(local.contiguous(), like.device_mesh, places, run_check=False, **layout)


def _plain(array: Any) -> Any:
    """``array`` with no parts but of plain sums, means and the like, and no blocks but in their order."""
    plain = [
        place if isinstance(place, Shard | Replicate) or type(place) is Partial else Replicate()
        for place in array.placements
    ]
    return array.redistribute(placements=plain)


def _order(places: Sequence[Any], axes: Sequence[str]) -> dict[int, list[str]]:
    """Dim -> the axes that split it, outermost first."""
    found: dict[int, list[str]] = {}
    for axis, place in zip(axes, places, strict=True):
        if isinstance(place, Shard):
            found.setdefault(place.dim, []).append(axis)
    return found


@dataclass
class _Blocks:
    """What each device has of an array, and in which order the axes split each dim, the outermost first."""

    on: Moves
    local: Any
    order: dict[int, list[str]]

    def _across(self, axes: Sequence[str], have: Any, want: Any) -> None:
        """One collective, or cut, over some axes, which are in the mesh's order."""
        if axes:
            mesh = self.on.groups[tuple(axes)]
            array = DTensor.from_local(self.local.contiguous(), mesh, [have], run_check=False)
            self.local = array.redistribute(placements=[want]).to_local()

    def add_up(self, have: Mapping[str, Any], want: Mapping[str, Any]) -> None:
        """Sums that do not wait, those first that leave each device a block."""
        kinds = {(have[a], want[a]) for a in self.on.axes if have[a].is_partial() and have[a] != want[a]}
        for part, place in sorted(kinds, key=lambda kind: (not kind[1].is_shard(), str(kind))):
            now = [a for a in self.on.axes if (have[a], want[a]) == (part, place)]
            self._across(now, part, place)
            if place.is_shard():
                self.order.setdefault(place.dim, []).extend(now)

    def settle(self, want: Mapping[int, list[str]]) -> None:
        """To the layout in which the axes of each dim are those, in that order."""
        have, to = ({a: d for d, named in order.items() for a in named} for order in (self.order, want))
        self._cut(want)
        left = [(d, to[a]) for a, d in have.items() if a in to and to[a] != d]
        ways = [*dict.fromkeys(left)]
        while ways:
            way = next((w for w in ways if self._innermost(w[0], self._taking(w, have, to))), ways[0])
            ways.remove(way)
            self._leave(way[0], self._taking(way, have, to), way[1])
        at = {a: d for d, named in self.order.items() for a in named}
        gathered = {d: [a for a in self.on.axes if at.get(a) == d and a not in to] for d in self.order}
        inner = all(self._innermost(d, axes) for d, axes in gathered.items())
        self._permute({} if inner else {d: [*want.get(d, ()), *axes] for d, axes in gathered.items()})
        for dim in sorted(gathered, reverse=True):
            self._leave(dim, gathered[dim], None)
        self._cut(want)
        self._permute({d: list(want.get(d, ())) for d in self.order})

    def _cut(self, want: Mapping[int, list[str]]) -> None:
        """Along axes that split nothing yet; not where a dim does not divide before others have left it."""
        have = {a for named in self.order.values() for a in named}
        for dim, named in want.items():
            new = [a for a in named if a not in have]
            if self.local.shape[dim] % math.prod(self.on.sizes[a] for a in new) == 0:
                self._across(new, Replicate(), Shard(dim))
                self.order.setdefault(dim, []).extend(new)

    def _taking(self, way: tuple[int, int], have: Mapping[str, int], to: Mapping[str, int]) -> list[str]:
        return [a for a in self.on.axes if a in have and a in to and (have[a], to[a]) == way]

    def _innermost(self, dim: int, axes: Sequence[str]) -> bool:
        return self.order[dim][len(self.order[dim]) - len(axes) :] == list(axes)

    def _leave(self, dim: int, axes: list[str], target: int | None) -> None:
        """Axes leave a dim, for another or for none: they have to be the inner ones of it."""
        stay = [a for a in self.order[dim] if a not in axes]
        if not self._innermost(dim, axes):
            stay.sort(key=self.on.axes.index)
            self._permute({dim: [*stay, *axes]})
        self._across(axes, Shard(dim), Replicate() if target is None else Shard(target))
        self.order[dim] = stay
        if target is not None:
            self.order.setdefault(target, []).extend(axes)

    def _permute(self, wanted: Mapping[int, list[str]]) -> None:
        """Let devices change blocks, so that the axes of each dim stand in another order."""
        dims = [d for d, named in wanted.items() if named != self.order.get(d, [])]
        axes = [a for a in self.on.axes if any(a in self.order[d] for d in dims)]
        if not dims:
            return
        sizes = self.on.sizes
        places = itertools.product(*(range(sizes[a]) for a in axes))
        devices = [dict(zip(axes, place, strict=True)) for place in places]

        def block(device: Mapping[str, int], order: Mapping[int, list[str]]) -> tuple[int, ...]:
            found = []
            for dim in dims:
                index = 0
                for axis in order[dim]:
                    index = index * sizes[axis] + device[axis]
                found.append(index)
            return tuple(found)

        holder = {block(device, self.order): k for k, device in enumerate(devices)}
        sources = [holder[block(device, wanted)] for device in devices]
        self.order = {**self.order, **wanted}
        self.local = _sent(self.local.contiguous(), sources, self.on.groups[tuple(axes)])


def _sent(local: Any, sources: Sequence[int], mesh: Any) -> Any:
    """What the device that ``sources`` names for each had; devices that one process simulates take it from all."""
    if local_tensor_mode() is None:
        targets = [sources.index(k) for k in range(len(sources))]
        sent = funcol.permute_tensor(local.reshape(-1), targets, mesh)
        return funcol.wait_tensor(sent).reshape(local.shape)
    every = DTensor.from_local(local[None], mesh, [Shard(0)], run_check=False)
    whole = every.redistribute(placements=[Replicate()]).to_local()[list(sources)]
    mine = DTensor.from_local(whole, mesh, [Replicate()], run_check=False)
    return mine.redistribute(placements=[Shard(0)]).to_local()[0]


def in_order(function: Callable[..., Any], operands: Sequence[Any]) -> Any:
    """What ``function`` makes, with each device's part one block: views of others may leave several strided ones."""
    made = function(*operands)
    strided = {k for x in leaves(made) if isinstance(x, DTensor) for k in _strided(x)}
    if not strided:
        return made
    return function(
        *(
            x.redistribute(
                placements=[Replicate() if k in strided else p for k, p in enumerate(x.placements)]
            )
            for x in operands
        )
    )


def _strided(array: Any) -> list[int]:
    """Axes along which it lies in several blocks."""
    kinds = Shard | Replicate | Partial
    return [k for k, p in enumerate(array.placements) if not isinstance(p, kinds)]

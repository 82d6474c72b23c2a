"""Views as their readers want them: what they show moves, once for all that read either, as priced."""

from typing import Any

from torch.distributed.tensor import DTensor, Replicate, Shard

from planner.tracing.applying.dtensor.arrays import Array
from planner.tracing.applying.views import View, order_of, split_of, through
from planner.tracing.layouts import Partition


def shown(runner: Any, array: Array, partition: Partition, reader: str, waits: bool) -> Any:
    """A view, for a reader that wants it so: of what it shows, or of what that shows, as far as that may lie so."""
    assert array.seen is not None
    for view in through(array.seen, lambda source: source.seen):
        behind = view.behind(partition, runner.sharded.mesh, repeats=True)
        if behind is not None:
            source = runner.lying(view.source, behind, reader, waits)
            if view.equation is None:
                return _ordered(view, source, partition)
            return runner.as_they_lie(view.equation, [source])
    return runner.somewhere(array)


def _ordered(view: View, source: Any, partition: Partition) -> Any:
    """What each device has of ``source``, as ``view`` shows it; that is cut later along what it repeats."""
    mesh, there = source.device_mesh, {f for dim in view.loops.reads[0] for f in dim}
    split = {a: f for a, f in split_of(view.loops.writes[0], partition).items() if f in there}
    sizes = list(view.loops.sizes)
    for axis, factor in split.items():
        sizes[factor] //= mesh[axis].size()
    order = order_of(view.loops, sizes)
    local = source.to_local().reshape(order.apart).permute(order.turned)
    for place in order.new:
        local = local.unsqueeze(place)
    local = local.expand(order.repeated).reshape(order.joined)
    dims = {axis: dim for dim, axes in enumerate(partition) for axis in axes if axis in split}
    places = [
        Shard(dims[axis]) if axis in dims else have if have.is_partial() else Replicate()
        for axis, have in zip(mesh.mesh_dim_names, source.placements, strict=True)
    ]
    return DTensor.from_local(local, mesh, places, run_check=False)

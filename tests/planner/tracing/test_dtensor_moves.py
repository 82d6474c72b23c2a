"""Moves of ``DTensor``s between layouts: where every block ends, and the collectives that take it there."""

import itertools
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.distributed._local_tensor import LocalTensorMode  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import DTensor, Partial, Replicate, distribute_tensor  # noqa: E402

from cluster_specs.catalog import load_cluster  # noqa: E402
from planner.tracing.applying.dtensor.moves import Moves, placements  # noqa: E402
from planner.tracing.layouts import Layout, NamedMesh, Partition, moves  # noqa: E402
from planner.verification.programs.torch_sharded import Recorder, followed_on_meta, world  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

TWO, THREE = ("a", "b"), ("a", "b", "c")


def layouts(axes: tuple[str, ...], dims: int) -> list[Layout]:
    return list(itertools.product(range(-1, dims), repeat=len(axes)))


def partition(layout: Layout, axes: tuple[str, ...], dims: int) -> Partition:
    each = zip(axes, layout, strict=True)
    split = [(axis, dim) for axis, dim in each if dim >= 0]
    return tuple(tuple(axis for axis, at in split if at == dim) for dim in range(dims))


@contextmanager
def mesh_of(axes: tuple[str, ...], device: str) -> Iterator[Any]:
    with world(dict.fromkeys(axes, 2)):
        yield init_device_mesh(device, (2,) * len(axes), mesh_dim_names=axes)


def placed(mesh: Any, tensor: Any, place: Partition) -> Any:
    return distribute_tensor(tensor, mesh, placements(place, mesh.mesh_dim_names), src_data_rank=None)


def test_every_move_of_two_dims_takes_the_collectives_that_are_priced() -> None:
    """``DTensor``'s own way gathers in between where an outer axis comes, or two axes go together."""
    cluster, unlike = NamedMesh(load_cluster("dgx-h100:1"), dict.fromkeys(TWO, 2)), []
    every = list(itertools.product(layouts(TWO, 2), repeat=2))
    with mesh_of(TWO, "meta") as mesh, followed_on_meta():
        moving, array = Moves(mesh), torch.empty(8, 8, device="meta")
        for source, target in every:
            begun = placed(mesh, array, partition(source, TWO, 2))
            with Recorder(str) as recorder:
                moving.moved(begun, partition(target, TWO, 2))
            found, priced = Counter[str](), Counter[str]()
            for use in recorder.found:
                found[use["collective"]] += use["full_bytes"]
            for move in moves(cluster, 4 * 64.0, source, target):
                priced[move.collective] += int(move.full_bytes)
            if found != priced:
                unlike.append((source, target))
    assert len(every) == 81
    assert unlike == []


@pytest.mark.parametrize(("axes", "step"), [(TWO, 1), (THREE, 7)])
def test_blocks_end_where_the_layout_has_them(axes: tuple[str, ...], step: int) -> None:
    whole = torch.arange(64.0).reshape(8, 8)
    with mesh_of(axes, "meta"), LocalTensorMode(2 ** len(axes)):
        mesh = init_device_mesh("cpu", (2,) * len(axes), mesh_dim_names=axes)
        moving = Moves(mesh)
        for source, target in itertools.islice(itertools.product(layouts(axes, 2), repeat=2), 0, None, step):
            goal = placed(mesh, whole, partition(target, axes, 2))
            found = moving.moved(placed(mesh, whole, partition(source, axes, 2)), partition(target, axes, 2))
            assert found.placements == goal.placements
            for rank in range(2 ** len(axes)):
                assert torch.equal(_block(found, rank), _block(goal, rank)), (source, target, rank)


def _block(array: Any, rank: int) -> Any:
    """What a device has, or all have alike."""
    local = array.to_local()
    return local._local_tensors[rank] if hasattr(local, "_local_tensors") else local


@pytest.mark.parametrize("waits", [(), ("b",)])
def test_parts_are_added_up_unless_they_wait(waits: tuple[str, ...]) -> None:
    """Those that leave each device a block come first; a sum that ends within another axis changes places."""
    with mesh_of(TWO, "meta"), LocalTensorMode(4):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=TWO)
        ones = torch.ones(8, 8)  # of each device
        begun = DTensor.from_local(ones, mesh, [Partial(), Partial()], run_check=False)
        found = Moves(mesh).moved(begun, (("a",), ()), waits)
        assert found.placements[1] == (Partial() if waits else Replicate())
        total = found.full_tensor().reconcile()
    assert torch.equal(total, 4 * torch.ones(8, 8))

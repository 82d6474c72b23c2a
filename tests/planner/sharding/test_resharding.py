"""The collectives of a resharding, carried out on numpy arrays, give what they promise."""

import itertools
from collections.abc import Mapping

import numpy as np
import pytest
from numpy_mesh import NumpyMesh

from cluster_specs.cluster import ClusterSpec
from planner.graph import Graph, Tensor
from planner.sharding.mesh import Mesh
from planner.sharding.resharding import moves
from planner.sharding.spec import ShardingSpec, Sizes

DIMS = {"seq": 8, "hidden": 16, "ffn": 4}
TENSOR = Tensor(name="x", dims=tuple(DIMS))
TRANSITIONS = list(itertools.product((None, "seq", "hidden", "+"), (None, "seq", "hidden")))
"""(source, target) of one axis; an operator never asks for a pending sum."""


def spec_of(by_axis: Mapping[str, str | None]) -> ShardingSpec:
    shards = tuple((a, d) for a, d in by_axis.items() if d not in (None, "+"))
    return ShardingSpec(shards, tuple(a for a, d in by_axis.items() if d == "+"))


def check_moves(cluster: ClusterSpec, degrees: dict[str, int], transitions: dict[str, tuple]) -> None:
    """Slice where nothing is sent, apply the listed collectives, compare with the target, count the bytes."""
    source = {axis: pair[0] for axis, pair in transitions.items()}
    target = {axis: pair[1] for axis, pair in transitions.items()}
    graph = Graph(name="tiny", dims=DIMS, blocks=(), layers=())
    sizes = Sizes(graph, Mesh(cluster, degrees), batch=1)
    mesh, rng = NumpyMesh(degrees, TENSOR.dims), np.random.default_rng(0)
    whole = rng.integers(-9, 9, tuple(DIMS.values()))
    held = mesh.lay_out(whole, spec_of(source), rng)
    for axis, (before, after) in transitions.items():
        if before is None and after is not None:
            held = {rank: mesh.piece(array, after, axis, rank) for rank, array in held.items()}
    for move in moves(sizes, TENSOR, spec_of(source), spec_of(target), whole.itemsize):
        sent = next(iter(held.values())).nbytes
        for axis in move.axes:
            held = mesh.collective(move.collective, held, axis, *transitions[axis])
        received = next(iter(held.values())).nbytes
        assert move.full_bytes == (received if move.collective == "all_gather" else sent)
    wanted = mesh.lay_out(whole, spec_of(target), rng)
    assert all(np.array_equal(held[rank], wanted[rank]) for rank in wanted)


@pytest.mark.parametrize("degree", [2, 4])
@pytest.mark.parametrize("transition", TRANSITIONS, ids=str)
def test_every_transition_of_one_axis(cluster: ClusterSpec, transition: tuple, degree: int) -> None:
    check_moves(cluster, {"tensor": degree}, {"tensor": transition})


@pytest.mark.parametrize("tensor", TRANSITIONS, ids=str)
def test_every_transition_beside_one_of_another_axis(cluster: ClusterSpec, tensor: tuple) -> None:
    """The data axis has a dim of its own; the bytes of each axis follow what the other has done."""
    for data in itertools.product((None, "ffn", "+"), (None, "ffn")):
        check_moves(cluster, {"tensor": 2, "data": 2}, {"tensor": tensor, "data": data})


@pytest.mark.parametrize(("before", "collective"), [("+", "reduce_scatter"), ("hidden", "all_to_all")])
def test_gathers_come_last(cluster: ClusterSpec, before: str, collective: str) -> None:
    """So that what else is sent is as small as it can be."""
    source, target = {"tensor": before, "data": "ffn"}, {"tensor": "seq", "data": None}
    graph = Graph(name="tiny", dims=DIMS, blocks=(), layers=())
    sizes = Sizes(graph, Mesh(cluster, {"tensor": 2, "data": 2}), batch=1)
    held = graph.elements(TENSOR) / (2 if before == "+" else 4)
    found = moves(sizes, TENSOR, spec_of(source), spec_of(target), 1.0)
    assert found == ((collective, ("tensor",), held), ("all_gather", ("data",), graph.elements(TENSOR) / 2))


def test_nothing_moves_between_equal_specs(cluster: ClusterSpec) -> None:
    graph = Graph(name="tiny", dims=DIMS, blocks=(), layers=())
    sizes = Sizes(graph, Mesh(cluster, {"tensor": 4}), batch=1)
    spec = ShardingSpec((("tensor", "hidden"),))
    assert moves(sizes, TENSOR, spec, spec, 2.0) == ()

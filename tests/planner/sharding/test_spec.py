"""Specs hold for the arrays that they describe, and shares of tensors add up to the tensors."""

import math

import numpy as np
import pytest
from numpy_mesh import NumpyMesh, Shards

from cluster_specs.catalog import load_cluster
from cluster_specs.cluster import ClusterSpec
from planner.graph import Block, Graph, Op, Run, Tensor
from planner.models.catalog import build_graph, list_models, load_model, sequence_length
from planner.sharding.layouts import named_layout
from planner.sharding.mesh import Mesh
from planner.sharding.spec import (
    ShardingSpec,
    Sizes,
    Strategy,
    gradient_of_input,
    gradient_of_output,
    has_dim,
    input_spec,
    output_spec,
)
from planner.sharding.strategies import strategies

DIMS = {"seq": 4, "hidden": 8, "ffn": 4}
PRODUCT = Block(
    name="product",
    tensors=(
        Tensor(name="x", dims=("seq", "hidden")),
        Tensor(name="w", dims=("ffn", "hidden"), role="weight"),
        Tensor(name="y", dims=("seq", "ffn")),
    ),
    ops=(Op(name="multiply", kind="matmul", inputs=("x",), outputs=("y",), weights=("w",)),),
    inputs=("x",),
    outputs=("y",),
)
GRAPH = Graph(name="product", dims=DIMS, blocks=(PRODUCT,), layers=(Run(block="product", count=1),))
DEGREES = {"tensor": 2, "data": 2}


def product_strategies() -> list[Strategy]:
    sizes = Sizes(GRAPH, Mesh(load_cluster("dgx-h100:1"), DEGREES), batch=1)
    return list(strategies(PRODUCT.ops[0], PRODUCT, sizes, "free"))


def summed(mesh: NumpyMesh, held: Shards, axes: tuple[str, ...]) -> Shards:
    for axis in axes:
        held = mesh.collective("all_reduce", held, axis, None, None)
    return held


@pytest.mark.parametrize("strategy", product_strategies(), ids=str)
def test_a_product_leaves_what_its_specs_say(strategy: Strategy) -> None:
    """Forward and both gradients of ``y = x w'``, computed rank by rank on what each strategy gives it."""
    rng, mesh = np.random.default_rng(1), NumpyMesh(DEGREES)
    tensors = PRODUCT.tensor
    x, w, gy = (rng.integers(-9, 9, tuple(DIMS[d] for d in tensors[name].dims)) for name in "xwy")

    def local(name: str, whole: np.ndarray, spec: ShardingSpec) -> Shards:
        return mesh.with_dims(tensors[name].dims).lay_out(whole, spec, rng)

    x_spec, w_spec = (input_spec(GRAPH, tensors[name], strategy) for name in "xw")
    y_spec = output_spec(GRAPH, tensors["y"], strategy, frozenset({"hidden"}))
    xs, ws = local("x", x, x_spec), local("w", w, w_spec)
    gys = local("y", gy, gradient_of_output(y_spec))

    ys = summed(mesh, {r: xs[r] @ ws[r].T for r in mesh.ranks()}, y_spec.partial)
    gx_spec = gradient_of_input(GRAPH, tensors["x"], strategy)
    gxs = summed(mesh, {r: gys[r] @ ws[r] for r in mesh.ranks()}, gx_spec.partial)
    sync = tuple(axis for axis, dim in strategy if not has_dim(GRAPH, tensors["w"], dim))
    gws = summed(mesh, {r: gys[r].T @ xs[r] for r in mesh.ranks()}, sync)

    results = (("y", ys, x @ w.T, y_spec), ("x", gxs, gy @ w, gx_spec), ("w", gws, gy.T @ x, w_spec))
    for name, got, whole, spec in results:
        expected = local(name, whole, ShardingSpec(spec.shards))
        assert all(np.array_equal(got[r], expected[r]) for r in mesh.ranks()), name


MESHES = (
    {"tensor": 8},
    {"tensor": 4, "data": 4},
    {"tensor": 2, "context": 2, "expert": 2, "data": 2},
    {"expert": 8},
)


@pytest.fixture(scope="module")
def two_nodes() -> ClusterSpec:
    return load_cluster("dgx-h100:2")


@pytest.mark.parametrize("name", list_models())
def test_shares_of_all_devices_hold_the_whole(name: str, two_nodes: ClusterSpec) -> None:
    """Devices that share a tensor hold it once, to the element where the split is even."""
    model = load_model(name)
    graph = build_graph(model, sequence_length(model) or 256)
    for degrees in MESHES:
        sizes = Sizes(graph, Mesh(two_nodes, degrees), batch=16)
        for block in graph.blocks:
            for op, strategy in ((op, named_layout(block, sizes)[op.name]) for op in block.ops):
                for tensor in (block.tensor[n] for n in (*op.inputs, *op.weights)):
                    spec = input_spec(graph, tensor, strategy)
                    sharers = math.prod(sizes.mesh.size(axis) for axis, _ in spec.shards)
                    whole = tensor.scale * math.prod(map(sizes.full, tensor.dims))
                    held = sharers * sizes.elements(tensor, spec)
                    even = not {"vocab", *graph.follows} & set(tensor.dims)
                    assert held == whole if even else held >= whole

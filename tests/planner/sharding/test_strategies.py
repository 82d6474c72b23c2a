"""Every strategy is legal, both spaces contain the named layout, and the layout is Megatron's."""

import pytest

from cluster_specs.catalog import load_cluster
from cluster_specs.cluster import ClusterSpec
from planner.models.catalog import build_graph, list_models, load_model, sequence_length
from planner.operators import operator_rule
from planner.sharding.layouts import named_layout
from planner.sharding.mesh import Mesh
from planner.sharding.spec import Sizes
from planner.sharding.strategies import Space, strategies

MESHES = (
    {"tensor": 8},
    {"tensor": 4, "data": 4},
    {"tensor": 2, "expert": 4, "data": 2},
    {"context": 4, "data": 4},
)


def sizes_of(name: str, cluster: ClusterSpec, degrees: dict[str, int], batch: int = 16) -> Sizes:
    model = load_model(name)
    return Sizes(build_graph(model, sequence_length(model) or 256), Mesh(cluster, degrees), batch)


@pytest.fixture(scope="module")
def two_nodes() -> ClusterSpec:
    return load_cluster("dgx-h100:2")


@pytest.mark.parametrize("name", list_models())
@pytest.mark.parametrize("degrees", MESHES, ids=str)
def test_strategies_are_legal_and_include_the_named_layout(
    name: str, degrees: dict[str, int], two_nodes: ClusterSpec
) -> None:
    sizes = sizes_of(name, two_nodes, degrees)
    spaces: tuple[Space, ...] = ("roles", "free")
    for block in sizes.graph.blocks:
        layout = named_layout(block, sizes)
        for op in block.ops:
            splittable = operator_rule(op).splittable(op, block, sizes.graph)
            for space in spaces:
                found = strategies(op, block, sizes, space)
                assert layout[op.name] in found
                assert len(set(found)) == len(found)
                for strategy in found:
                    axes = [axis for axis, _ in strategy]
                    assert axes == [a for a in sizes.mesh.axes if a in axes]
                    assert {dim for _, dim in strategy} <= set(splittable)
                    assert sizes.legal(op, strategy)


def test_named_layout_is_megatrons(two_nodes: ClusterSpec, megatron: dict[str, str]) -> None:
    sizes = sizes_of("llama-3.1-70b", two_nodes, {"tensor": 8})
    layout = named_layout(sizes.graph.block["layer"], sizes)
    assert {op: dict(strategy)["tensor"] for op, strategy in layout.items()} == megatron


def test_without_sequence_parallelism_norms_and_residuals_are_replicated(
    two_nodes: ClusterSpec, megatron: dict[str, str]
) -> None:
    sizes = sizes_of("llama-3.1-70b", two_nodes, {"tensor": 8})
    layout = named_layout(sizes.graph.block["layer"], sizes, sequence_parallel=False)
    assert {op: dict(s).get("tensor") for op, s in layout.items()} == {
        op: None if dim == "seq" else dim for op, dim in megatron.items()
    }


def test_normalised_queries_and_keys_stay_split_by_heads(two_nodes: ClusterSpec) -> None:
    """Keys have fewer heads than queries, and are split with them."""
    sizes = sizes_of("qwen3-8b", two_nodes, {"tensor": 8})
    layout = named_layout(sizes.graph.block["layer"], sizes)
    assert layout["q_norm"] == layout["k_norm"] == (("tensor", "heads"),)


def test_expert_axis_spreads_experts_and_shares_the_batch_elsewhere(two_nodes: ClusterSpec) -> None:
    sizes = sizes_of("mixtral-8x7b", two_nodes, {"expert": 8})
    layout = named_layout(sizes.graph.block["layer"], sizes)
    spread = {op for op, strategy in layout.items() if dict(strategy)["expert"] == "experts"}
    assert spread == {"expert_gate_up", "expert_activation", "expert_down"}
    assert all(dict(s)["expert"] == "batch" for op, s in layout.items() if op not in spread)


def test_a_table_that_two_blocks_share_lies_in_one_way(two_nodes: ClusterSpec) -> None:
    splits = {}
    for name in ("llama-3.2-1b", "llama-3.1-8b"):  # tied, and with a head of its own
        sizes = sizes_of(name, two_nodes, {"tensor": 8, "data": 2})
        graph = sizes.graph
        block = graph.block[graph.first or ""]
        lookup = next(op for op in block.ops if op.weights)
        splits[name] = {dict(s).get("tensor") for s in strategies(lookup, block, sizes)}
    assert splits["llama-3.2-1b"] == {"vocab"}
    assert splits["llama-3.1-8b"] > {"vocab"}

"""Hops and transfers of each algorithm: worked by hand, and brute force for the torus."""

import dataclasses
from itertools import permutations, product

import pytest

from cluster_specs.topology import CommGroup, Level
from cost_models import algorithms as by
from cost_models.algorithms import Steps

NODES = CommGroup(32, (Level(8, 400e9, 3.4e-6, "nvlink"), Level(4, 50e9, 14e-6, "infiniband")))
V = 32e9


def test_ring_of_nodes_crosses_the_network_once_per_node() -> None:
    # 31 hops, 3 of them between nodes; eight ports leave a node: 8 x 50 = 400 GB/s.
    assert by.ring(V, NODES) == Steps((28.0, 3.0), pytest.approx(31 / 32 * V / 400e9))


def test_ring_is_as_fast_as_its_narrowest_level() -> None:
    slow = CommGroup(4, (Level(2, 400e9, 1e-6, "nvlink"), Level(2, 50e9, 1e-6, "infiniband")))
    assert by.ring(V, slow).transfer == pytest.approx(3 / 4 * V / 100e9)


def test_wrapped_ring_runs_both_ways() -> None:
    ring = CommGroup(16, (Level(16, 45e9, 1e-6, "ici", 2),))
    assert by.ring(V, ring) == Steps((7.5,), pytest.approx(15 / 16 * V / 90e9))


def test_chain_sends_everything_once() -> None:
    assert by.chain(V, NODES) == Steps((28.0, 3.0), V / 400e9)


def test_double_tree_has_logarithmic_hops_between_nodes() -> None:
    assert by.double_tree(V, NODES) == Steps((14.0, 4.0), 2 * V / 400e9)
    wide = CommGroup(32, (Level(8, 900e9, 1e-6, "nvlink"), Level(4, 50e9, 1e-6, "infiniband")))
    assert by.double_tree(V, wide).transfer == pytest.approx(2 * V / 400e9)
    two = CommGroup(16, (Level(8, 900e9, 1e-6, "nvlink"), Level(2, 50e9, 1e-6, "infiniband")))
    assert by.double_tree(V, two).transfer == pytest.approx(V / 400e9)


@pytest.mark.parametrize(("nodes", "arrays"), [(2, 1), (4, 2), (8, 2), (32, 2)])
def test_busiest_node_of_two_trees_by_counting_edges(nodes: int, arrays: int) -> None:
    """A balanced binary tree in order, and its mirror image, each with half of the array up and down."""
    degree = [0] * nodes
    for child in range(1, nodes):
        bit = child & -child
        parent = (child ^ bit) | (bit << 1)
        parent = parent if parent < nodes else child ^ bit
        for node in (child, parent):
            degree[node] += 1
            degree[nodes - 1 - node] += 1
    assert max(degree) / 2 == arrays
    pairs = CommGroup(2 * nodes, (Level(2, 1e15, 0.0, "nvlink"), Level(nodes, 50e9, 1e-6, "infiniband")))
    assert by.double_tree(V, pairs).transfer == pytest.approx(arrays * V / 100e9)


@pytest.mark.parametrize(("halvings", "kept"), [(-1, 1.0), (0, 1.0), (1, 0.9), (3, 0.7), (5, 0.5), (9, 0.5)])
def test_small_messages_to_every_peer_keep_less_of_a_network(halvings: int, kept: float) -> None:
    """A tenth less for every halving below 8 MB, until half is left; gathers and scatters are spared."""
    network = Level(4, 50e9, 14e-6, "ethernet", exchange_message=8e6, exchange_halving=0.1)
    nodes = CommGroup(32, (Level(8, 400e9, 3.4e-6, "nvlink"), network))
    buffer = 32 * 8e6 / 2**halvings
    assert by.direct_exchange(buffer, nodes).transfer == pytest.approx(24 / 32 * buffer / (50e9 * kept))
    assert by.direct(buffer, nodes).transfer == by.direct(buffer, NODES).transfer


def test_in_switch_sends_the_array_once_and_its_share_once() -> None:
    node = CommGroup(8, (Level(8, 400e9, 1e-6, "nvlink", in_switch_reduction=True),))
    assert by.in_switch(V, node) == Steps((1.0,), pytest.approx(9 / 8 * V / 400e9))
    assert by.in_switch(V, NODES).hops == (1.0, 4.0)


def test_recursive_halving_has_logarithmic_hops() -> None:
    rail = CommGroup(16, (Level(16, 50e9, 1e-6, "infiniband"),))
    assert by.recursive_halving(V, rail) == Steps((4.0,), pytest.approx(15 / 16 * V / 50e9))


def test_spanning_tree_repeats_the_array_every_hop() -> None:
    assert by.spanning_tree(V, NODES) == Steps((3.0, 2.0), pytest.approx(3 * V / 400e9 + 2 * V / 50e9))


def test_direct_messages_leave_over_each_ranks_port() -> None:
    assert by.direct(V, NODES) == Steps((1.0, 1.0), pytest.approx(24 / 32 * V / 50e9))
    assert by.direct_exchange(V, NODES) == by.direct(V, NODES)


@pytest.mark.parametrize(("directions", "load"), [(2, 16 / 8), (1, 16 / 4)])
def test_all_to_all_on_a_ring_by_counting_links(directions: int, load: float) -> None:
    """Every rank sends 1/n to every other by the shortest way; the busiest link decides."""
    size = 16
    links: dict[tuple[int, int], float] = {}
    for source, target in permutations(range(size), 2):
        ahead = (target - source) % size
        if directions == 2:
            ways = [(1, ahead), (-1, size - ahead)]
            short = min(hops for _, hops in ways)
            ways = [way for way in ways if way[1] == short]
        else:
            ways = [(1, target - source)] if target > source else [(-1, source - target)]
        for step, hops in ways:
            for hop in range(hops):
                link = ((source + step * hop) % size, step)
                links[link] = links.get(link, 0.0) + 1 / size / len(ways)
    assert max(links.values()) == pytest.approx(load)
    group = CommGroup(size, (Level(size, 45e9, 1e-6, "ici", directions),))
    assert by.direct_exchange(V, group).transfer == pytest.approx(load * V / 45e9)


def test_square_torus_uses_all_links() -> None:
    cube = CommGroup(64, tuple(Level(4, 90e9, 1e-6, "ici", 2) for _ in range(3)))
    assert by.torus(V, cube) == Steps((1.5,) * 3, pytest.approx(63 / 64 * V / (3 * 180e9)))


@pytest.mark.parametrize("sizes", list(product((2, 4, 16), repeat=2)))
def test_torus_is_never_beaten_by_one_dimension_after_the_other(sizes: tuple[int, int]) -> None:
    group = CommGroup(sizes[0] * sizes[1], tuple(Level(size, 45e9, 1e-6, "ici") for size in sizes))
    first, second = sizes
    one_by_one = [((a - 1) / (a * b) + (b - 1) / b) * V / 45e9 for a, b in ((first, second), (second, first))]
    everything = (1 - 1 / group.size) * V / (2 * 45e9)
    assert everything * (1 - 1e-12) <= by.torus(V, group).transfer <= min(one_by_one) * (1 + 1e-12)


def test_hierarchy_crosses_slices_with_shards_only() -> None:
    slice_levels = (Level(4, 90e9, 1e-6, "ici", 2), Level(4, 90e9, 1e-6, "ici", 2))
    group = CommGroup(32, (*slice_levels, Level(2, 6e9, 50e-6, "dcn")))
    inside = by.torus(V, CommGroup(16, slice_levels))
    assert by.hierarchical(V, group) == Steps(
        (*inside.hops, 1.0), pytest.approx(inside.transfer + 1 / 2 * V / 16 / 6e9)
    )


def test_all_reduce_is_two_passes() -> None:
    assert by.twice(by.ring)(V, NODES) == by.ring(V, NODES).times(2)


@pytest.mark.parametrize(
    "name", ["ring", "recursive_halving", "spanning_tree", "double_tree", "direct_exchange"]
)
def test_neighbours_of_a_ring_keep_clear_of_other_routes_and_an_exchange_takes_all(name: str) -> None:
    free = Level(16, 50e9, 14e-6, "ethernet")
    crossed = dataclasses.replace(free, crossing=0.5)
    steps = getattr(by, name)
    before, after = (steps(1e9, CommGroup(16, (level,))).transfer for level in (free, crossed))
    assert after == pytest.approx(before if name in ("ring", "direct_exchange") else 2 * before)

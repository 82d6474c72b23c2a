"""Protocols: the tuner's constants, read as shares of a level."""

import pytest

from cluster_specs.topology import Level
from cost_models.constants import constants
from cost_models.protocols import LINK_CLASSES, fill, in_switch_constants, protocols


def test_low_latency_costs_bandwidth() -> None:
    by_name = {protocol.name: protocol for protocol in protocols()}
    assert list(by_name) == ["simple", "ll128", "ll"]
    assert by_name["simple"].bandwidth > by_name["ll128"].bandwidth > by_name["ll"].bandwidth


def test_hops_are_the_tuners_microseconds() -> None:
    nvlink, network = Level(8, 1.0, 3.4e-6, "nvlink"), Level(8, 1.0, 14e-6, "infiniband")
    simple, ll128, ll = protocols()
    assert [p.hop_latency(nvlink) for p in (simple, ll128, ll)] == pytest.approx(
        [3.4e-6, 1.9e-6, 0.6e-6], rel=5e-3
    )
    assert [p.hop_latency(network) for p in (simple, ll128, ll)] == pytest.approx(
        [14e-6, 4e-6, 2.7e-6], rel=5e-3
    )


def test_hops_of_trees_are_the_tuners_microseconds() -> None:
    nvlink, network = Level(8, 1.0, 3.4e-6, "nvlink"), Level(8, 1.0, 14e-6, "infiniband")
    assert [p.hop_latency(nvlink, tree=True) for p in protocols()] == pytest.approx(
        [4.0e-6, 1.25e-6, 0.6e-6], rel=5e-3
    )
    assert [p.hop_latency(network, tree=True) for p in protocols()] == pytest.approx(
        [14e-6, 8.5e-6, 5.0e-6], rel=5e-3
    )


def test_rounds_of_a_ring_are_its_buffers() -> None:
    simple, ll128, ll = protocols()
    assert simple.round_bytes == 24 * 4 * 2**22 / 8
    assert ll128.round_bytes == 24 * 640 * 120 * 8 * 15 / 16
    assert ll.round_bytes == 24 * 512 * 8 * 16 / 2
    assert [p.ring_rounds(1.0, 8) for p in protocols()] == [2, 1, 1]
    assert simple.ring_rounds(8 * 10 * simple.round_bytes, 8) == 11


def test_a_pipeline_fills_up_to_its_largest_chunk() -> None:
    network = fill("network")
    assert network.factor(1.0) == network.factor(network.num_bytes) == 1 + network.share
    assert network.factor(10 * network.num_bytes) == pytest.approx(1 + network.share / 10)
    assert network.factor(8 * network.num_bytes, ports=8) == 1 + network.share
    assert fill("switch").factor(64e6) == pytest.approx(1.125)


@pytest.mark.parametrize("protocol", protocols(), ids=lambda protocol: protocol.name)
def test_every_kind_of_link_and_every_size_has_a_share(protocol: object) -> None:
    assert set(LINK_CLASSES.values()) == set(protocol.hop)  # type: ignore[attr-defined]
    assert set(LINK_CLASSES.values()) == set(protocol.tree_hop)  # type: ignore[attr-defined]
    assert len(protocol.tree) == 24  # type: ignore[attr-defined]


def test_tree_share_is_between_its_neighbours() -> None:
    ll = protocols()[2]
    assert ll.tree_share(64) == ll.tree_share(1) == 1.0
    assert ll.tree_share(64 * 2**12) == 0.4
    assert ll.tree_share(64 * 2**11.5) == pytest.approx(0.45)
    assert ll.tree_share(1e12) == 1.0


def test_in_switch_constants() -> None:
    assert in_switch_constants().hops * 3.4e-6 == pytest.approx(25e-6, rel=1e-3)
    assert in_switch_constants().bandwidth == 0.85


@pytest.mark.parametrize("name", ["protocols", "kernels"])
def test_every_constant_has_a_source(name: str) -> None:
    table = constants(name)
    sources = table["sources"]
    for group, facts in table.items():
        for entry in facts if isinstance(facts, list) else [facts]:
            missing = [
                fact
                for fact in entry
                if group != "sources"
                and fact != "name"
                and not {f"{group}.{fact}", f"{group}.*", f"{group}.*.{fact}"} & set(sources)
            ]
            assert missing == []

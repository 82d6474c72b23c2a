"""Collectives: laws for every algorithm and group, nccl-tests' conventions, measured tables."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster_specs.catalog import load_cluster
from cluster_specs.errors import InputError, UnknownName
from cluster_specs.topology import CommGroup, Level, comm_group
from cost_models.collectives import (
    ALGORITHMS,
    COLLECTIVES,
    algorithm_times,
    all_gather,
    all_reduce,
    all_to_all,
    chosen,
    reduce_scatter,
    send,
    wire_bytes,
)

SIZE = st.floats(1, 1e11)


@pytest.mark.parametrize("name", COLLECTIVES)
def test_alone_or_empty_is_free(name: str, group: CommGroup) -> None:
    assert COLLECTIVES[name](1e9, CommGroup(1, ())).seconds == 0.0
    assert COLLECTIVES[name](1e9, CommGroup(1, (Level(1, 1e9, 1e-6, "nvlink"),))).seconds == 0.0
    assert COLLECTIVES[name](0.0, group).seconds == 0.0


@pytest.mark.parametrize("name", COLLECTIVES)
def test_every_collective_runs_on_every_group(name: str, group: CommGroup) -> None:
    time = COLLECTIVES[name](1e9, group)
    assert time.transfer > 0
    assert time.latency > 0


@pytest.mark.parametrize("name", ALGORITHMS)
def test_twice_the_bandwidth_halves_the_transfer(name: str, group: CommGroup) -> None:
    fast = _changed(group, bandwidth=2.0)
    for algorithm, (steps, applies) in ALGORITHMS[name].items():
        if applies(group):
            assert steps(1e9, fast).transfer == pytest.approx(steps(1e9, group).transfer / 2), algorithm
            assert steps(1e9, fast).hops == steps(1e9, group).hops


@pytest.mark.parametrize("name", COLLECTIVES)
def test_faster_links_never_slow_a_collective(name: str, group: CommGroup) -> None:
    time = COLLECTIVES[name](1e8, group).seconds
    assert COLLECTIVES[name](1e8, _changed(group, bandwidth=2.0)).seconds < time
    assert COLLECTIVES[name](1e8, _changed(group, latency=2.0)).seconds > time


@pytest.mark.parametrize("name", COLLECTIVES)
@given(num_bytes=SIZE, more=st.floats(1, 10))
def test_more_bytes_never_take_less(
    name: str, num_bytes: float, more: float, groups: dict[str, CommGroup]
) -> None:
    for group in groups.values():
        time = COLLECTIVES[name](num_bytes, group).seconds
        assert COLLECTIVES[name](num_bytes * more, group).seconds >= time * (1 - 1e-9)


@given(num_bytes=SIZE)
def test_the_choice_is_the_fastest_algorithm(num_bytes: float, groups: dict[str, CommGroup]) -> None:
    for group in groups.values():
        times = algorithm_times("all_reduce", num_bytes, group)
        assert all_reduce(num_bytes, group).seconds == min(time.seconds for time in times.values())
        assert times[chosen("all_reduce", num_bytes, group)] == all_reduce(num_bytes, group)


def test_all_reduce_by_ring_is_reduce_scatter_and_all_gather(group: CommGroup) -> None:
    for algorithm, (steps, applies) in ALGORITHMS["all_gather"].items():
        if applies(group):
            halves = steps(1e9, group), ALGORITHMS["reduce_scatter"][algorithm].steps(1e9, group)
            both = ALGORITHMS["all_reduce"][algorithm].steps(1e9, group)
            assert both.transfer == pytest.approx(sum(half.transfer for half in halves))
            assert both.hops == tuple(2 * hops for hops in halves[0].hops)


def test_large_ring_on_a_node_by_hand(groups: dict[str, CommGroup]) -> None:
    # 8 GB in shares of 1 GB: 19.9 rounds of 24 channels' 2 MiB, and one more for the second slice.
    time = all_gather(8e9, groups["node"])
    assert time.transfer == pytest.approx(7 / 8 * 8e9 / 400e9)
    assert time.latency == pytest.approx(12e-6 + 8.4e-6 + 7 * (1 + 1e9 / (48 * 2**20)) * 3.4e-6)
    assert reduce_scatter(8e9, groups["node"]) == time


def test_small_all_reduce_takes_the_low_latency_protocol_and_a_tree(groups: dict[str, CommGroup]) -> None:
    time = all_reduce(8.0, groups["nodes"])
    assert chosen("all_reduce", 8.0, groups["nodes"]) == "double_tree"
    assert time.latency == pytest.approx(12e-6 + 6.6e-6 + 14 * 0.176 * 3.4e-6 + 4 * 0.357 * 14e-6)


def test_library_choices(groups: dict[str, CommGroup]) -> None:
    assert chosen("all_reduce", 8e9, groups["node"]) == "ring"
    assert chosen("all_reduce", 8e9, groups["switch"]) == "in_switch"
    assert chosen("all_gather", 8e9, groups["switch"]) == "ring"
    assert chosen("all_gather", 8e9, groups["rail"]) == "recursive_halving"
    assert chosen("all_gather", 8e9, groups["torus"]) == "torus"
    assert chosen("all_reduce", 8e9, groups["slices"]) == "hierarchical"
    assert chosen("broadcast", 8.0, groups["dcn"]) == "spanning_tree"
    assert chosen("broadcast", 8e9, groups["dcn"]) == "chain"
    assert chosen("all_gather", 8e9, CommGroup(1, ())) == "none"


def test_switch_reduction_matches_its_measured_gain(groups: dict[str, CommGroup]) -> None:
    """The scaling book measured about 1.3 times the ring's rate in place of the ideal 2."""
    ring = algorithm_times("all_reduce", 16e9, groups["switch"])["ring"].seconds
    assert 1.25 < ring / all_reduce(16e9, groups["switch"]).seconds < 1.4


def test_send_is_one_hop_over_the_outermost_level(groups: dict[str, CommGroup]) -> None:
    assert send(5e9, groups["nodes"]) == pytest.approx((14e-6, 0.1))


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("all_reduce", 2 * 7 / 8),
        ("all_gather", 7 / 8),
        ("reduce_scatter", 7 / 8),
        ("all_to_all", 7 / 8),
        ("broadcast", 1.0),
        ("reduce", 1.0),
        ("scatter", 7 / 8),
        ("gather", 7 / 8),
        ("send", 1.0),
    ],
)
def test_wire_bytes_are_the_bus_factors_of_nccl_tests(name: str, share: float) -> None:
    assert wire_bytes(name, 1e9, 8) == share * 1e9
    assert wire_bytes(name, 1e9, 1) == 0.0


def test_every_collective_has_wire_bytes() -> None:
    assert all(wire_bytes(name, 1.0, 2) > 0 for name in COLLECTIVES)


def test_bus_bandwidth_of_a_large_all_reduce_is_the_links(groups: dict[str, CommGroup]) -> None:
    """nccl-tests: 8 GiB on 8 ranks in 7/4 V / B seconds has a bus bandwidth of B."""
    volume = 8 * 2**30
    bus = wire_bytes("all_reduce", volume, 8) / all_reduce(volume, groups["node"]).seconds
    assert bus == pytest.approx(400e9, rel=0.03)


@pytest.mark.parametrize(
    ("cluster", "ranks", "busbw"),
    [
        # Ring plateaus of nccl-tests all-reduce in stas00/ml-engineering network/README.md [bytes/s].
        ("dgx-a100-80g:1", 8, 232.8e9),
        ("dgx-h100:1", 8, 367.2e9),
        ("dgx-b200:1", 8, 682.2e9),
        ("gb200-nvl72:1", 72, 680e9),
    ],
)
def test_rings_reach_the_measured_plateaus(cluster: str, ranks: int, busbw: float) -> None:
    group = comm_group(load_cluster(cluster), ((ranks, 1),))
    ring = algorithm_times("all_reduce", 2.0**34, group)["ring"].seconds
    assert wire_bytes("all_reduce", 2.0**34, ranks) / ring == pytest.approx(busbw, rel=0.03)


def test_bad_input_is_named(groups: dict[str, CommGroup]) -> None:
    with pytest.raises(UnknownName, match="did you mean all_gather"):
        chosen("allgather", 1.0, groups["node"])
    with pytest.raises(UnknownName, match="unknown collective"):
        wire_bytes("all", 1.0, 2)
    with pytest.raises(InputError, match="found -1"):
        all_to_all(-1.0, groups["node"])
    with pytest.raises(UnknownName, match="unknown link kind 'smoke'"):
        all_gather(1.0, CommGroup(2, (Level(2, 1.0, 1.0, "smoke"),)))


@pytest.mark.parametrize(("group", "ports"), [("nodes", 8), ("rail", 1)])
def test_filling_the_network_lags_by_so_many_bytes(
    group: str, ports: int, groups: dict[str, CommGroup]
) -> None:
    """Twice 1.5 MB per port behind, however large the array; three times the bytes' time while small."""
    large, small = all_gather(4e9, groups[group]), all_gather(1e5, groups[group])
    bandwidth = ports * 50e9
    share = 1 - 1 / groups[group].size
    assert large.transfer == pytest.approx(share * (4e9 + 2 * ports * 1.5e6) / bandwidth)
    assert small.transfer >= 3 * share * 1e5 / bandwidth


def test_nothing_fills_inside_a_node(groups: dict[str, CommGroup]) -> None:
    assert all_gather(4e9, groups["node"]).transfer == pytest.approx(7 / 8 * 4e9 / 400e9)


@pytest.mark.parametrize(
    ("cluster", "busbw"),
    [
        # Sums in the switch at 16 and 8 GiB: stas00/ml-engineering network/README.md [bytes/s].
        ("dgx-h200:1", 480e9),
        ("dgx-b200:1", 838e9),
    ],
)
def test_summing_switches_reach_the_measured_plateaus(cluster: str, busbw: float) -> None:
    group = comm_group(load_cluster(cluster), ((8, 1),))
    assert chosen("all_reduce", 2.0**33, group) == "in_switch"
    bus = wire_bytes("all_reduce", 2.0**33, 8) / all_reduce(2.0**33, group).seconds
    assert bus == pytest.approx(busbw, rel=0.03)


def test_a_summing_switch_fills_up_to_32_megabytes(groups: dict[str, CommGroup]) -> None:
    time = all_reduce(1e9, groups["switch"])
    assert time.transfer == pytest.approx(9 / 8 * (1e9 + 0.25 * 32e6) / (0.85 * 400e9))


def _changed(group: CommGroup, **factors: float) -> CommGroup:
    levels = [
        replace(level, **{name: getattr(level, name) * factor for name, factor in factors.items()})
        for level in group.levels
    ]
    return CommGroup(group.size, tuple(levels))


@pytest.mark.parametrize(
    ("nodes", "busbw"), [(2, 361.7), (4, 160.1), (8, 99.6), (16, 84.7), (32, 64.9), (64, 32.9)]
)
def test_all_reduce_over_many_nodes_is_within_twice_the_measured(nodes: int, busbw: float) -> None:
    # 256 MB over H100 nodes with EFA: vinjn/nanotron-ultrascale-playbook@924e4d0 pp_comm_bandwidth.html.
    group = comm_group(load_cluster(f"p5.48xlarge:{nodes}"), ((8 * nodes, 1),))
    time = all_reduce(2.0**28, group).seconds
    assert 0.85 < wire_bytes("all_reduce", 2.0**28, group.size) / time / (busbw * 1e9) < 2


@pytest.mark.parametrize(
    ("cluster", "ranks", "bus"),
    [
        ("p6-b300.48xlarge", 16, 179.6e9),
        ("p6-b300.48xlarge", 32, 116.9e9),
        ("p6-b300.48xlarge", 64, 103.2e9),
        ("p6-b300.48xlarge", 128, 84.0e9),
        ("p6-b300.48xlarge", 256, 74.4e9),
        ("p5.48xlarge", 32, 53.9e9),
        ("p5.48xlarge", 64, 51.1e9),
    ],
)
def test_all_to_all_over_nodes_with_efa_takes_as_long_as_measured(
    cluster: str, ranks: int, bus: float
) -> None:
    """The largest bus bandwidths of nccl-tests, on which nothing was fitted; over 16 nodes and more they fall.

    Source: awslabs/awsome-distributed-ai@95b939c micro-benchmarks/expert-parallelism/ep-backend-comparison/RESULTS.md,
    RESULTS-p5.md.
    """
    group = comm_group(load_cluster(f"{cluster}:{ranks // 8}"), ((ranks, 1),))
    measured = (ranks - 1) / ranks * 8e9 / bus
    assert all_to_all(8e9, group).seconds == pytest.approx(measured, rel=0.1 if ranks <= 64 else 0.21)


@pytest.mark.parametrize(
    ("cluster", "ranks", "mebibytes", "bus"),
    [
        ("p5.48xlarge", 32, 32, 34.45e9),
        ("p5.48xlarge", 32, 128, 52.56e9),
        ("p5.48xlarge", 64, 64, 34.69e9),
        ("p5.48xlarge", 128, 128, 31.45e9),
        ("p5.48xlarge", 256, 64, 22.92e9),
        ("p5.48xlarge", 256, 512, 33.06e9),
        ("p5.48xlarge", 32, 64, 45.1e9),
        ("p5.48xlarge", 64, 64, 40.4e9),
        ("p6-b300.48xlarge", 32, 64, 94.0e9),
        ("p6-b300.48xlarge", 64, 64, 74.0e9),
        ("p6-b300.48xlarge", 256, 64, 54.7e9),
    ],
)
def test_all_to_all_of_small_messages_over_efa_takes_as_long_as_measured(
    cluster: str, ranks: int, mebibytes: int, bus: float
) -> None:
    """Without what small messages lose, the same are 9 to 50 % too fast; the last five had no part in the fit.

    Two nodes remain 25 to 29 % too fast with such messages, and 16 of B300 are 28 % too slow.

    Sources: crazyguitar/aws-gpu-communication-benchmark@fd167f9 data/nccl_alltoall.csv; awslabs/awsome-distributed-ai
    @95b939c micro-benchmarks/expert-parallelism/ep-backend-comparison/RESULTS.md, RESULTS-p5.md ("at EP payload").
    """
    group = comm_group(load_cluster(f"{cluster}:{ranks // 8}"), ((ranks, 1),))
    measured = (ranks - 1) / ranks * mebibytes * 2**20 / bus
    assert all_to_all(mebibytes * 2.0**20, group).seconds == pytest.approx(measured, rel=0.16)

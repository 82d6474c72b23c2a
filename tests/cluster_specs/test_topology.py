"""Groups of ranks against hand-worked levels, and against counting ranks one by one."""

import math
import os
import pickle
import subprocess
import sys
from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster_specs.catalog import load_cluster
from cluster_specs.cluster import ClusterSpec
from cluster_specs.errors import InputError
from cluster_specs.topology import CommGroup, Dispatching, Level, comm_group, route

DGX = load_cluster("dgx-h100:16")
SLOW = load_cluster("a100-4x-50g:8")
RACKS = load_cluster("gb200-nvl72:2")


def shape(group: CommGroup) -> list[tuple[str, int]]:
    return [(level.kind, level.size) for level in group.levels]


def ranks(axes: list[tuple[int, int]]) -> list[int]:
    return [sum(parts) for parts in product(*([i * stride for i in range(size)] for size, stride in axes))]


@pytest.mark.parametrize(
    ("cluster", "axes", "expected"),
    [
        (DGX, [(8, 1)], [("nvlink", 8)]),
        (DGX, [(4, 2)], [("nvlink", 4)]),
        (DGX, [(16, 8)], [("infiniband", 16)]),
        (DGX, [(128, 1)], [("nvlink", 8), ("infiniband", 16)]),
        (DGX, [(16, 4)], [("nvlink", 2), ("infiniband", 8)]),
        (DGX, [(2, 1), (8, 16)], [("nvlink", 2), ("infiniband", 8)]),
        (DGX, [(8, 1), (16, 8)], [("nvlink", 8), ("infiniband", 16)]),
        (SLOW, [(8, 1)], [("nvlink", 4), ("ethernet", 2)]),
        (RACKS, [(72, 1)], [("nvlink", 72)]),
        (RACKS, [(2, 72)], [("infiniband", 2)]),
        (load_cluster("tpu-v5e:16x16*4"), [(1024, 1)], [("ici", 16), ("ici", 16), ("dcn", 4)]),
        (load_cluster("tpu-v5e:16x16*4"), [(4, 256)], [("dcn", 4)]),
        (load_cluster("tpu-v5p:4x4x8"), [(8, 1)], [("ici", 8)]),
        (load_cluster("tpu-v5p:4x4x8"), [(32, 4)], [("ici", 2), ("ici", 4), ("ici", 4)]),
        (load_cluster("tpu-v7x:4x4x4"), [(8, 1)], [("ici", 2), ("ici", 4)]),
        (load_cluster("tpu-v5p:16x16x24"), [(16, 1)], [("ici", 8), ("ici", 2)]),
        (load_cluster("tpu-v5p:16x16x24"), [(48, 128)], [("ici", 3), ("ici", 16)]),
    ],
)
def test_levels(cluster: ClusterSpec, axes: list[tuple[int, int]], expected: list[tuple[str, int]]) -> None:
    group = comm_group(cluster, axes)
    assert shape(group) == expected
    assert group.size == math.prod(size for size, _ in axes)


def test_bandwidth_is_that_of_one_rank_with_efficiency() -> None:
    nvlink, infiniband = comm_group(DGX, [(128, 1)]).levels
    kernels = Dispatching(0.656 / 0.824, 0.656 / 0.824)
    links = Level(8, 450e9 * 0.824, 3.4e-6, "nvlink", in_switch_reduction=True, dispatching=kernels)
    assert nvlink == links
    assert infiniband == Level(16, 50e9 * 0.95, 14e-6, "infiniband")


def test_a_network_shared_by_the_gpus_of_a_node_gives_each_its_part() -> None:
    (_, network) = comm_group(SLOW, [(32, 1)]).levels
    assert network.bandwidth * 4 == pytest.approx(50e9 / 8 * 0.8)


@pytest.mark.parametrize(("size", "fraction"), [(2, 1 / 7), (4, 3 / 7), (8, 1)])
def test_a_full_mesh_gives_a_small_group_few_of_its_cables(size: int, fraction: float) -> None:
    (level,) = comm_group(load_cluster("mi300x-8x:1"), [(size, 1)]).levels
    assert level.bandwidth == pytest.approx(448e9 * 0.698 * fraction)


def test_mesh_of_mi300x_is_near_the_measured_pairs_and_octets() -> None:
    # stas00/ml-engineering network/README.md: all-reduce bus bandwidth of 2 and of 8 GPUs at 4 GiB.
    cluster = load_cluster("mi300x-8x:1")
    for size, measured in ((2, 47.671e9), (8, 312.912e9)):
        assert comm_group(cluster, [(size, 1)]).levels[0].bandwidth == pytest.approx(measured, rel=0.1)


@pytest.mark.parametrize("cluster", [DGX, SLOW, RACKS, load_cluster("tpu-v5p:4x4x4")])
def test_one_rank_alone_has_no_levels(cluster: ClusterSpec) -> None:
    assert comm_group(cluster, []) == comm_group(cluster, [(1, 1), (1, 7)]) == CommGroup(1, ())


@given(st.data())
def test_tiers_agree_with_counting_ranks(data: st.DataObject) -> None:
    """Powers of two on nodes of 8: each tier's peers are the ranks that share its block with rank 0."""
    strides = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=3, unique=True).map(sorted))
    axes = []
    for exponent, above in zip(strides, [*strides[1:], 7], strict=True):
        axes.append((2 ** data.draw(st.integers(0, above - exponent)), 2**exponent))
    group = comm_group(DGX, axes)
    members = ranks(axes)
    inside = sum(rank < 8 for rank in members)
    sizes = {level.kind: level.size for level in group.levels}
    assert group.size == len(members)
    assert sizes.get("nvlink", 1) == inside
    assert sizes.get("infiniband", 1) == len(members) // inside


@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        (
            [(6, 1)],
            [("nvlink", 2), ("infiniband", 3)],
        ),  # ranks 6 to 11 have two in one node, four in the other
        ([(12, 1)], [("nvlink", 4), ("infiniband", 3)]),
        ([(3, 6)], [("infiniband", 3)]),
    ],
)
def test_uneven_groups_count_what_every_node_has(
    axes: list[tuple[int, int]], expected: list[tuple[str, int]]
) -> None:
    assert shape(comm_group(DGX, axes)) == expected


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        ("tpu-v5e:16x16", [2, 2]),
        ("tpu-v5e:8x16", [2, 1]),
        ("tpu-v5e:8x8", [1, 1]),
        ("tpu-v5p:4x4x8", [2, 2, 2]),
        ("tpu-v5p:2x4x4", [1, 1, 1]),
        ("tpu-v4:4x4x4", [2, 2, 2]),
    ],
)
def test_rings_close_only_where_the_slice_wraps(cluster: str, expected: list[int]) -> None:
    spec = load_cluster(cluster)
    assert [level.ring_directions for level in comm_group(spec, [(spec.num_devices, 1)]).levels] == expected


def test_part_of_a_wrapped_dimension_is_a_line() -> None:
    spec = load_cluster("tpu-v5e:16x16")
    (line,) = comm_group(spec, [(8, 1)]).levels
    (ring,) = comm_group(spec, [(8, 2)]).levels
    assert (line.ring_directions, ring.ring_directions) == (1, 2)
    assert ring.bandwidth == line.bandwidth / 2
    assert ring.latency == 2 * line.latency


@given(st.integers(0, 4), st.data())
def test_interleaved_groups_share_the_links_of_a_torus_dimension(
    log_stride: int, data: st.DataObject
) -> None:
    """Route every group of one dimension of 16 around its ring, and count how often each link is used."""
    stride, extent = 2**log_stride, 16
    size = 2 ** data.draw(st.integers(0, 4 - log_stride))
    group = comm_group(load_cluster("tpu-v5e:16x16"), [(size, stride)])
    if size == 1:
        assert group.levels == ()
        return
    used: Counter[int] = Counter()
    for base in (b for b in range(extent) if (b // stride) % size == 0):
        for hop in range(size if size * stride == extent else size - 1):
            start = base + hop * stride
            used.update(point % extent for point in range(start, start + stride))
    assert group.levels[0].bandwidth == pytest.approx(45e9 * 0.938 / max(used.values()))


def test_rings_along_both_dimensions_at_once_keep_what_was_measured_of_all_links() -> None:
    """Google's all-reduce over 16x16 chips of v6e: 235.8 GB/s a chip; a ring, and lines, were not measured so."""
    both, one, lines = (
        comm_group(load_cluster(f"tpu-v6e:{shape}"), [(size, 1)])
        for shape, size in (("16x16", 256), ("16x16", 16), ("4x8", 32))
    )
    assert sum(2 * level.bandwidth for level in both.levels) == pytest.approx(235.8e9, rel=0.01)
    assert {level.bandwidth for level in (*one.levels, *lines.levels)} == {90e9 * 0.938}


@given(st.data())
def test_axes_of_a_mesh_fill_a_torus(data: st.DataObject) -> None:
    """Whatever the factors of a mesh, its axes lay out, alone and together, with all their members."""
    spec = load_cluster("tpu-v5p:16x16x24*2")
    left, stride, axes = spec.num_devices, 1, []
    while left > 1:
        size = data.draw(st.sampled_from([n for n in range(1, left + 1) if left % n == 0]))
        axes.append((size, stride))
        left, stride = left // size, stride * size
        if size == 1 and len(axes) > 6:
            axes.append((left, stride))
            left = 1
    for axis in axes:
        assert math.prod(level.size for level in comm_group(spec, [axis]).levels) == axis[0]
    assert shape(comm_group(spec, axes)) == [("ici", 24), ("ici", 16), ("ici", 16), ("dcn", 2)]


def test_devices_of_one_chip_share_its_links() -> None:
    spec = load_cluster("tpu-v7x:4x4x4")
    chip, *dimensions = comm_group(spec, [(128, 1)]).levels
    assert chip.size == 2
    assert all(level.bandwidth == pytest.approx(100e9 * 0.908 / 2) for level in dimensions)


@pytest.mark.parametrize(
    ("cluster", "axes", "words"),
    [
        (DGX, [(256, 1)], "has 128"),
        (DGX, [(16, 16)], "has 128"),
        (DGX, [(8, 4), (8, 1)], "innermost first"),
        (DGX, [(8, 1), (4, 4)], "overlap"),
        (DGX, [(0, 1)], "at least 1"),
        (DGX, [(2, -1)], "at least 1"),
        (load_cluster("tpu-v5p:4x4x4"), [(6, 1)], "6 ranks do not fill a block of the 4x4x4 torus"),
    ],
)
def test_groups_that_cannot_be_laid_out(
    cluster: ClusterSpec, axes: list[tuple[int, int]], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        comm_group(cluster, axes)


@pytest.mark.parametrize(
    ("cluster", "measured"),
    [
        # Plateaus of all-reduce bus bandwidth [bytes/s], the sources of the fabrics' efficiencies.
        ("p5en.48xlarge:4", 364.87e9),
        ("frontier:4", 92.9e9),
        ("dgx-h100:4", 380e9),
        ("dgx-a100-80g:4", 192e9),
        ("l40s-8x:1", 24e9),
    ],
)
def test_rings_over_nodes_reach_the_measured_plateaus(cluster: str, measured: float) -> None:
    """A ring through all ranks is as wide as its narrowest level; each rank drives its own port."""
    spec = load_cluster(cluster)
    widths, inside = [], 1
    for level in comm_group(spec, [(spec.num_devices, 1)]).levels:
        widths.append(inside * level.bandwidth)
        inside *= level.size
    assert min(widths) == pytest.approx(measured, rel=0.05)


@pytest.mark.parametrize("slice_", ["tpu-v5p:4x4x8", "tpu-v5e:8x16", "tpu-v4:2x2x4", "tpu-v7x:4x4x4"])
def test_the_next_block_of_a_torus_is_one_group_of_two(slice_: str) -> None:
    spec = load_cluster(slice_)
    for ranks in (2**k for k in range(spec.num_devices.bit_length() - 1)):
        assert route(spec, (0, ranks), (ranks, 2 * ranks)) == comm_group(spec, [(2, ranks)])


def test_a_plane_is_one_hop_from_the_next_however_many_there_are() -> None:
    odd, even = load_cluster("tpu-v5p:4x5x4"), load_cluster("tpu-v5p:4x4x4")
    (next_row,) = route(odd, (0, 4), (4, 8)).levels
    assert next_row.latency == route(even, (0, 4), (4, 8)).levels[0].latency
    assert (next_row.size, next_row.kind) == (2, "ici")


def test_colliding_routes_leave_each_node_less_from_the_third_on() -> None:
    groups = [comm_group(load_cluster(f"p5.48xlarge:{n}"), ((8 * n, 1),)).levels[-1] for n in (2, 8, 32)]
    exponent = load_cluster("p5.48xlarge:2").links[-1].contention
    assert exponent > 0
    assert [level.crossing for level in groups] == pytest.approx([1, 4**-exponent, 16**-exponent])
    assert {level.bandwidth for level in groups} == {50e9 * 0.91}


def bandwidth(sender: tuple[int, int], receiver: tuple[int, int]) -> float:
    """Of a rank of the one range to a rank of the other, in Gbit/s."""
    return 8e-9 * route(SLOW, sender, receiver).levels[-1].bandwidth / SLOW.links[-1].efficiency


def test_a_card_is_its_senders_alone() -> None:
    """Nodes of 4 with one card of 50 Gbit/s: 12.5 each where all send, all of it where one does."""
    assert bandwidth((0, 4), (4, 8)) == pytest.approx(12.5)
    assert bandwidth((2, 4), (4, 6)) == pytest.approx(25)
    assert bandwidth((3, 4), (4, 5)) == pytest.approx(50)
    assert bandwidth((0, 16), (16, 32)) == pytest.approx(12.5)
    assert route(SLOW, (0, 2), (2, 4)).levels[-1].kind == "nvlink"
    own = route(DGX, (7, 8), (8, 9)).levels[-1]
    assert own.bandwidth == DGX.links[-1].bandwidth * DGX.links[-1].efficiency


def test_a_group_takes_no_hash_along_to_another_process() -> None:
    script = "import pickle, sys; sys.stdout.write(str(hash(pickle.load(sys.stdin.buffer)) == HERE))"
    group = comm_group(load_cluster("dgx-h100:2"), [(8, 1), (2, 8)])
    here = f"hash(pickle.loads({pickle.dumps(CommGroup(group.size, group.levels))!r}))"
    assert hash(group) == hash(pickle.loads(pickle.dumps(group)))
    run = subprocess.run(
        [sys.executable, "-c", script.replace("HERE", here)],
        input=pickle.dumps(group),
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "1"},
    )
    assert run.stdout == b"True"

"""Clusters of unlike pools."""

from pathlib import Path

import pytest

from cluster_specs.catalog import load_cluster
from cluster_specs.cluster import ClusterSpec
from cluster_specs.errors import InputError
from cluster_specs.units import parse_quantity

TWO_POOLS = """
name = "old-and-new"
pools = ["dgx-a100-80g:2", "dgx-h100:1"]

[between]
fabric = "infiniband"
bandwidth = "100 Gbit/s"
"""


def test_a_file_joins_shipped_pools(tmp_path: Path) -> None:
    path = tmp_path / "mixed.toml"
    path.write_text(TWO_POOLS, encoding="utf-8")
    cluster = load_cluster(path)
    assert cluster.name == "old-and-new"
    assert [pool.num_devices for pool in cluster.pools] == [16, 8]
    assert cluster.num_devices == 24
    assert [pool.device for pool in cluster.pools] == [
        load_cluster(name).device for name in ("dgx-a100-80g", "dgx-h100")
    ]
    assert cluster.between is not None
    assert cluster.between.bandwidth == parse_quantity("100 Gbit/s")
    assert cluster.between.devices == 24
    assert ClusterSpec.model_validate_json(cluster.model_dump_json()) == cluster


def test_nodes_of_pools_stand_in_their_file(tmp_path: Path) -> None:
    path = tmp_path / "pools.toml"
    path.write_text(TWO_POOLS, encoding="utf-8")
    with pytest.raises(
        InputError, match=r"pools\.toml:3: the nodes of each pool stand in the file; leave out :3"
    ):
        load_cluster(f"{path}:3")


def test_a_pool_may_be_written_inline(tmp_path: Path) -> None:
    path = tmp_path / "mixed.toml"
    inline = """
pools = [
    "tpu-v5e:4x4",
    {device = "h100-sxm-80g", devices_per_node = 4, links = [{name = "x", fabric = "nvlink4", bandwidth = "450 GB/s"}]},
]
between = {kind = "dcn", bandwidth = "10 GB/s", latency = "20 us", efficiency = 0.9}
"""
    path.write_text(inline, encoding="utf-8")
    assert [pool.num_devices for pool in load_cluster(path).pools] == [16, 4]


def test_plus_joins_by_the_slower_outer_link() -> None:
    cluster = load_cluster("dgx-a100-80g:2+dgx-h100:2")
    links = [load_cluster(f"{name}:2").links[-1] for name in ("dgx-a100-80g", "dgx-h100")]
    assert cluster.between is not None
    assert cluster.between.bandwidth == min(link.bandwidth for link in links)


def test_a_uniform_cluster_is_its_only_pool() -> None:
    cluster = load_cluster("dgx-h100:2")
    assert cluster.pools == (cluster,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('pools = ["dgx-h100:1", 3]', r"bad.toml: pools.1: must be text or a table of fields, found 3$"),
        ('pools = ["dgx-h100:1"]', "pools are 2 to 4 clusters, got 1"),
        ('pools = ["dgx-h100:1", "dgx-h101:1"]', r"bad.toml: pools.1: unknown cluster 'dgx-h101'"),
        (
            'pools = ["dgx-h100:1", {device = "h100-sxm-80g", devices_per_node = 1}]',
            "say in `between` what joins the pools",
        ),
        ('pools = ["dgx-h100:1", "dgx-h100:1"]\nbetween = {fabric = "string"}', "unknown fabric 'string'"),
        ('pools = ["dgx-h100:1", "dgx-h100:1"]\nbetween = {fabric = "infiniband"}', "between.bandwidth"),
        (
            'pools = ["dgx-h100:1", "dgx-h100:1"]\nbetween = {fabric = "infiniband", bandwidth = "1e30 B/s"}',
            "between.bandwidth: must be less than or equal to",
        ),
        ('pools = ["dgx-h100:1", "dgx-a100-80g:1+dgx-h100:1"]', "unknown|not a node count"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        load_cluster(path)


def test_a_plus_needs_pools_on_both_sides() -> None:
    with pytest.raises(InputError, match="a pool is missing beside"):
        load_cluster("dgx-h100:2+")

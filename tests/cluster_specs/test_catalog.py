"""Clusters by name and from files: sizes, shorthands, and messages for bad input."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster_specs.catalog import list_clusters, load_cluster, load_device, what_if
from cluster_specs.cluster import ClusterSpec
from cluster_specs.errors import InputError, UnknownName

OWN = {
    "device": "h100-sxm-80g",
    "nodes": 4,
    "devices_per_node": 8,
    "links": [
        {"name": "nvlink", "fabric": "nvlink4", "devices": 8, "bandwidth": "450 GB/s"},
        {
            "name": "ethernet",
            "kind": "ethernet",
            "bandwidth": "100 Gbit/s",
            "latency": "25 us",
            "efficiency": 0.85,
        },
    ],
    "price": {"per_device_hour": 2.5},
}


DEVICE = load_device("h100-sxm-80g").model_dump()


def toml(fields: dict[str, Any]) -> str:
    lines = [
        f"{key} = {json.dumps(value)}" for key, value in fields.items() if not isinstance(value, list | dict)
    ]
    for key, value in fields.items():
        for table in value if isinstance(value, list) else [value] if isinstance(value, dict) else []:
            lines.append(f"[[{key}]]" if isinstance(value, list) else f"[{key}]")
            lines += [f"{name} = {json.dumps(entry)}" for name, entry in table.items()]
    return "\n".join(lines)


WRITERS: dict[str, Callable[[dict[str, Any]], str]] = {
    ".toml": toml,
    ".yaml": yaml.safe_dump,
    ".yml": yaml.safe_dump,
    ".json": json.dumps,
}


@pytest.mark.parametrize(
    ("source", "devices", "per_node"),
    [
        ("dgx-h100:16", 128, 8),
        ("DGX-H100:16", 128, 8),
        ("dgx-h100", 8, 8),
        ("gb200-nvl72:2", 144, 72),
        ("a100-4x-50g:8", 32, 4),
        ("tpu-v5p:4x4x8", 128, 128),
        ("tpu-v5e:16x16*4", 1024, 256),
        ("tpu-v7x:4x4x4", 128, 128),
        ("trn2.48xlarge:2", 32, 16),
        ("dgx-h100:1x1", 1, 1),
        ("gb200-nvl72:2x64", 128, 64),
    ],
)
def test_names_with_sizes(source: str, devices: int, per_node: int) -> None:
    cluster = load_cluster(source)
    assert (cluster.num_devices, cluster.devices_per_node) == (devices, per_node)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("dgx-h100:0", "at least 1 node, got 0"),
        ("dgx-h100:-2", "at least 1 node, got -2"),
        ("dgx-h100:many", "'many' is not a node count"),
        ("dgx-h100:", "'' is not a node count"),
        ("dgx-h100:\uff12", "'\uff12' is not a node count"),
        ("dgx-h100:1.5", "'1.5' is not a node count"),
        ("dgx-h10:4", "did you mean.*dgx-h100"),
        ("tpu-v5p", "needs a slice shape, such as tpu-v5p:16x16x24"),
        ("tpu-v5p:4x4", "a slice has 3 dimensions"),
        ("tpu-v5p:4x0x4", "not a slice shape"),
        ("tpu-v5p:4x-4x4", "not a slice shape"),
        ("tpu-v5e:32x32", "the largest slice is 16x16"),
        ("tpu-v5e:16x16*0", "at least 1 node, got 0"),
        ("tpu-v5e:16x16*two", "'two' is not a node count"),
        ("nowhere.toml", "no such file"),
        ("dgx-h100:1x9", "a node has 8 devices, so not 9 of them"),
        ("dgx-h100:1x", "'' is not a device count; write it as in dgx-h100:1x4"),
        ("dgx-h100:1x0", "at least 1 device, got 0"),
        ("trn1.32xlarge:1x4", "the 16 devices of a node are a torus, which is used whole"),
        ("", "unknown cluster"),
        ("H100:4", "'H100' is a device, not a cluster; write dgx-h100:NODES, or :1x1 for one device"),
        ("trn1", "'trn1' is a device, not a cluster; write trn1.32xlarge:NODES$"),
        ("v6e", "'v6e' is a device, not a cluster; write a shape, such as tpu-v6e:16x16"),
        ("tpu-v7x-128", "'tpu-v7x-128' is a device, not a cluster; write a shape, such as tpu-v7x:"),
        ("v5p-500", "no usual slice has 500 cores, 2 a chip; write a shape, such as tpu-v5p:"),
        ("v6e-100", "no usual slice has 100 chips; write a shape, such as tpu-v6e:16x16"),
    ],
)
def test_bad_names_in_one_sentence(source: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        load_cluster(source)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "chips", "written"),
    [
        ("v5p-512", 256, "tpu-v5p:4x8x8"),
        ("tpu-v5p-512", 256, "tpu-v5p:4x8x8"),
        ("v4-32", 16, "tpu-v4:2x2x4"),
        ("v3-8", 4, "tpu-v3:2x2"),
        ("v6e-256", 256, "tpu-v6e:16x16"),
        ("v5litepod-16", 16, "tpu-v5e:4x4"),
    ],
)
def test_names_of_slices_are_told_the_shape_that_has_as_many_chips(
    name: str, chips: int, written: str
) -> None:
    """Up to v5p names count cores, two on a chip; cloud.google.com/tpu/docs/v5p, v4, v6e."""
    with pytest.raises(InputError, match=f"'{name}' is a slice of {chips} chips; write {written}$"):
        load_cluster(name)
    assert load_cluster(written).torus is not None
    assert math.prod(load_cluster(written).torus.shape) == chips  # type: ignore[union-attr]


def test_part_of_each_node_has_its_links_and_its_share_of_the_host() -> None:
    whole, part = load_cluster("gb200-nvl72:2"), load_cluster("gb200-nvl72:2x64")
    assert [link.devices for link in part.links] == [64, 128]
    assert [link.bandwidth for link in part.links] == [link.bandwidth for link in whole.links]
    assert whole.host.memory is not None
    assert part.host.memory == whole.host.memory * 64 / 72
    assert load_cluster(part.name) == part


def test_part_of_a_node_whose_inner_tier_joins_more(tmp_path: Path) -> None:
    path = tmp_path / "pairs.toml"
    pairs = '[[links]]\nfabric = "nvlink3"\nbandwidth = "300 GB/s"\ndevices = 2\n'
    host = '[[links]]\nfabric = "pcie4"\nbandwidth = "25 GB/s"\ndevices = 8\n'
    path.write_text(f'device = "a100-pcie-80g"\ndevices_per_node = 8\n{pairs}{host}')
    assert [link.devices for link in load_cluster(f"{path}:1x1").links] == [1, 1]
    assert [link.devices for link in load_cluster(f"{path}:1x4").links] == [2, 4]


def test_unknown_devices_suggest_near_ones() -> None:
    with pytest.raises(UnknownName, match="h100-sxm-80g"):
        load_device("h100-sxm-8g")


def test_the_list_names_everything_that_loads() -> None:
    for entry in list_clusters():
        if entry.size == "nodes":
            assert load_cluster(f"{entry.name}:2").num_devices % 2 == 0
        assert entry.summary
        assert entry.sources


@pytest.mark.parametrize("suffix", WRITERS)
def test_files_of_every_format_give_the_same_cluster(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"mine{suffix}"
    path.write_text(WRITERS[suffix](OWN))
    cluster = load_cluster(str(path))
    assert cluster.name == "mine"
    assert cluster.device == load_device("H100-SXM")
    assert cluster.num_devices == 32
    assert [(link.devices, link.bandwidth) for link in cluster.links] == [(8, 450e9), (32, 12.5e9)]
    assert cluster.links[0].in_switch_reduction
    assert cluster.links[1].latency == 25e-6
    assert load_cluster(path) == cluster


def test_a_dumped_cluster_is_a_file_too(tmp_path: Path) -> None:
    for source in ("dgx-h100:16", "tpu-v5p:4x4x8*2"):
        cluster = load_cluster(source)
        path = tmp_path / "dump.json"
        path.write_text(cluster.model_dump_json())
        assert load_cluster(path) == cluster


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"devices_per_node": None}, "needs devices_per_node"),
        ({"device": "h100-smx"}, "unknown device"),
        ({"nodes": 0}, "at least 1 node"),
        ({"nodes": "four"}, "nodes: must be a whole number"),
        ({"colour": "red"}, "colour: is no field here"),
        ({"device": 3}, "mine.json: device: must be text or a table of fields, found 3$"),
        ({"links": [OWN["links"][0] | {"fabric": "nvlink9"}]}, "fabric in .*links.0: 'nvlink9'.*nvlink"),  # type: ignore[index]
        ({"links": [OWN["links"][0] | {"bandwidth": 450}]}, "links.0.bandwidth: 450 without a unit"),  # type: ignore[index]
        ({"links": [OWN["links"][0] | {"latency": 5}]}, "latency: 5 without a unit is so many seconds"),  # type: ignore[index]
        ({"host": {"memory": 2}}, "host.memory: 2 without a unit is so many bytes: .* 80 GiB"),
        ({"host": {"memory": 0}}, "host.memory: must be greater than 0"),
        ({"device": {**DEVICE, "memory": 80}}, "device.memory: 80 without a unit"),
        ({"device": {**DEVICE, "memory_bandwidth": 3.35}}, "write it as in 3.35 TB/s"),
        (
            {"device": {**DEVICE, "peak_flops_per_second": {"bf16": 989}}},
            "bf16: 989 without a unit is so many FLOP",
        ),
        ({"device": {**DEVICE, "peak_flops_per_second": {"bf16": -1}}}, "bf16: must be greater than 0"),
        ({"device": {**DEVICE, "peak_flops_per_second": {}}}, "peak_flops_per_second: has too few entries"),
        ({"device": {**DEVICE, "tile": [0, 256]}}, "device.tile.0: must be greater than 0"),
        ({"links": [OWN["links"][0] | {"bandwidth": "450 Gb/s"}]}, "write Gbit/s or GB/s"),  # type: ignore[index]
        ({"links": [OWN["links"][0] | {"bandwidth": 0}]}, "greater than 0"),  # type: ignore[index]
        ({"links": [OWN["links"][1], OWN["links"][0]]}, "links.ethernet needs `devices`"),  # type: ignore[index]
        ({"links": [OWN["links"][0]]}, "links join 8 of 32 devices"),  # type: ignore[index]
        ({"links": []}, "links join 1 of 32 devices"),
    ],
)
def test_bad_files_in_one_sentence(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(OWN | change))
    with pytest.raises(InputError, match=words) as caught:
        load_cluster(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.toml", "nodes = ", "not valid TOML"),
        ("a.json", "{", "not valid JSON"),
        ("a.yaml", "a: [", r"not valid YAML: .* \(at line 1, column 5\)"),
        ("a.json", "[1]", "a table of keys, found a list"),
        ("a.yaml", "", "a.yaml is empty"),
        ("a.toml", "nodes = 1", "device: is missing"),
    ],
)
def test_files_that_are_no_clusters(tmp_path: Path, name: str, content: str, words: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(InputError, match=words) as caught:
        load_cluster(path)
    assert "\n" not in str(caught.value)


def test_binary_files_and_folders_are_refused(tmp_path: Path) -> None:
    binary = tmp_path / "a.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    folder = tmp_path / "b.toml"
    folder.mkdir()
    for path in (binary, folder):
        with pytest.raises(InputError, match="is not text|is a folder"):
            load_cluster(path)


def test_what_if_changes_one_field_and_says_so() -> None:
    before = load_cluster("dgx-h100:4")
    after = what_if(before, {"links.infiniband.bandwidth": "800 Gbit/s"})
    assert after.links[1].bandwidth == 100e9
    assert after.links[0] == before.links[0]
    assert after.sources["links.infiniband.bandwidth"] == "what-if"
    assert before.links[1].bandwidth == 50e9


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"device.memory": "141 GB"}, lambda c: c.device.memory, 141e9),
        (
            {"device.peak_flops_per_second.fp4": "1 PFLOP/s"},
            lambda c: c.device.peak_flops_per_second["fp4"],
            1e15,
        ),
        ({"device.efficiency.matmul": 0.5}, lambda c: c.device.efficiency.matmul, 0.5),
        ({"device": "H200"}, lambda c: c.device, load_device("h200-sxm-141g")),
        ({"nodes": 7}, lambda c: (c.num_devices, c.links[-1].devices), (56, 56)),
        ({"nodes": "7"}, lambda c: (c.num_devices, c.links[-1].devices), (56, 56)),
        ({"devices_per_node": 4}, lambda c: [link.devices for link in c.links], [4, 16]),
        ({"price.per_device_hour": 1.0}, lambda c: c.price.per_device_hour, 1.0),
        ({"host.memory": "1 TiB"}, lambda c: c.host.memory, 2.0**40),
    ],
)
def test_what_ifs(changes: dict[str, Any], field: Any, value: Any) -> None:
    assert field(what_if(load_cluster("dgx-h100:4"), changes)) == value


def test_what_if_can_price_a_cluster_without_a_price() -> None:
    cluster = load_cluster("mi300x-8x:1")
    assert cluster.price is None
    assert what_if(cluster, {"price.per_device_hour": 3}).price is not None


def test_no_change_is_the_same_cluster() -> None:
    cluster: ClusterSpec = load_cluster("tpu-v5e:4x4*2")
    assert what_if(cluster, {}) == cluster


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"links.infinband.bandwidth": "1 GB/s"}, "did you mean infiniband"),
        ({"links.infiniband.bandwith": "1 GB/s"}, "did you mean bandwidth"),
        ({"speed": 1}, "unknown field 'speed'"),
        ({"nodes.count": 1}, "'nodes' in 'nodes.count' is a value"),
        ({"torus.bandwidth": "1 GB/s"}, "unknown field|torus"),
        ({"links.infiniband.bandwidth": "1 Gb/s"}, "write Gbit/s or GB/s"),
        ({"nodes": -1}, "nodes"),
        ({"nodes": "many"}, "nodes: must be a whole number"),
        ({"device": "H2000"}, "unknown device"),
        ({"device.efficiency.matmul": 1.5}, "less than or equal to 1"),
        ({"links.nvlink.devices": 5}, "not a multiple"),
        ({"device.memory": 2}, "device.memory: 2 without a unit is so many bytes"),
        ({"device.memory": "80"}, "device.memory: 80 without a unit is so many bytes"),
        ({"links.infiniband.bandwidth": 400}, "bandwidth: 400 without a unit is so many bytes per second"),
        ({"links.infiniband.latency": "5"}, "latency: 5 without a unit is so many seconds"),
        ({"device.peak_flops_per_second.bf16": 989}, "bf16: 989 without a unit is so many FLOP per second"),
    ],
)
def test_bad_what_ifs(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        what_if(load_cluster("dgx-h100:4"), changes)
    assert "\n" not in str(caught.value)


CHANGED = """
base = "dgx-h100"
[changes]
"device.efficiency.matmul" = 0.7
"device.kernel_launch" = "5 us"
"links.infiniband.latency" = 9e-6
[fitted."device.efficiency.matmul"]
samples = 12
median_residual = 0.02
worst_residual = 0.1
"""


def test_a_calibrated_file_is_its_base_with_other_constants(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(CHANGED)
    found, base = load_cluster(f"{path}:16"), load_cluster("dgx-h100:16")
    assert found.name == "mine"
    assert found.num_devices == 128
    assert load_cluster(path).nodes == 1
    assert found.device.efficiency.matmul == 0.7
    assert found.device.kernel_launch == pytest.approx(5e-6)
    assert [link.latency for link in found.links] == [base.links[0].latency, 9e-6]
    assert found.sources["device.efficiency.matmul"] == "calibrated: mine.toml"
    assert found.sources["device.memory"] == base.sources["device.memory"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"dgx-h100"', '"dgx-h1000"', "did you mean dgx-h100"),
        ("0.7", "1.7", "device.efficiency.matmul: must be less than or equal to 1"),
        ("kernel_launch", "kernel_lunch", "kernel_lunch"),
        ("samples = 12", "samples = 0", "fitted.device.efficiency.matmul.samples"),
    ],
)
def test_a_wrong_calibrated_file_is_named(tmp_path: Path, old: str, new: str, said: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(CHANGED.replace(old, new, 1))
    with pytest.raises(InputError, match=said):
        load_cluster(path)


def test_a_cluster_file_takes_a_number_of_nodes(tmp_path: Path) -> None:
    path = tmp_path / "lab.toml"
    path.write_text(
        'device = "H100"\ndevices_per_node = 8\n[[links]]\nname = "ib"\nfabric = "infiniband"\nbandwidth = "50 GB/s"\n'
    )
    assert load_cluster(f"{path}:4").num_devices == 32
    with pytest.raises(InputError, match="'x' is not a node count"):
        load_cluster(f"{path}:x")


def test_a_printed_cluster_is_a_cluster_file_of_any_number_of_nodes(tmp_path: Path) -> None:
    path, spec = tmp_path / "printed.json", load_cluster("dgx-h100:2")
    path.write_text(json.dumps({"schema": "meshwright/cluster/1", **spec.model_dump(mode="json")}))
    assert load_cluster(path) == spec
    assert load_cluster(f"{path}:16").links == load_cluster("dgx-h100:16").links
    path.write_text('{"schema": "meshwright/plan/1"}')
    with pytest.raises(InputError, match="has schema 'meshwright/plan/1', which is no cluster"):
        load_cluster(path)


def test_a_machine_that_was_measured_may_be_as_slow_as_it_is(tmp_path: Path) -> None:
    """Processes on one processor: a latency that nobody would write without a unit."""
    mine = tmp_path / "mine.toml"
    mine.write_text('base = "dgx-h100"\n[changes]\n"links.nvlink.latency" = 0.25\n')
    assert load_cluster(mine).links[0].latency == 0.25
    assert (
        what_if(load_cluster("dgx-h100"), {"device.efficiency.memory": 0.8}).device.efficiency.memory == 0.8
    )
    with pytest.raises(InputError, match="without a unit"):
        what_if(load_cluster("dgx-h100"), {"links.nvlink.latency": 0.25})

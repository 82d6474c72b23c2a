"""Every shipped number has a source, and agrees with the facts gathered before."""

import json
import tomllib
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from cluster_specs import shipped
from cluster_specs.catalog import list_clusters, list_devices, load_cluster, load_device
from cluster_specs.cluster import ClusterSpec, DeviceSpec
from cluster_specs.errors import UnknownName
from cluster_specs.shipped import DATA, cluster_files, device_files, fabrics
from cluster_specs.units import parse_quantity

FILES = sorted(set(DATA.rglob("*.toml")) - {DATA / "checkpoints.toml"})
"""Whose fields have their sources by name; each way of saving has its own (`test_checkpoints`)."""

FACTS = Path(__file__).parents[1] / "data" / "hardware.jsonl"
"""Facts of accelerators with a source per field, gathered apart from the shipped files."""

TEXT_FIELDS = {
    "name",
    "kind",
    "vendor",
    "aliases",
    "usual_cluster",
    "summary",
    "extends",
    "device",
    "fabric",
    "words",
    "usual",
}
TEXT_FIELDS |= {"currency", "zero_stages", "schedules", "runs_on", "splits"}

PER_DEVICE = {  # shipped name -> row of FACTS, devices that the row counts
    "v100-sxm2-32g": ("V100-SXM2-32GB", 1),
    "a100-sxm-40g": ("A100-40GB-SXM", 1),
    "a100-sxm-80g": ("A100-80GB-SXM", 1),
    "a100-pcie-80g": ("A100-80GB-PCIe", 1),
    "a10": ("A10", 1),
    "a10g": ("A10G", 1),
    "a40": ("A40", 1),
    "a6000": ("A6000", 1),
    "t4": ("T4", 1),
    "l4": ("L4", 1),
    "l40s": ("L40S", 1),
    "rtx4090": ("RTX4090", 1),
    "h100-sxm-80g": ("H100-SXM", 1),
    "h100-pcie-80g": ("H100-PCIe", 1),
    "h100-nvl-94g": ("H100-NVL", 1),
    "h200-sxm-141g": ("H200-SXM", 1),
    "h800-sxm-80g": ("H800-SXM", 1),
    "b200-sxm-180g": ("B200-SXM", 1),
    "b300-sxm-288g": ("B300-SXM", 1),
    "gb200-186g": ("GB200-NVL72 (per GPU)", 1),
    "mi250x-gcd": ("MI250X (2 GCDs)", 2),
    "mi300x-192g": ("MI300X", 1),
    "trn1": ("Trn1 (Trainium1 chip, 2 cores)", 1),
    "trn2": ("Trn2 (Trainium2 chip, 8 cores)", 1),
    "tpu-v2": ("TPU-v2", 2),
    "tpu-v3": ("TPU-v3", 2),
    "tpu-v4": ("TPU-v4", 1),
    "tpu-v5e": ("TPU-v5e", 1),
    "tpu-v5p": ("TPU-v5p", 1),
    "tpu-v6e": ("TPU-v6e", 1),
    "tpu-v7x": ("TPU-7x (Ironwood)", 2),
}


def read(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text())


def numbers(value: Any, path: str = "") -> Iterator[str]:
    """Dotted paths of the leaves that state a quantity: numbers, text with units, tables by name."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key not in TEXT_FIELDS and key != "sources":
                yield from numbers(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value and isinstance(value[0], Mapping):
        for entry in value:
            yield from numbers(entry, f"{path}.{entry['name']}")
    elif not isinstance(value, bool):
        yield path


def sourced(path: str, sources: Mapping[str, str]) -> bool:
    return any(fnmatchcase(path, pattern) and source.strip() for pattern, source in sources.items())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_number_of_a_shipped_file_has_a_source(path: Path) -> None:
    data = read(path)
    tables = data.items() if path.name == "fabrics.toml" else [("", data)]
    for name, table in tables:
        fields = table.get("device", table) if path.parent.name == "devices" else table
        missing = [leaf for leaf in numbers(fields) if not sourced(leaf, table["sources"])]
        assert not missing, f"{name} lacks sources for {missing}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_source_belongs_to_a_field(path: Path) -> None:
    data = read(path)
    tables = data.values() if path.name == "fabrics.toml" else [data]
    for table in tables:
        fields = table.get("device", table) if path.parent.name == "devices" else table
        within = [
            f"{key}.{own}" for key, inner in fields.items() if isinstance(inner, Mapping) for own in inner
        ]
        leaves = [*numbers(fields), *fields, *within]
        idle = [p for p in table["sources"] if not any(fnmatchcase(leaf, p) for leaf in leaves)]
        assert not idle


def test_the_source_check_sees_a_number_without_one() -> None:
    assert list(numbers({"a": 1, "b": [{"name": "x", "c": "1 s"}], "name": "n"})) == ["a", "b.x.c"]
    assert not sourced("b.x.c", {"b.x.d": "somewhere", "b.x.c": " "})


def every_size() -> list[str]:
    files = cluster_files().items()
    shapes = [f"{name}:{shape}" for name, file in files if file.slices for shape in file.slices.usual]
    return shapes + [f"{name}:{nodes}" for name, file in files if not file.slices for nodes in (1, 3)]


@pytest.mark.parametrize("source", every_size())
def test_every_shipped_cluster_loads(source: str) -> None:
    cluster = load_cluster(source)
    assert cluster.name == source
    assert cluster.links[-1].devices == cluster.num_devices
    assert ClusterSpec.model_validate_json(cluster.model_dump_json()) == cluster


def test_a_loaded_cluster_carries_the_sources_of_its_device_and_fabrics() -> None:
    sources = load_cluster("dgx-h100:2").sources
    for path in (
        "device.memory",
        "device.efficiency.matmul",
        "links.nvlink.latency",
        "links.infiniband.bandwidth",
    ):
        assert sourced(path, sources)


@pytest.mark.parametrize("device", list_devices(), ids=lambda device: device.name)
def test_devices_are_found_by_every_name(device: DeviceSpec) -> None:
    for name in (device.name, *device_files()[device.name].aliases):
        assert load_device(name) == load_device(name.upper()) == device


def test_a_device_is_called_as_its_file() -> None:
    """By which it is found without a look into the others."""
    assert [file.device.name for file in device_files().values()] == list(device_files())


def test_a_cluster_is_loaded_without_the_files_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    toml = shipped._toml
    monkeypatch.setattr(shipped, "_toml", lambda path: (read.append(path.stem), toml(path))[1])
    for table in (device_files, cluster_files):
        table.cache_clear()
    assert load_cluster("dgx-h100:3").nodes == 3
    assert sorted({*read} - {"fabrics"}) == ["dgx-h100", "h100-sxm-80g"]


def test_no_two_devices_share_a_name() -> None:
    names = [name for file in device_files().values() for name in (file.device.name, *file.aliases)]
    reduced = ["".join(filter(str.isalnum, name.lower())) for name in names]
    owners = [file.device.name for file in device_files().values() for _ in (file.device.name, *file.aliases)]
    assert len({*zip(reduced, owners, strict=True)}) == len(set(reduced))


def test_usual_clusters_and_fabrics_exist() -> None:
    for file in device_files().values():
        usual = load_device(str(cluster_files()[file.usual_cluster].device))
        assert (usual.vendor, usual.kind) == (file.device.vendor, file.device.kind)
    for cluster in cluster_files().values():
        assert {link["fabric"] for link in cluster.links} <= set(fabrics())
    assert {entry.name for entry in list_clusters()} == set(cluster_files())


def facts() -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in map(json.loads, FACTS.read_text().splitlines())}


@pytest.mark.parametrize("name", PER_DEVICE)
def test_devices_agree_with_the_facts(name: str) -> None:
    device, (row_name, count) = load_device(name), PER_DEVICE[name]
    row = facts()[row_name]
    peaks = {key.removesuffix("_tensor"): value for key, value in row["peak_flops"].items()}
    assert device.memory_bandwidth * count == pytest.approx(row["mem_bw"], rel=0.005)
    assert device.memory * count == pytest.approx(row["mem_bytes"], rel=0.08)
    for dtype, peak in device.peak_flops_per_second.items():
        if dtype in peaks:
            assert peak * count == pytest.approx(peaks[dtype], rel=0.03)


def test_every_fact_but_one_board_is_shipped() -> None:
    assert {row for row, _ in PER_DEVICE.values()} == set(facts())


@pytest.mark.parametrize("name", PER_DEVICE)
def test_matrix_products_sustain_the_best_measured_share(name: str) -> None:
    row = facts()[PER_DEVICE[name][0]]
    measured = row.get("measured", {}).get("best_gemm_eff")
    if measured is not None:
        assert load_device(name).efficiency.matmul == pytest.approx(measured, abs=0.005)


@pytest.mark.parametrize(
    ("cluster", "links", "each"),
    [("dgx-a100-80g:1", 12, 20e9), ("dgx-h100:1", 18, 20.6e9), ("dgx-b200:1", 18, 40.1e9)],
)
def test_nvlink_carries_what_nccl_gives_a_link(cluster: str, links: int, each: float) -> None:
    link = load_cluster(cluster).links[0]
    assert link.bandwidth * link.efficiency == pytest.approx(links * each, rel=1e-3)


def test_the_slow_example_shares_50_gbit_per_node() -> None:
    network = load_cluster("a100-4x-50g:2").links[-1]
    assert network.bandwidth * 4 == parse_quantity("50 Gbit/s")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("H100 SXM5", "h100-sxm-80g"),
        ("H100-80GB", "h100-sxm-80g"),
        ("nvidia-h100-80gb", "h100-sxm-80g"),
        ("nvidia-h100-mega-80gb", "h100-sxm-80g"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm-80g"),
        ("H100 PCIe", "h100-pcie-80g"),
        ("A100-80G", "a100-sxm-80g"),
        ("A100-80", "a100-sxm-80g"),
        ("A100 SXM 40GiB", "a100-sxm-40g"),
        ("AMD Instinct MI300X OAM", "mi300x-192g"),
        ("TPU v5", "tpu-v5p"),
        ("TPU v5 lite", "tpu-v5e"),
        ("v5litepod-256", "tpu-v5e"),
        ("tpu-v5-lite-podslice", "tpu-v5e"),
        ("v5p-512", "tpu-v5p"),
        ("TPU v6 lite", "tpu-v6e"),
        ("Trillium", "tpu-v6e"),
        ("Ironwood", "tpu-v7x"),
    ],
)
def test_devices_have_the_names_of_drivers_clouds_and_people(text: str, name: str) -> None:
    assert load_device(text) == load_device(name)


@pytest.mark.parametrize("text", ["H100-8GB", "v9", "v5-256", "tpu", "MI300"])
def test_what_is_no_device_is_none(text: str) -> None:
    with pytest.raises(UnknownName):
        load_device(text)

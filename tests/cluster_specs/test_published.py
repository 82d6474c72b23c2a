"""What published runs say of their hardware becomes a cluster, with the gaps named."""

import json
from pathlib import Path
from typing import Any

import pytest

from cluster_specs.catalog import cluster_for, load_cluster
from cluster_specs.errors import InputError

HARDWARE = Path(__file__).parents[1] / "data" / "run_hardware.jsonl"
ROWS = [json.loads(line) for line in HARDWARE.read_text().splitlines()]
"""Every distinct description of hardware in the published runs, with the run's source."""


def build(hardware: dict[str, Any]) -> Any:
    return cluster_for(
        hardware["gpu"],
        hardware["n_gpus"] * (hardware.get("devices_per_chip") or 1),
        hardware.get("gpus_per_node"),
        intra_link=hardware.get("intra_link"),
        inter_link=hardware.get("inter_link"),
        slices=hardware.get("slices") or 1,
        topology=hardware.get("topology"),
    )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_every_published_description_is_understood(row: dict[str, Any]) -> None:
    hardware = row["hardware"]
    cluster, assumed = build(hardware)
    assert cluster.num_devices == hardware["n_gpus"] * (hardware.get("devices_per_chip") or 1)
    if hardware.get("inter_link") is None and cluster.nodes > 1 and cluster.torus is None:
        assert any(note.startswith("inter_link") for note in assumed)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_memory_and_peak_are_those_that_the_run_states(row: dict[str, Any]) -> None:
    hardware = row["hardware"]
    device = build(hardware)[0].device
    peak = device.peak_flops_per_second.get("bf16") or device.peak_flops_per_second["fp16"]
    if hardware.get("peak_tflops_16bit"):
        assert peak / 1e12 == pytest.approx(hardware["peak_tflops_16bit"], rel=0.03)
    if hardware.get("peak_tflops_fp8"):
        fp8 = device.peak_flops_per_second["fp8"]
        assert fp8 / 1e12 == pytest.approx(hardware["peak_tflops_fp8"], rel=0.03)
    if hardware.get("gpu_mem_gb") and f"-{hardware['gpu_mem_gb']}GB" in hardware["gpu"]:
        stated = hardware["gpu_mem_gb"] * 1e9
        assert 0.97 * stated < device.memory < 1.08 * stated  # GB or GiB, less what the driver keeps


@pytest.mark.parametrize(
    ("text", "per_node", "fabric", "gbit_per_device"),
    [
        ("8x HDR InfiniBand 200 Gb/s per node (DGX A100 / Selene)", 8, "infiniband", 200),
        ("8x200 Gb/s IB per node (1600 Gb/s)", 8, "infiniband", 200),
        ("DGX-H100 8x400 Gb/s IB", 8, "infiniband", 400),
        ("RoCE 1600 Gbps/node", 8, "roce", 200),
        ("4x 100 Gb/s RoCE per node", 8, "roce", 50),
        ("4x 100 Gb/s Omni-Path per node (Jean Zay)", 4, "omni-path", 100),
        ("EFA 3.2 Tb/s/node (p5.48xlarge)", 8, "efa", 400),
        ("EFA (AWS p5)", 8, "efa-v2", 400),
        ("400 Gb/s RDMA per GPU (CX-7)", 8, "roce", 400),
        ("NVL72 domain 72 GPUs + IB/RoCE 400-800 Gb/s per GPU (not restated)", 8, "infiniband", 400),
        ("50 Gb/s per node", 4, "ethernet", 12.5),
        ("50 Gbit/s", 4, "ethernet", 12.5),
        ("25 Gb/s (p3.16xlarge)", 8, "ethernet", 3.125),
        ("InfiniBand 100 Gb/s per node", 8, "infiniband", 12.5),
        ("8x 100 Gb/s NIC per node", 8, "infiniband", 100),
        ("800 Gb/s per node", 8, "infiniband", 100),
        ("RoCE (bandwidth not stated)", 8, "roce", 400),
        (None, 8, "infiniband", 400),
    ],
)
def test_networks_in_words(text: str | None, per_node: int, fabric: str, gbit_per_device: float) -> None:
    cluster, _ = cluster_for("H100-SXM-80GB", 4 * per_node, per_node, inter_link=text)
    assert cluster.links[-1].name == fabric
    assert cluster.links[-1].bandwidth == pytest.approx(gbit_per_device * 1e9 / 8)
    stated = text is not None and "not stated" not in text
    assert (cluster.sources.get(f"links.{fabric}.bandwidth") == f"the run: {text}") == stated


@pytest.mark.parametrize(
    ("text", "per_node", "sharers"),
    [
        ("8x HDR 200 Gb/s", 8, 1),
        ("4x 100 Gb/s RoCE per node", 8, 2),
        ("EFA 3.2 Tb/s/node (p5.48xlarge)", 8, 1),
        ("400 Gb/s RDMA per GPU (CX-7)", 8, 1),
        ("50 Gb/s per node", 4, 4),
        ("25 Gb/s (p3.16xlarge)", 8, 8),
        ("AWS p3.16xlarge", 8, 8),
        (None, 8, 1),
    ],
)
def test_devices_that_share_a_card(text: str | None, per_node: int, sharers: int) -> None:
    cluster, _ = cluster_for("H100-SXM-80GB", 4 * per_node, per_node, inter_link=text)
    assert cluster.links[-1].devices_per_card == sharers


def test_what_is_not_said_is_reported() -> None:
    _, assumed = cluster_for("A100-SXM4-80GB", 64, 8)
    assert assumed == ["inter_link=200 Gbit/s per device, as dgx-a100-80g"]
    assert cluster_for("A100-SXM4-80GB", 8, 8)[1] == []
    assert cluster_for("tpu-v5e", 512, slices=2)[1] == ["topology=16x16 (256 chips per slice)"]


@pytest.mark.parametrize(
    ("gpu", "text", "gigabytes"),
    [
        ("A800-SXM4-80GB", "NVLink3 (400 GB/s)", 200),
        ("A100-SXM4-80GB", "NVLink3 (600 GB/s)", 300),
        ("H800", None, 200),
    ],
)
def test_nvlink_is_stated_both_ways(gpu: str, text: str | None, gigabytes: float) -> None:
    assert cluster_for(gpu, 8, 8, intra_link=text)[0].links[0].bandwidth == gigabytes * 1e9


@pytest.mark.parametrize(
    ("n_devices", "given", "nodes", "per_node"),
    [(8, 4, 1, 8), (64, 4, 1, 64), (72, 4, 1, 72), (128, 4, 2, 64), (144, 4, 2, 72), (256, None, 4, 64)],
)
def test_nvl72_nodes_are_racks_filled_evenly(
    n_devices: int, given: int | None, nodes: int, per_node: int
) -> None:
    cluster, _ = cluster_for("GB200-186GB", n_devices, given)
    assert (cluster.nodes, cluster.devices_per_node) == (nodes, per_node)


def test_fewer_devices_than_a_node_are_one_smaller_node() -> None:
    cluster, _ = cluster_for("A100-SXM4-80GB", 4, 8)
    assert (cluster.nodes, cluster.devices_per_node) == (1, 4)


def test_nodes_that_are_tori_of_one_shape() -> None:
    cluster, assumed = cluster_for("trn2", 64)
    assert (cluster.nodes, cluster.num_devices, assumed) == (4, 64, [])


def test_part_of_a_mesh_has_part_of_its_links() -> None:
    whole, part = load_cluster("p3.16xlarge:1"), cluster_for("V100-SXM2-16GB", 8, 4)[0]
    assert part.links[0].bandwidth == pytest.approx(whole.links[0].bandwidth * 3 / 7)


def test_devices_without_a_cluster_borrow_one_but_not_its_price() -> None:
    cluster, assumed = cluster_for("A6000", 16)
    assert cluster.device.name == "a6000"
    assert cluster.price is None
    assert "cluster as a100-pcie-8x, with a6000" in assumed


@pytest.mark.parametrize(
    ("chips", "shape"), [(192, "4x4x12"), (384, "4x8x12"), (768, "8x8x12"), (3072, "12x16x16")]
)
def test_slices_that_no_list_has_are_whole_cubes(chips: int, shape: str) -> None:
    """Google's list of v5p slices has 4x4x12, 4x8x12 and 8x8x12; PaLM trained on pods of 3072 v4."""
    for device in ("tpu-v4", "tpu-v5p"):
        assert cluster_for(device, chips)[1] == [f"topology={shape} ({chips} chips per slice)"]


def test_tpu_slices_take_the_topology_given() -> None:
    cluster, assumed = cluster_for("tpu-v7x", 128, slices=1, topology="4x4x4")
    assert cluster.torus is not None
    assert (cluster.torus.shape, cluster.torus.wrap, assumed) == ((4, 4, 4), (True, True, True), [])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"gpu": "H100-SMX-80GB", "n_devices": 8}, "unknown device.*h100-sxm-80g"),
        ({"gpu": "T9", "n_devices": 8}, "unknown device"),
        ({"gpu": "H100", "n_devices": 0}, "at least 1 device"),
        ({"gpu": "H100", "n_devices": 12, "devices_per_node": 8}, "12 devices do not fill nodes of 8"),
        ({"gpu": "trn2", "n_devices": 24}, "24 devices do not fill nodes of 16"),
        ({"gpu": "tpu-v5e", "n_devices": 100}, "no usual slice"),
        ({"gpu": "tpu-v5e", "n_devices": 256, "slices": 3}, "do not make 3 equal slices"),
        ({"gpu": "tpu-v7x", "n_devices": 129}, "do not make 1 equal slices"),
        ({"gpu": "tpu-v5e", "n_devices": 256, "topology": "8x8"}, "has 64 devices, not 256"),
    ],
)
def test_descriptions_that_make_no_cluster(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        cluster_for(**arguments)


@pytest.mark.parametrize(
    ("gpu", "said"),
    [
        ("V100", "gpu=v100-sxm2-32g (V100 may be v100-sxm2-16g, too)"),
        ("NVIDIA A100-40GB", "gpu=a100-sxm-40g (NVIDIA A100-40GB may be a100-pcie-40g, too)"),
        (
            "H100",
            "gpu=h100-sxm-80g (H100 may be h100-nvl-94g or h100-pcie-80g or h100-sxm-64g or h100-sxm-96g-hbm2e, too)",
        ),
        ("A100-SXM4-80GB", None),
        ("V100-16GB", None),
        ("a10", None),
        ("L40", None),
    ],
)
def test_a_name_that_leaves_the_board_open_is_said_to(gpu: str, said: str | None) -> None:
    assumed = [note for note in cluster_for(gpu, 8, 8)[1] if note.startswith("gpu=")]
    assert assumed == ([] if said is None else [said])

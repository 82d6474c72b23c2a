"""Devices are found by the names that drivers give; processors are measured."""

import itertools
import sys
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from cluster_specs.shipped import find_device
from planner.errors import UnknownName
from planner.training import monitor
from planner.training.devices import _names, cpu_cluster, detect, device_name


@pytest.mark.parametrize("name", sorted(set(_names().values())))
def test_every_name_is_a_shipped_device(name: str) -> None:
    assert find_device(name).device.name == name


@pytest.mark.parametrize(
    ("reported", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm-80g"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA L40S", "l40s"),
        ("TPU v5 lite", "tpu-v5e"),
        ("TPU v5", "tpu-v5p"),
        ("AMD Instinct MI300X OAM", "mi300x-192g"),
    ],
)
def test_the_longest_name_that_fits_wins(reported: str, name: str) -> None:
    assert device_name(reported) == name


def test_an_unknown_device_is_an_error() -> None:
    with pytest.raises(UnknownName, match="unknown device 'NVIDIA K80'"):
        device_name("NVIDIA K80")


def test_a_processor_is_measured_and_shared_among_devices() -> None:
    one, four = cpu_cluster(1), cpu_cluster(4)
    assert (one.num_devices, four.num_devices, one.links) == (1, 4, ())
    assert 1e8 < four.device.peak_flops_per_second["fp32"] < 1e14
    assert 1e7 < four.device.memory_bandwidth < 1e13
    assert four.device.memory * 4 == pytest.approx(one.device.memory, rel=1e-6)
    assert four.links[0].bandwidth == pytest.approx(four.device.memory_bandwidth / 2)
    assert set(four.sources) == {"device.*", "links.*"}


def fake_torch(device: str, local: int, world: int | None, memory: tuple[int, ...] = ()) -> dict[str, Any]:
    """Modules of a torch that sees ``local`` accelerators, in a job of ``world`` processes (or in none)."""
    cuda = SimpleNamespace(
        is_available=lambda: local > 0,
        device_count=lambda: local,
        get_device_name=lambda index: device,
        synchronize=lambda: None,
        mem_get_info=lambda: memory[:2],
        memory_reserved=lambda: memory[2],
        max_memory_reserved=lambda: memory[3],
    )
    distributed = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: world is not None,
        get_world_size=lambda: world,
        broadcast_object_list=lambda shared, src: None,
    )
    torch = SimpleNamespace(cuda=cuda, distributed=distributed)
    return {"torch": torch, "torch.distributed": distributed}


@dataclass(frozen=True)
class FakeDevice:
    """A device as JAX shows it."""

    platform: str
    device_kind: str
    coords: tuple[int, int, int] = (0, 0, 0)
    slice_index: int = 0


def fake_jax(devices: list[FakeDevice], local: int) -> dict[str, Any]:
    jax = SimpleNamespace(devices=lambda: devices, local_device_count=lambda: local)
    return {"jax": jax}


def slices(kind: str, shape: tuple[int, int, int], count: int = 1, cores: int = 1) -> list[FakeDevice]:
    chips = itertools.product(*map(range, shape))
    return [
        FakeDevice("tpu", kind, chip, index)
        for index, chip, _ in itertools.product(range(count), list(chips), range(cores))
    ]


FOUND: dict[str, tuple[str, dict[str, Any], dict[str, str], tuple[str, int, int]]] = {
    "two nodes of CUDA devices": (
        "torch",
        fake_torch("NVIDIA H100 80GB HBM3", 8, 16),
        {"LOCAL_WORLD_SIZE": "8"},
        ("h100-sxm-80g", 16, 8),
    ),
    "one process that sees a node": (
        "torch",
        fake_torch("NVIDIA H200", 8, None),
        {},
        ("h200-sxm-141g", 8, 8),
    ),
    "ROCm, which torch calls cuda": (
        "torch",
        fake_torch("AMD Instinct MI300X", 8, 32),
        {"LOCAL_WORLD_SIZE": "8"},
        ("mi300x-192g", 32, 8),
    ),
    "processors": ("torch", fake_torch("", 0, 4), {}, ("cpu", 4, 4)),
    "CUDA devices of JAX": (
        "jax",
        fake_jax([FakeDevice("gpu", "NVIDIA H100 80GB HBM3")] * 16, 8),
        {},
        ("h100-sxm-80g", 16, 8),
    ),
    "a flat TPU slice": ("jax", fake_jax(slices("TPU v5 lite", (4, 4, 1)), 4), {}, ("tpu-v5e", 16, 16)),
    "cores of a TPU, two to a chip": (
        "jax",
        fake_jax(slices("TPU v3", (4, 4, 1), cores=2), 8),
        {},
        ("tpu-v3", 32, 32),
    ),
    "TPU slices": ("jax", fake_jax(slices("TPU v5", (4, 4, 8), 2), 4), {}, ("tpu-v5p", 256, 128)),
}


@pytest.mark.parametrize("case", FOUND)
def test_clusters_are_found_through_the_framework(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    framework, modules, environment, expected = FOUND[case]
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found = detect("torch" if framework == "torch" else "jax")
    assert (found.device.name, found.num_devices, found.devices_per_node) == expected


def test_memory_is_what_the_driver_reports_at_the_peak_of_the_allocator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """80 GB, of which 20 are free; the allocator holds 50 and held 55 at its peak."""
    for name, module in fake_torch("NVIDIA H100 80GB HBM3", 8, 8, (20, 80, 50, 55)).items():
        monkeypatch.setitem(sys.modules, name, module)
    assert monitor._peak_bytes() == 80 - 20 + 5


def test_memory_of_an_accelerator_of_jax_is_its_own_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    device = SimpleNamespace(platform="tpu", memory_stats=lambda: {"peak_bytes_in_use": 7})
    monkeypatch.setitem(
        sys.modules, "jax", SimpleNamespace(devices=lambda: [device], local_devices=lambda: [device])
    )
    assert monitor._peak_bytes() == 7
    silent = SimpleNamespace(platform="tpu", memory_stats=lambda: None)
    monkeypatch.setitem(
        sys.modules, "jax", SimpleNamespace(devices=lambda: [silent], local_devices=lambda: [silent])
    )
    assert monitor._peak_bytes() is None

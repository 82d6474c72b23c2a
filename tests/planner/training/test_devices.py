"""Devices are found by the names that drivers give; processors are measured."""

import pytest

from cluster_specs.shipped import find_device
from planner.errors import UnknownName
from planner.training.devices import _names, cpu_cluster, device_name


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

"""Rates, ridge points and streaming kernels, by hand."""

import pytest

from cluster_specs.catalog import load_device
from cluster_specs.cluster import DeviceSpec
from cluster_specs.errors import InputError
from cost_models.roofline import (
    arithmetic_intensity,
    element_bytes,
    launch_bound,
    memory_seconds,
    peak,
    ridge_point,
    stream_seconds,
)


def test_ridge_point_is_peak_over_bandwidth(device: DeviceSpec) -> None:
    assert ridge_point(device, "bf16") == 1e15 / 4e12 == 250.0


def test_intensity_of_a_copy_and_of_nothing() -> None:
    assert arithmetic_intensity(2e9, 4e9) == 0.5
    with pytest.raises(InputError, match="bytes that move"):
        arithmetic_intensity(1.0, 0.0)


def test_stream_takes_bytes_over_sustained_bandwidth(device: DeviceSpec) -> None:
    assert stream_seconds(3.6e9, device).seconds == pytest.approx(1e-3)
    assert memory_seconds(3.6e9, device) == pytest.approx(1e-3)


def test_stream_is_at_least_one_launch_and_nothing_is_free(device: DeviceSpec) -> None:
    assert stream_seconds(8.0, device).seconds == device.kernel_launch
    assert stream_seconds(0.0, device).seconds == 0.0


def test_many_small_kernels_wait_for_the_host(device: DeviceSpec) -> None:
    assert launch_bound(1e-3, 100, device) == 1e-3
    assert launch_bound(1e-3, 1000, device) == pytest.approx(2e-3)


def test_a_missing_rate_names_device_and_type() -> None:
    with pytest.raises(InputError, match="'a100-sxm-80g' has no fp8 rate"):
        peak(load_device("a100-sxm-80g"), "fp8")


def test_element_bytes() -> None:
    assert [element_bytes(dtype) for dtype in ("fp8", "bf16", "fp16", "tf32", "fp32")] == [1, 2, 2, 4, 4]
    assert element_bytes("fp4") == (16 * 4 + 8) / 8 / 16
    with pytest.raises(InputError, match="unknown data type 'int3'"):
        element_bytes("int3")

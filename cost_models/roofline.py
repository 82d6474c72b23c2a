"""The roofline of a device: peak rates, bandwidth, and which of them limits.

Source: Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009.
"""

from collections.abc import Mapping
from types import MappingProxyType

from cluster_specs.cluster import DeviceSpec
from cluster_specs.errors import InputError
from cost_models.costs import ComputeTime, kernel_time

ELEMENT_BYTES: Mapping[str, float] = MappingProxyType(
    {"fp4": 9 / 16, "fp8": 1.0, "bf16": 2.0, "fp16": 2.0, "tf32": 4.0, "fp32": 4.0}
)
"""Bytes of one element; tf32 is a way to multiply fp32 tensors, and 16 elements of fp4 share a scale of a byte."""


def element_bytes(dtype: str) -> float:
    """Bytes of one element; raises ``InputError`` for an unknown data type."""
    if dtype not in ELEMENT_BYTES:
        raise InputError(f"unknown data type {dtype!r}; known are {', '.join(ELEMENT_BYTES)}")
    return ELEMENT_BYTES[dtype]


def peak(device: DeviceSpec, dtype: str) -> float:
    """Dense peak rate [FLOP/s]; raises ``InputError`` where the device has none for ``dtype``."""
    rate = device.peak_flops_per_second.get(dtype)
    if rate is None:
        known = ", ".join(device.peak_flops_per_second)
        raise InputError(f"device {device.name!r} has no {dtype} rate; it has {known}")
    return rate


def product_dtype(device: DeviceSpec, dtype: str) -> str:
    """Format in which matrix units multiply tensors of ``dtype``: fp32 as tf32 where the device has it, and as bf16
    passes where it has no rate for fp32 either (a TPU, at XLA's default precision).

    Source: pytorch/pytorch ``torch.set_float32_matmul_precision`` (as training scripts set it); JAX
    ``jax.default_matmul_precision``.
    """
    if dtype != "fp32":
        return dtype
    return next((own for own in ("tf32", "fp32") if own in device.peak_flops_per_second), "bf16")


def product_peak(device: DeviceSpec, dtype: str) -> float:
    """Dense peak rate of products of tensors of ``dtype`` [FLOP/s], against which utilisation is counted.

    Raises ``InputError`` where the device has none.
    """
    return peak(device, product_dtype(device, dtype))


def ridge_point(device: DeviceSpec, dtype: str) -> float:
    """Arithmetic intensity above which arithmetic is the limit: peak rate over bandwidth [FLOP/byte]."""
    return product_peak(device, dtype) / device.memory_bandwidth


def arithmetic_intensity(flops: float, num_bytes: float) -> float:
    """FLOPs per byte moved [FLOP/byte]; raises ``InputError`` when nothing moves."""
    if num_bytes <= 0:
        raise InputError(f"arithmetic intensity needs bytes that move, found {num_bytes:g}")
    return flops / num_bytes


def sustained_bandwidth(device: DeviceSpec) -> float:
    """Of the device's memory [B/s]."""
    return device.memory_bandwidth * device.efficiency.memory


def memory_seconds(num_bytes: float, device: DeviceSpec) -> float:
    """``bytes / (bandwidth * sustained fraction)`` [s]; no launch."""
    return num_bytes / sustained_bandwidth(device)


def stream_seconds(num_bytes: float, device: DeviceSpec) -> ComputeTime:
    """A kernel that only moves data: `memory_seconds` of its reads and writes, at least one launch."""
    if num_bytes <= 0:
        return ComputeTime()
    return kernel_time(0.0, memory_seconds(num_bytes, device), device.kernel_launch)


def launch_bound(seconds: float, num_kernels: float, device: DeviceSpec) -> float:
    """A sequence of kernels does not end before the host has started all: ``max(s, n launch)`` [s]."""
    return max(seconds, num_kernels * device.kernel_launch)

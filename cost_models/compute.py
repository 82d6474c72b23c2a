"""Seconds of kernels on a device: the door to rooflines, matrix products, attention and optimizers."""

from cluster_specs.cluster import DeviceSpec
from cluster_specs.errors import InputError
from cost_models.attention import AttentionShape, attended_pairs, attention_flops, attention_seconds
from cost_models.costs import ComputeTime, kernel_time
from cost_models.matmul import aligned_rows, cast_seconds, matmul_seconds, visited_rows
from cost_models.optimizers import OPTIMIZERS, newton_schulz_flops, optimizer_rule, update_bytes
from cost_models.roofline import (
    ELEMENT_BYTES,
    arithmetic_intensity,
    element_bytes,
    launch_bound,
    memory_seconds,
    peak,
    product_dtype,
    product_peak,
    ridge_point,
    stream_seconds,
)

__all__ = [
    "ELEMENT_BYTES",
    "OPTIMIZERS",
    "AttentionShape",
    "ComputeTime",
    "aligned_rows",
    "arithmetic_intensity",
    "attended_pairs",
    "attention_flops",
    "attention_seconds",
    "cast_seconds",
    "element_bytes",
    "kernel_time",
    "launch_bound",
    "matmul_seconds",
    "memory_seconds",
    "newton_schulz_flops",
    "optimizer_seconds",
    "peak",
    "product_dtype",
    "product_peak",
    "ridge_point",
    "stream_seconds",
    "visited_rows",
]


def optimizer_seconds(
    num_parameters: float,
    optimizer: str,
    device: DeviceSpec,
    *,
    weight_bytes: float = 2,
    grad_bytes: float = 4,
    master_weights: bool = True,
    fused: bool = True,
    matrix_flops: float | None = None,
) -> ComputeTime:
    """One optimizer step over the parameters that this rank steps [s]: their traffic, plus Muon's products.

    ``matrix_flops`` is the sum of `newton_schulz_flops` over the matrices (run in bf16); only Muon needs it.
    ``fused`` says that the step is one kernel, where there is such a version.
    Raises ``InputError`` where Muon lacks its FLOPs, ``UnknownName`` for the optimizer.
    """
    traffic = num_parameters * update_bytes(optimizer, weight_bytes, grad_bytes, master_weights, fused)
    step = stream_seconds(traffic, device)
    if not optimizer_rule(optimizer).orthogonalises:
        return step
    if matrix_flops is None:
        raise InputError(
            f"optimizer {optimizer!r} needs matrix_flops: the newton_schulz_flops of its matrices"
        )
    return step + kernel_time(matrix_flops / (peak(device, "bf16") * device.efficiency.matmul), 0.0)

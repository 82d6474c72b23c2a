"""Sweeps that take a second, and points with made-up figures."""

from typing import Any

from planner.analysis.economics import Economics
from planner.plans import Estimate
from planner.sweep.records import Inputs, Point

AXES: dict[str, tuple[Any, ...]] = {
    "model": ("gpt2",),
    "cluster": ("dgx-h100",),
    "devices": (4, 8),
    "seq_len": (1024,),
    "global_batch": (32, 64),
}
PINS = {"pipeline": 1, "tensor": 1, "recompute": "none"}
"""Leave little to search."""


def estimate(rate: float, devices: int) -> Estimate:
    """An estimate of ``rate`` tokens/s."""
    return Estimate(
        step_time_s=1.0,
        step_time_interval_s=(0.9, 1.1),
        tokens_per_s=rate,
        tokens_per_s_per_device=rate / devices,
        model_flops_per_s_per_device=1e12,
        mfu=0.4,
        hfu=0.4,
        fits=True,
        memory_bytes=1.0,
        reserved_bytes=1.0,
        tensor_bytes=1.0,
        memory_limit_bytes=2.0,
        fullest_stage=0,
        peak_phase="loss",
        memory={},
        time={"compute": 1.0},
        communication={},
        bubble_fraction=0.0,
    )


def point(
    time: float = 1.0,
    cost: float | None = 1.0,
    headroom: float = 0.1,
    devices: int = 8,
    rate: float = 1.0,
    **inputs: Any,
) -> Point:
    """A planned point with these figures."""
    fields = {
        "model": "m",
        "cluster": "c",
        "devices": devices,
        "nodes": 1,
        "global_batch": 1,
        "seq_len": 1,
        "precision": "bf16",
        **inputs,
    }
    return Point(
        inputs=Inputs.model_validate(fields),
        key="k",
        status="planned",
        estimate=estimate(rate, devices),
        memory_headroom=headroom,
        economics=Economics(
            tokens=1.0,
            time_to_train_s=time,
            time_to_train_interval_s=(time, time),
            goodput=1.0,
            lost={},
            expected_failures=0.0,
            checkpoint_interval_s=None,
            devices=devices,
            device_hours=1.0,
            currency="USD",
            price_per_device_hour=1.0,
            cost=cost,
            tokens_per_dollar=1.0,
            power_w=None,
            energy_j=None,
            carbon_kg=None,
            assumed={},
        ),
    )

"""The cluster that a training script runs on, as its framework shows it.

GPUs and TPUs are looked up by the name that their driver gives (``data/device_names.toml``); what joins them is their
usual cluster's. Of CPUs nothing is known beforehand, so their rates are measured, in about a second.
"""

import os
import time
import tomllib
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any, Literal

from cluster_specs.cluster import ClusterSpec
from cluster_specs.published import cluster_for
from planner.errors import UnknownName

Framework = Literal["torch", "jax"]

MATRIX, COPIED, REPEATS = 1024, 2**24, 5
"""Sizes of what is timed on a CPU: rows of a square product, elements of a copy; the best of so many counts."""


def detect(framework: Framework) -> ClusterSpec:
    """The cluster of all processes (torch) or all devices (JAX).

    Raises ``UnknownName`` for a device that no shipped one is.
    """
    return _of_torch() if framework == "torch" else _of_jax()


def _of_torch() -> ClusterSpec:
    import torch
    import torch.distributed as dist

    joined = dist.is_available() and dist.is_initialized()
    devices = dist.get_world_size() if joined else max(1, torch.cuda.device_count())
    if not torch.cuda.is_available():
        return _agreed(cpu_cluster(devices)) if joined else cpu_cluster(devices)
    per_node = int(os.environ.get("LOCAL_WORLD_SIZE", devices))
    return cluster_for(device_name(torch.cuda.get_device_name(0)), devices, per_node)[0]


def _agreed(spec: ClusterSpec) -> ClusterSpec:
    """What the first process measured, in all of them: they must come to the same plan."""
    import torch.distributed as dist

    shared = [spec.model_dump_json()]
    dist.broadcast_object_list(shared, src=0)
    return ClusterSpec.model_validate_json(shared[0])


def _of_jax() -> ClusterSpec:
    import jax

    devices = jax.devices()
    if devices[0].platform == "cpu":
        return cpu_cluster(len(devices))
    name = device_name(devices[0].device_kind)
    if devices[0].platform == "tpu":
        slices = len({getattr(d, "slice_index", 0) for d in devices})
        return cluster_for(name, len(devices), slices=slices, topology=_topology(devices, name))[0]
    return cluster_for(name, len(devices), jax.local_device_count())[0]


def _topology(devices: Sequence[Any], name: str) -> str:
    """Shape of a slice in chips, from the coordinates of its devices."""
    shape = [1 + max(axis) for axis in zip(*(d.coords for d in devices), strict=True)]
    flat = name in ("tpu-v2", "tpu-v3", "tpu-v5e", "tpu-v6e")
    return "x".join(str(size) for size in (shape[:2] if flat else shape))


@lru_cache(maxsize=1)
def _names() -> dict[str, str]:
    text = files("planner.training").joinpath("data", "device_names.toml").read_text()
    names: dict[str, str] = tomllib.loads(text)["names"]
    return names


def device_name(reported: str) -> str:
    """Our name of a device that a driver or framework reports; ``UnknownName`` suggests the nearest."""
    fitting = [known for known in _names() if reported.startswith(known)]
    if not fitting:
        raise UnknownName("device", reported, _names())
    return _names()[max(fitting, key=len)]


@lru_cache(maxsize=8)
def cpu_cluster(devices: int) -> ClusterSpec:
    """Processor and memory of the machine at hand, divided evenly among ``devices``, with measured rates.

    What crosses from one to another is copied in memory, twice: out and in.
    """
    import numpy as np

    a = np.ones((MATRIX, MATRIX), np.float32)
    numbers, other = np.ones(COPIED, np.float32), np.empty(COPIED, np.float32)
    flops = 2 * MATRIX**3 / _best(lambda: a @ a) / devices
    bandwidth = 2 * numbers.nbytes / _best(lambda: np.copyto(other, numbers)) / devices
    launch = _best(lambda: np.add(a[0, :8], 1))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / devices
    measured = "measured on this machine"
    links = [
        {
            "name": "memory",
            "kind": "pcie",
            "devices": devices,
            "bandwidth": bandwidth / 2,
            "latency": launch,
            "efficiency": 1,
        }
    ]
    spec = {
        "name": f"this machine as {devices} devices",
        "device": {
            "name": "cpu",
            "kind": "gpu",
            "vendor": "host",
            "peak_flops_per_second": {"fp32": flops, "bf16": flops},
            "memory": memory,
            "memory_bandwidth": bandwidth,
            "compute_units": 1,
            "tile": (8, 8),
            "kernel_launch": launch,
            "efficiency": {"matmul": 1, "attention_forward": 1, "attention_backward": 1, "memory": 1},
        },
        "nodes": 1,
        "devices_per_node": devices,
        "links": links if devices > 1 else [],
        "sources": {"device.*": measured, "links.*": f"{measured}: two copies"},
    }
    return ClusterSpec.model_validate(spec)


def _best(function: Callable[[], object]) -> float:
    """Least seconds of some calls."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)

"""A device and groups with round numbers, and rows of measured data; lets the tests here share modules."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from cluster_specs.cluster import DeviceSpec, Efficiency
from cluster_specs.topology import CommGroup, Level

sys.path.insert(0, str(Path(__file__).parent))

DATA = Path(__file__).parents[1] / "data"

DEVICE = DeviceSpec(
    name="round",
    kind="gpu",
    vendor="nobody",
    peak_flops_per_second={"bf16": 1e15, "fp16": 1e15, "fp8": 2e15, "tf32": 5e14, "fp32": 1e14},
    memory=80e9,
    memory_bandwidth=4e12,
    compute_units=128,
    tile=(128, 256),
    kernel_launch=2e-6,
    efficiency=Efficiency(matmul=0.8, attention_forward=0.6, attention_backward=0.5, memory=0.9),
)

NVLINK = Level(8, 400e9, 3.4e-6, "nvlink")
SWITCH = Level(8, 400e9, 3.4e-6, "nvlink", in_switch_reduction=True)
GROUPS = {
    "node": CommGroup(8, (NVLINK,)),
    "switch": CommGroup(8, (SWITCH,)),
    "nodes": CommGroup(32, (NVLINK, Level(4, 50e9, 14e-6, "infiniband"))),
    "switches": CommGroup(32, (SWITCH, Level(4, 50e9, 20e-6, "ethernet"))),
    "rail": CommGroup(16, (Level(16, 50e9, 14e-6, "infiniband"),)),
    "pcie": CommGroup(4, (Level(4, 20e9, 5.7e-6, "pcie"),)),
    "tiers": CommGroup(
        64, (NVLINK, Level(4, 50e9, 14e-6, "infiniband"), Level(2, 25e9, 20e-6, "infiniband"))
    ),
    "ring": CommGroup(16, (Level(16, 45e9, 1e-6, "ici", 2),)),
    "line": CommGroup(4, (Level(4, 45e9, 1e-6, "ici"),)),
    "torus": CommGroup(64, tuple(Level(4, 90e9, 1e-6, "ici", 2) for _ in range(3))),
    "slices": CommGroup(32, (Level(4, 90e9, 1e-6, "ici", 2),) * 2 + (Level(2, 6e9, 50e-6, "dcn"),)),
    "dcn": CommGroup(4, (Level(4, 6e9, 50e-6, "dcn"),)),
}


@pytest.fixture(scope="session")
def device() -> DeviceSpec:
    return DEVICE


@pytest.fixture(params=GROUPS, scope="session")
def group(request: pytest.FixtureRequest) -> CommGroup:
    return GROUPS[request.param]


@pytest.fixture(scope="session")
def groups() -> dict[str, CommGroup]:
    return GROUPS


def _rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text().splitlines()]


@pytest.fixture(scope="session")
def rows() -> Any:
    """``rows(name)``: the records of ``tests/data/<name>.jsonl``."""
    return _rows

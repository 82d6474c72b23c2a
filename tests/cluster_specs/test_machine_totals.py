"""Boards that were made for one machine: their multiprocessors by the machine's published count of units."""

import pytest

from cluster_specs.catalog import load_cluster

TOP500_PEAK = 306.31e15
"""Leonardo's Rpeak in fp64 [FLOP/s] (top500.org/system/180128)."""
BF16_OVER_FP64 = 16
"""Of the tensor cores of this generation: 312 and 19.5 TFLOP/s on A100 (its data sheet)."""


@pytest.mark.parametrize(
    ("cluster", "nodes", "cores", "units"),
    [("leonardo", 3456, 32, 1_824_768), ("marenostrum5-acc", 1120, 80, 680_960)],
)
def test_processors_and_multiprocessors_make_the_published_units(
    cluster: str, nodes: int, cores: int, units: int
) -> None:
    """Units are cores of processors and multiprocessors of boards (top500.org/system/180128, BSC's documents)."""
    spec = load_cluster(f"{cluster}:1")
    assert nodes * (cores + spec.devices_per_node * spec.device.compute_units) == units


def test_leonardo_has_the_published_peak() -> None:
    spec = load_cluster("leonardo:3456")
    peak = spec.num_devices * spec.device.peak_flops_per_second["bf16"]
    assert peak == pytest.approx(BF16_OVER_FP64 * TOP500_PEAK, rel=0.002)

"""Calibration finds the constants of the cluster that was measured, and estimates follow them."""

from pathlib import Path

import numpy as np
import pytest

from cluster_specs.catalog import load_cluster, what_if
from cluster_specs.cluster import ClusterSpec
from cluster_specs.topology import comm_group
from cost_models.collectives import COLLECTIVES
from cost_models.compute import AttentionShape, attention_seconds, matmul_seconds, stream_seconds
from planner import evaluate, plan
from planner.calibration.files import to_toml
from planner.calibration.fitting import Calibration, calibrate, misfits
from planner.calibration.measurements import (
    AttentionMeasurement,
    CollectiveMeasurement,
    CopyMeasurement,
    LaunchMeasurement,
    MatmulMeasurement,
    Measurement,
)
from planner.errors import InputError

TRUTH = {
    "device.kernel_launch": 6e-6,
    "device.efficiency.memory": 0.8,
    "device.efficiency.matmul": 0.66,
    "device.efficiency.attention_forward": 0.5,
    "device.efficiency.attention_backward": 0.4,
    "links.nvlink.latency": 5e-6,
    "links.nvlink.efficiency": 0.7,
    "links.infiniband.latency": 25e-6,
    "links.infiniband.efficiency": 0.6,
}
SIZES = [2.0**exponent for exponent in range(10, 33, 2)]


def measured(truth: ClusterSpec, noise: float) -> list[Measurement]:
    """What a cluster with the constants of `TRUTH` would measure."""
    random, device = np.random.default_rng(3), truth.device

    def seen(seconds: float) -> float:
        return float(seconds * np.exp(random.normal(0, noise)))

    found: list[Measurement] = [LaunchMeasurement(seconds=seen(device.kernel_launch)) for _ in range(5)]
    for size in (2**28, 2**30, 2**31):
        found.append(CopyMeasurement(bytes=size, seconds=seen(stream_seconds(size, device).seconds)))
    for m, n, k in ((4096, 4096, 4096), (8192, 8192, 8192), (2048, 8192, 8192), (4096, 14336, 4096)):
        seconds = seen(matmul_seconds(m, n, k, device, "bf16").seconds)
        found.append(MatmulMeasurement(m=m, n=n, k=k, dtype="bf16", seconds=seconds))
    for seq in (2048, 4096, 8192):
        shape = AttentionShape(2, 32, seq, seq, 128, 128, 8)
        for back in (False, True):
            seconds = seen(attention_seconds(shape, device, "bf16", backward=back).seconds)
            found.append(
                AttentionMeasurement(
                    batch=2, heads=32, kv_heads=8, seq=seq, head_dim=128, backward=back, dtype="bf16",
                    seconds=seconds,
                )
            )  # fmt: skip
    for nodes in (1, 2):
        group = comm_group(truth, ((8 * nodes, 1),))
        for size in SIZES:
            seconds = seen(COLLECTIVES["all_gather"](size, group).seconds)
            found.append(
                CollectiveMeasurement(
                    op="all_gather", bytes=size, ranks=8 * nodes, nodes=nodes, seconds=seconds
                )
            )
    return found


@pytest.fixture(scope="module")
def found() -> Calibration:
    return calibrate("dgx-h100", measured(what_if(load_cluster("dgx-h100:2"), TRUTH), noise=0.02))


def test_every_constant_comes_back(found: Calibration) -> None:
    assert found.changes.keys() == TRUTH.keys()
    for path, value in TRUTH.items():
        assert found.changes[path] == pytest.approx(value, rel=0.06), path


def test_without_noise_they_come_back_exactly() -> None:
    exact = calibrate("dgx-h100", measured(what_if(load_cluster("dgx-h100:2"), TRUTH), noise=0.0))
    for path, value in TRUTH.items():
        assert exact.changes[path] == pytest.approx(value, rel=1e-3), path
        assert exact.fitted[path].worst_residual < 1e-3


def test_residuals_and_samples_are_told(found: Calibration) -> None:
    fit = found.fitted["links.infiniband.efficiency"]
    assert fit.samples == len(SIZES)
    assert 0.001 < fit.median_residual < fit.worst_residual < 0.1
    assert found.fitted["device.kernel_launch"].samples == 5
    assert found.before["device.efficiency.matmul"] == load_cluster("dgx-h100").device.efficiency.matmul


def test_lines_are_per_collective_group_and_algorithm(found: Calibration) -> None:
    (node,) = [line for line in found.lines if line.nodes == 1]
    assert (node.collective, node.algorithm, node.ranks) == ("all_gather", "ring", 8)
    assert node.bus_bandwidth == pytest.approx(0.7 * 450e9, rel=0.15)


def test_the_file_is_the_cluster_that_was_measured(found: Calibration, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(to_toml(found))
    cluster = load_cluster(f"{path}:4")
    assert cluster.num_devices == 32
    assert cluster.device.efficiency.matmul == pytest.approx(found.changes["device.efficiency.matmul"])
    assert cluster.links[1].latency == pytest.approx(found.changes["links.infiniband.latency"])
    assert cluster.sources["links.infiniband.latency"] == "calibrated: mine.toml"


def test_estimates_follow_the_file(found: Calibration, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(to_toml(found))
    job = {"global_batch": 16, "seq_len": 2048, "data": 8, "tensor": 1, "micro_batch": 1, "zero_stage": 3}
    here = plan("llama-3.2-1b", f"{path}:1", **job)
    there = plan("llama-3.2-1b", "dgx-h100:1", **job)
    assert here.estimate is not None
    assert there.estimate is not None
    assert here.estimate.step_time_s > 1.1 * there.estimate.step_time_s
    assert evaluate(here).step_time_s == here.estimate.step_time_s


def test_one_interrupted_sample_does_not_matter(found: Calibration) -> None:
    truth = what_if(load_cluster("dgx-h100:2"), TRUTH)
    samples = measured(truth, noise=0.02)
    samples[10] = samples[10].model_copy(update={"seconds": samples[10].seconds * 30})
    assert isinstance(samples[10], MatmulMeasurement)
    assert calibrate("dgx-h100", samples).changes["device.efficiency.matmul"] == pytest.approx(0.66, rel=0.06)


def test_constants_that_end_at_nothing_or_explain_little_are_told(found: Calibration) -> None:
    assert misfits(found) == ()
    sizes = (1e3, 1e4, 1e5, 1e6, 1e9)
    flat = calibrate("dgx-h100", [one_collective(bytes=size, seconds=size / 1e10) for size in sizes])
    assert flat.fitted["links.nvlink.latency"].at_limit
    assert any(said.startswith("links.nvlink.latency ended at its limit, ") for said in misfits(flat))
    spread = [LaunchMeasurement(seconds=seconds) for seconds in (1e-6, 4e-6, 16e-6)]
    (badly,) = misfits(calibrate("dgx-h100", spread))
    assert badly.startswith("device.kernel_launch explains its 3 samples badly: they are off by 75%")


def one_collective(**changes: object) -> CollectiveMeasurement:
    fields = {"op": "all_reduce", "bytes": 1e6, "ranks": 8, "nodes": 1, "seconds": 1e-3}
    return CollectiveMeasurement.model_validate(fields | changes)


@pytest.mark.parametrize(
    ("base", "measurements", "said"),
    [
        ("dgx-h100", [], "nothing was measured"),
        ("dgx-h100:2", [LaunchMeasurement(seconds=1e-6)], "without its size: dgx-h100, not dgx-h100:2"),
        ("dgx-h1000", [LaunchMeasurement(seconds=1e-6)], "did you mean dgx-h100"),
        ("dgx-h100", [one_collective(ranks=16), one_collective(ranks=16)], "16 ranks on 1 nodes do not lie"),
        ("dgx-h100", [one_collective()], "2 constants need"),
        ("dgx-h100", [CopyMeasurement(bytes=1e12, seconds=1e-3)], "measured faster than dgx-h100 can be"),
        ("tpu-v5e", [LaunchMeasurement(seconds=1e-6)], "tpu-v5e has slices of a torus"),
    ],
)
def test_what_cannot_be_calibrated_is_said(base: str, measurements: list[Measurement], said: str) -> None:
    with pytest.raises(InputError, match=said):
        calibrate(base, measurements)

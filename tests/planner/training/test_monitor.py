"""What `Monitor` measures and writes is what `validate` reads."""

import json
import time
from pathlib import Path

import pytest
from tiny_llama import cluster, tiny_model

from planner import Monitor, Plan, plan, validate
from planner.errors import InputError


@pytest.fixture(scope="module")
def planned() -> Plan:
    spec = cluster(4)
    roomy = spec.model_copy(update={"device": spec.device.model_copy(update={"memory": 1e10})})
    return plan(tiny_model(), roomy, global_batch=16, seq_len=16, tensor=1, pipeline=1)


def measure(planned: Plan, seconds: tuple[float, ...]) -> Monitor:
    monitor = Monitor(planned, warm_up=1)
    for duration in seconds:
        with monitor.step() as done:
            time.sleep(duration)
            done(None)
    return monitor


def test_the_median_after_warming_up_counts(planned: Plan) -> None:
    measured = measure(planned, (0.2, 0.01, 0.01, 0.05)).measured
    assert measured.steps == 3
    assert 0.01 <= measured.step_time_s < 0.04
    assert planned.estimate is not None
    assert measured.predicted_step_time_s == pytest.approx(planned.estimate.step_time_s)
    assert measured.step_time_error == measured.predicted_step_time_s / measured.step_time_s - 1
    assert measured.memory_bytes is not None
    assert measured.memory_bytes > 2**20


def test_nothing_counts_before_it_is_warm(planned: Plan) -> None:
    with pytest.raises(InputError, match="nothing measured: 1 steps, the first 1 warm up"):
        _ = measure(planned, (0.0,)).measured


def test_rows_are_read_back_as_the_same_plan(planned: Plan, tmp_path: Path) -> None:
    monitor = measure(planned, (0.0, 0.01))
    path = tmp_path / "runs" / "mine.jsonl"
    monitor.write(path)
    monitor.write(path)
    assert len(path.read_text().splitlines()) == 2
    (row, _) = validate(path).rows
    assert row.skipped is None
    assert planned.estimate is not None
    assert row.predicted.step_time_s == pytest.approx(planned.estimate.step_time_s)
    assert row.step_time_error == pytest.approx(monitor.measured.step_time_error, rel=1e-6)


def test_shipped_models_and_clusters_are_named(tmp_path: Path) -> None:
    shipped = plan("gpt2", "dgx-h100:1", global_batch=64, seq_len=1024)
    path = tmp_path / "runs.jsonl"
    measure(shipped, (0.0, 0.01)).write(path)
    row = json.loads(path.read_text())
    assert row["model"]["name"] == "gpt2"
    assert row["hardware"] == {"cluster": "dgx-h100:1"}
    assert [p.name for p in tmp_path.iterdir()] == ["runs.jsonl"]

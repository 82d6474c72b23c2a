"""Errors on published runs do not grow beyond those recorded by ``benchmarks/accuracy.py``."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HERE = Path(__file__).parent
RECORDED: dict[str, float] = json.loads((HERE / "errors.json").read_text())
SLACK = 0.01
"""Absolute; a change that costs more on any figure has to say why and record it anew."""


def _accuracy() -> ModuleType:
    path = HERE.parent.parent / "benchmarks" / "accuracy.py"
    spec = importlib.util.spec_from_file_location("accuracy", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["accuracy"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def measured() -> tuple[ModuleType, dict[str, Any], dict[str, Any]]:
    """The script, and every file's verdicts and report."""
    module = _accuracy()
    judged, reports = {}, {}
    for name in (*module.RUNS, *module.LIVE):
        judged[name], reports[name] = module.judge(name)
    return module, judged, reports


def test_errors_do_not_grow(measured: tuple[ModuleType, dict[str, Any], dict[str, Any]]) -> None:
    module, judged, reports = measured
    now = module.recorded(judged, reports)
    assert now.keys() == RECORDED.keys()
    worse = {name: (RECORDED[name], value) for name, value in now.items() if value > RECORDED[name] + SLACK}
    assert not worse


def test_no_series_is_in_both_splits(measured: tuple[ModuleType, dict[str, Any], dict[str, Any]]) -> None:
    module, judged, _ = measured
    splits: dict[str, set[str]] = {}
    for rows in judged.values():
        for row in rows:
            splits.setdefault(row.series, set()).add(row.split)
    assert all(len(found) == 1 for found in splits.values())
    assert splits.keys() >= module.FIT_SERIES | module.INTERVAL_SERIES


def test_the_model_beats_a_constant_mfu_where_nothing_was_fitted(
    measured: tuple[ModuleType, dict[str, Any], dict[str, Any]],
) -> None:
    module, judged, _ = measured
    rows = [r for name in module.RUNS for r in judged[name] if r.split == "report"]
    ours = [abs(r.row.step_time_error) for r in rows if r.row.step_time_error is not None]
    peer = [abs(r.baseline_error) for r in rows if r.baseline_error is not None]
    assert len(ours) == len(peer) > 150
    assert sorted(ours)[len(ours) // 2] < sorted(peer)[len(peer) // 2] / 2


def test_most_measurements_lie_inside_the_interval(
    measured: tuple[ModuleType, dict[str, Any], dict[str, Any]],
) -> None:
    module, judged, _ = measured
    rows = [r for name in module.RUNS for r in judged[name] if r.split == "report"]
    share = module.inside(rows)
    assert 0.7 < share < 0.95

"""The peer's predictions: kept as data, and beside ours on the same runs."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import peers
import pytest

HERE = Path(__file__).parent


def lines(name: str) -> list[str]:
    return (HERE / f"{name}.jsonl").read_text().splitlines()


def test_predictions_are_of_runs_that_we_have() -> None:
    ids = {json.loads(line)["id"] for name in peers.FILES for line in lines(name)}
    assert peers.predictions().keys() <= ids
    assert len(peers.predictions()) > 800


def test_answered_and_unanswered_runs_are_all_runs() -> None:
    kept = json.loads(peers.PREDICTIONS.read_text())
    runs = sum(len(lines(name)) for name in peers.FILES)
    assert len(kept["runs"]) + sum(kept["unanswered"].values()) == runs


def test_what_the_peer_cannot_take_is_named() -> None:
    run: dict[str, Any] = {
        "model": {"experts": 0},
        "hardware": {"gpu": "A100-SXM4-80GB"},
        "parallel": {"dp": 1, "tp": 1, "pp": 1, "micro_batch": 1, "global_batch": 1, "precision": "bf16"},
        "measured": {},
    }
    assert peers.cannot(run) is None
    assert peers.cannot(run | {"hardware": {"gpu": "MI300X-192GB"}}) == "device"
    assert peers.cannot(run | {"measured": {"ok": False}}) == "crashed"
    assert peers.cannot(run | {"parallel": run["parallel"] | {"cp": 2}}) == "context parallelism"
    assert peers.cannot(run | {"parallel": run["parallel"] | {"dp": None}}) == "not published"


def test_errors_are_of_measured_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours is 10 % over 2 s measured; the peer says 1 s, at the fitted efficiency of a half 2 s."""

    def row(name: str, split: str) -> Any:
        predicted = SimpleNamespace(step_time_s=2.2, memory_gib_per_gpu=30.0)
        verdict = SimpleNamespace(id=name, predicted=predicted, step_time_error=0.1, memory_error=0.5)
        return SimpleNamespace(row=verdict, split=split, device="a100")

    said = {name: {"step_time_s": 1.0, "memory_gib": 10.0} for name in "ab"}
    monkeypatch.setattr(peers, "predictions", lambda: said)
    judged = {"runs_gpu": [row("a", "fit"), row("b", "report")], "sweep_h100": [], "grid_a100": []}
    text = peers.section(judged, dict.fromkeys(judged, "runs"))
    assert "| runs: report | 1 | 10.0 % | 10.0 % | 50.0 % | 50.0 % | 0.0 % | 0.0 % |" in text
    assert "| fit and report | 2 | 50.0 % | 50.0 % | 50.0 % | 50.0 % |" in text

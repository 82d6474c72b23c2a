"""`meshwright verify`: exit codes, JSON and report, whatever the framework found."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from planner import plan
from planner.cli.app import app
from planner.plans import Plan
from planner.verification import tools
from planner.verification.record import Check, Comparison, Verification


@pytest.fixture
def plan_file(tmp_path: Path) -> str:
    path = tmp_path / "plan.json"
    path.write_text(plan("gpt2", "dgx-h100:1", global_batch=64, seq_len=1024).to_json())
    return str(path)


def answering(monkeypatch: pytest.MonkeyPatch, error: float) -> None:
    check = Check(name="loss", expected=2.0, found=2.0 * (1 + error), error=error, limit=1e-5)
    memory = Comparison(name="live memory", unit="bytes", predicted=3e9, found=2e9)

    def run(plan: Plan, python: str | None) -> Verification:
        return Verification(
            tool="jax",
            versions=("jax 0.10",),
            what=f"{plan.model.name} with {python}",
            checks=(check,),
            comparisons=(memory,),
            notes=("small",),
        )

    monkeypatch.setattr(tools, "TOOLS", {"jax": run})


def test_a_verified_plan(plan_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, 0.0)
    done = CliRunner().invoke(app, ["verify", plan_file, "--with", "jax", "--python", "here", "--json"])
    assert done.exit_code == 0
    answer = json.loads(done.stdout)
    assert answer["schema"] == "meshwright/verification/1"
    assert answer["passed"] is answer["checks"][0]["passed"] is True
    assert answer["what"] == "gpt2 with here"
    assert answer["comparisons"]["live_memory"]["error"] == 0.5
    report = CliRunner().invoke(app, ["verify", plan_file, "--with", "jax"]).stdout
    assert report.startswith("Verified with jax 0.10")
    assert "+50.0%" in report
    assert "small" in report


def test_a_plan_that_fails(plan_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, 0.1)
    done = CliRunner().invoke(app, ["verify", plan_file, "--with", "jax"])
    assert done.exit_code == 4
    assert "NOT verified" in done.stdout
    assert "verification failed: loss: expected 2, found 2.2" in done.stderr


def test_bad_input_is_one_sentence(plan_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    done = CliRunner().invoke(app, ["verify", plan_file, "--with", "jaxx"])
    assert (done.exit_code, done.stderr) == (2, "error: unknown tool 'jaxx'; did you mean jax?\n")
    done = CliRunner().invoke(app, ["verify", plan_file, "--with", "mlx"])
    assert done.stderr == "error: unknown tool 'mlx'; use one of jax, torch, xla-tpu\n"
    done = CliRunner().invoke(app, ["verify", plan_file, "--with", "xla-tpu"])
    assert done.exit_code == 2
    assert "compiles for TPU slices" in done.stderr
    answering(monkeypatch, 0.0)
    for condition, code in (
        ("comparisons.live_memory.error > 0.4", 4),
        ("comparisons.live_memory.error > 0.6", 0),
    ):
        done = CliRunner().invoke(app, ["verify", plan_file, "--with", "jax", "--fail-if", condition])
        assert done.exit_code == code

"""``solve-iopddl``: what it prints, and how it ends."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import Result

from planner.cli import contest
from planner.intra_op import contest as solving
from planner.intra_op.iopddl import read_contest_problem

Cli = Callable[..., Result]

TINY = Path(__file__).parents[2] / "data" / "iopddl_tiny.json"


def test_json_answers_with_assignment_cost_and_bound(cli: Cli) -> None:
    result = cli("solve-iopddl", str(TINY), "--seconds", "20", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    answer = json.loads(result.stdout)
    problem = read_contest_problem(TINY)
    assert answer["schema"] == "meshwright/iopddl/1"
    assert answer["cost"] == answer["lower_bound"] == problem.cost(answer["assignment"]) == 16
    assert answer["usage_peak"] == problem.peak(answer["assignment"]) <= answer["usage_limit"]
    assert (answer["gap"], answer["proven"]) == (0, True)


def test_people_read_the_same(cli: Cli) -> None:
    result = cli("solve-iopddl", str(TINY))
    assert result.exit_code == 0
    assert "assignment:  [0, 0, 0, 1]" in result.stdout
    assert "lower bound: 16 (proven optimal)" in result.stdout
    assert "5 bytes of 9 bytes" in result.stdout


def test_how_it_ends(cli: Cli, tmp_path: Path) -> None:
    document = json.loads(TINY.read_text())
    document["problem"]["usage_limit"] = 1
    tight, wrong = tmp_path / "tight.json", tmp_path / "wrong.json"
    tight.write_text(json.dumps(document))
    wrong.write_text("[]")
    ends = {str(tight): 3, str(wrong): 2, str(tmp_path / "missing.json"): 2}
    assert {file: cli("solve-iopddl", file).exit_code for file in ends} == ends
    assert "raise the limit by at least" in cli("solve-iopddl", str(tight)).stderr
    assert cli("solve-iopddl", str(TINY), "--fail-if", "gap < 0.01").exit_code == 4


def test_a_limit_that_reading_alone_misses_is_told(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli("solve-iopddl", str(TINY), "--seconds", "20").stderr == ""
    monkeypatch.setattr(contest, "GRACE", -30.0)
    assert (
        "not 20: to read and to choose once needs that"
        in cli("solve-iopddl", str(TINY), "--seconds", "20").stderr
    )
    assert cli("solve-iopddl", str(TINY), "--seconds", "20", "--quiet").stderr == ""


def test_ctrl_c_prints_the_best_choice_so_far(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    solve = solving.solve_contest_problem
    monkeypatch.setattr(
        solving, "solve_contest_problem", lambda *given: replace(solve(*given), interrupted=True)
    )
    result = cli("solve-iopddl", str(TINY), "--seconds", "20", "--json")
    assert (result.exit_code, result.stderr) == (130, "interrupted\n")
    answer = json.loads(result.stdout)
    assert (answer["interrupted"], answer["assignment"]) == (True, [0, 0, 0, 1])

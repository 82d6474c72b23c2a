"""`meshwright timeline`: files, chart and JSON of one step."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

Cli = Callable[..., Result]


def test_a_chart_is_the_answer_where_no_file_is_wanted(cli: Cli, piped: str) -> None:
    result = cli("timeline", piped)
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert [line.split("|")[0] for line in lines] == [f"rank {rank} " for rank in range(4)]
    assert lines[0].split("|")[1].startswith("F")
    assert set("".join(line.split("|")[1] for line in lines)) == set("FB.")


def test_files_are_written_and_named(cli: Cli, piped: str, tmp_path: Path) -> None:
    trace, page = tmp_path / "trace.json", tmp_path / "page.html"
    result = cli("timeline", piped, "-o", str(trace), "--html", str(page))
    assert result.exit_code == 0
    assert result.stdout.split() == ["wrote", str(trace), "wrote", str(page)]
    events = json.loads(trace.read_text())["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X", "C"}
    assert {event["pid"] for event in events} == {0, 1, 2, 3}
    assert "<svg" in page.read_text()
    both = cli("timeline", piped, "--text", "-o", str(trace))
    assert both.stdout.startswith("rank 0 |")
    assert both.stdout.endswith(f"wrote {trace}\n")


def test_json_agrees_with_evaluate(cli: Cli, piped: str, tmp_path: Path) -> None:
    answer = json.loads(cli("timeline", piped, "--json", "-o", str(tmp_path / "t.json")).stdout)
    estimate = json.loads(cli("evaluate", piped, "--json").stdout)["estimate"]
    assert answer["schema"] == "meshwright/timeline/1"
    assert answer["step_time_s"] == pytest.approx(estimate["step_time_s"])
    assert answer["bubble_fraction"] == pytest.approx(estimate["bubble_fraction"])
    assert answer["idle_fraction"] > answer["bubble_fraction"]
    assert max(rank["memory_bytes"] for rank in answer["ranks"]) == pytest.approx(estimate["memory_bytes"])
    for rank in answer["ranks"]:
        spent = rank["busy_s"] + rank["fill_s"] + rank["waiting_s"] + rank["drain_s"]
        assert spent == pytest.approx(answer["makespan_s"])
    assert answer["files"] == [str(tmp_path / "t.json")]


def test_thresholds_and_bad_plans(cli: Cli, piped: str) -> None:
    assert cli("timeline", piped, "--fail-if", "bubble_fraction > 0.01").exit_code == 4
    assert cli("timeline", "no-such-plan.json").exit_code in (1, 2)

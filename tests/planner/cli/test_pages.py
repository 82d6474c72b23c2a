"""`meshwright report`: the page on disk, and what is said about it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

pytest.importorskip("vl_convert")

Cli = Callable[..., Result]


def test_a_page_is_written_and_named(cli: Cli, run_file: str, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    result = cli("report", run_file, "-o", str(path))
    assert (result.exit_code, result.stdout) == (0, f"wrote {path}\n")
    assert path.read_text().startswith("<!doctype html>")
    answer = json.loads(cli("report", run_file, "-o", str(path), "--json").stdout)
    assert answer["schema"] == "meshwright/report/1"
    assert answer["files"] == [str(path)]
    assert "memory-by-rank" in answer["figures"]


def test_bad_plans_and_thresholds(cli: Cli, run_file: str, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    missing = cli("report", str(tmp_path / "none.json"), "-o", str(path))
    assert missing.exit_code == 2
    assert not path.exists()
    assert cli("report", run_file, "-o", str(path), "--fail-if", "step_time_s > 0").exit_code == 4


def test_without_the_library_one_sentence_says_what_to_install(
    cli: Cli, run_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    from planner.pages import charts

    charts.chart_library.cache_clear()
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    result = cli("report", run_file, "-o", str(tmp_path / "report.html"))
    assert result.exit_code == 2
    assert "pip install 'meshwright[report]'" in result.stderr
    charts.chart_library.cache_clear()


def test_a_sweep_has_a_page(cli: Cli, tmp_path: Path) -> None:
    sweep, path = tmp_path / "sweep.json", tmp_path / "sweep.html"
    asked = ("--devices", "8,16", "--seq-len", "1024", "--batch", "64")
    assert cli("what-if", "llama-3.2-1b", "dgx-h100", *asked, "-o", str(sweep)).exit_code == 0
    answer = json.loads(cli("report", str(sweep), "-o", str(path), "--json").stdout)
    assert answer["figures"] == ["front", "throughput", "efficiency", "headroom", "sensitivity"]
    assert "What if: llama-3.2-1b on dgx-h100" in path.read_text()
    assert cli("report", "-", "-o", str(path), stdin=sweep.read_text()).exit_code == 0
    broken = json.loads(sweep.read_text()) | {"points": [{}]}
    sweep.write_text(json.dumps(broken))
    refused = cli("report", str(sweep), "-o", str(path))
    assert refused.exit_code == 2
    assert "points.0.inputs, points.0.key and points.0.status are missing" in refused.stderr


def test_tokens_are_those_of_the_run(cli: Cli, run_file: str, tmp_path: Path) -> None:
    path, sweep = tmp_path / "report.html", tmp_path / "sweep.json"
    assert cli("report", run_file, "-o", str(path), "--tokens", "3e11").exit_code == 0
    assert "<dt>3e11 tokens</dt>" in path.read_text()
    assert cli("report", run_file, "-o", str(path), "--tokens", "0").exit_code == 2
    sweep.write_text('{"schema": "meshwright/sweep/1"}')
    refused = cli("report", str(sweep), "-o", str(path), "--tokens", "1e12")
    assert refused.exit_code == 2
    assert "a sweep says for itself" in refused.stderr


@pytest.fixture(autouse=True)
def own_folder_for_caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    return tmp_path / "caches"


def test_plans_are_kept_where_that_can_be(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, own_folder_for_caches: Path
) -> None:
    from planner.server import listening

    served: list[Any] = []
    monkeypatch.setattr(listening, "listen", lambda listener, host, *more: served.append(more))
    cli("serve", "--port", "0", "--quiet")
    cli("serve", "--port", "0", "--no-cache", "--no-ahead")
    own_folder_for_caches.rename(own_folder_for_caches.with_name("moved"))
    own_folder_for_caches.write_text("in the way")
    warned = cli("serve", "--port", "0")
    assert "warning: plans are not kept between runs" in warned.stderr
    assert warned.exit_code == 0
    assert served == [(own_folder_for_caches / "meshwright" / "plans", True), (None, False), (None, True)]
    refused = cli("serve", "--cache", "here", "--no-cache")
    assert refused.exit_code == 2
    assert "contradict each other" in refused.stderr


def test_a_port_in_use_is_a_sentence(cli: Cli) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = cli("serve", "--port", str(taken.getsockname()[1]))
    assert result.exit_code == 1
    assert "address already in use" in result.stderr


def test_who_listens_beyond_this_machine_is_warned(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from planner.server import listening

    served: list[str] = []
    monkeypatch.setattr(listening, "listen", lambda listener, host, *_: served.append(host))
    quiet = cli("serve", "--port", "0", "--json")
    assert (quiet.exit_code, quiet.stderr) == (0, "")
    assert json.loads(quiet.stdout)["url"].startswith("http://127.0.0.1:")
    open_to_all = cli("serve", "--port", "0", "--host", "0.0.0.0")
    assert "without a password" in open_to_all.stderr
    assert served == ["127.0.0.1", "0.0.0.0"]


def test_without_the_server_one_sentence_says_what_to_install(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "uvicorn", None)
    result = cli("serve", "--port", "0")
    assert result.exit_code == 2
    assert "pip install 'meshwright[serve]'" in result.stderr

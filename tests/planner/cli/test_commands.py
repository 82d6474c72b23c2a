"""What commands answer, and where they say it."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

Cli = Callable[..., Result]


def test_evaluate_answers_with_the_documented_keys(cli: Cli, run_file: str) -> None:
    result = cli("evaluate", run_file, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    answer = json.loads(result.stdout)
    assert answer["schema"] == "meshwright/plan/1"
    assert {"model", "cluster", "job", "plan", "estimate", "optimality", "alternatives", "explanation"} < set(
        answer
    )
    assert answer["plan"]["data"] == 8
    assert "assumed precision=bf16" in answer["warnings"]


def test_evaluate_accepts_what_it_printed(cli: Cli, run_file: str, tmp_path: Path) -> None:
    """From the run file, from its JSON, and from stdin: the same numbers."""
    saved = tmp_path / "saved.json"
    first = json.loads(cli("evaluate", run_file, "--json", "-o", str(saved)).stdout)
    second = json.loads(cli("evaluate", str(saved), "--json").stdout)
    third = json.loads(cli("evaluate", "-", "--json", stdin=saved.read_text()).stdout)
    assert first["estimate"] == second["estimate"] == third["estimate"]


def test_evaluate_reports_for_people(cli: Cli, run_file: str) -> None:
    result = cli("evaluate", run_file)
    assert (result.exit_code, result.stderr) == (0, "")
    for word in ("step time", "MFU", "Memory of the fullest device", "Assumed"):
        assert word in result.stdout
    assert result.stdout.isascii()


def test_validate_scores_and_plots(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    sample = Path(__file__).parents[2] / "data" / "runs_sample.jsonl"
    plot = tmp_path / "plot.html"
    result = cli("validate", str(sample), "--json", "--plot", str(plot))
    assert result.exit_code == 0
    answer = json.loads(result.stdout)
    assert answer["schema"] == "meshwright/validation/1"
    assert len(answer["rows"]) == len(sample.read_text().splitlines())
    assert answer["summary"]["skipped"] < len(answer["rows"]) / 3
    assert 'id="parity"' in plot.read_text()


OWN_RUN = {
    "model": {"layers": 24, "hidden": 2048, "heads": 16, "vocab": 50257, "seq": 2048, "gated_mlp": False},
    "hardware": {"gpu": "A100-SXM-80GB", "n_gpus": 8},
    "parallel": {"dp": 8, "micro_batch": 4},
    "measured": {"tokens_per_s_per_gpu": 15000},
}


def _log(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return str(path)


def test_validate_takes_logs_of_few_fields_from_several_files_and_stdin(cli: Cli, tmp_path: Path) -> None:
    first = _log(tmp_path / "first.jsonl", {**OWN_RUN, "id": "a"})
    second = _log(tmp_path / "second.jsonl", {**OWN_RUN, "id": "b"})
    found = json.loads(cli("validate", first, second, "--json").stdout)["rows"]
    assert [row["id"] for row in found] == ["a", "b"]
    assert all("ffn_hidden=8192 (as Megatron-LM has it)" in row["assumed"] for row in found)
    piped = json.loads(cli("validate", "-", "--json", stdin=Path(first).read_text()).stdout)["rows"]
    assert piped == found[:1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": "gpt-9"}, "1 of 1 runs were skipped"),
        ({"measured": {}}, "0 of 1 runs were skipped, the others have nothing measured"),
    ],
)
def test_validate_that_compares_nothing_is_no_success(
    cli: Cli, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    """A gate must not pass because none of its runs could be read, or none says how it went."""
    plot = tmp_path / "plot.html"
    result = cli("validate", _log(tmp_path / "runs.jsonl", {**OWN_RUN, **change}), "--plot", str(plot))
    assert result.exit_code == 2
    assert result.stderr == f"error: nothing was compared: {said}\n"
    assert "1 run: " in result.stdout
    assert "Errors" not in result.stdout
    assert not plot.exists()


@pytest.mark.parametrize(
    ("command", "name", "key"),
    [
        ("clusters", "dgx-h100:2", "device"),
        ("models", "llama-3.1-8b", "family"),
        ("schedules", "1f1b", "description"),
        ("schedules", "pipedream-2bw", "asynchronous"),
        ("stacks", "paddle", "sources"),
        ("targets", "jax", "description"),
        ("targets", "maxtext", "stack"),
    ],
)
def test_catalogues_list_and_show(cli: Cli, command: str, name: str, key: str) -> None:
    listed = json.loads(cli(command, "--json").stdout)
    assert name.split(":")[0] in listed[command]
    shown = json.loads(cli(command, name, "--json").stdout)
    assert shown["name"] == name
    assert shown[key]
    assert name.split(":")[0] in cli(command).stdout
    assert key in cli(command, name).stdout


def test_no_colour_without_a_terminal(cli: Cli, run_file: str) -> None:
    assert "\x1b" not in cli("evaluate", run_file).output


def test_progress_is_shown_late_and_only_on_terminals() -> None:
    """Nothing within the first second, then one line that is rewritten and cleared at the end."""
    code = (
        "import time; from planner.cli.progress import Progress\n"
        "with Progress() as p:\n p('early'); time.sleep(1.1); p('late'); p('too soon after')"
    )
    piped = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert piped.stderr == ""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    subprocess.run([sys.executable, "-c", code], stderr=theirs, check=True, env=environment)
    assert os.read(ours, 1000).decode() == "\r\x1b[2Klate\r\x1b[2K"
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize(
    ("model", "options", "asked", "assumed"),
    [
        ("gpt2", (), (8, 1024), 2),
        ("llama-2-7b", (), (8, 4096), 2),
        ("gpt2", ("--seq-len", "512"), (8, 512), 1),
        ("gpt2", ("--seq-len", "512", "--global-batch", "4096", "--tokens"), (8, 512), 0),
        ("vit-b-16", (), (8, 197), 1),
    ],
)
def test_whether_a_model_fits_needs_no_batch_and_no_length(
    cli: Cli, model: str, options: tuple[str, ...], asked: tuple[int, int], assumed: int
) -> None:
    """GPT-2 has 1024 learned positions, Llama 2 is made for 4096; what is taken for granted is said."""
    answer = json.loads(cli("fit", model, "dgx-h100:1", *options, "--json").stdout)
    job = answer["plan"]["job"]
    assert (job["global_batch"], job["seq_len"]) == asked
    assert len(answer["assumed"]) == assumed
    shown = " ".join(cli("fit", model, "dgx-h100:1", *options).stdout.split())
    assert all(said in shown for said in answer["assumed"])


def test_tokens_of_no_batch_are_refused(cli: Cli) -> None:
    refused = cli("fit", "gpt2", "dgx-h100:1", "--tokens")
    assert refused.exit_code == 2
    assert "--tokens says what --global-batch counts" in refused.output

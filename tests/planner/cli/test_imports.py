"""``evaluate --from``, ``advise``, and ``export`` of what a target cannot say."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

Cli = Callable[..., Result]

WHERE = ("--model", "llama-3.1-8b", "--cluster", "dgx-h100:1", "--seq-len", "4096")


@pytest.fixture
def configuration(tmp_path: Path) -> str:
    path = tmp_path / "deepspeed.json"
    zero = {"stage": 3, "stage3_max_live_params": 1}
    config = {
        "train_batch_size": 64,
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_optimization": zero,
        "activation_checkpointing": {"cpu_checkpointing": False},
        "aio": {"block_size": 1},
    }
    path.write_text(json.dumps(config))
    return str(path)


def test_a_configuration_is_evaluated(cli: Cli, configuration: str) -> None:
    result = cli("evaluate", "--from", configuration, *WHERE, "--json")
    assert result.exit_code == 0
    answer = json.loads(result.stdout)
    assert (answer["plan"]["zero_stage"], answer["plan"]["recompute"]) == (3, "full")
    assert answer["estimate"]["step_time_s"] > 0
    assert any(w.startswith("aio.block_size in deepspeed.json is not understood") for w in answer["warnings"])
    assert any(w.startswith("assumed data=8") for w in answer["warnings"])


def test_unknown_keys_are_warnings_and_assumptions_are_shown(cli: Cli, configuration: str) -> None:
    result = cli("evaluate", "--from", configuration, *WHERE)
    assert "warning: aio.block_size in deepspeed.json is not understood and was not read" in result.stderr
    assert "recompute=full" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give either a plan or run file, or --from FILE --model M --cluster C"),
        (("run.toml", "--from", "x.json"), "give either a plan or run file"),
        (
            ("run.toml", "--model", "gpt2", "--global-batch", "3"),
            "--model, --global-batch go with --from FILE and not with run.toml",
        ),
        (("run.toml", "--micro-batch", "1"), "--micro-batch goes with --from FILE and not with run.toml"),
        (("--from", "x.json", "--model", "llama-3.1-8b"), "needs --from FILE, --model M and --cluster C"),
        (("--from", "x.json", *WHERE), "x.json: no such file"),
    ],
)
def test_evaluate_wants_one_source(cli: Cli, arguments: tuple[str, ...], message: str) -> None:
    result = cli("evaluate", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_advice_as_json_and_as_a_file(cli: Cli, configuration: str, tmp_path: Path) -> None:
    folder = tmp_path / "better"
    result = cli("advise", "--from", configuration, *WHERE, "--json", "-o", str(folder))
    assert result.exit_code == 0
    answer = json.loads(result.stdout)
    assert answer["schema"] == "meshwright/advice/1"
    assert answer["gain"] > 0
    assert answer["unknown"] == ["aio.block_size"]
    written = json.loads((folder / "deepspeed.json").read_text())
    assert written["zero_optimization"]["stage"] == answer["best"]["plan"]["zero_stage"]
    missed = cli("advise", "--from", configuration, *WHERE, "--json", "--fail-if", "gain > 0")
    assert missed.exit_code == 4


def test_advice_as_text(cli: Cli, configuration: str) -> None:
    text = cli("advise", "--from", configuration, *WHERE).stdout
    assert "DeepSpeed's JSON configuration, read for llama-3.1-8b" in text
    assert "Change " in text
    assert "Not understood\naio.block_size" in text
    assert "Where the time goes" in text


def test_export_comes_near_and_says_so_or_refuses(cli: Cli, run_file: str, tmp_path: Path) -> None:
    file = str(tmp_path / "plan.json")
    assert cli("evaluate", run_file, "-o", file).exit_code == 0
    plan = json.loads(Path(file).read_text())
    plan["plan"]["recompute"] = "selective"
    Path(file).write_text(json.dumps(plan))
    near = cli("export", file, "--to", "hf-trainer", "-o", str(tmp_path))
    assert near.exit_code == 0
    assert "warning: changed for target hf-trainer: recompute none; predicted " in near.stderr
    assert "s a step instead of" in (tmp_path / "hf_trainer_notes.txt").read_text()
    exact = cli("export", file, "--to", "hf-trainer", "-o", str(tmp_path), "--exact")
    assert exact.exit_code == 2
    assert "target hf-trainer cannot express recompute selective" in exact.stderr


def test_files_of_a_run_say_what_is_predicted(cli: Cli, run_file: str, tmp_path: Path) -> None:
    assert cli("export", run_file, "--to", "jax", "-o", str(tmp_path)).exit_code == 0
    assert "predicted: " in (tmp_path / "jax_shardings.py").read_text()

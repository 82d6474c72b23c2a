"""``meshwright calibrate``: logs in, a cluster file out that the other commands take."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

Cli = Callable[..., Result]

LOG = Path(__file__).parents[2] / "data" / "nccl_all_reduce.log"


def test_a_log_becomes_a_cluster(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    result = cli("calibrate", "dgx-a100-80g", "--nccl-log", str(LOG), "-o", str(file))
    assert result.exit_code == 0, result.output
    assert "links.nvlink.latency" in result.output
    assert f"wrote{file}" in "".join(result.output.split())
    job = ("--global-batch", "8", "--seq-len", "2048", "--tensor", "8", "--json", "--quiet")
    mine = json.loads(cli("plan", "llama-3.2-1b", f"{file}:1", *job).stdout)
    shipped = json.loads(cli("plan", "llama-3.2-1b", "dgx-a100-80g:1", *job).stdout)
    assert mine["cluster"]["name"] == "mine"
    assert mine["estimate"]["step_time_s"] != shipped["estimate"]["step_time_s"]
    assert cli("fit", "llama-3.2-1b", str(file), *job).exit_code == 0
    assert json.loads(cli("clusters", str(file), "--json").stdout)["name"] == "mine"


def test_a_log_of_another_device_is_told(cli: Cli) -> None:
    assert "warning" not in cli("calibrate", "dgx-a100-80g", "--nccl-log", str(LOG)).stderr
    other = cli("calibrate", "dgx-h100", "--nccl-log", str(LOG))
    assert "is of NVIDIA A100-SXM4-80GB, dgx-h100 has h100-sxm-80g" in other.stderr
    assert cli("calibrate", "dgx-h100", "--nccl-log", str(LOG), "--quiet").stderr == ""


def test_a_run_can_name_the_file(cli: Cli, tmp_path: Path) -> None:
    cli("calibrate", "dgx-a100-80g", "--nccl-log", str(LOG), "-o", str(tmp_path / "mine.toml"))
    run = tmp_path / "run.toml"
    run.write_text(
        'model = {name = "llama-3.2-1b", seq = 2048}\nhardware = "mine.toml:2"\n'
        "[parallel]\ndp = 16\nmicro_batch = 1\nglobal_batch = 16\n"
    )
    result = cli("evaluate", str(run), "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["cluster"]["nodes"] == 2


def test_json_has_constants_with_residuals(cli: Cli) -> None:
    answer = json.loads(cli("calibrate", "dgx-a100-80g", "--nccl-log", str(LOG), "--json").stdout)
    assert answer["schema"] == "meshwright/calibration/1"
    assert answer["fitted"]["links.nvlink.efficiency"]["samples"] == 7
    assert answer["fitted"]["links.nvlink.efficiency"]["median_residual"] < 0.05
    assert answer["files"] == []


def test_what_was_measured_can_be_kept_and_given_again(cli: Cli, tmp_path: Path) -> None:
    kept = tmp_path / "kept.jsonl"
    first = cli("calibrate", "dgx-a100-80g", "--nccl-log", str(LOG), "--save", str(kept), "--json")
    again = cli("calibrate", "dgx-a100-80g", "--data", str(kept), "--json")
    assert json.loads(again.stdout)["changes"] == json.loads(first.stdout)["changes"]


def test_thresholds_hold_of_residuals(cli: Cli) -> None:
    result = cli("calibrate", "dgx-a100-80g", "--nccl-log", str(LOG), "--fail-if", "measurements < 100")
    assert result.exit_code == 4


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "found 0 '#  Rank' lines"),
        (LOG.read_bytes().split(b"57.00")[0], "cut off"),
        (bytes(range(256)) * 100, "is not text"),
        (b"[" * 100_000, "found 0 '#  Rank' lines"),
    ],
    ids=["empty", "truncated", "garbage", "brackets"],
)
def test_files_that_are_no_log(cli: Cli, tmp_path: Path, content: bytes, said: str) -> None:
    log = tmp_path / "all_reduce_perf.log"
    log.write_bytes(content)
    result = cli("calibrate", "dgx-a100-80g", "--nccl-log", str(log))
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert said in line


@pytest.mark.parametrize("name", ["mine.json", "mine.txt", "mine"])
def test_a_file_that_no_command_would_read_as_toml_is_not_written(
    cli: Cli, tmp_path: Path, name: str
) -> None:
    file = tmp_path / name
    result = cli("calibrate", "dgx-a100-80g", "--nccl-log", str(LOG), "-o", str(file))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "end its name with .toml" in result.stderr
    assert not file.exists()


def test_a_measurement_of_no_kind_is_told(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "measured.jsonl"
    file.write_text('{"seconds": 1}\n')
    result = cli("calibrate", "dgx-a100-80g", "--data", str(file))
    assert result.exit_code == 2
    assert "line 1: has no field that says of which kind it is" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("dgx-h100",), "nothing was measured"),
        (("dgx-h100", "--nccl-log", "none.log"), "none.log: no such file"),
        (("dgx-h100", "--measure", "--device", "tpu"), "--device tpu: use cpu or cuda"),
        (("dgx-h1000", "--nccl-log", str(LOG)), "did you mean dgx-h100"),
        (("tpu-v5e", "--nccl-log", str(LOG)), "slices of a torus"),
        (("dgx-h100:8", "--nccl-log", str(LOG)), "without its size"),
    ],
)
def test_bad_input_in_one_sentence(cli: Cli, tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    file = tmp_path / "mine.toml"
    result = cli("calibrate", *arguments, "-o", str(file))
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert said in line
    assert not file.exists()

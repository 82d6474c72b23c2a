"""What users get wrong, on the real command line: one clear sentence that names it, and the right exit code."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

Cli = Callable[..., Result]

JOB = ("--global-batch", "8", "--seq-len", "128")
MODEL, NODE = "llama-3.2-1b", "dgx-h100:1"
LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 32000,
    "tie_word_embeddings": False,
    "max_position_embeddings": 4096,
}
GARBAGE = bytes(range(256)) * (10_000_000 // 256)


def refused(result: Result, code: int = 2) -> str:
    """The only line on stderr of a command that ended with ``code`` and printed nothing else."""
    assert (result.exit_code, result.stdout) == (code, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert "Traceback" not in line
    return line


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b'{"model_type": "llama", "hidden_size": 40', "not valid JSON"),
        (b"[]", "must be a table of keys, found a list"),
        (b"[" * 1_000_000, "nested too deeply"),
        (GARBAGE, "not text"),
        (b"x" * 10_000_000, "not valid JSON"),
    ],
    ids=["empty", "truncated", "list", "deep", "garbage", "letters"],
)
def test_files_that_are_no_configuration(cli: Cli, tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    assert reason in refused(cli("plan", str(path), NODE, *JOB))


@pytest.mark.parametrize(
    ("more", "code", "reason"),
    [
        (("--stack", "megatron"), 2, "stack megatron keeps gradients until the step"),
        (("--pipeline", "2"), 2, "stages of a pipeline have several micro-batches"),
        (("--micro-batch", "1", "--data", "4"), 3, "one micro-batch a step"),
    ],
)
def test_steps_within_the_backward_where_gradients_wait(
    cli: Cli, more: tuple[str, ...], code: int, reason: str
) -> None:
    assert reason in refused(cli("plan", MODEL, NODE, *JOB, "--step-in-backward", *more), code)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hidden_size": 0}, "hidden_size must be from 1"),
        ({"num_hidden_layers": -2}, "num_hidden_layers must be from 1"),
        ({"hidden_size": "big"}, "hidden_size must be a whole number"),
        ({"hidden_size": 4096.5}, "hidden_size must be a whole number"),
        ({"hidden_size": None}, "missing key 'hidden_size'"),
        ({"num_key_value_heads": 5}, "num_key_value_heads must divide the 32 attention heads"),
        ({"num_attention_heads": 31, "num_key_value_heads": 31}, "hidden_size"),
        ({"model_type": "lama"}, "did you mean llama"),
    ],
)
def test_configurations_that_make_no_model(
    cli: Cli, tmp_path: Path, changes: dict[str, object], reason: str
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA, **changes}))
    assert reason in refused(cli("plan", str(path), NODE, *JOB))


@pytest.mark.parametrize(
    ("cluster", "reason"),
    [
        ("dgx-h100:0", "at least 1 node"),
        ("dgx-h100:-1", "at least 1 node"),
        ("dgx-h100:many", "not a node count"),
        ("dgx-h100:999999999999", "at most 1,000,000 nodes"),
        ("dgx-h1000", "did you mean dgx-h100"),
        ("tpu-v5p", "needs a slice shape"),
        ("tpu-v5p:0x4x4", "not a slice shape"),
        ("nowhere.toml", "no such file"),
    ],
)
def test_clusters_that_do_not_exist(cli: Cli, cluster: str, reason: str) -> None:
    assert reason in refused(cli("plan", MODEL, cluster, *JOB))


@pytest.mark.parametrize("suffix", [".toml", ".yaml", ".json"])
def test_garbage_is_no_cluster(cli: Cli, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"cluster{suffix}"
    path.write_bytes(GARBAGE)
    assert "is not text" in refused(cli("plan", MODEL, str(path), *JOB))


@pytest.mark.parametrize("command", ["evaluate", "explain", "compare", "export"])
def test_garbage_is_no_plan(cli: Cli, tmp_path: Path, command: str) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(GARBAGE)
    rest = {"compare": [str(path)], "export": ["--to", "jax"]}.get(command, [])
    assert "not text" in refused(cli(command, str(path), *rest))


@pytest.mark.parametrize(
    ("pins", "reason"),
    [
        ("--zero 3 --sharding NO_SHARD", "--zero 3 contradicts --sharding NO_SHARD"),
        ("--zero 5", "--zero: must be 0, 1, 2 or 3, found 5"),
        ("--no-tensor --tensor 4", "--no-tensor contradicts --tensor 4"),
        ("--data 4 --tensor 4", "does not divide the 8 devices"),
        ("--tensor 0", "greater than 0"),
        ("--expert 2", "has no experts"),
        ("--virtual-stages 4 --no-pipeline", "contradicts a pipeline of 1"),
        ("--virtual-stages 2 --schedule 1f1b --pipeline 2", "contradicts --schedule 1f1b"),
        ("--virtual-stages 5 --pipeline 4", "more than the 16 layers"),
        ("--micro-batch 3", "does not divide the global batch of 8"),
        ("--schedule 1f2b", "use one of gpipe, 1f1b"),
        ("--recompute some", "use one of none"),
        ("--offload disk", "--offload 'disk': use optimizer, weights, activations or none"),
        ("--schedule interleaved --no-pipeline", "--schedule interleaved contradicts a pipeline of 1"),
        ("--offload weights", "add --offload optimizer"),
        ("--headroom 2", "--headroom: must be less than 1, found 2.0"),
        ("--headroom 105%", "--headroom: must be less than 1, found 1.05"),
        ("--headroom nan", "--headroom: must be a finite number"),
        ("--expert-imbalance inf", "--expert-imbalance: must be a finite number"),
        (
            "--token-exchange flex",
            "--token-exchange: must be 'all_to_all', 'all_gather', 'deepep' or 'hybridep'",
        ),
        ("--offload optimizer --offload none", "--offload none contradicts --offload optimizer"),
    ],
)
@pytest.mark.parametrize("command", ["plan", "fit"])
def test_pins_that_contradict(cli: Cli, command: str, pins: str, reason: str) -> None:
    assert reason in refused(cli(command, MODEL, NODE, *JOB, *pins.split()))


def test_a_batch_smaller_than_its_ranks(cli: Cli) -> None:
    job = ("--global-batch", "4", "--seq-len", "128")
    assert "not a multiple of --data 8" in refused(cli("plan", MODEL, NODE, *job, "--data", "8"))
    assert "global batch of 4" in refused(cli("plan", "gpt2", "dgx-h100:64", *job, "--no-pipeline"), code=3)


def test_more_tokens_than_learned_positions(cli: Cli) -> None:
    job = ("--global-batch", "8", "--seq-len", "100000")
    assert "1024 learned positions" in refused(cli("plan", "gpt2", NODE, *job))


def test_a_model_that_cannot_fit_says_how_far_it_is(cli: Cli) -> None:
    job = ("--global-batch", "8", "--seq-len", "2048")
    line = refused(cli("plan", "llama-3.1-70b", NODE, *job), code=3)
    for part in ("does not fit on 8 x h100-sxm-80g", "least memory", "GiB per device", "times the devices"):
        assert part in line


def test_fit_answers_and_ends_with_3(cli: Cli) -> None:
    degrees = ("--tensor", "1", "--context", "1", "--no-pipeline")
    pins = (*degrees, "--zero", "0", "--recompute", "none", "--micro-batch", "1")
    job = ("--global-batch", "64", "--seq-len", "4096")
    result = cli("fit", "llama-2-7b", "dgx-a100-80g:1", *job, *pins, "--json")
    assert (result.exit_code, result.stderr) == (3, "")
    answer = json.loads(result.stdout)
    assert answer["schema"] == "meshwright/fit/1"
    assert answer["fits"] is False
    assert answer["changes"][0]["change"] in answer["verdict"]
    shown = cli("fit", "llama-2-7b", "dgx-a100-80g:1", *job, *pins)
    assert shown.exit_code == 3
    assert "Any one of these makes it fit" in shown.stdout


def test_interrupting_a_plan_ends_with_130(hears_interrupts: dict[str, Any]) -> None:
    command = [sys.executable, "-m", "planner.cli", "plan", "deepseek-v3", "h800-8x:256"]
    job = ["--global-batch", "15360", "--seq-len", "4096", "-q"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([*command, *job], **pipes, **hears_interrupts)
    time.sleep(1.5)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=30)
    # 130 to a shell either way: Python ends by the signal where it comes while a string is executed, as imports do.
    assert process.returncode in (130, -signal.SIGINT)
    assert (stdout, stderr) == ("", "interrupted\n")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")  # noqa: PTH110
def test_a_full_disk_is_named(cli: Cli, run_file: str) -> None:
    result = cli("evaluate", run_file, "-o", "/dev/full")
    assert "/dev/full: no space left on device" in refused(result, code=1)
    command = f"{sys.executable} -m planner.cli models --json > /dev/full"
    whole = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (whole.returncode, whole.stderr) == (1, "error: no space left on device\n")


def test_nobody_has_to_read_the_answer(run_file: str) -> None:
    """With stdout and stderr closed, as in cron jobs: no traceback, and the code still says how it ended."""
    for more, code in (("", 0), ("--fail-if fits", 2)):
        command = f"{sys.executable} -m planner.cli evaluate {run_file} {more} >&- 2>&-"
        assert subprocess.run(command, shell=True, check=False).returncode == code

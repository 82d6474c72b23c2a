"""How commands end: one sentence, and the code that says what happened."""

import errno
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from planner.errors import Infeasible, InputError
from planner.plans import Plan

Cli = Callable[..., Result]

JOB = ("--global-batch", "8", "--seq-len", "128")
SMALL = ("llama-3.2-1b", "dgx-h100:1", *JOB)


def one_sentence(stderr: str) -> str:
    """The only line on stderr, without its prefix."""
    (line,) = stderr.splitlines()
    assert "Traceback" not in line
    return line.removeprefix("error: ")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("plan", "llama-3.1-80b", "dgx-h100:1", *JOB), "did you mean llama-3.1"),
        (("plan", "llama-3.2-1b", "dgx-h10:1", *JOB), "did you mean dgx-h100"),
        (("plan", "dgx-h100:1", "llama-3.2-1b", *JOB), "'dgx-h100:1' is a cluster; a model comes first"),
        (("plan", "llama-3.2-1b", "dgx-h100:0", *JOB), "at least 1 node"),
        (("plan", *SMALL, "--global-batch", "0"), "--global-batch: must be greater"),
        (("plan", *SMALL, "--seq-len", "-1"), "--seq-len: must be greater"),
        (("plan", *SMALL, "--precision", "fp7"), "precision"),
        (("plan", *SMALL, "--objective", "fun"), "objective 'fun' is unknown"),
        (("plan", *SMALL, *JOB, "--schedule", "ampnet"), "never flushes"),
        (("evaluate", "nowhere.json"), "no such file"),
        (("validate", "nowhere.jsonl"), "no such file"),
        (("schedules", "1f2b"), "did you mean 1f1b"),
        (("targets", "jaxx"), "did you mean jax"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(cli: Cli, arguments: tuple[str, ...], reason: str) -> None:
    result = cli(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert reason in one_sentence(result.stderr)


def test_wrong_usage_is_exit_2(cli: Cli) -> None:
    assert cli("plan").exit_code == 2
    assert cli("paln").exit_code == 2
    assert cli("plan", "a", "b", "--global-batch", "many", "--seq-len", "1").exit_code == 2


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is empty; a table of keys was expected"),
        ("{}", "model"),
        ('{"schema": "meshwright/plan/9"}', "expected 'meshwright/plan/1'"),
        ('{"schema": "meshwright/plan/1"}', "model, cluster, job and plan are missing"),
        ("\x00" * 10_000_000, "not valid JSON"),
    ],
)
def test_files_that_are_no_plan(cli: Cli, tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    result = cli("explain", str(path))
    assert result.exit_code == 2
    assert reason in one_sentence(result.stderr)


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (Infeasible("needs 90 GiB of 80", "use --zero 3"), 3, "needs 90 GiB of 80; use --zero 3"),
        (InputError("heads: 7 is odd"), 2, "heads: 7 is odd"),
        (
            OSError(errno.ENOSPC, "No space left on device", "plan.json"),
            1,
            "plan.json: no space left on device",
        ),
        (ZeroDivisionError("division by zero"), 1, "internal error, please report it: ZeroDivisionError"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_every_error_has_its_code(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, run_file: str, error: BaseException, code: int, sentence: str
) -> None:
    def broken(plan: Plan) -> None:
        raise error

    monkeypatch.setattr("planner.evaluation.evaluate", broken)
    result = cli("evaluate", run_file)
    assert result.exit_code == code
    assert result.stdout == ""
    assert one_sentence(result.stderr).startswith(sentence)


def test_interrupting_a_search_ends_with_130(tmp_path: Path, hears_interrupts: dict[str, Any]) -> None:
    """A real signal to a real process, in the middle of a long plan."""
    command = [sys.executable, "-m", "planner.cli", "validate", str(tmp_path / "runs.jsonl")]
    row = {
        "model": {"name": "llama-3.1-405b", "seq": 8192},
        "hardware": "dgx-h100:64",
        "parallel": {"dp": 512},
    }
    (tmp_path / "runs.jsonl").write_text("\n".join(json.dumps({**row, "id": str(i)}) for i in range(200_000)))
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, **pipes, **hears_interrupts)
    time.sleep(1.5)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=30)
    # 130 to a shell either way: Python ends by the signal where it comes while a string is executed, as imports do.
    assert process.returncode in (130, -signal.SIGINT)
    assert (stdout, stderr) == ("", "interrupted\n")


def test_what_is_there_at_the_end_is_not_looked_through() -> None:
    """Python collects once more as it ends; what is frozen by then is left alone."""
    code = (
        "import atexit, gc; from planner.cli import main; "
        "atexit.register(lambda: print('frozen', gc.get_freeze_count() > 0)); main(['--version'])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout.splitlines()[-1]) == (0, "frozen True")


def test_a_closed_pipe_is_silent() -> None:
    command = f"{sys.executable} -m planner.cli models | true"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert result.stderr == ""

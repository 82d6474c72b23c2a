"""Lets the tests of this folder import the models that they share, and run them in one process."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from planner.verification import with_program

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))


QUICKLY = ("--xla_cpu_use_fusion_emitters=false", "--xla_cpu_parallel_codegen_split_count=1")
"""Collectives are the same with XLA's older code generator, which takes a third of the time, and with programs that are
not parted to be compiled by many threads, which takes a seventh less."""


@pytest.fixture(scope="session")
def checking() -> Iterator[subprocess.Popen[str]]:
    """`check_in_turn`: half of the time of a small program is that of starting a process for it."""
    flags = " ".join((*with_program.FLAGS, *QUICKLY))
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": flags.format(with_program.DEVICES),
        "NPROC": str(2 * with_program.DEVICES),
        **with_program.THREADS,
    }
    command = [sys.executable, str(HERE / "check_in_turn.py")]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=variables, **pipes) as process:
        yield process


Ask = Callable[[str, str, Mapping[str, Any]], Any]
"""What a check of `check_in_turn` finds for a plan's text and a task."""


@pytest.fixture
def ask(checking: subprocess.Popen[str], tmp_path: Path) -> Ask:
    def run(check: str, plan: str, task: Mapping[str, Any]) -> Any:
        (tmp_path / "sharded.json").write_text(plan)
        given = tmp_path / "task.json"
        given.write_text(json.dumps({**task, "exported": str(tmp_path / "sharded.json")}))
        assert checking.stdin
        assert checking.stdout
        print(check, given, file=checking.stdin, flush=True)
        return json.loads(checking.stdout.readline())

    return run


@pytest.fixture
def in_one_process(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `verify_program` finds, without a process for each."""

    def run(name: str, files: Mapping[str, str], task: Mapping[str, Any], *_: Any, **__: Any) -> Any:
        return ask(name, files["sharded.json"], task)

    monkeypatch.setattr(with_program, "run_program", run)

"""Lets the tests of this folder import the tiny model of the exporters' tests, and run programs as these run checks."""

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "exporters"))

from tiny_llama import JAX, PLAIN_LOOPS
from warm import run_warm

from planner.verification import process

MODULES = {
    "torch": (
        "transformers.masking_utils",
        "torch.distributed._tools.fsdp2_mem_tracker",
        "torch.distributed.pipelining",
        "torch.distributed.tensor.parallel",
    ),
    "jax": JAX,
}
"""What the programs of a framework import, as far as it takes long."""


@pytest.fixture
def warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs run in forks of a process that has imported their framework; in tests without this as users run them."""

    def run(command: list[str], variables: Mapping[str, str], timeout_seconds: float) -> str:
        framework = command[2].rpartition(".")[2].partition("_")[0]
        flags = {"XLA_FLAGS": f"{variables.get('XLA_FLAGS', '')} {PLAIN_LOOPS}"}
        done = run_warm(command[1:], MODULES[framework], {**variables, **flags}, timeout_seconds)
        if done.returncode:
            raise process.ProgramFailed(done.stderr)
        return done.stdout

    monkeypatch.setattr(process, "_run", run)

"""Running commands, and the files that they read."""

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from planner.cli.app import app
from planner.plans import Plan

RUN = """
model = {name = "llama-3.2-1b", seq = 2048}
hardware = "dgx-h100:1"
[parallel]
dp = 8
micro_batch = 2
global_batch = 64
"""

PIPED = """
model = {name = "llama-3.2-1b", seq = 2048}
hardware = "dgx-h100:1"
[parallel]
dp = 2
pp = 4
micro_batch = 1
global_batch = 16
"""

Cli = Callable[..., Result]


@pytest.fixture
def cli() -> Cli:
    """Run a command line; ``stdin`` is given by name."""

    def run(*arguments: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(app, list(arguments), input=stdin)

    return run


@pytest.fixture
def run_file(tmp_path: Path) -> str:
    path = tmp_path / "run.toml"
    path.write_text(RUN)
    return str(path)


@pytest.fixture
def piped(tmp_path: Path) -> str:
    """A run with a pipeline."""
    path = tmp_path / "piped.toml"
    path.write_text(PIPED)
    return str(path)


@pytest.fixture
def plan_file(tmp_path: Path, plan: Plan) -> str:
    path = tmp_path / "plan.json"
    path.write_text(plan.to_json())
    return str(path)

"""Run one of the `programs` in a process of its own, and read what it found."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.errors import InputError, PlannerError, Unsupported

ROOT = Path(__file__).resolve().parents[2]
"""Folder that holds the package, so that another interpreter finds the programs."""

QUICKLY_COMPILED = ("--xla_backend_optimization_level=0", "--xla_llvm_disable_expensive_passes=true")
"""Flags of XLA for steps that run once or twice on CPU devices, where compiling them well takes longer."""

TAIL = 400
"""Characters of a failed program's output that an error shows."""


class ProgramFailed(PlannerError):
    """The framework raised an error while it ran the exported plan."""


def run_program(
    name: str,
    files: Mapping[str, str],
    task: Mapping[str, Any],
    needs: tuple[str, ...],
    python: str | None = None,
    timeout_seconds: float = 1800,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Findings of ``planner.verification.programs.<name>`` for ``task``, beside the exported ``files``.

    ``task["exported"]`` is set to the path of the first file. ``python`` is the interpreter that has the
    framework (this one).

    Raises:
        InputError: a package in ``needs`` is missing there.
        Unsupported: the program cannot run this model.
        ProgramFailed: it ended with an error, or took longer than ``timeout_seconds``.
    """
    interpreter = python or sys.executable
    variables = {**os.environ, "PYTHONPATH": searched(), **(environment or {})}
    _check_packages(interpreter, needs, variables)
    with tempfile.TemporaryDirectory() as folder:
        for file, text in files.items():
            (Path(folder) / file).write_text(text)
        given = Path(folder) / "task.json"
        given.write_text(json.dumps({**task, "exported": str(Path(folder) / next(iter(files)))}))
        command = [interpreter, "-m", f"planner.verification.programs.{name}", str(given)]
        output = _run(command, variables, timeout_seconds)
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    if "unsupported" in found:
        raise Unsupported(f"verify cannot run this model: {found['unsupported']}")
    return found


def searched() -> str:
    """PYTHONPATH of the programs: the package is found first."""
    return os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


def _run(command: list[str], variables: Mapping[str, str], timeout_seconds: float) -> str:
    try:
        done = subprocess.run(
            command, env=variables, capture_output=True, text=True, timeout=timeout_seconds, check=False
        )
    except subprocess.TimeoutExpired:
        raise ProgramFailed(f"{command[2]} did not end within {timeout_seconds:.0f} s") from None
    if done.returncode != 0 or not done.stdout.strip():
        said = " ".join((done.stderr or done.stdout).split())
        raise ProgramFailed(f"the framework refused the exported plan: ... {said[-TAIL:]}")
    return done.stdout


def _check_packages(interpreter: str, needs: tuple[str, ...], variables: Mapping[str, str]) -> None:
    code = (
        "import importlib.util, sys; "
        "print(' '.join(n for n in sys.argv[1:] if importlib.util.find_spec(n) is None))"
    )
    try:
        done = subprocess.run(
            [interpreter, "-c", code, *needs], env=variables, capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise InputError(f"--python {interpreter}: {(error.strerror or str(error)).lower()}") from None
    if done.returncode:
        raise InputError(f"--python {interpreter} is no Python interpreter")
    missing = done.stdout.split()
    if missing:
        packages = " ".join(missing)
        raise InputError(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed in {interpreter}: "
            f"pip install {packages}, or name an interpreter that has it with --python"
        )

"""Second runs are real: what a plan recomputes is not kept by the compiled program, and the numbers stay."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "check_second_runs.py"


@pytest.mark.jax
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
def test_what_is_recomputed_is_not_kept() -> None:
    result = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    found = json.loads(result.stdout)
    assert found["error"] < 1e-4
    assert found["recomputed"]
    assert found["in_parts"]
    assert found["temporary"] < found["temporary_if_kept"]

"""The Ray engine on a real local cluster."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from planner.errors import InputError
from planner.sweep import engines

HERE = Path(__file__).parent
INSTALLED = importlib.util.find_spec("ray") is not None


@pytest.mark.skipif(not INSTALLED, reason="needs the ray extra")
def test_a_killed_worker_is_replaced() -> None:
    result = subprocess.run(
        [sys.executable, str(HERE / "check_ray.py")],
        capture_output=True,
        text=True,
        cwd=HERE.parents[2],
        env=environment(),
        timeout=240,
    )
    assert result.returncode == 0, result.stderr
    last = result.stdout.splitlines()[-1]  # Ray itself may tell of the lost worker before it
    assert re.fullmatch(r"ok: 8 questions, 9 attempts", last)


def environment() -> dict[str, str]:
    """No usage statistics, and this tree's packages in the workers."""
    path = os.pathsep.join(filter(None, (str(HERE.parents[2]), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": path}


@pytest.mark.skipif(INSTALLED, reason="Ray is installed")
def test_without_ray_it_says_what_to_install() -> None:
    with pytest.raises(InputError, match=r"meshwright\[ray\]"):
        next(engines.on_ray({}, "time", 1))

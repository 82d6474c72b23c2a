"""Sharded plans are real: on eight simulated devices they compile, run, and give the numbers of one.

XLA compiles the collectives that were priced, but for some operators: see docs/tracing.md for why.
"""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ADDED_UP = {"gpt", "llama", "mixtral", "t5", "vit"}
"""Models in whose backward pass products are only added up: what is left in parts is summed once."""

needs_jax = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
SCRIPT = Path(__file__).parent / "check_sharding.py"

CASES = {
    "mlp": (1.0, 0),
    "mlp with adam": (0.8, 0),
    "gpt": (1.0, 0),
    "llama": (1.0, 0),
    "mixtral": (1.0, 4),
    "t5": (1.0, 2),
    "vit": (1.0, 1),
    "resnet": (1.0, 2),
    "unet": (1.0, 0),
    "dlrm": (0.8, 0),
}
"""Model -> memory allowed, as a share of what the fastest plan takes, and the most operators whose collectives may
be compiled otherwise than priced, in kind or bytes."""


def checked(name: str, room: float) -> dict[str, Any]:
    result = subprocess.run(
        [sys.executable, str(SCRIPT), name, str(room)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr[-2000:]
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.jax
@needs_jax
def test_what_is_recomputed_is_not_kept() -> None:
    """The same plan with and without its second runs: the numbers of one device, in less memory."""
    found = checked("blocks", 0.9)
    assert found["loss"] == pytest.approx(found["expected"], rel=1e-5)
    assert found["gradient_error"] < 1e-4
    assert found["recomputed"]
    assert found["temporary"] < found["temporary_if_kept"]
    assert found["different"] == 0


@pytest.mark.jax
@needs_jax
@pytest.mark.parametrize("name", CASES)
def test_a_sharded_model_computes_what_one_device_does(name: str) -> None:
    room, different = CASES[name]
    found = checked(name, room)
    assert found["loss"] == pytest.approx(found["expected"], rel=1e-5)
    assert found["gradient_error"] < 1e-4
    assert found["proven"]
    assert found["communicating"] > 0
    assert found["different"] <= different
    assert (found["in_parts"] > 0) == (name in ADDED_UP)
    assert found["compiled_sums"] == pytest.approx(found["priced_sums"], rel=0.15)

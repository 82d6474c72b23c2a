"""Moves between layouts as XLA compiles them for simulated devices, beside what they are priced."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("jax")

from cluster_specs.catalog import load_cluster  # noqa: E402
from planner.tracing.layouts import NamedMesh, moves  # noqa: E402

FULL_BYTES = 4.0 * 64**3
LEFT_FIRST = [(0, 1), (1, 2)]
"""An axis that leaves a dim before another arrives there: nothing is misplaced, and a send less than is priced."""


@pytest.mark.jax
def test_all_moves_on_two_axes_are_compiled_as_priced() -> None:
    """Kinds and bytes. 12 were not when XLA was told no places on the way: it gathered 7 arrays whole."""
    script, axes = Path(__file__).parent / "check_moves.py", {"a": 2, "b": 4}
    command = [sys.executable, str(script), json.dumps(axes)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    mesh, unlike = NamedMesh(load_cluster("dgx-h100:1"), axes), []
    lines = result.stdout.splitlines()
    for source, target, compiled in map(json.loads, lines):
        priced = Counter[str]()
        for move in moves(mesh, FULL_BYTES, tuple(source), tuple(target)):
            priced["p2p" if move.collective == "send" else move.collective] += move.full_bytes
        if priced != Counter(compiled):
            unlike.append((tuple(source), tuple(target)))
    assert len(lines) > 40
    assert unlike == [tuple(LEFT_FIRST)]

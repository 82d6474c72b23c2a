"""A compiled loss over words that tensor ranks share: what is held, beside the code that Inductor writes for it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cluster_specs.software import load_software
from planner.evaluation.stages import loss_copies


def test_a_split_loss_holds_what_the_compilers_code_allocates() -> None:
    pytest.importorskip("torch", minversion="2.9")
    check = Path(__file__).with_name("check_compiled_loss.py")
    done = subprocess.run([sys.executable, check], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    forward, backward = json.loads(done.stdout.splitlines()[-1])
    logits, one_in_fp32 = 2, 4
    assert sum(backward) == logits
    compiled = load_software("torch-compiled-loss")
    kept = one_in_fp32 * (1 + loss_copies(splits_loss=True, software=compiled))
    assert kept == logits + sum(forward)
    assert kept < one_in_fp32 * (1 + loss_copies(splits_loss=True, software=load_software("torch-fsdp2")))

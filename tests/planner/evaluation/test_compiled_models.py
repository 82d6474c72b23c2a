"""Live tensors of models that XLA compiled for TPU slices, shipped ones before they were priced, others after."""

import json
import statistics

import pytest
from memory_rows import PUBLISHED, predicted, rows_of

FRESH = rows_of("xla_fresh.jsonl")
"""Shipped models again, compiled before they were priced."""
STILL_OFF = {
    "xla-compiled/phi-4-14b/v6e:4x4/fsdp16-full-bf16",
    "xla-compiled/pythia-12b/v4:2x2x4/tp4-fsdp4-none-mb2",
}
"""Weights of 16 bits, and parallel blocks that keep everything beside tensor ranks: 3.2 and 6.0 % too much is told."""


@pytest.mark.parametrize("run", [run for run, row in FRESH.items() if row["measured"]["ok"]])
def test_models_compiled_before_they_were_priced(run: str) -> None:
    """Qwen3-32B, near to what a v5e has, was +17.3 % while the sum of its head's gradient waited."""
    found = predicted(run, FRESH)
    assert found.fits
    measured = FRESH[run]["measured"]["tensor_gib_per_gpu"]
    assert found.tensor_bytes / 2**30 == pytest.approx(measured, rel=0.065 if run in STILL_OFF else 0.025)


def test_none_that_the_compiler_refused_fits() -> None:
    refused = [run for run, row in FRESH.items() if not row["measured"]["ok"]]
    assert len(refused) == 3
    assert not any(predicted(run, FRESH).fits for run in refused)


FAMILIES = rows_of("xla_families.jsonl")
"""Widths of other families, policies and degrees together that no other file has."""
AT_FIRST = json.loads((PUBLISHED / "xla_first_memory.json").read_text())
"""What was told of them before any was compiled [bytes]; kept as it was."""
FURTHER_OFF = {
    "xla-compiled/8b-2/v5p:2x4x4/tp16-fsdp2-none": 0.1,
    "xla-compiled/bert-large/v5p:2x2x2/tp2-fsdp4-full-mb4": 0.15,
    "xla-compiled/bert-large/v6e:2x2/tp2-fsdp2-selective-mb8": 0.15,
}
"""Of the first, of 0.8 GiB, 9.8 % too much is told; of the others 13.8 and 10.7 % too little."""
GOAL_MEDIAN, GOAL_90TH = 0.05, 0.12


@pytest.mark.parametrize(
    ("said", "measured"),
    [("live_bytes", "tensor_gib_per_gpu"), ("assigned_bytes", "memory_gib_per_gpu")],
)
def test_memory_was_near_at_first_sight(said: str, measured: str) -> None:
    """Half within 5 %, nine of ten within 12 %."""
    fitting = {run: row["measured"] for run, row in FAMILIES.items() if row["measured"]["ok"]}
    off = sorted(abs(AT_FIRST[run][said] / 2**30 / found[measured] - 1) for run, found in fitting.items())
    assert statistics.median(off) < GOAL_MEDIAN
    assert off[int(0.9 * len(off))] < GOAL_90TH


@pytest.mark.parametrize("run", [run for run, row in FAMILIES.items() if row["measured"]["ok"]])
def test_memory_of_other_families(run: str) -> None:
    measured = FAMILIES[run]["measured"]["tensor_gib_per_gpu"]
    rel = FURTHER_OFF.get(run, 0.065)
    assert predicted(run, FAMILIES).tensor_bytes / 2**30 == pytest.approx(measured, rel=rel)

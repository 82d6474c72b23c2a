"""Liger's gated activation under DeepSpeed, whose gradients are written where its inputs were."""

import pytest
from memory_rows import predicted, rows_of

LONG = {
    run: row
    for run, row in rows_of("runs_gpu.jsonl").items()
    if run.startswith("mleng/") and row["model"]["seq"] >= 65536
}


@pytest.mark.parametrize("run", LONG)
def test_no_more_is_alive_than_was_reserved(run: str) -> None:
    """``max_memory_reserved`` of 64k to 256k tokens on a device, by stas00/ml-engineering: few tensors, few holes."""
    estimate = predicted(run, LONG)
    assert 0.93 < estimate.tensor_bytes / 2**30 / LONG[run]["measured"]["memory_gib_per_gpu"] < 1
    assert estimate.fits


@pytest.mark.parametrize("run", LONG)
def test_holes_are_of_a_few_arrays_and_no_share_of_the_kept_inputs(run: str) -> None:
    """Inputs of all layers have memory of their own all through the backward, in the order in which they were made."""
    row = LONG[run]
    half = {**row, "model": {**row["model"], "layers": 16}}
    whole, less = predicted(run, LONG), predicted("half", {"half": half})
    assert whole.memory["activations"] == pytest.approx(2 * less.memory["activations"], rel=1e-4)
    assert whole.memory["fragmentation"] == less.memory["fragmentation"]
    assert whole.reserved_bytes / 2**30 == pytest.approx(row["measured"]["memory_gib_per_gpu"], rel=0.03)


def test_gradients_of_a_gate_are_none_of_their_own() -> None:
    """Two arrays of 14,336 numbers a token in 16 bits less than with kernels that make them anew."""
    run = next(run for run in LONG if run.endswith("128k"))
    plain = {**LONG[run], "parallel": {**LONG[run]["parallel"], "stack": "deepspeed", "fused_loss": True}}
    more = predicted("plain", {"plain": plain}).tensor_bytes - predicted(run, LONG).tensor_bytes
    activated, handed_on = 2 * 131072 * 14336, 2 * 131072 * 4096
    assert more == pytest.approx(2 * activated - handed_on)

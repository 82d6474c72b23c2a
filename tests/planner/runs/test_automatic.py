"""Degrees that an optimiser chose and nobody printed are the fastest that fit."""

from typing import Any

import pytest

from planner.validation import Row, validate

RUN: dict[str, Any] = {
    "series": "Alpa OSDI22",
    "model": {
        **{"name": "GPT-6.7B", "layers": 32, "hidden": 4096, "heads": 32, "ffn_hidden": 16384},
        **{"gated_mlp": False, "vocab": 51200, "seq": 1024},
    },
    "hardware": {"gpu": "V100-SXM2-16GB", "n_gpus": 16, "gpus_per_node": 8, "inter_link": "25 Gb/s per node"},
    "parallel": {
        **{"pp": 1, "global_batch": 1024, "recompute": "full", "precision": "fp16"},
        "sharding": "Alpa intra-op auto (SPMD over all GPUs)",
    },
    "measured": {"step_time_s": 100.0},
}


def judged(**parallel: Any) -> Row:
    return validate([RUN | {"parallel": RUN["parallel"] | parallel}]).rows[0]


def predicted(**parallel: Any) -> float:
    row = judged(**parallel)
    assert row.predicted is not None, row.skipped
    helped = [text for text in row.assumed if "fits only so" in text]
    return row.predicted.step_time_s if row.predicted.fits and not helped else float("inf")


def test_what_was_chosen_is_the_fastest_of_all_splits_that_fit() -> None:
    chosen = judged()
    assert chosen.predicted is not None
    assert chosen.predicted.fits
    assert sum("(fastest that fits)" in text for text in chosen.assumed) == 3
    by_hand = (
        predicted(dp=16 // tp, tp=tp, micro_batch=mb) for tp in (1, 2, 4, 8, 16) for mb in (1, 4, 16, 64)
    )
    assert chosen.predicted.step_time_s <= min(by_hand)


@pytest.mark.parametrize(
    "printed",
    [{"dp": 8, "tp": 2}, {"tp": 2}, {"dp": 8}, {"sharding": "FULL_SHARD"}, {"sharding": None}],
)
def test_what_is_printed_is_not_chosen(printed: dict[str, Any]) -> None:
    assert not [text for text in judged(**printed).assumed if "fastest" in text]


def test_a_printed_micro_batch_stays() -> None:
    row = judged(micro_batch=2)
    assert {text.partition("=")[0] for text in row.assumed if "fastest" in text} == {"dp", "tp"}


def test_a_batch_that_all_ranks_cannot_share_is_split_by_tensors() -> None:
    """nnScaler's AutoDist over eight devices, four sequences of 131,072 tokens a step one after the other."""
    row = {
        "model": "llama-3.1-8b",
        "hardware": {"gpu": "H100-SXM-80GB", "n_gpus": 8},
        "parallel": {"sharding": "AutoDist plan over 8 GPUs", "micro_batch": 1, "global_batch": 4, "pp": 1},
    }
    row["model"] = {"name": "llama-3.1-8b", "seq": 131072}
    (result,) = validate([row]).rows
    assert result.predicted is not None, result.skipped
    tensor = next(int(text.split()[0][3:]) for text in result.assumed if text.startswith("tp="))
    assert tensor > 1

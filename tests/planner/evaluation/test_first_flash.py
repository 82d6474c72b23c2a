"""The first FlashAttention beside the second, end to end, as the second's paper prints both."""

from typing import Any

import pytest

from planner.evaluation import evaluate
from planner.runs import plan_from_run

SIZES = {"1.3B": (24, 2048, 16), "2.7B": (32, 2560, 20)}
"""Name -> layers, hidden, heads of 128."""

RATES = {
    ("1.3B", 2048): (189e12, 196e12),
    ("1.3B", 8192): (170e12, 220e12),
    ("2.7B", 2048): (189e12, 205e12),
    ("2.7B", 8192): (175e12, 225e12),
}
"""GPT-3 of a size and a length on 8 A100 of 80 GB -> FLOP/s a device with either kernel, attention counted whole.

Source: arXiv:2307.08691 (FlashAttention-2), table 1.
"""


def rate(size: str, seq: int, attention: str) -> float:
    """Predicted FLOP/s a device, counted as the paper counts them."""
    layers, hidden, heads = SIZES[size]
    model: dict[str, Any] = {"layers": layers, "hidden": hidden, "heads": heads, "ffn_hidden": 4 * hidden}
    model |= {
        "kv_heads": heads,
        "head_dim": 128,
        "gated_mlp": False,
        "vocab": 50264,
        "seq": seq,
        "tied": True,
    }
    parallel = {"dp": 8, "tp": 1, "pp": 1, "sharding": "ZeRO-1", "micro_batch": 8192 // seq}
    parallel |= {"global_batch": 512 * 2048 // seq, "recompute": "none", "precision": "bf16"}
    parallel |= {"attention": attention, "stack": "flash-attention-2023"}
    hardware = {"gpu": "A100-SXM4-80GB", "gpus_per_node": 8, "n_gpus": 8}
    plan, _ = plan_from_run({"id": size, "model": model, "hardware": hardware, "parallel": parallel})
    weights = layers * 12 * hidden**2 + 50264 * hidden
    per_token = 6 * weights + 12 * layers * hidden * seq
    return evaluate(plan).tokens_per_s_per_device * per_token


@pytest.mark.parametrize(("size", "seq"), RATES)
def test_both_kernels_take_about_as_long_as_their_paper_says(size: str, seq: int) -> None:
    first, second = RATES[size, seq]
    assert rate(size, seq, "flash-1") == pytest.approx(first, rel=0.055)
    assert rate(size, seq, "flash") == pytest.approx(second, rel=0.05)


@pytest.mark.parametrize("size", SIZES)
def test_long_sequences_lose_a_quarter_with_the_first(size: str) -> None:
    first, second = RATES[size, 8192]
    gain = rate(size, 8192, "flash") / rate(size, 8192, "flash-1")
    assert gain == pytest.approx(second / first, rel=0.1)
    assert gain > 1.15

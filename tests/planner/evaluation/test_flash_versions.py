"""Versions of FlashAttention: the first beside the second, end to end, as the second's paper prints both."""

from typing import Any

import pytest

from cluster_specs.catalog import load_cluster, load_device
from cost_models.attention import with_flash
from planner.evaluation import Evaluator, evaluate
from planner.models.catalog import load_model
from planner.plans import Job, Parallelism
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


@pytest.mark.parametrize(
    ("device", "forward", "backward"),
    [
        ("a100-sxm-80g", 0.73, 0.63),
        ("h100-sxm-80g", 370 / 989, 322 / 989),
        ("gb200-186g", 362 / 2250, 334 / 2250),
    ],
)
def test_the_second_has_rates_of_its_own_where_there_are_later_ones(
    device: str, forward: float, backward: float
) -> None:
    """arXiv:2307.08691, section 4, and the sources of its rates in cost_models/data/kernels.toml."""
    found = with_flash(load_device(device), "second_flash").efficiency
    assert found.attention_forward == pytest.approx(forward, rel=0.01)
    assert found.attention_backward == pytest.approx(backward, rel=0.01)


def test_a_job_may_have_the_second_where_its_stack_has_a_later_one() -> None:
    job = Job(global_batch=8, seq_len=8192, stack="megatron")
    times = {}
    for kernel in ("flash", "flash-2"):
        of_kernel = job.model_copy(update={"attention": kernel})
        evaluator = Evaluator(load_model("llama-3.1-8b"), load_cluster("dgx-b200:1"), of_kernel)
        times[kernel] = evaluator.block(Parallelism(data=8, micro_batch=1), "layer", "none", {}).forward
    assert times["flash-2"] > 1.3 * times["flash"]

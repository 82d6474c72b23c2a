"""A step of MaxText on TPU v6e, against what a profile of it shows.

Source: vlasenkoalexey/tpu_performance_autoresearch_wiki@3935a6f, wiki/experiments/
qwen3_cc_autoresearch_optimization/maxtext: Qwen3-8B on eight chips by the recipe that Google prints for Llama 3.1 8B,
three sequences of 8,192 on each, layers' inputs, queries, keys, values and results of attention's last product on the
host. 3.540 s a step, of which 33.2 % are kernels of attention.
"""

from typing import Any

import pytest

from planner.evaluation import evaluate
from planner.runs import plan_from_run

RUN: dict[str, Any] = {
    "model": {"name": "qwen3-8b", "seq": 8192},
    "hardware": {"gpu": "tpu-v6e", "n_gpus": 8, "slices": 1},
    "parallel": {
        "dp": 8, "tp": 1, "pp": 1, "sharding": "FULL_SHARD", "micro_batch": 3, "global_batch": 24,
        "recompute": "custom: decoder_layer_input+q/k/v/out_proj offload", "precision": "bf16", "attention": "splash",
    },
}  # fmt: skip


def test_a_step_takes_what_was_measured() -> None:
    """Rates of attention are from that profile; nothing else is."""
    plan, _ = plan_from_run(RUN)
    assert evaluate(plan).step_time_s == pytest.approx(3.540, rel=0.08)

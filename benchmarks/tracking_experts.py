"""Live tensors of mixtures of experts by PyTorch's own tracker, kept as data: experts on ranks of their own.

    pip install torch==2.13.0
    python benchmarks/tracking_experts.py    # write tests/published/torch_experts.jsonl again

As tracking.py, with mixtures and their units as torchtitan has them (tracked_experts.py): experts on ``ep`` ranks,
which are tensor ranks and the nearest data ranks, or these alone where ``etp`` splits each expert; sharded over the
ranks that have the same. Every expert has as many tokens as any.

Source: torch.distributed._tools.fsdp2_mem_tracker, which counts tensors, not what the allocator adds.
"""

import sys
from collections.abc import Mapping
from typing import Any

from own_cases import measure_cases
from tracking import SHARDINGS, USUAL, loss_of, tracked

SHARED: Mapping[str, Any] = {
    "hidden": 2048, "heads": 16, "kv_heads": 16, "head_dim": 128, "moe_ffn_hidden": 1408, "vocab": 102400,
    "experts": 64, "topk": 6, "shared_experts": 2,
}  # fmt: skip

SIZES: Mapping[str, Mapping[str, Any]] = {
    "qwen": {
        "hidden": 2048, "heads": 32, "kv_heads": 4, "head_dim": 128, "moe_ffn_hidden": 768, "vocab": 151936,
        "experts": 128, "topk": 8,
    },
    "shared": SHARED,
    "mixtral": {
        "hidden": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128, "moe_ffn_hidden": 14336, "vocab": 32000,
        "experts": 8, "topk": 2,
    },
    "thin": {**SHARED, "vocab": 16384},
}  # fmt: skip
"""Widths of models; layers are few, as all are alike."""

CASES: Mapping[str, Mapping[str, Any]] = {
    "qwen-4/dp8-none-4096": {"seq": 4096},
    "qwen-4/dp8-ep8-none-4096": {"seq": 4096, "ep": 8},
    "qwen-4/dp16-ep8-full-4096": {"seq": 4096, "shard": 16, "ep": 8, "recompute": "full"},
    "qwen-4/dp32-ep4-every_second-8192": {"seq": 8192, "shard": 32, "ep": 4, "recompute": "selective_op"},
    "shared-4/dp8-ep2-none-2048-bf16_reduced": {"seq": 2048, "ep": 2, "reduce_dtype": "bfloat16"},
    "shared-4/dp16-ep4-full-8192": {"seq": 8192, "shard": 16, "ep": 4, "recompute": "full"},
    "mixtral-3/dp8-ep8-every_second-4096": {"seq": 4096, "ep": 8, "recompute": "selective_op"},
    "mixtral-3/dp16-ep2-none-2048-kept": {"seq": 2048, "shard": 16, "ep": 2, "reshard": False},
    "qwen-4/dp4-tp4-ep8-none-8192": {"seq": 8192, "shard": 4, "tp": 4, "ep": 8},
    "shared-4/dp8-tp2-ep8-full-8192": {"seq": 8192, "tp": 2, "ep": 8, "recompute": "full"},
    "mixtral-3/dp8-tp4-ep4-etp4-none-8192": {"seq": 8192, "tp": 4, "ep": 4, "etp": 4},
    "mixtral-3/dp4-tp2-full-4096": {"seq": 4096, "shard": 4, "tp": 2, "recompute": "full"},
    "thin-6/dp8-ep4-none-4096": {"seq": 4096, "ep": 4},
    "thin-6/dp16-ep8-full-8192-mb2": {"seq": 8192, "shard": 16, "ep": 8, "recompute": "full", "micro_batch": 2},
    "thin-6/dp8-every_second-4096": {"seq": 4096, "recompute": "selective_op"},
    "thin-6/dp8-ep8-full-4096-accumulated": {"seq": 4096, "ep": 8, "recompute": "full", "grad_accum": 4},
    "thin-6/dp128-ep16-none-4096": {"seq": 4096, "shard": 128, "ep": 16},
    "thin-6/dp8-tp2-ep16-every_second-8192": {"seq": 8192, "tp": 2, "ep": 16, "recompute": "selective_op"},
}  # fmt: skip
"""Widths and layers, data, tensor and expert ranks, recomputation, tokens -> what differs from what is usual."""


def row_of(name: str) -> dict[str, Any]:
    """The case as a run (docs/formats.md), not yet measured."""
    case = {**USUAL, "wrap": "titan", "ep": 1, **CASES[name]}
    size, layers = name.partition("/")[0].split("-")
    shard, replicate, reshard = case.pop("shard"), case.pop("replicate"), case.pop("reshard")
    within = case.pop("etp", 1 if case["ep"] > 1 else case["tp"])
    model = {"name": "mixture", "layers": int(layers), **SIZES[size], "seq": case.pop("seq")}
    return {
        "id": f"torch-experts/{name}",
        "source": "benchmarks/tracking_experts.py (FSDPMemTracker of PyTorch, fake tensors, second step)",
        "quality": "A",
        "series": "torch-tracker",
        "model": {**model, "gated_mlp": True, "tied": False},
        "hardware": {"gpu": "H100-SXM-80GB", "gpus_per_node": 8, "n_gpus": shard * replicate * case["tp"]},
        "parallel": {
            "dp": shard * replicate, "dp_shard": shard, "dp_replicate": replicate, "pp": 1, "cp": 1, "etp": within,
            "sharding": SHARDINGS[replicate > 1, reshard], "reshard_after_forward": reshard, "attn": "flash",
            "loss": "ce_fp32", "global_batch": shard * replicate * case["micro_batch"] * case["grad_accum"], **case,
        },
    }  # fmt: skip


def measured(row: Mapping[str, Any]) -> dict[str, float]:
    """Peak of live tensors in the second step of ``row``."""
    from tracked_experts import ExpertModel, parallelised

    return tracked(
        row, lambda: ExpertModel(row["model"], row["parallel"]["recompute"]), parallelised, loss_of
    )


if __name__ == "__main__":
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    measure_cases("torch_experts.jsonl", CASES, row_of, measured, wanted)

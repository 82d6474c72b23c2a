"""Live tensors of transformers' modules with fp32 weights under autocast, by PyTorch's tracker, kept as data.

    pip install torch==2.13.0 transformers==5.23.0
    python benchmarks/tracking_autocast.py    # write tests/published/torch_autocast.jsonl again

As tracking_transformers.py, with weights that FSDP2 gathers in fp32 and a forward and a loss under
``torch.autocast("cpu", torch.bfloat16)``: the loss is taken outside the model, of logits that are widened.

Source: torch.distributed._tools.fsdp2_mem_tracker, which counts tensors, not what the allocator adds.
"""

import sys
from collections.abc import Mapping
from typing import Any

from own_cases import measure_cases
from tracking import tracked
from tracking_transformers import drop_as_on_gpus, named_model, row_of_case, sharded

CASES: Mapping[str, Mapping[str, Any]] = {
    "llama-3.2-1b/none-2048": {},
    "llama-3.2-1b/full-4096-mb4": {"recompute": "full", "micro_batch": 4},
    "llama-2-7b/none-1024": {},
    "llama-2-7b/full-4096-mb2": {"recompute": "full", "micro_batch": 2},
    "qwen3-0.6b/none-2048": {},
    "qwen2.5-0.5b/none-2048-mb4": {"micro_batch": 4},
    "llama-3.2-1b/none-512-accumulated": {"grad_accum": 2, "stack": "hf-fsdp"},
    "gpt2-xl/none-1024": {},
    "llama-3.2-1b/none-4096-kept": {"reshard": False},
    "llama-3.1-8b/full-1024": {"recompute": "full", "shard": 32},
    "mistral-7b-v0.3/none-2048": {"shard": 16},
    "qwen3-8b/full-16384": {"recompute": "full", "shard": 16},
    "pythia-12b/none-2048": {"shard": 64},
    "llama-3.2-3b/full-8192-kept": {"recompute": "full", "reshard": False},
    "opt-1.3b/full-2048-mb8": {"recompute": "full", "micro_batch": 8},
    "gpt2-medium/none-512-plain-mb4": {"attn": "plain", "micro_batch": 4},
    "gpt2-medium/none-512-plain-mb4-dropout": {"attn": "plain", "micro_batch": 4, "dropout": True},
}  # fmt: skip
"""Model, recomputation and tokens -> what differs from what is usual."""

IN_FP32: Mapping[str, Any] = {
    "stack": "transformers-fsdp2", "autocast": True, "param_dtype": "float32", "reduce_dtype": "float32",
}  # fmt: skip


def row_of(name: str) -> dict[str, Any]:
    """The case as a run (docs/formats.md), not yet measured."""
    source = "benchmarks/tracking_autocast.py (FSDPMemTracker of PyTorch, fake tensors, second step)"
    row = row_of_case(name, {**IN_FP32, **CASES[name]})
    return {**row, "id": f"torch-autocast/{name}", "source": source, "series": "torch-autocast"}


def measured(row: Mapping[str, Any]) -> dict[str, float]:
    """Peak of live tensors in the second step of ``row``."""
    import torch

    plan, dropped = row["parallel"], row["model"].get("dropout")
    if dropped is None:
        drop_as_on_gpus()
    return tracked(
        row, lambda: named_model(row["model"]["name"], plan, torch.float32, dropped), sharded, loss_of
    )


def loss_of(model: Any, tokens: Any) -> Any:
    """Of the next token, in fp32, under autocast as is the forward."""
    import torch
    from torch.nn import functional

    with torch.autocast("cpu", torch.bfloat16):
        logits = model(input_ids=tokens).logits
        return functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())


if __name__ == "__main__":
    measure_cases("torch_autocast.jsonl", CASES, row_of, measured, sys.argv[1] if len(sys.argv) > 1 else "")

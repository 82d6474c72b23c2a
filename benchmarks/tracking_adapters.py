"""Live tensors of LoRA on Hugging Face's own modules by PyTorch's tracker, kept as data.

    pip install torch==2.13.0 transformers==5.23.0 peft==0.21.2
    python benchmarks/tracking_adapters.py    # write tests/published/torch_adapters.jsonl again

As tracking_transformers.py, with peft's adapters: all else is frozen, in 16 bits. Dropout is off.

Source: torch.distributed._tools.fsdp2_mem_tracker, which counts tensors, not what the allocator adds.
"""

import sys
from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

from own_cases import measure_cases
from tracking import SHARDINGS, USUAL, tracked
from tracking_transformers import loss_of, named_model, sharded

CASES: Mapping[str, Mapping[str, Any]] = {
    "llama-3.2-1b/none-4096": {"shard": 8},
    "llama-3.2-1b/full-4096-mb4": {"shard": 4, "micro_batch": 4, "recompute": "full", "targets": "all-linear"},
    "llama-2-7b/none-2048": {"shard": 4, "reduce_dtype": "bfloat16", "master_dtype": "bfloat16"},
    "llama-3.1-8b/full-1024": {"shard": 8, "recompute": "full"},
    "llama-3.1-8b/none-2048-linear": {"shard": 8, "targets": "all-linear", "r": 64},
    "qwen2.5-7b/none-2048": {"shard": 2, "targets": "q_proj,k_proj,v_proj,o_proj"},
    "qwen3-8b/full-8192": {"shard": 8, "recompute": "full", "targets": "all-linear"},
    "mistral-7b-v0.3/none-1024-accumulated": {"shard": 4, "grad_accum": 4},
    "llama-3.2-3b/none-2048-kept": {"shard": 4, "reshard": False, "targets": "all-linear"},
    "gpt2-xl/none-1024-mb4": {"shard": 2, "micro_batch": 4, "targets": "c_attn"},
    "gemma-2-9b/full-2048": {"shard": 8, "recompute": "full", "attn": "plain"},
    "phi-3-mini-4k/none-2046": {"shard": 8, "targets": "all-linear"},
    "llama-3.1-8b/none-1024-ends": {"shard": 8, "wrap": "titan"},
    "llama-3.1-8b/full-256-ends": {"shard": 4, "recompute": "full", "wrap": "titan", "targets": "all-linear"},
    "qwen2.5-7b/full-2048-ends": {"shard": 8, "recompute": "full", "wrap": "titan"},
    "llama-3.1-8b/full-1024-copies": {"shard": 4, "replicate": 2, "recompute": "full"},
    "llama-2-7b/full-2048-plain-mb4": {
        "shard": 4, "r": 8, "micro_batch": 4, "recompute": "full", "attn": "plain", "reduce_dtype": "bfloat16",
        "master_dtype": "bfloat16",
    },
    "llama-2-7b/full-4096-mb2-linear": {
        "shard": 8, "r": 64, "micro_batch": 2, "recompute": "full", "targets": "all-linear",
    },
    "qwen2.5-7b/full-2048-plain-mb2-linear": {
        "shard": 8, "micro_batch": 2, "recompute": "full", "attn": "plain", "targets": "all-linear",
    },
    "gpt2-xl/full-1024-plain-mb8": {
        "shard": 4, "micro_batch": 8, "recompute": "full", "attn": "plain", "targets": "c_attn",
    },
    "llama-3.2-1b/full-2048-mb8-kept": {"shard": 4, "micro_batch": 8, "recompute": "full", "reshard": False},
    "phi-4-14b/none-1024-plain-accumulated": {
        "shard": 16, "grad_accum": 2, "attn": "plain", "targets": "qkv_proj,o_proj",
    },
    "qwen2.5-7b/none-1024-copies-linear": {"shard": 2, "replicate": 4, "targets": "all-linear", "grad_accum": 2},
    "gpt-neox-20b/full-2048-mb2": {
        "shard": 8, "micro_batch": 2, "recompute": "full", "targets": "query_key_value",
    },
    "gemma-3-12b/full-4096-linear": {"shard": 8, "recompute": "full", "targets": "all-linear"},
    "opt-6.7b/full-1024-mb4-kept": {"shard": 4, "micro_batch": 4, "recompute": "full", "reshard": False},
}  # fmt: skip
"""Model, recomputation and tokens -> what differs from what is usual."""


STACKS: Mapping[str, str] = {"block": "hf-fsdp", "titan": "torch-eager"}
"""``wrap`` -> software stack whose units are so."""


def row_of(name: str) -> dict[str, Any]:
    """The case as a run (docs/formats.md), not yet measured."""
    model, _, rest = name.partition("/")
    recompute, seq = rest.split("-")[:2]
    usual = {"attn": "flash", "targets": "q_proj,v_proj", "r": 16}
    case = {**USUAL, **usual, **CASES[name]}
    shard, replicate, reshard = case.pop("shard"), case.pop("replicate"), case.pop("reshard")
    ranks = shard * replicate
    adapter = {"r": case.pop("r"), "target_modules": case.pop("targets")}
    if recompute != case["recompute"]:
        raise ValueError(f"{name} recomputes {case['recompute']}")
    return {
        "id": f"torch-adapters/{name}",
        "source": "benchmarks/tracking_adapters.py (FSDPMemTracker of PyTorch, fake tensors, second step)",
        "quality": "A",
        "series": "torch-adapters",
        "model": {"name": model, "seq": int(seq), "dropout": 0},
        "hardware": {"gpu": "H100-SXM-80GB", "gpus_per_node": 8, "n_gpus": ranks},
        "adapter": adapter,
        "parallel": {
            "stack": STACKS[case["wrap"]], "dp": ranks, "dp_shard": shard, "dp_replicate": replicate, "tp": 1, "pp": 1,
            "cp": 1, "ep": 1, "sharding": SHARDINGS[replicate > 1, reshard is not False],
            "reshard_after_forward": reshard, "loss": "ce_fp32",
            "global_batch": ranks * case["micro_batch"] * case["grad_accum"], **case,
        },
    }  # fmt: skip


def measured(row: Mapping[str, Any]) -> dict[str, float]:
    """Peak of live tensors in the second step of ``row``."""
    import torch
    from peft import LoraConfig, get_peft_model

    plan, adapter = row["parallel"], row["adapter"]
    targets = adapter["target_modules"]
    targets = targets if targets == "all-linear" else targets.split(",")

    def built() -> Any:
        model = named_model(row["model"]["name"], plan, torch.bfloat16)
        torch.set_default_dtype(getattr(torch, plan["master_dtype"]))
        config = LoraConfig(r=adapter["r"], target_modules=targets)
        # Fake tensors cannot be moved in place: adapters are made where, and as what, they belong.
        with patch.object(torch.nn.Module, "to", lambda module, *arguments, **options: module):
            model = get_peft_model(model, config, autocast_adapter_dtype=False)
        torch.set_default_dtype(torch.float32)
        if plan["recompute"] == "full":
            model.enable_input_require_grads()
        return model

    if plan["wrap"] == "titan":
        return tracked(row, built, _sharded_by_units, _loss_outside)
    return tracked(row, built, sharded, loss_of)


def _sharded_by_units(model: Any, plan: Mapping[str, Any], mesh: Any) -> None:
    """Embedding and head are units, too, as torchtitan wraps them."""
    from tracked_model import parallelised
    from transformers.modeling_layers import GradientCheckpointingLayer

    whole = model.get_base_model()
    model.embedding, model.head = whole.get_input_embeddings(), whole.get_output_embeddings()
    parallelised(model, plan, mesh, [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)])


def _loss_outside(model: Any, tokens: Any) -> Any:
    from torch.nn import functional

    return functional.cross_entropy(model(input_ids=tokens).logits.flatten(0, 1).float(), tokens.flatten())


if __name__ == "__main__":
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    measure_cases("torch_adapters.jsonl", CASES, row_of, measured, wanted)

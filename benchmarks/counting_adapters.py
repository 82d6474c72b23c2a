"""What peft counts as trained, and torch as FLOPs, of models with adapters: kept as data.

    pip install torch==2.13.0 transformers==5.23.0 peft==0.21.2
    python benchmarks/counting_adapters.py > tests/data/adapters_truth.jsonl

Whole models on the meta device, eager attention; bases are frozen, as peft leaves them. The embedding's result has a
gradient where recomputation asks for it (``enable_input_require_grads``), as trainers do: ``bwd_flops``. Otherwise what
the first layer does before its first adapter has no backward at all: ``bwd_flops_without_input``.

Source: huggingface/peft ``get_nb_trainable_parameters``; ``torch.utils.flop_counter.FlopCounterMode``.
"""

import json
from typing import Any

from tracking_transformers import named_model

CASES: tuple[tuple[str, int, tuple[str, ...], int], ...] = (
    ("llama-3.1-8b", 16, ("q_proj", "v_proj"), 512),
    ("llama-3.1-8b", 64, ("all-linear",), 2048),
    ("qwen3-8b", 8, ("all-linear",), 1024),
    ("gemma-2-9b", 8, ("q_proj", "k_proj", "v_proj", "o_proj"), 512),
    ("phi-3-mini-4k", 16, ("all-linear",), 512),
    ("gpt2-xl", 8, ("c_attn",), 1024),
    ("gpt-neox-20b", 8, ("query_key_value",), 256),
    ("falcon-40b", 8, ("all-linear",), 256),
    ("phi-2", 32, ("all-linear",), 512),
    ("mistral-7b-v0.3", 16, ("gate_proj", "up_proj", "down_proj"), 512),
)
"""Model, rank, modules and tokens."""


def counted(name: str, r: int, targets: tuple[str, ...], seq: int) -> dict[str, Any]:
    """Of one sequence: parameters, and FLOPs forward and backward."""
    import torch
    from peft import LoraConfig, get_peft_model
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"):
        model = named_model(name, {"attn": "plain", "recompute": "none"}, torch.bfloat16)
        modules = targets[0] if targets == ("all-linear",) else list(targets)
        model = get_peft_model(model, LoraConfig(r=r, target_modules=modules), autocast_adapter_dtype=False)
        tokens = torch.zeros((1, seq), dtype=torch.int64)

        def passes() -> tuple[int, int]:
            with FlopCounterMode(display=False) as forward:
                loss = model(input_ids=tokens, labels=tokens).loss
            with FlopCounterMode(display=False) as backward:
                loss.backward()
            return forward.get_total_flops(), backward.get_total_flops()

        forward, without_input = passes()
        model.enable_input_require_grads()
        _, backward = passes()
    trained, everything = model.get_nb_trainable_parameters()
    found = {"trainable": trained, "all": everything, "fwd_flops": forward, "bwd_flops": backward}
    return {
        "model": name,
        "r": r,
        "target_modules": targets,
        "seq": seq,
        **found,
        "bwd_flops_without_input": without_input,
    }


if __name__ == "__main__":
    for case in CASES:
        print(json.dumps(counted(*case)), flush=True)

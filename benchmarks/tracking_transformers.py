"""Live tensors of Hugging Face's own modules by PyTorch's tracker, kept as data: what eager models keep.

    pip install torch==2.13.0 transformers==5.23.0
    python benchmarks/tracking_transformers.py    # write tests/published/torch_transformers.jsonl again

As tracking.py, with models of transformers: layers are units of FSDP2, the loss is the model's own. Dropout is off but
for cases of it, where it is what the class has: as a GPU's kernels keep it, a byte for each element, and as kernels of
attention draw it anew.
What transformers would learn from the values of positions, it is told: that no sequences are packed. Weights that begin
as truncated normals begin as they are, since rejecting a draw looks at its value.

Source: torch.distributed._tools.fsdp2_mem_tracker, which counts tensors, not what the allocator adds.
"""

import sys
from collections.abc import Mapping
from typing import Any

from own_cases import measure_cases
from tracking import USUAL, tracked

CASES: Mapping[str, Mapping[str, Any]] = {
    "llama-3.2-1b/none-4096": {},
    "llama-3.2-1b/full-4096-mb4": {"recompute": "full", "micro_batch": 4},
    "mistral-7b-v0.3/none-2048": {"shard": 16},
    "qwen2.5-7b/none-2048": {},
    "qwen3-8b/none-2048": {},
    "llama-3.2-3b/full-32768": {"recompute": "full"},
    "llama-3.1-8b/full-512": {"recompute": "full"},
    "llama-3.2-1b/none-2048-kept": {"reshard": False},
    "llama-3.2-1b/none-2048-plain": {"attn": "plain"},
    "llama-3.2-1b/full-4096-plain": {"attn": "plain", "recompute": "full"},
    "qwen2.5-0.5b/none-4096-mb4": {"micro_batch": 4},
    "qwen3-0.6b/full-16384-mb2": {"recompute": "full", "micro_batch": 2},
    "gemma-3-12b/full-1024": {"recompute": "full", "shard": 32},
    "gemma-3-12b/none-1024": {"shard": 32},
    "gpt2-xl/none-1024-mb4": {"micro_batch": 4},
    "gpt2-xl/full-1024-mb16": {"recompute": "full", "micro_batch": 16},
    "opt-1.3b/none-2048": {},
    "phi-2/none-2048": {},
    "phi-3-mini-4k/none-2046": {},
    "pythia-12b/none-2048": {"shard": 64},
    "llama-3.2-1b/none-1024-accumulated": {"grad_accum": 4},
    "llama-3.2-1b/none-2048-fp32": {"precision": "fp32", "param_dtype": "float32", "reduce_dtype": "float32"},
    "phi-4-14b/none-4096": {"shard": 64},
    "phi-4-14b/full-4096-mb2": {"recompute": "full", "micro_batch": 2, "shard": 16},
    "opt-6.7b/full-2048-mb4": {"recompute": "full", "micro_batch": 4},
    "gpt2-large/none-1024-plain": {"attn": "plain", "micro_batch": 2},
    "llama-2-7b/none-4096-accumulated": {"grad_accum": 2, "shard": 16},
    "qwen2.5-14b/full-1024": {"recompute": "full"},
    "qwen3-8b/full-8192-fp32_reduced": {"recompute": "full", "reduce_dtype": "float32"},
    "gpt-neox-20b/full-2048-mb4": {"recompute": "full", "micro_batch": 4, "shard": 32},
    "llama-3.2-3b/none-8192-kept": {"reshard": False, "shard": 16},
    "gemma-3-12b/none-512-mb4": {"micro_batch": 4, "shard": 32},
    "t5-small/none-512-mb16": {"micro_batch": 16, "attn": "plain"},
    "t5-11b/none-512": {"shard": 32, "attn": "plain"},
    "t5-11b/full-512-mb4": {"attn": "plain", "recompute": "full", "micro_batch": 4, "shard": 16},
    "bert-large/none-512-mb16": {"micro_batch": 16},
    "mixtral-8x7b/none-2048": {"shard": 32},
    "mixtral-8x7b/full-4096": {"recompute": "full", "shard": 64},
    "qwen3-30b-a3b/none-2048": {"shard": 32},
    "qwen3-30b-a3b/full-4096-mb2": {"recompute": "full", "micro_batch": 2, "shard": 16},
    "deepseek-v2-lite-16b/none-1024": {"shard": 16, "attn": "plain"},
    "llama-3.2-3b/none-2048-bf16": {"master_dtype": "bfloat16"},
    "qwen3-8b/full-4096-bf16-kept": {"master_dtype": "bfloat16", "recompute": "full", "reshard": False},
    "gemma-2-9b/none-1024": {"attn": "plain", "shard": 16},
    "falcon-40b/none-1024": {"shard": 64},
    "gpt-oss-120b/full-1024": {"attn": "plain", "recompute": "full", "shard": 64},
    "bert-base/none-512-mb8": {"attn": "plain", "micro_batch": 8},
    "t5-small/none-256-mb8": {"attn": "plain", "micro_batch": 8},
    "gemma-2-27b/full-512-mb2": {"attn": "plain", "recompute": "full", "micro_batch": 2, "shard": 32},
    "phi-2/none-512-mb4": {"attn": "plain", "micro_batch": 4},
    "gpt-neox-20b/none-1024": {"shard": 32},
    "bert-large/full-512-mb32-bf16": {"recompute": "full", "micro_batch": 32, "master_dtype": "bfloat16"},
    "gpt2-medium/none-1024-accumulated": {"grad_accum": 4, "micro_batch": 2},
    "llama-2-7b/full-2048-plain-mb4": {"attn": "plain", "recompute": "full", "micro_batch": 4},
    "qwen2.5-7b/full-2048-plain-mb2-kept": {
        "attn": "plain", "recompute": "full", "micro_batch": 2, "reshard": False, "shard": 32,
    },
    "gemma-3-12b/full-1024-plain-mb2": {"attn": "plain", "recompute": "full", "micro_batch": 2, "shard": 32},
    "pythia-12b/full-2048-plain-mb2": {"attn": "plain", "recompute": "full", "micro_batch": 2, "shard": 64},
    "bert-large/full-512-plain-mb32": {"attn": "plain", "recompute": "full", "micro_batch": 32},
    "opt-6.7b/full-1024-plain-mb4": {"attn": "plain", "recompute": "full", "micro_batch": 4, "shard": 32},
    "t5-small/full-1024-mb16-accumulated": {
        "attn": "plain", "recompute": "full", "micro_batch": 16, "grad_accum": 2,
    },
    "vit-l-16/none-197-mb64": {"micro_batch": 64},
    "vit-h-14/full-257-plain-mb32": {"attn": "plain", "recompute": "full", "micro_batch": 32},
    "falcon-7b/full-2048-plain": {"attn": "plain", "recompute": "full", "shard": 16},
    "gpt-oss-20b/none-512": {"attn": "plain", "shard": 32},
    "opt-13b/none-1024-kept": {"reshard": False, "shard": 32},
    "bert-large/none-512-mb16-dropout": {"micro_batch": 16, "dropout": True},
    "bert-large/none-512-plain-mb16-dropout": {"attn": "plain", "micro_batch": 16, "dropout": True},
    "bert-large/full-512-plain-mb32-dropout": {
        "attn": "plain", "recompute": "full", "micro_batch": 32, "dropout": True,
    },
    "gpt2-xl/none-1024-mb4-dropout": {"micro_batch": 4, "dropout": True},
    "gpt2-large/none-1024-plain-dropout": {"attn": "plain", "micro_batch": 2, "dropout": True},
    "gpt2-xl/full-1024-mb16-dropout": {"recompute": "full", "micro_batch": 16, "dropout": True},
    "t5-small/none-512-mb16-dropout": {"micro_batch": 16, "attn": "plain", "dropout": True},
    "t5-11b/none-512-dropout": {"shard": 32, "attn": "plain", "dropout": True},
    "opt-1.3b/none-2048-dropout": {"dropout": True},
}  # fmt: skip
"""Model, recomputation and tokens -> what differs from what is usual."""

KERNELS: Mapping[str, str] = {"flash": "sdpa", "plain": "eager"}
"""``attn`` -> ``attn_implementation`` of transformers."""

CLASSES: Mapping[str, str] = {
    "bert": "AutoModelForMaskedLM", "t5": "AutoModelForSeq2SeqLM", "whisper": "AutoModelForSpeechSeq2Seq",
    "vit": "AutoModelForImageClassification",
}  # fmt: skip
"""Family -> class of transformers, where it is no causal language model."""


DROPPED = ("pdrop", "dropout", "dropout_prob", "dropout_rate")
"""How configurations end the names of shares that are dropped; whole layers, ``layerdrop``, never are here."""


def row_of(name: str) -> dict[str, Any]:
    """The case as a run (docs/formats.md), not yet measured."""
    return row_of_case(name, CASES[name])


def row_of_case(name: str, differs: Mapping[str, Any]) -> dict[str, Any]:
    """The same of a case that ``differs`` so from what is usual."""
    model, _, rest = name.partition("/")
    recompute, seq = rest.split("-")[:2]
    case = {**USUAL, "reduce_dtype": "bfloat16", "attn": "flash", **differs}
    shard, replicate, reshard = case.pop("shard"), case.pop("replicate"), case.pop("reshard")
    dropout = {} if case.pop("dropout", False) else {"dropout": 0}
    if recompute != case["recompute"]:
        raise ValueError(f"{name} recomputes {case['recompute']}")
    return {
        "id": f"torch-transformers/{name}",
        "source": "benchmarks/tracking_transformers.py (FSDPMemTracker of PyTorch, fake tensors, second step)",
        "quality": "A",
        "series": "torch-transformers",
        "model": {"name": model, "seq": int(seq), **dropout},
        "hardware": {"gpu": "H100-SXM-80GB", "gpus_per_node": 8, "n_gpus": shard},
        "parallel": {
            "stack": "hf-fsdp", "dp": shard, "dp_shard": shard, "dp_replicate": replicate, "pp": 1, "cp": 1,
            "ep": 1, "sharding": "FULL_SHARD" if reshard else "SHARD_GRAD_OP", "reshard_after_forward": reshard,
            "loss": "ce_fp32", "global_batch": shard * case["micro_batch"] * case["grad_accum"], **case,
        },
    }  # fmt: skip


def measured(row: Mapping[str, Any]) -> dict[str, float]:
    """Peak of live tensors in the second step of ``row``."""
    import torch

    plan = row["parallel"]
    dtype = getattr(torch, plan["master_dtype"])
    dropped = row["model"].get("dropout")
    if dropped is None:
        drop_as_on_gpus()
    return tracked(row, lambda: named_model(row["model"]["name"], plan, dtype, dropped), sharded, loss_of)


def drop_as_on_gpus() -> None:
    """Dropout keeps a mask, which PyTorch's on CPUs has in the type of what it drops; fused attention keeps none.

    A share of nothing leaves what it is given.

    Source: pytorch/pytorch ``aten/src/ATen/native/Dropout.cpp`` (``is_fused_kernel_acceptable``).
    """
    import torch
    from torch.nn import functional

    attend = functional.scaled_dot_product_attention
    functional.dropout = lambda x, p=0.5, training=True, inplace=False: (
        torch.native_dropout(x, p, training)[0] if p and training else x
    )
    functional.scaled_dot_product_attention = lambda *given, dropout_p=0.0, **how: attend(*given, **how)


def named_model(name: str, plan: Mapping[str, Any], dtype: Any, dropout: float | None = 0.0) -> Any:
    """A shipped model as transformers has it, with weights in ``dtype``, that trains as ``plan`` says.

    ``dropout`` is in place of every share that it drops; None: as the class has it.
    """
    import transformers
    from transformers import AutoConfig, initialization, masking_utils

    from planner.models.catalog import load_model

    named = load_model(name)
    keys = {key: value for key, value in named.config.items() if key != "model_type"}
    config = AutoConfig.for_model(named.family, **keys)
    config.use_cache, config.decoder_start_token_id = False, 0
    config._attn_implementation = KERNELS[plan["attn"]]
    for key in config.to_dict():
        if key.endswith("layerdrop"):
            setattr(config, key, 0.0)
        elif key.endswith(DROPPED) and dropout is not None:
            setattr(config, key, dropout)
    masking_utils.find_packed_sequence_indices = lambda positions: None
    initialization.trunc_normal_ = lambda tensor, *_, **__: tensor
    made = getattr(transformers, CLASSES.get(named.family, "AutoModelForCausalLM"))
    model = made.from_config(config, dtype=dtype).train()
    if plan["recompute"] == "full":
        keep = {"use_reentrant": False, "preserve_rng_state": False}
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=keep)
    return model


def sharded(model: Any, plan: Mapping[str, Any], mesh: Any) -> None:
    """Shard ``model`` by its layers."""
    from tracked_model import parallelised
    from transformers.modeling_layers import GradientCheckpointingLayer

    parallelised(model, plan, mesh, [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)])


def loss_of(model: Any, tokens: Any) -> Any:
    """The model's own, of as many images where it reads these; the sum of what a tower makes that has no loss."""
    import torch

    if model.main_input_name == "input_ids":
        return model(input_ids=tokens, labels=tokens).loss
    channels, side = model.config.num_channels, model.config.image_size
    pixels = tokens.new_zeros((len(tokens), channels, side, side), dtype=torch.float32)
    if getattr(model, "classifier", None) is None:
        return model(pixels).pooler_output.sum()
    return model(pixels, labels=tokens[:, 0]).loss


if __name__ == "__main__":
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    measure_cases("torch_transformers.jsonl", CASES, row_of, measured, wanted)

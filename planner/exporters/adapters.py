"""Adapters in the words of the frameworks that train them: peft's configuration, and keys of axolotl.

Keys are those of peft 0.21 ``src/peft/tuners/lora/config.py``, of transformers 5.23
``utils/quantization_config.py`` (``BitsAndBytesConfig``) and of axolotl 067b021 ``src/axolotl/utils/schemas/peft.py``.
How far adapters are scaled (``lora_alpha``) is left to the trainer, as it costs nothing.
"""

import json
from collections.abc import Mapping
from typing import Any

from cluster_specs.software import load_software
from planner.errors import Unsupported
from planner.models.adapters import ALL_LINEAR, Adapter, adapts_products
from planner.plans import Plan

PEFT_FILE, QUANTIZATION_FILE = "adapter_config.json", "quantization_config.json"

WITH_PEFT = ("hf-trainer", "accelerate", "accelerate-fsdp1", "deepspeed")
"""Targets whose scripts wrap the model by ``get_peft_model``."""

ADAPTING = (*WITH_PEFT, "axolotl")
"""Targets that can train adapters."""

DTYPES: Mapping[str, str] = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def check_adapter(plan: Plan, target: str) -> None:
    """Raises ``Unsupported`` where ``target`` trains whole models only, or not what the plan's stack adapts, nor so."""
    if plan.job.adapter is None:
        return
    if target not in ADAPTING:
        raise Unsupported(f"target {target} cannot express adapters; export to {', '.join(ADAPTING)}")
    if adapts_products(load_software(plan.job.stack)):
        raise Unsupported(
            f"target {target} adapts modules one by one, stack {plan.job.stack} products: plan with --stack hf-fsdp"
        )
    if plan.job.adapter.lora_dropout and plan.job.adapter.dropout_position == "post":
        raise Unsupported(
            f"target {target} drops what adapters read, not what they add: give no dropout_position"
        )


def peft_files(plan: Plan, target: str) -> dict[str, str]:
    """What stands beside the files of a target of `WITH_PEFT`; nothing for a plan without adapters."""
    adapter = plan.job.adapter
    if adapter is None or target not in WITH_PEFT:
        return {}
    files = {PEFT_FILE: _lora_config(adapter)}
    if stored := _quantization(adapter, DTYPES[plan.job.precision]):
        files[QUANTIZATION_FILE] = stored
    return {name: json.dumps(fields, indent=2) + "\n" for name, fields in files.items()}


def _lora_config(adapter: Adapter) -> dict[str, Any]:
    """For ``LoraConfig(**fields)``, or ``PeftConfig.from_pretrained`` of the folder."""
    every = ALL_LINEAR in adapter.target_modules
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": adapter.r,
        "target_modules": ALL_LINEAR if every else list(adapter.target_modules),
        "lora_dropout": adapter.lora_dropout,
        "bias": "none",
    }


def _quantization(adapter: Adapter, compute: str) -> dict[str, Any]:
    """For ``BitsAndBytesConfig(**fields)``; shards of 4-bit weights are gathered as what they are stored in."""
    if adapter.base == "int8":
        return {"load_in_8bit": True}
    if adapter.base != "nf4":
        return {}
    return {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True,
        "bnb_4bit_compute_dtype": compute,
        "bnb_4bit_quant_storage": compute,
    }


def axolotl_keys(adapter: Adapter | None) -> dict[str, Any]:
    """Keys of axolotl: ``qlora`` loads the model in 4 bits with double quantisation."""
    if adapter is None:
        return {}
    every = ALL_LINEAR in adapter.target_modules
    named = {"lora_target_linear": True} if every else {"lora_target_modules": list(adapter.target_modules)}
    return {
        "adapter": "qlora" if adapter.base == "nf4" else "lora",
        "load_in_4bit": adapter.base == "nf4",
        "load_in_8bit": adapter.base == "int8",
        "lora_r": adapter.r,
        "lora_dropout": adapter.lora_dropout,
        **named,
    }

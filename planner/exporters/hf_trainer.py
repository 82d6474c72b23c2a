"""Plan -> arguments of the Hugging Face Trainer: ``TrainingArguments`` as JSON, and its ``fsdp_config``.

Keys are those of transformers 5.23, training_args.py; hybrid sharding and context parallelism reach the Trainer
only through accelerate's configuration (`planner.exporters.accelerate`).
"""

import json
from types import MappingProxyType
from typing import Any

from planner.exporters.limits import Limits, check_limits
from planner.exporters.script import notes_file, policy_of
from planner.plans import Plan

TARGET = "hf-trainer"

ARGUMENTS_FILE, FSDP_FILE, NOTES_FILE = (
    "hf_training_arguments.json",
    "hf_fsdp_config.json",
    "hf_trainer_notes.txt",
)

FILES = (ARGUMENTS_FILE, FSDP_FILE, NOTES_FILE)

OPTIMIZERS = MappingProxyType(
    {
        "adamw": "adamw_torch_fused",
        "adamw8bit": "adamw_torch_8bit",
        "adamw_bnb_8bit": "adamw_bnb_8bit",
        "sgd": "sgd",
        "adafactor": "adafactor",
    }
)
"""Optimizer -> ``optim`` of the Trainer, ``optimizer`` of what runs by it."""

LIMITS = Limits(
    zero_stages=(0, 2, 3),
    recompute=MappingProxyType({"none": "false", "full": "true"}),
    precision=MappingProxyType({"bf16": "bf16", "fp16": "fp16", "fp32": "no"}),
    optimizers=OPTIMIZERS,
)


def to_hf_trainer(plan: Plan) -> dict[str, str]:
    """``hf_training_arguments.json`` and ``hf_fsdp_config.json``; raises ``Unsupported`` beyond `LIMITS`."""
    check_limits(plan, TARGET, LIMITS)
    notes = notes_file(
        plan,
        f"Sequences have {plan.job.seq_len} tokens; start {plan.plan.num_devices} processes.",
        f"{ARGUMENTS_FILE}: HfArgumentParser(TrainingArguments).parse_json_file(...); it holds the fsdp_config too.",
        f"{FSDP_FILE}: the same for --fsdp_config on a command line.",
    )
    return {
        ARGUMENTS_FILE: json.dumps(_arguments(plan), indent=2) + "\n",
        FSDP_FILE: json.dumps(_fsdp(plan), indent=2) + "\n",
        NOTES_FILE: notes,
    }


def _arguments(plan: Plan) -> dict[str, Any]:
    p, job = plan.plan, plan.job
    arguments: dict[str, Any] = {
        "output_dir": "output",
        "per_device_train_batch_size": p.micro_batch,
        "gradient_accumulation_steps": p.num_microbatches,
        "bf16": job.precision == "bf16",
        "fp16": job.precision == "fp16",
        "optim": OPTIMIZERS[job.optimizer],
    }
    if p.zero_stage:
        return arguments | {"fsdp": True, "fsdp_config": _fsdp(plan)}
    return arguments | {"gradient_checkpointing": policy_of(p) == "full"}


def _fsdp(plan: Plan) -> dict[str, Any]:
    """Empty for replicated states. Layers to wrap are not named: the Trainer asks the model."""
    p = plan.plan
    if not p.zero_stage:
        return {}
    return {
        "version": 2,
        "reshard_after_forward": p.zero_stage == 3,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "cpu_offload": False,
        "activation_checkpointing": policy_of(p) == "full",
        "cpu_ram_efficient_loading": True,
        "state_dict_type": "SHARDED_STATE_DICT",
    }

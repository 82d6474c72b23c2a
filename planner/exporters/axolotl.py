"""Plan -> the keys of an axolotl configuration that decide how it runs: FSDP2 and n-dimensional parallelism.

Keys are those of axolotl 067b021, src/axolotl/utils/schemas and docs/nd_parallelism.qmd.
"""

from types import MappingProxyType
from typing import Any

import yaml

from planner.exporters.adapters import axolotl_keys
from planner.exporters.header import comments
from planner.exporters.hf_trainer import OPTIMIZERS
from planner.exporters.limits import Limits, check_limits
from planner.exporters.script import (
    policy_of,
    refuse_context_without_shards,
    refuse_replicas_beside_splits,
    shard_and_replicate,
)
from planner.plans import Plan

TARGET, FILE = "axolotl", "axolotl.yaml"

OF_DOCUMENTS = "flash_attention_2"
"""``attn_implementation`` that ``sample_packing`` tells where documents begin, and without which axolotl refuses
``context_parallel_size`` above 1."""

LIMITS = Limits(
    zero_stages=(0, 2, 3),
    hybrid=(2, 3),
    recompute=MappingProxyType({"none": "false", "full": "true"}),
    precision=MappingProxyType({"bf16": "bf16", "fp16": "fp16", "fp32": "fp32"}),
    optimizers=OPTIMIZERS,
    axes=("context",),
)


def to_axolotl(plan: Plan) -> dict[str, str]:
    """``axolotl.yaml`` for ``plan``; raises ``Unsupported`` beyond `LIMITS`."""
    check_limits(plan, TARGET, LIMITS)
    refuse_replicas_beside_splits(plan.plan, TARGET)
    refuse_context_without_shards(plan.plan, TARGET)
    note = "# Merge these keys into a full configuration: base_model, datasets and learning rate are yours.\n"
    return {FILE: f"{comments(plan)}\n{note}" + yaml.safe_dump(_config(plan), sort_keys=False)}


def _config(plan: Plan) -> dict[str, Any]:
    p, job = plan.plan, plan.job
    config: dict[str, Any] = {
        "sequence_len": job.seq_len,
        "micro_batch_size": p.micro_batch,
        "gradient_accumulation_steps": p.num_microbatches,
        "optimizer": OPTIMIZERS[job.optimizer],
        "bf16": job.precision == "bf16",
        "fp16": job.precision == "fp16",
        **axolotl_keys(job.adapter),
    }
    if job.document_len is not None:
        config["sample_packing"] = True
    if job.document_len is not None or p.context > 1:
        config["attn_implementation"] = OF_DOCUMENTS
    if p.zero_stage == 0:
        return config | {"gradient_checkpointing": policy_of(p) == "full"}
    shard, replicate = shard_and_replicate(p)
    return config | {
        "fsdp_version": 2,
        "fsdp_config": {
            "reshard_after_forward": p.zero_stage == 3,
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "offload_params": False,
            "cpu_ram_efficient_loading": True,
            "state_dict_type": "SHARDED_STATE_DICT",
            "activation_checkpointing": policy_of(p) == "full",
        },
        "dp_shard_size": shard,
        "dp_replicate_size": replicate,
        "tensor_parallel_size": 1,
        "context_parallel_size": p.context,
    }

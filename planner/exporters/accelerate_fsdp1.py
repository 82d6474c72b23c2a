"""Plan -> a configuration of Hugging Face accelerate for PyTorch's first FSDP.

Keys are those of accelerate 1.15, accelerate/commands/config/cluster.py. The strategy goes into
``fsdp_sharding_strategy``: with version 1, ``fsdp_reshard_after_forward`` is ignored in silence
(accelerate/utils/dataclasses.py, FullyShardedDataParallelPlugin).
"""

import math
from types import MappingProxyType
from typing import Any

import yaml

from planner.errors import Unsupported
from planner.exporters.fsdp1 import WHOLE
from planner.exporters.header import describe
from planner.exporters.limits import Limits, check_limits
from planner.exporters.script import SCRIPTS_OWN, commented, policy_of, script_notes
from planner.plans import Plan

TARGET = "accelerate-fsdp1"

FILE = "accelerate_fsdp1.yaml"

HYBRIDS = MappingProxyType({2: "HYBRID_SHARD_ZERO2", 3: "HYBRID_SHARD"})
"""ZeRO stage -> ``fsdp_sharding_strategy`` that shards inside each node and replicates across nodes."""

PRECISIONS = MappingProxyType({"bf16": "bf16", "fp16": "fp16", "fp32": "no"})
"""Precision -> ``mixed_precision``."""

RECOMPUTE = MappingProxyType({"none": "false", "full": "true"})
"""Policy -> ``fsdp_activation_checkpointing``."""

LIMITS = Limits(
    zero_stages=tuple(WHOLE),
    hybrid=tuple(HYBRIDS),
    recompute=RECOMPUTE,
    precision=PRECISIONS,
    optimizers=SCRIPTS_OWN,
    fused_loss=True,
)


def to_accelerate_fsdp1(plan: Plan) -> dict[str, str]:
    """``accelerate_fsdp1.yaml`` for ``plan``; raises ``Unsupported`` beyond `LIMITS`."""
    check_limits(plan, TARGET, LIMITS)
    header = commented((*describe(plan), *script_notes(plan)))
    return {FILE: header + yaml.safe_dump(_config(plan), sort_keys=False)}


def _strategy(plan: Plan) -> str:
    p, node = plan.plan, min(plan.cluster.devices_per_node, plan.plan.data)
    if not p.zero_stage or p.shard_degree == p.data:
        return WHOLE[p.zero_stage]
    if p.shard_degree != node:
        raise Unsupported(
            f"target {TARGET} shards over the {node} devices of a node, the plan over {p.shard_degree}; "
            f"export to accelerate"
        )
    return HYBRIDS[p.zero_stage]


def _config(plan: Plan) -> dict[str, Any]:
    devices = plan.plan.num_devices
    return {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP",
        "mixed_precision": PRECISIONS[plan.job.precision],
        "num_machines": math.ceil(devices / plan.cluster.devices_per_node),
        "machine_rank": 0,
        "num_processes": devices,
        "rdzv_backend": "c10d",
        "main_training_function": "main",
        "same_network": True,
        "use_cpu": False,
        "fsdp_config": {
            "fsdp_version": 1,
            "fsdp_sharding_strategy": _strategy(plan),
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_backward_prefetch": "BACKWARD_PRE",
            "fsdp_forward_prefetch": False,
            "fsdp_offload_params": False,
            "fsdp_use_orig_params": True,
            "fsdp_cpu_ram_efficient_loading": True,
            "fsdp_sync_module_states": True,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
            "fsdp_activation_checkpointing": policy_of(plan.plan) == "full",
        },
    }

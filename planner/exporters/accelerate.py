"""Plan -> a configuration file of Hugging Face accelerate: FSDP2 with a ParallelismConfig.

Keys and their meaning are those of accelerate 1.15, accelerate/commands/config/cluster.py and
accelerate/parallelism_config.py. What accelerate does that a plan may not ask for is said in the header.
"""

import math
from collections.abc import Iterator
from typing import Any

import yaml

from planner.errors import Unsupported
from planner.exporters.fsdp import check_fsdp
from planner.exporters.header import comments
from planner.exporters.limits import Limits
from planner.exporters.placements import Layout, data_mesh, layout_of
from planner.exporters.reductions import other_type, priced_type
from planner.exporters.script import SCRIPTS_OWN, policy_of
from planner.plans import Plan

FILE = "accelerate_fsdp2.yaml"

PRECISIONS = {"bf16": "bf16", "fp16": "fp16", "fp32": "no"}

LIMITS = Limits(
    zero_stages=(2, 3),
    hybrid=(2, 3),
    recompute={"none": "false", "full": "true"},
    precision=PRECISIONS,
    optimizers=SCRIPTS_OWN,
    axes=("context",),
    offload=("activations",),
    fused_loss=True,
)
"""Where plans for this target are looked for; what exactly it refuses is checked in `to_accelerate`."""


def to_accelerate(plan: Plan) -> dict[str, str]:
    """``accelerate_fsdp2.yaml`` for ``plan``.

    Raises ``Unsupported`` for pipelines, tensor and expert parallelism, unsharded states, partial
    recomputation, bf16 training without fp32 weights, and fp8.
    """
    layout = layout_of(plan, "accelerate")
    check_fsdp(plan, "accelerate")
    data_mesh(plan.plan)
    _check(layout)
    header = "\n".join([comments(plan), *(f"# {note}" for note in _notes(plan))])
    return {FILE: f"{header}\n{yaml.safe_dump(_config(layout), sort_keys=False)}"}


def _check(layout: Layout) -> None:
    p, job, policy = layout.plan.plan, layout.plan.job, policy_of(layout.plan.plan)
    if p.expert > 1:
        raise Unsupported(
            "target accelerate has no expert parallelism; plan with --expert 1, or export to fsdp2"
        )
    if p.tensor > 1:
        raise Unsupported(
            "target accelerate splits layers by the model's own plan, with whole residuals and logits; "
            "plan again with --tensor 1, or export to fsdp2"
        )
    if p.zero_stage == 0:
        raise Unsupported("target accelerate shards states; plan again with --zero 2 or 3")
    if policy not in ("none", "full"):
        raise Unsupported(
            f"target accelerate recomputes whole layers or nothing, not {policy!r}; "
            f"plan again with --recompute full or none, or export to fsdp2"
        )
    if "activations" in p.offload and policy != "full":
        raise Unsupported("target accelerate offloads activations only with --recompute full")
    if job.precision != "fp32" and not job.master_weights:
        raise Unsupported("target accelerate keeps fp32 weights in mixed precision; plan with master weights")
    if p.context > 1 and not layout.data.over_context:
        raise Unsupported(
            "target accelerate shards states over context ranks too; plan with --sharding FULL_SHARD"
        )
    if layout.data.shard == 1 and layout.data.replicate > 1:
        raise Unsupported("target accelerate needs data-parallel ranks that share states, not copies alone")


def _notes(plan: Plan) -> Iterator[str]:
    """What the file cannot say and the training script must, and what accelerate does of its own."""
    p = plan.plan
    yield (
        f"In the script: batch size {p.micro_batch} a process, "
        f"Accelerator(gradient_accumulation_steps={p.num_microbatches})."
    )
    other = other_type(plan, "accelerate")
    if other:
        yield (
            f"The plan reduces gradients in {priced_type(plan)}; this file makes accelerate reduce them in {other}. "
            f"For {priced_type(plan)} pass FullyShardedDataParallelPlugin(mixed_precision_policy=...), or export to "
            f"fsdp2."
        )
    if p.context > 1:
        yield "In the script: run each step inside accelerator.maybe_context_parallel(buffers=...)."


def _config(layout: Layout) -> dict[str, Any]:
    plan = layout.plan
    p, cluster = plan.plan, plan.cluster
    return {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP",
        "mixed_precision": PRECISIONS[plan.job.precision],
        "num_machines": math.ceil(p.num_devices / cluster.devices_per_node),
        "machine_rank": 0,
        "num_processes": p.num_devices,
        "rdzv_backend": "c10d",
        "main_training_function": "main",
        "same_network": True,
        "use_cpu": False,
        "fsdp_config": _fsdp(layout),
        "parallelism_config": _parallelism(layout),
    }


def _fsdp(layout: Layout) -> dict[str, Any]:
    """Layers to wrap are not named: accelerate asks the model (``_no_split_modules``)."""
    p, policy = layout.plan.plan, policy_of(layout.plan.plan)
    config = {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": p.zero_stage == 3,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        "fsdp_cpu_ram_efficient_loading": True,
        "fsdp_offload_params": "weights" in p.offload,
        "fsdp_activation_checkpointing": policy == "full",
    }
    if "activations" in p.offload:
        config["fsdp_activation_checkpointing_offload"] = True
    return config


def _parallelism(layout: Layout) -> dict[str, Any]:
    data, context = layout.data, layout.axes["context"]
    config: dict[str, Any] = {
        "parallelism_config_dp_replicate_size": data.replicate,
        "parallelism_config_dp_shard_size": data.shard,
        "parallelism_config_tp_size": 1,
        "parallelism_config_cp_size": context,
    }
    if context > 1:
        config["parallelism_config_cp_comm_strategy"] = "allgather"
    return config

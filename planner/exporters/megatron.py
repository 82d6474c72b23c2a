"""Plan -> Megatron-LM arguments, and the same settings as overrides of a Megatron-Bridge (NeMo) configuration.

Names are fields of Megatron Core's dataclasses (Megatron-LM d98e8a6, core 0.20: model_parallel_config.py,
transformer_config.py, distributed_data_parallel_config.py, optimizer_config.py); an argument is its field's name
with dashes, but for `ARGUMENTS`. What ``validate_args`` would refuse at the start of a job is refused here.
"""

import json
import math
import shlex
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from planner.evaluation.cuts import sizes_of
from planner.evaluation.megatron_layout import write_layout, write_pattern
from planner.exporters.header import comments
from planner.exporters.limits import Limits, check_limits, refuse
from planner.exporters.megatron_model import layer_letters, model_arguments, prediction_modules
from planner.exporters.script import notes_file, policy_of
from planner.exporters.stages import cuts_of, has_experts, num_layers
from planner.models.catalog import build_graph
from planner.plans import Plan

TARGET, BRIDGE_TARGET = "megatron-lm", "megatron-bridge"

FILE, BRIDGE_FILE, BRIDGE_NOTES_FILE = "megatron_args.sh", "megatron_bridge.json", "megatron_bridge_notes.txt"

Settings = dict[str, Any]

RECOMPUTE: Mapping[str, Settings] = MappingProxyType(
    {
        "none": {},
        "attention": {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]},
        "latent": {"recompute_granularity": "selective", "recompute_modules": ["mla_up_proj"]},
        "full": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
    }
)
"""Policy -> settings; what is recomputed by ``selective`` is listed in ``recompute_modules``."""

DISPATCHERS: Mapping[str, Settings] = MappingProxyType(
    {
        "all_to_all": {"moe_token_dispatcher_type": "alltoall"},
        "all_gather": {"moe_token_dispatcher_type": "allgather"},
        "deepep": {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "deepep"},
        "hybridep": {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep"},
    }
)
"""How tokens reach their experts -> settings; Megatron would gather all tokens unasked."""

GROUPED: Settings = {"moe_grouped_gemm": True}
"""Experts in one product, as they are priced; Megatron would compute one after the other unasked."""

FUSED_LOSS: Settings = {"cross_entropy_loss_fusion": True}
"""Off by default; whose gradients are in bf16 whatever the logits are (core/fusions/fused_cross_entropy.py@d98e8a6)."""

BY_BF16 = ("bf16", "fp8", "fp4")
"""Precisions of which the logits are in bf16."""

STRATEGIES = MappingProxyType({2: "optim_grads", 3: "optim_grads_params"})
"""ZeRO stage -> ``data_parallel_sharding_strategy`` of Megatron-FSDP."""

PRECISIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "bf16": ("--bf16",),
        "fp16": ("--fp16",),
        "fp32": (),
        "fp8": ("--bf16", "--fp8-format hybrid"),
        "fp4": ("--bf16", "--fp4-format e2m1"),
    }
)
"""Precision -> arguments."""

LIMITS = Limits(
    zero_stages=(0, 1, 2, 3),
    hybrid=(1,),
    recompute={policy: policy for policy in RECOMPUTE},
    precision={precision: precision for precision in PRECISIONS},
    optimizers=MappingProxyType({"adamw": "adam", "sgd": "sgd", "muon": "muon"}),
    axes=("tensor", "pipeline", "context", "expert"),
    experts_over_context=True,
    schedules=MappingProxyType({"1f1b": "1F1B", "interleaved": "interleaved 1F1B"}),
    uneven_stages=True,
    experts_over_tensor=None,
    offload=("optimizer",),
)

BRIDGE_PRECISIONS: Mapping[str, str | None] = MappingProxyType(
    {"bf16": "bf16_mixed", "fp16": "fp16_mixed", "fp32": None}
)
"""Precision -> name of a ``MixedPrecisionConfig`` (Megatron-Bridge 067f987, training/mixed_precision.py)."""

BRIDGE_LIMITS = LIMITS._replace(precision={p: str(name) for p, name in BRIDGE_PRECISIONS.items()})

ARGUMENTS = MappingProxyType({"virtual_pipeline_model_parallel_size": "num_virtual_stages_per_pipeline_rank"})
"""Fields whose argument has another name."""


EXCHANGES = MappingProxyType(
    {"ring": "p2p", "gathered_ring": "p2p", "all_gather": "all_gather", "all_to_all": "a2a"}
)
"""How keys and values are exchanged -> ``cp_comm_type``; the steps of a gathered ring are those of a ring."""


def to_megatron_lm(plan: Plan) -> dict[str, str]:
    """``megatron_args.sh`` for ``plan``; raises ``Unsupported`` beyond `LIMITS` and Megatron's own rules."""
    check_limits(plan, TARGET, LIMITS)
    refuse(TARGET, _broken_rules(plan))
    job, sections = plan.job, settings(plan)
    model = model_arguments(plan)
    lines = [_arguments(model)] if model else []
    lines.append(f"--seq-length {job.seq_len} --max-position-embeddings {job.seq_len}")
    lines += [_arguments(section) for section in sections.values() if section]
    lines.append(" ".join((*PRECISIONS[job.precision], *_precision_arguments(plan))))
    body = "".join(f"    {line}\n" for line in lines if line)
    return {FILE: f"{comments(plan)}\n{_notes(plan, bool(model))}MEGATRON_ARGS=(\n{body})\n"}


def to_megatron_bridge(plan: Plan) -> dict[str, str]:
    """``megatron_bridge.json``: sections of ``ConfigContainer``; raises ``Unsupported`` as `to_megatron_lm`."""
    check_limits(plan, BRIDGE_TARGET, BRIDGE_LIMITS)
    refuse(BRIDGE_TARGET, _broken_rules(plan))
    sections = settings(plan)
    sections["model"]["seq_length"] = plan.job.seq_len
    if plan.job.narrow_gate_inputs:
        sections["model"]["activation_func_fp8_input_store"] = True
    sections["ddp"]["grad_reduce_in_fp32"] = plan.job.grad_dtype == "fp32"
    overrides: dict[str, Any] = {**sections, "mixed_precision": BRIDGE_PRECISIONS[plan.job.precision]}
    notes = notes_file(
        plan,
        f"Start {plan.plan.num_devices} processes from a recipe of this model, with these fields replaced.",
        *_environment(plan),
    )
    return {BRIDGE_FILE: json.dumps(overrides, indent=2) + "\n", BRIDGE_NOTES_FILE: notes}


def settings(plan: Plan) -> dict[str, Settings]:
    """Fields of Megatron's configurations, by Megatron-Bridge's names of these: model, train, ddp, optimizer."""
    p, job = plan.plan, plan.job
    model: Settings = {
        "tensor_model_parallel_size": p.tensor,
        "sequence_parallel": p.sequence_parallel and p.tensor > 1,
        "context_parallel_size": p.context,
        "expert_model_parallel_size": p.expert * (p.tensor if p.experts_over_tensor else 1),
        **_pipeline(plan),
        **RECOMPUTE[policy_of(p)],
        **(GROUPED if has_experts(plan) else {}),
        **(FUSED_LOSS if job.precision in BY_BF16 else {}),
    }
    if p.context > 1 and job.context_exchange is not None:
        model["cp_comm_type"] = EXCHANGES[job.context_exchange]
    if p.experts_over_tensor:
        model["expert_tensor_parallel_size"] = 1
    if p.expert > 1:
        model |= DISPATCHERS[job.token_exchange]
        model |= {"overlap_moe_expert_parallel_comm": True} if job.overlap_experts else {}
    if job.expert_capacity is not None:
        model |= {
            "moe_expert_capacity_factor": job.expert_capacity,
            "moe_pad_expert_input_to_capacity": True,
        }
    if job.attention == "plain":
        model["attention_backend"] = "unfused"
    optimizer: Settings = {"optimizer": LIMITS.optimizers[job.optimizer]}
    if "optimizer" in p.offload:
        optimizer |= {"use_precision_aware_optimizer": True, "optimizer_cpu_offload": True}
    return {
        "model": model,
        "train": {"micro_batch_size": p.micro_batch, "global_batch_size": job.global_batch},
        "ddp": _states(plan),
        "optimizer": optimizer,
    }


def _pipeline(plan: Plan) -> Settings:
    """Equal stages by their number, others by a layout; stages of unlike layers by the pattern of these alone."""
    p = plan.plan
    fields: Settings = {"pipeline_model_parallel_size": p.pipeline}
    cuts, letters = cuts_of(plan), layer_letters(plan)
    if p.pipeline > 1 and letters:
        return fields | {"hybrid_layer_pattern": write_pattern(letters, cuts)}
    if p.pipeline > 1 and (len(set(sizes_of(cuts))) > 1 or cuts[-1] != num_layers(plan)):
        return fields | {"pipeline_model_parallel_layout": write_layout(cuts, prediction_modules(plan))}
    if p.virtual_stages > 1:
        fields["virtual_pipeline_model_parallel_size"] = p.virtual_stages
    return fields


def _states(plan: Plan) -> Settings:
    p = plan.plan
    if p.zero_stage == 0:
        return {"overlap_grad_reduce": True}
    fields: Settings = {
        "use_distributed_optimizer": True,
        "overlap_grad_reduce": True,
        "overlap_param_gather": True,
    }
    if p.zero_stage > 1:
        return fields | {
            "use_megatron_fsdp": True,
            "data_parallel_sharding_strategy": STRATEGIES[p.zero_stage],
        }
    copies = p.data * p.context // p.shard_degree
    return fields | {"num_distributed_optimizer_instances": copies} if copies > 1 else fields


def _needs_even_chunks(plan: Plan) -> str:
    pieces = 2 * plan.plan.context
    if plan.plan.context > 1 and plan.job.seq_len % pieces:
        return f"sequences of {plan.job.seq_len} tokens in the {pieces} pieces of context parallelism"
    return ""


def _needs_sequence_parallel(plan: Plan) -> str:
    p = plan.plan
    if (
        "experts" in build_graph(plan.model, plan.job.seq_len).dims
        and p.tensor > 1
        and not p.sequence_parallel
    ):
        return "experts with tensor parallelism but without sequence parallelism"
    return ""


def _needs_whole_experts(plan: Plan) -> str:
    experts = build_graph(plan.model, plan.job.seq_len).dims.get("experts", 1)
    return f"{experts} experts over {plan.plan.expert} ranks" if experts % plan.plan.expert else ""


def _needs_latents(plan: Plan) -> str:
    latent = (
        plan.plan.recompute == "latent" and "kv_lora" not in build_graph(plan.model, plan.job.seq_len).dims
    )
    return "recomputation of heads from latents without latent attention" if latent else ""


def _needs_a_pipeline(plan: Plan) -> str:
    p = plan.plan
    return "virtual stages without a pipeline" if p.virtual_stages > 1 and p.pipeline == 1 else ""


def _needs_no_pipeline(plan: Plan) -> str:
    p = plan.plan
    if p.zero_stage > 1 and (p.pipeline > 1 or p.expert > 1):
        return "Megatron-FSDP (ZeRO 2 and 3) here with a pipeline or expert parallelism; plan with --zero 1"
    return ""


def _needs_fsdp_optimizer(plan: Plan) -> str:
    p, optimizer = plan.plan, plan.job.optimizer
    return f"optimizer {optimizer} with Megatron-FSDP" if p.zero_stage > 1 and optimizer == "muon" else ""


def _needs_one_instance(plan: Plan) -> str:
    p = plan.plan
    if p.expert > 1 and p.zero_stage == 1 and p.shard_degree < p.data * p.context:
        return "several instances of the distributed optimizer with expert parallelism"
    return ""


RULES: tuple[Callable[[Plan], str], ...] = (
    _needs_even_chunks,
    _needs_sequence_parallel,
    _needs_whole_experts,
    _needs_latents,
    _needs_a_pipeline,
    _needs_no_pipeline,
    _needs_fsdp_optimizer,
    _needs_one_instance,
)
"""What Megatron asserts when it starts: each names what it refuses, or is empty."""


def _broken_rules(plan: Plan) -> Iterator[str]:
    return filter(None, (rule(plan) for rule in RULES))


def _environment(plan: Plan) -> list[str]:
    """Variables that Megatron asserts before Blackwell."""
    p = plan.plan
    if p.zero_stage > 1:
        return ["Environment: CUDA_DEVICE_MAX_CONNECTIONS unset, or more than 1."]
    if p.tensor > 1 or p.context > 1:
        return ["Environment: CUDA_DEVICE_MAX_CONNECTIONS=1 (devices before Blackwell)."]
    return []


def _notes(plan: Plan, model_is_said: bool) -> str:
    nodes = math.ceil(plan.plan.num_devices / plan.cluster.devices_per_node)
    notes = [f"{plan.plan.num_devices} processes on {nodes} nodes.", *_environment(plan)]
    if not model_is_said:
        notes.append(
            f"The arguments that describe {plan.model.name} are your script's: they are not all here."
        )
    return "".join(f"# {note}\n" for note in notes)


def _precision_arguments(plan: Plan) -> list[str]:
    arguments = (
        ["--grad-reduce-in-bf16"] if plan.job.precision != "fp32" and plan.job.grad_dtype == "bf16" else []
    )
    if plan.job.fp8_scaling is not None:
        arguments.append(f"--fp8-recipe {plan.job.fp8_scaling}")
    return [*arguments, "--ckpt-format fsdp_dtensor"] if plan.plan.zero_stage > 1 else arguments


def _arguments(fields: Mapping[str, Any]) -> str:
    """Fields as arguments: true ones alone, false ones left out."""
    words = []
    for name, value in fields.items():
        flag = "--" + ARGUMENTS.get(name, name).replace("_", "-")
        if value is True:
            words.append(flag)
        elif value is not False:
            words += [flag, *(shlex.quote(str(v)) for v in (value if isinstance(value, list) else [value]))]
    return " ".join(words)

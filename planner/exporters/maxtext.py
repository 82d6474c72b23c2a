"""Plan -> overrides for MaxText: degrees inside and across slices, the batch, recomputation.

Keys are those of MaxText e591f30, src/maxtext/configs/base.yml; ``activation_embed`` lies on the tensor axis, so
that residuals are split whenever operators are. The per-device batch is that of one accumulation step, which holds
all micro-batches of a pipeline.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import yaml

from planner.errors import Unsupported
from planner.exporters.header import comments
from planner.exporters.limits import Limits, check_limits
from planner.exporters.script import TORCH_PRECISIONS, policy_of, shard_and_replicate
from planner.exporters.slices import split_axes
from planner.exporters.stages import num_layers
from planner.plans import Plan

TARGET, FILE = "maxtext", "maxtext.yml"

RECOMPUTE = MappingProxyType(
    {
        "selective": "minimal_with_context",
        "products": "minimal",
        "mlp": "save_dot_with_context_except_mlp",
        "projections": "save_dot_except_mlp",
        "heads": "save_qkv_proj",
        "full": "full",
    }
)
"""Policy -> ``remat_policy``: ``minimal_with_context`` keeps the results of products and of attention.

There is none that keeps everything: ``none`` gives ``jax.checkpoint`` no policy, with which it keeps nothing (0.2.5,
src/maxtext/layers/nnx_decoders.py, get_remat_policy).
"""

LIMITS = Limits(
    zero_stages=(0, 3),
    hybrid=(3,),
    recompute=RECOMPUTE,
    precision=TORCH_PRECISIONS,
    optimizers=MappingProxyType({"adamw": "adamw", "sgd": "sgd", "muon": "muon"}),
    axes=("tensor", "pipeline", "context", "expert"),
    schedules=MappingProxyType({"gpipe": "one scan over all micro-batches"}),
    sequence_parallel=True,
    offload=("optimizer",),
    fused_loss=True,
)

VOCAB_TILES = 8
"""``num_vocab_tiling`` for a loss in chunks; any number above 1 keeps the whole logits from existing."""

MODELS: Mapping[str, str] = MappingProxyType(
    {
        "llama-2-7b": "llama2-7b",
        "llama-2-13b": "llama2-13b",
        "llama-2-70b": "llama2-70b",
        "llama-3-8b": "llama3-8b",
        "llama-3-70b": "llama3-70b",
        "llama-3.1-8b": "llama3.1-8b",
        "llama-3.1-70b": "llama3.1-70b",
        "llama-3.1-405b": "llama3.1-405b",
        "mistral-7b-v0.1": "mistral-7b",
        "mixtral-8x7b": "mixtral-8x7b",
        "mixtral-8x22b": "mixtral-8x22b",
        "llama-4-scout-17b-16e": "llama4-17b-16e",
        "llama-4-maverick-17b-128e": "llama4-17b-128e",
        "qwen2.5-7b": "qwen2.5-7b",
        "qwen2.5-14b": "qwen2.5-14b",
        "qwen3-0.6b": "qwen3-0.6b",
        "qwen3-8b": "qwen3-8b",
        "qwen3-32b": "qwen3-32b",
        "qwen3-30b-a3b": "qwen3-30b-a3b",
        "qwen3-235b-a22b": "qwen3-235b-a22b",
        "gemma-2-9b": "gemma2-9b",
        "gemma-2-27b": "gemma2-27b",
        "gemma-3-12b": "gemma3-12b",
        "gemma-3-27b": "gemma3-27b",
        "deepseek-v2-236b": "deepseek2-236b",
        "deepseek-v2-lite-16b": "deepseek2-16b",
        "deepseek-v3-671b": "deepseek3-671b",
        "kimi-k2-1t": "kimi-k2-1t",
        "gpt-oss-120b": "gpt-oss-120b",
        "gpt-3-175b": "gpt3-175b",
    }
)
"""Our name -> ``model_name``, src/maxtext/configs/models."""

AXES = ("tensor", "context", "expert", "fsdp", "data", "pipeline")
"""Axes of ``ici_*_parallelism`` and ``dcn_*_parallelism`` that a plan uses, innermost first."""


def to_maxtext(plan: Plan) -> dict[str, str]:
    """``maxtext.yml`` for ``plan``.

    Raises ``Unsupported`` beyond `LIMITS`, for virtual stages, and for axes that straddle a slice.
    """
    check_limits(plan, TARGET, LIMITS)
    _check(plan)
    model = MODELS.get(plan.model.name)
    notes = (
        "" if model else "# MaxText has no name for this model here: set model_name or the sizes yourself.\n"
    )
    return {FILE: f"{comments(plan)}\n{notes}" + yaml.safe_dump(_config(plan, model), sort_keys=False)}


def _check(plan: Plan) -> None:
    p = plan.plan
    if p.virtual_stages > 1:
        raise Unsupported(f"target {TARGET} exports one stage a rank; plan with --virtual-stages 1")
    if p.pipeline > 1 and p.num_microbatches % p.pipeline:
        raise Unsupported(
            f"target {TARGET} needs micro-batches in multiples of its {p.pipeline} stages, not {p.num_microbatches}"
        )
    if p.zero_stage and (p.context > 1 or p.expert > 1) and p.shard_degree % (p.context * p.expert):
        raise Unsupported(f"target {TARGET} shards states over context and expert ranks first")
    if not p.zero_stage and p.context > 1:
        raise Unsupported(f"target {TARGET} shards states over context ranks; plan again with --zero 3")


def _axis_sizes(plan: Plan) -> dict[str, int]:
    """Sizes of `AXES`; the expert axis has batch of its own, so it leaves the data-parallel ranks."""
    p = plan.plan
    shard, replicate = shard_and_replicate(p)
    if p.expert > 1 and shard % p.expert:
        raise Unsupported(f"target {TARGET} shards states over expert ranks; plan again with --zero 3")
    return dict(
        zip(AXES, (p.tensor, p.context, p.expert, shard // p.expert, replicate, p.pipeline), strict=True)
    )


def _config(plan: Plan, model: str | None) -> dict[str, Any]:
    p, job = plan.plan, plan.job
    split = split_axes(_axis_sizes(plan), plan.cluster, TARGET)
    accumulated = 1 if p.pipeline > 1 else p.num_microbatches
    batch = p.micro_batch * p.num_microbatches // accumulated * p.data / p.num_devices
    config: dict[str, Any] = {
        "base_config": "base.yml",
        **({"model_name": model} if model else {}),
        "hardware": "tpu" if plan.cluster.device.kind == "tpu" else "gpu",
        "per_device_batch_size": int(batch) if batch.is_integer() else batch,
        "gradient_accumulation_steps": accumulated,
        "max_target_length": job.seq_len,
        "dtype": TORCH_PRECISIONS[job.precision],
        "weight_dtype": "float32",
        "grad_dtype": "float32" if job.grad_dtype == "fp32" else "bfloat16",
        "opt_type": LIMITS.optimizers[job.optimizer],
        **{f"ici_{axis}_parallelism": size for axis, size in split.ici.items()},
        **{f"dcn_{axis}_parallelism": size for axis, size in split.dcn.items()},
        "remat_policy": RECOMPUTE[policy_of(p)],
        "optimizer_memory_host_offload": "optimizer" in p.offload,
        "num_vocab_tiling": VOCAB_TILES if job.fused_loss else 1,
        "attention": "dot_product" if job.attention == "plain" else "autoselected",
        "scan_layers": True,
    }
    if job.expert_capacity is not None:
        config |= {"capacity_factor": job.expert_capacity, "sparse_matmul": False, "megablox": False}
    if p.pipeline > 1:
        config["num_pipeline_microbatches"] = p.num_microbatches
        config["num_layers_per_pipeline_stage"] = num_layers(plan) // p.pipeline
    return config

"""Overrides of a MaxText configuration (YAML) -> `Settings`.

Keys and defaults are those of MaxText e591f30, src/maxtext/configs/base.yml.
"""

import math
from dataclasses import replace
from typing import Any

from planner.exporters.maxtext import AXES
from planner.importers.keys import Keys
from planner.importers.settings import Settings, Surroundings

STACK = "jax-xla"

PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}

POLICIES = {
    "none": ("full", True),
    "minimal_with_context": ("selective", True),
    "minimal_flash": ("selective", True),
    "minimal": ("products", True),
    "save_dot_with_context_except_mlp": ("mlp", True),
    "save_dot_except_mlpwi": ("projections", False),
    "save_dot_except_mlp": ("projections", True),
    "save_qkv_proj": ("heads", True),
    "save_out_proj": ("full", False),
    "qkv_proj_offloaded": ("full", False),
    "minimal_offloaded": ("full", False),
    "custom": ("full", False),
    "full": ("full", True),
}
"""``remat_policy`` -> the policy that comes nearest without less memory, and whether it is the same."""

ATTENTIONS = {
    "autoselected": "flash",
    "flash": "flash",
    "cudnn_flash_te": "flash",
    "cudnn_flash_jax": "flash",
    "dot_product": "plain",
}

DEFAULTS = {"ici_fsdp": -1, "dcn_data": -1}
"""Axes that take what is left, unless they are set; every other one is 1."""

DEFAULT_BATCH, DEFAULT_LENGTH = 12.0, 2048
"""``per_device_batch_size`` and ``max_target_length`` of base.yml."""

IGNORED = (
    "base_config", "model_name", "hardware", "compile_topology.*", "run_name", "base_output_directory", "dataset.*",
    "steps", "learning_rate.*", "warmup.*", "adam_.*", "enable_checkpointing", "checkpoint.*", "async_checkpointing",
    "tokenizer.*", "profiler.*", "enable_goodput.*", "log_.*", "metrics_file", "gcs_metrics", "reuse_example_batch",
    "scan_layers", "sa_.*", "weight_dtype", "num_slices", "use_iota_embed", "packing", "decoder_layer_input", "context",
    "(query|key|value|qkv|out)_proj", "(moe_)?mlpw.*", "attention_kernel.*", "megablox", "sparse_matmul",
)  # fmt: skip


def read_maxtext(keys: Keys, around: Surroundings) -> Settings:
    """`Settings` of a MaxText configuration; axes of -1 take the devices that are left."""
    sizes = _axes(keys, around)
    expert, data = sizes["expert"], sizes["data"] * sizes["fsdp"] * sizes["expert"]
    policy, exact = keys.word("remat_policy", POLICIES, ("full", True))
    assumed = [] if exact else [f"recompute={policy} (remat_policy {keys.get('remat_policy')})"]
    settings = Settings(
        STACK,
        data=data,
        tensor=sizes["tensor"],
        pipeline=sizes["pipeline"],
        context=sizes["context"],
        expert=expert,
        seq_len=keys.integer("max_target_length"),
        defaults={"seq_len": DEFAULT_LENGTH},
        zero_stage=3 if sizes["fsdp"] * sizes["context"] * expert > 1 else 0,
        replicate=sizes["data"],
        recompute=policy,
        schedule="gpipe" if sizes["pipeline"] > 1 else "1f1b",
        offload=("optimizer",) if keys.flag("optimizer_memory_host_offload") else (),
        job=_job(keys),
        assumed=tuple(assumed),
    )
    settings = _batches(settings, keys, around)
    keys.ignore(*IGNORED)
    return replace(settings, unknown=keys.unknown())


def _axes(keys: Keys, around: Surroundings) -> dict[str, int]:
    slices = math.ceil(around.devices / around.devices_per_node)
    inside, across = _tier(keys, "ici", around.devices // slices), _tier(keys, "dcn", slices)
    return {axis: inside[axis] * across[axis] for axis in AXES}


def _tier(keys: Keys, tier: str, devices: int) -> dict[str, int]:
    written = {axis: keys.integer(f"{tier}_{axis}_parallelism", least=-1) for axis in AXES}
    sizes = {
        axis: DEFAULTS.get(f"{tier}_{axis}", 1) if size is None else size for axis, size in written.items()
    }
    known = math.prod(size for size in sizes.values() if size > 0)
    for axis, size in sizes.items():
        if size < 1:
            sizes[axis] = max(1, devices // known)
            known *= sizes[axis]
    return sizes


def _batches(settings: Settings, keys: Keys, around: Surroundings) -> Settings:
    """A step accumulates ``gradient_accumulation_steps``; a pipeline cuts each of them into micro-batches."""
    devices = (settings.data or 1) * settings.tensor * settings.pipeline * settings.context
    loaded = (keys.number("per_device_batch_size") or DEFAULT_BATCH) * devices
    accumulated = keys.degree("gradient_accumulation_steps")
    pieces = keys.integer("num_pipeline_microbatches", least=-1)
    keys.get("num_layers_per_pipeline_stage")
    count = 1
    if settings.pipeline > 1:
        count = pieces if pieces is not None and pieces > 0 else settings.pipeline
    micro = loaded / (settings.data or 1) / count
    if not micro.is_integer():
        raise keys.fail(
            "per_device_batch_size", f"such that {loaded:g} sequences give each data rank whole ones"
        )
    return replace(settings, micro_batch=int(micro), num_microbatches=count * accumulated)


def _job(keys: Keys) -> dict[str, Any]:
    return {
        "precision": keys.word("dtype", PRECISIONS, "bf16"),
        "grad_dtype": keys.word("grad_dtype", {"float32": "fp32", "bfloat16": "bf16"}, "fp32"),
        "optimizer": keys.word("opt_type", {"adamw": "adamw", "sgd": "sgd", "muon": "muon"}, "adamw"),
        "attention": keys.word("attention", ATTENTIONS, "flash"),
        "fused_loss": keys.degree("num_vocab_tiling") > 1,
    }

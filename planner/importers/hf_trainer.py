"""Arguments of the Hugging Face Trainer as JSON, or its ``fsdp_config`` alone -> `Settings`.

Keys are those of transformers 5.23, training_args.py; a prefix ``fsdp_`` is allowed, as there.
"""

from typing import Any

from planner.errors import InputError
from planner.importers.keys import Keys
from planner.importers.settings import Settings, Surroundings
from planner.importers.torch_fsdp import REPLICATED, STACK, Fsdp, Strategy, read_fsdp

OPTIMIZERS = {
    **dict.fromkeys(("adamw_torch", "adamw_torch_fused", "adamw_torch_xla", "adamw_hf"), "adamw"),
    "paged_adamw_32bit": "adamw",
    "adamw_torch_8bit": "adamw8bit",
    **dict.fromkeys(("adamw_8bit", "adamw_bnb_8bit", "paged_adamw_8bit"), "adamw_bnb_8bit"),
    "sgd": "sgd",
    "adafactor": "adafactor",
}
"""``optim`` -> optimizer. States that are paged are priced as they lie on a device that has room for them."""

LEGACY = {
    "full_shard": Strategy(3),
    "shard_grad_op": Strategy(2),
    "no_shard": Strategy(0),
    "hybrid_shard": Strategy(3, hybrid=True),
    "hybrid_shard_zero2": Strategy(2, hybrid=True),
}
"""Words of ``fsdp`` while it was a text."""

IGNORED = (
    "output_dir", "overwrite_output_dir", "do_.*", "per_device_eval.*", "eval.*", "learning_rate", "weight_decay",
    "adam_.*", "max_grad_norm", "num_train_epochs", "max_steps", "lr_.*", "warmup_.*", "log.*", "save_.*", "seed",
    "data_seed", "report_to", "run_name", "push_to_hub", "hub_.*", "dataloader_.*", "remove_unused_columns", "tf32",
    "ddp_.*", "resume_from_checkpoint", "gradient_checkpointing_kwargs.*", "load_best_model_at_end", "metric.*",
)  # fmt: skip

SECTION = "fsdp_config"

REPLICAS = Fsdp(Strategy(0), "none", (), ())
"""Without FSDP."""


def read_training_arguments(keys: Keys, around: Surroundings) -> Settings:
    """`Settings` of ``TrainingArguments``."""
    if keys.has("deepspeed"):
        raise InputError(f"{keys.source} leaves sharding to DeepSpeed: import its configuration instead")
    fsdp = _fsdp(keys)
    full = keys.flag("gradient_checkpointing") or fsdp.recompute == "full"
    keys.ignore(*IGNORED)
    return Settings(
        STACK,
        micro_batch=keys.integer("per_device_train_batch_size"),
        num_microbatches=keys.integer("gradient_accumulation_steps"),
        defaults={"micro_batch": 8, "num_microbatches": 1},
        zero_stage=fsdp.strategy.zero_stage,
        shard=around.devices_per_node if fsdp.strategy.hybrid else None,
        recompute="full" if full else "none",
        offload=fsdp.offload,
        job={**_job(keys), **(REPLICATED if fsdp is REPLICAS else {})},
        assumed=fsdp.assumed,
        unknown=keys.unknown(),
    )


def read_fsdp_config(keys: Keys, around: Surroundings) -> Settings:
    """`Settings` of an ``fsdp_config`` by itself, which knows nothing of batches and precision."""
    prefix = "fsdp_" if keys.has("fsdp_version") or keys.has("fsdp_reshard_after_forward") else ""
    fsdp = read_fsdp(keys, prefix, keys.integer(f"{prefix}version") or 2)
    return Settings(
        STACK,
        zero_stage=fsdp.strategy.zero_stage,
        shard=around.devices_per_node if fsdp.strategy.hybrid else None,
        recompute=fsdp.recompute,
        offload=fsdp.offload,
        assumed=fsdp.assumed,
        unknown=keys.unknown(),
    )


def _fsdp(keys: Keys) -> Fsdp:
    """Sharding, if the Trainer is asked for it: by a truth value, or by the words of older versions."""
    asked = keys.get("fsdp")
    words = asked.split() if isinstance(asked, str) and asked.lower() not in ("true", "false") else []
    if keys.get(SECTION) is not None:
        raise InputError(f"{keys.source}: fsdp_config is the name of a file; put its keys in its place")
    if not words and not keys.flag("fsdp"):
        return REPLICAS
    prefix = f"{SECTION}.fsdp_" if keys.has(f"{SECTION}.fsdp_version") else f"{SECTION}."
    fsdp = read_fsdp(keys, prefix, keys.integer(f"{prefix}version") or (1 if words else 2))
    strategy = next((LEGACY[word] for word in words if word in LEGACY), fsdp.strategy)
    return fsdp._replace(strategy=strategy)


def _job(keys: Keys) -> dict[str, Any]:
    half = [name for name in ("bf16", "fp16") if keys.flag(name)]
    precision = half[0] if half else "fp32"
    return {"precision": precision, "optimizer": keys.word("optim", OPTIMIZERS, "adamw")}

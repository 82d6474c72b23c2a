"""A DeepSpeed configuration (JSON) -> `Settings`.

Keys are those of DeepSpeed 0.19.8, deepspeed/runtime/config.py and deepspeed/runtime/zero/config.py. Whether layers
are recomputed is said by the model's own code; a section ``activation_checkpointing`` is taken as the sign of it.
"""

from dataclasses import replace
from typing import Any

from planner.errors import InputError
from planner.importers.keys import Keys
from planner.importers.settings import Settings, Surroundings, states_on_host

STACK = "deepspeed"

TRANSFORMERS = "deepspeed-transformers"
"""Where accelerate or the Trainer start DeepSpeed: they fill in what is ``"auto"``, as nothing else but a tuner does.

Source: huggingface/transformers src/transformers/integrations/deepspeed.py, ``HfTrainerDeepSpeedConfig.fill_match``.
"""

OFFLOADED = {"none": False, "cpu": True, "nvme": True}
"""Device of an offloaded state -> whether it is away from the accelerator."""

DTYPES = {"fp32": "fp32", "bf16": "bf16", "fp16": "bf16"}
"""Types of gradients; fp16 has the size of bf16."""

OPTIMIZERS = {"AdamW": "adamw", "Adam": "adamw", "FusedAdam": "adamw", "SGD": "sgd", "Muon": "muon"}

IGNORED = (
    "gradient_clipping", "prescale_gradients", "gradient_predivide_factor", "steps_per_print", "wall_clock_breakdown",
    "dump_state", "scheduler.*", r"optimizer\.params.*", "fp16.*", "bf16.*", "flops_profiler.*", "comms_logger.*",
    "tensorboard.*", "wandb.*", "csv_monitor.*", "monitor_config.*", "zero_allow_untested_optimizer", "checkpoint.*",
    "zero_force_ds_cpu_optimizer", r"zero_optimization\.(overlap_comm|contiguous_gradients|reduce_scatter)",
    r"zero_optimization\.(allgather_partitions|round_robin_gradients|sub_group_size|ignore_unused_parameters)",
    r"zero_optimization\..*bucket_size", r"zero_optimization\.stage3_.*", r"zero_optimization\.offload_.*",
    r"activation_checkpointing\..*", "autotuning.*",
)  # fmt: skip
"""Keys without influence here; buckets and prefetching are those of the software stack."""


def read_deepspeed(keys: Keys, around: Surroundings) -> Settings:
    """`Settings` of a DeepSpeed configuration."""
    micro = keys.integer("train_micro_batch_size_per_gpu")
    count, batch = keys.integer("gradient_accumulation_steps"), keys.integer("train_batch_size")
    if batch is not None and micro is not None and count is None:
        count = 1 if batch == micro else None
    data = batch // (micro * count) if batch and micro and count else None
    if batch and micro and count and batch % (micro * count):
        raise InputError(
            f"{keys.source}: train_batch_size {batch} is not train_micro_batch_size_per_gpu {micro} x "
            f"gradient_accumulation_steps {count} x a number of devices"
        )
    stage = keys.integer("zero_optimization.stage", least=0) or 0
    offload, assumed = _offload(keys, stage)
    recomputes = keys.has("activation_checkpointing")
    if recomputes:
        assumed.append("recompute=full (the file has activation_checkpointing; the model's code decides)")
    settings = Settings(
        TRANSFORMERS if keys.has_auto and not keys.has("autotuning") else STACK,
        data=data,
        tensor=keys.degree("tensor_parallel.autotp_size"),
        micro_batch=micro,
        num_microbatches=count,
        global_batch=batch,
        zero_stage=stage,
        sequence_parallel=False,
        recompute="full" if recomputes else "none",
        offload=offload,
        job=_job(keys),
        assumed=tuple(assumed),
    )
    keys.ignore(*IGNORED)
    return replace(settings, unknown=keys.unknown())


def _offload(keys: Keys, stage: int) -> tuple[tuple[str, ...], list[str]]:
    section = "zero_optimization"
    old = keys.flag(f"{section}.cpu_offload")
    optimizer = keys.word(f"{section}.offload_optimizer.device", OFFLOADED, old)
    weights = keys.word(f"{section}.offload_param.device", OFFLOADED, False)
    found, assumed = states_on_host(optimizer, weights, stage)
    if keys.flag("activation_checkpointing.cpu_checkpointing"):
        found = (*found, "activations")
    return found, list(assumed)


def _job(keys: Keys) -> dict[str, Any]:
    """Fields of `Job`: half precision keeps fp32 weights; gradients travel as they are trained in."""
    precision = next((name for name in ("bf16", "fp16") if keys.flag(f"{name}.enabled")), "fp32")
    job: dict[str, Any] = {"precision": precision}
    if keys.has("data_types.grad_accum_dtype"):
        job["grad_dtype"] = keys.word("data_types.grad_accum_dtype", DTYPES, "fp32")
    if keys.has("communication_data_type"):
        job["reduce_dtype"] = keys.word("communication_data_type", DTYPES, "bf16")
    if keys.has("optimizer.type"):
        job["optimizer"] = keys.word("optimizer.type", OPTIMIZERS, "adamw")
    return job

"""A configuration file of Hugging Face accelerate (FSDP 1 and 2, DDP, DeepSpeed) -> `Settings`.

Keys are those of accelerate 1.15, accelerate/commands/config/cluster.py and accelerate/parallelism_config.py.
"""

from collections.abc import Iterator
from dataclasses import replace

from planner.errors import InputError
from planner.importers.deepspeed import OFFLOADED, TRANSFORMERS
from planner.importers.keys import Keys
from planner.importers.settings import Settings, Surroundings, states_on_host
from planner.importers.torch_fsdp import REPLICATED, STACK, read_fsdp

PRECISIONS = {"bf16": "bf16", "fp16": "fp16", "fp8": "fp8", "no": "fp32"}

IGNORED = (
    "compute_environment", "machine_rank", "num_machines", "main_.*", "rdzv_.*", "same_network", "use_cpu", "debug",
    "downcast_bf16", "enable_cpu_affinity", "tpu_.*", "gpu_ids", "dynamo_.*", "deepspeed_config.zero3_.*",
    "deepspeed_config.gradient_clipping", "deepspeed_config.deepspeed_multinode_launcher",
    r"parallelism_config\..*_(backend|comm_strategy)", "fsdp_config.fsdp_version",
)  # fmt: skip


def read_accelerate(keys: Keys, around: Surroundings) -> Settings:
    """`Settings` of an accelerate configuration; raises ``InputError`` for what it cannot be."""
    readers = {"FSDP": _fsdp, "DEEPSPEED": _deepspeed, "MULTI_GPU": _replicas, "NO": _replicas}
    settings = keys.word("distributed_type", readers, _replicas)(keys, around)
    precision = keys.word("mixed_precision", PRECISIONS, "fp32")
    devices = keys.integer("num_processes")
    job = {**settings.job, "precision": precision}
    assumed = (*settings.assumed, *_not_compiled(keys, settings.stack))
    keys.ignore(*IGNORED)
    return replace(settings, devices=devices, job=job, assumed=assumed, unknown=keys.unknown())


def _not_compiled(keys: Keys, stack: str) -> Iterator[str]:
    """That a compiler is asked for, which the stack has none of; ``no`` is accelerate's default."""
    backend = keys.get("dynamo_config.dynamo_backend") or keys.get("dynamo_backend")
    if str(backend or "no").lower() != "no":
        yield f"stack={stack} (models compiled by dynamo_backend {backend} are not priced)"


def _replicas(keys: Keys, around: Surroundings) -> Settings:
    return Settings(STACK, job=REPLICATED)


def _fsdp(keys: Keys, around: Surroundings) -> Settings:
    version = keys.integer("fsdp_config.fsdp_version") or 1
    fsdp = read_fsdp(keys, "fsdp_config.fsdp_", version)
    degrees = {
        name: keys.degree(f"parallelism_config.parallelism_config_{name}_size") for name in ("tp", "cp", "sp")
    }
    if degrees["sp"] > 1:
        raise keys.fail(
            "parallelism_config.parallelism_config_sp_size", "1: sequence parallelism is not modelled"
        )
    shard, replicate = (
        keys.integer(f"parallelism_config.parallelism_config_dp_{name}_size")
        for name in ("shard", "replicate")
    )
    if fsdp.strategy.hybrid:
        shard = around.devices_per_node
    settings = Settings(
        STACK,
        tensor=degrees["tp"],
        context=degrees["cp"],
        zero_stage=fsdp.strategy.zero_stage,
        shard=shard,
        replicate=replicate,
        sequence_parallel=False,
        recompute=fsdp.recompute,
        offload=fsdp.offload,
        assumed=fsdp.assumed,
    )
    return _whole_nodes(keys, settings)


def _whole_nodes(keys: Keys, settings: Settings) -> Settings:
    """A hybrid strategy on less than a node is no hybrid."""
    devices = keys.integer("num_processes")
    if settings.shard is not None and devices is not None and settings.replicate is None:
        return replace(settings, shard=min(settings.shard, devices))
    return settings


def _deepspeed(keys: Keys, around: Surroundings) -> Settings:
    section = "deepspeed_config"
    if (other := keys.get(f"{section}.deepspeed_config_file")) is not None:
        raise InputError(f"{keys.source} leaves everything to {other}: import that file instead")
    optimizer = keys.word(f"{section}.offload_optimizer_device", OFFLOADED, False)
    weights = keys.word(f"{section}.offload_param_device", OFFLOADED, False)
    stage = keys.integer(f"{section}.zero_stage", least=0) or 0
    offload, assumed = states_on_host(optimizer, weights, stage)
    return Settings(
        TRANSFORMERS,
        zero_stage=stage,
        num_microbatches=keys.integer(f"{section}.gradient_accumulation_steps"),
        offload=offload,
        assumed=assumed,
    )

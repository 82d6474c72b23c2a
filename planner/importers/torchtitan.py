"""A torchtitan configuration in TOML (versions up to 0.2.2) -> `Settings`.

Keys and defaults are those of torchtitan 0.2.2, torchtitan/config/job_config.py; stages that are not listed are cut
as torchtitan/distributed/pipeline_parallel.py does.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from planner.importers.keys import Keys
from planner.importers.settings import Settings, Surroundings, states_on_host
from planner.pipeline.generators import SCHEDULES

SCHEDULE_NAMES: Mapping[str, str] = {
    entry.torch_name: name for name, entry in SCHEDULES.items() if entry.torch_name
}

DEFAULTS = {"seq_len": 2048, "micro_batch": 8, "num_microbatches": 1}
"""Of ``training``; a step has one local batch unless ``global_batch_size`` is given."""

RESHARD = {"default": None, "always": 3, "never": 2}
"""``fsdp_reshard_after_forward`` -> ZeRO stage; ``default`` is 3, or 2 with a pipeline."""

MODES = {"none": "none", "selective": "selective", "full": "full"}

EVERY_SECOND = "op"
"""``selective_ac_option`` that recomputes every second matrix product of a layer; numbers are whole layers."""

PRECISIONS = {"bfloat16": "bf16", "float32": "fp32"}

IGNORED = (
    r"(job|profiling|metrics|lr_scheduler|checkpoint|comm|debug|experimental|validation|fault_tolerance)\..*",
    r"model\.(name|flavor|hf_assets_path|tokenizer_path|converters|print_after_conversion)", r"compile\.backend",
    r"optimizer\.(lr|eps|beta1|beta2|weight_decay|implementation)",
    r"training\.(dataset|dataset_path|steps|max_norm|gc_.*|seed|deterministic)", r"training\.dataloader\..*",
    r"activation_checkpoint\.(early_stop|preserve_rng_state|.*debug.*)",
    r"parallelism\.(context_parallel_rotate_method|context_parallel_load_balancer)",
)  # fmt: skip


def read_torchtitan(keys: Keys, around: Surroundings) -> Settings:
    """`Settings` of a torchtitan configuration."""
    tensor, context, expert, pipeline = (
        keys.degree(f"parallelism.{name}_parallel_degree")
        for name in ("tensor", "context", "expert", "pipeline")
    )
    whole = (
        tensor > 1 and expert % tensor == 0 and keys.degree("parallelism.expert_tensor_parallel_degree") == 1
    )
    settings = Settings(
        _stack(keys),
        tensor=tensor,
        context=context,
        expert=expert // tensor if whole else expert,
        experts_over_tensor=whole,
        seq_len=keys.integer("training.seq_len"),
        global_batch=_positive(keys.integer("training.global_batch_size", least=-1)),
        **_recompute(keys),
        job=_job(keys),
        assumed=tuple(_inexact(keys, tensor, expert)),
    )
    settings = _batches(_pipeline(settings, keys, around, pipeline), keys, around)
    settings = _offload(_states(settings, keys), keys)
    keys.ignore(*IGNORED)
    return replace(settings, unknown=keys.unknown())


def _stack(keys: Keys) -> str:
    """Eager unless it is compiled, layers and loss alike unless only one of them is named.

    Source: pytorch/torchtitan@v0.2.2 torchtitan/config/job_config.py, ``Compile``.
    """
    compiled, components = keys.flag("compile.enable"), keys.get("compile.components")
    if components is None:
        components = ["model", "loss"]
    if not isinstance(components, list):
        raise keys.fail("compile.components", 'a list such as ["model", "loss"]')
    layers, loss = (bool(compiled) and part in components for part in ("model", "loss"))
    if layers:
        return "torch-compiled-loss" if loss else "torch-fsdp2"
    return "torch-loss-alone" if loss else "torch-eager"


def _positive(value: int | None) -> int | None:
    return value if value is not None and value > 0 else None


def _recompute(keys: Keys) -> dict[str, Any]:
    """A number as ``selective_ac_option`` is that of layers, of which the first is recomputed whole."""
    policy = keys.word("activation_checkpoint.mode", MODES, "selective")
    option = "activation_checkpoint.selective_ac_option"
    if policy != "selective":
        return {"recompute": policy}
    if keys.get(option) == EVERY_SECOND:
        return {"recompute": "alternate"}
    return {"recompute": "full", "recompute_every": keys.integer(option) or 2}


def _inexact(keys: Keys, tensor: int, expert: int) -> list[str]:
    """What torchtitan does that the plan only comes near to."""
    found = []
    split = keys.degree("parallelism.expert_tensor_parallel_degree")
    if expert > 1 and tensor > 1 and split != tensor and (split > 1 or expert % tensor):
        found.append("experts split over tensor ranks (expert_tensor_parallel_degree says otherwise)")
    if keys.flag("parallelism.disable_loss_parallel") and tensor > 1:
        found.append("a loss of split logits (disable_loss_parallel gathers them whole)")
    return found


def _job(keys: Keys) -> dict[str, Any]:
    job: dict[str, Any] = {
        "precision": keys.word("training.mixed_precision_param", PRECISIONS, "bf16"),
        "reduce_dtype": keys.word("training.mixed_precision_reduce", PRECISIONS, "fp32"),
        "step_in_backward": bool(keys.flag("optimizer.early_step_in_backward")),
    }
    if keys.word("training.dtype", PRECISIONS, "fp32") == "bf16":
        job |= {"precision": "bf16", "master_weights": False, "grad_dtype": "bf16"}
    if keys.has("optimizer.name"):
        job["optimizer"] = keys.word("optimizer.name", {"AdamW": "adamw", "Adam": "adamw"}, "adamw")
    return job


def _pipeline(settings: Settings, keys: Keys, around: Surroundings, pipeline: int) -> Settings:
    schedule = keys.word("parallelism.pipeline_parallel_schedule", SCHEDULE_NAMES, "1f1b")
    cuts = _cuts(keys, around.layers, pipeline, SCHEDULES[schedule].stages_per_rank[0])
    if pipeline == 1:
        return settings
    stages = (len(cuts) - 1) // pipeline
    return replace(settings, pipeline=pipeline, schedule=schedule, cuts=cuts, virtual_stages=stages)


def _cuts(keys: Keys, layers: int, pipeline: int, least: int) -> tuple[int, ...]:
    listed = keys.get("parallelism.module_fqns_per_model_part")
    first, last = (
        1
        if (n := keys.integer(f"parallelism.pipeline_parallel_{end}_stage_less_layers", least=0)) is None
        else n
        for end in ("first", "last")
    )
    per_stage = keys.integer("parallelism.pipeline_parallel_layers_per_stage")
    if listed is not None:
        cuts = [0]
        for part in listed:
            cuts.append(cuts[-1] + sum(str(module).startswith("layers.") for module in part))
        return tuple(cuts)
    stages = pipeline * least if per_stage is None else math.ceil((layers + first + last) / per_stage)
    return even_but_ends(layers, stages, first, last)


def even_but_ends(layers: int, stages: int, first: int, last: int) -> tuple[int, ...]:
    """Boundaries of stages that are even when the first and last count ``first`` and ``last`` layers more."""
    if stages == 1:
        return (0, layers)
    size, extra = divmod(layers + first + last, stages)
    sizes = [size + (s < extra) for s in range(stages)]
    sizes[0] -= first
    sizes[-1] -= last
    return tuple(sum(sizes[:s]) for s in range(stages + 1))


def _batches(settings: Settings, keys: Keys, around: Surroundings) -> Settings:
    """With a pipeline the local batch is cut into micro-batches; without, it is one.

    torchtitan fills and drains the pipeline for every local batch, a plan once a step.
    """
    local = keys.integer("training.local_batch_size")
    piece = keys.degree("parallelism.pipeline_parallel_microbatch_size")
    batch = settings.global_batch
    if settings.pipeline == 1:
        return replace(settings, micro_batch=local, defaults=DEFAULTS)
    local = local or DEFAULTS["micro_batch"]
    if local % piece:
        raise keys.fail("training.local_batch_size", f"a multiple of the micro-batch {piece}")
    settings = replace(settings, micro_batch=piece, defaults={**DEFAULTS, "num_microbatches": local // piece})
    if batch is None:
        return settings
    split = settings.tensor * settings.pipeline * settings.context
    times = batch // (local * max(1, around.devices // split))
    note = f"one pipeline pass a step (torchtitan makes {times}, each with a bubble of its own)"
    assumed = (*settings.assumed, note) if times > 1 else settings.assumed
    return replace(settings, assumed=assumed)


def _states(settings: Settings, keys: Keys) -> Settings:
    replicate = keys.degree("parallelism.data_parallel_replicate_degree")
    shard = _positive(keys.integer("parallelism.data_parallel_shard_degree", least=-1))
    stage = keys.word("parallelism.fsdp_reshard_after_forward", RESHARD, None)
    if stage is None:
        stage = 2 if settings.pipeline > 1 else 3
    if shard == 1 and settings.context == 1:
        return replace(settings, zero_stage=0, data=replicate)
    return replace(settings, zero_stage=stage, shard=shard, replicate=replicate)


def _offload(settings: Settings, keys: Keys) -> Settings:
    away = keys.flag("training.enable_cpu_offload")
    offload, assumed = states_on_host(away, away, settings.zero_stage or 0)
    return replace(settings, offload=offload, assumed=settings.assumed + assumed)

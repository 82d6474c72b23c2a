"""A nanotron configuration (YAML) -> `Settings`.

Keys are those of nanotron 2411b02, src/nanotron/config/{parallelism_config,config}.py.
"""

from dataclasses import replace

from planner.importers.keys import Keys
from planner.importers.settings import Settings, Surroundings

STACK = "nanotron"

ENGINES = {"1f1b": "1f1b", "afab": "gpipe"}

MODES = {"all_reduce": False, "reduce_scatter": True}
"""``tp_mode`` -> whether norms and residuals are split along the sequence."""

PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}

OPTIMIZERS = {"adamW": "adamw", "sgd": "sgd"}

SIZES = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "ffn": "intermediate_size",
}
"""Our name -> key of ``model.model_config``."""

IGNORED = (
    r"(checkpoints|data_stages|general|lighteval|logging|profiler|tokenizer|s3_upload|metrics_logging)(\..*)?",
    r"model\.(model_config|init_method)\..*", r"model\.(make_vocab_size_divisible_by|ddp_bucket_cap_mb)",
    r"optimizer\.(learning_rate_scheduler|optimizer_factory)\..*", r"optimizer\.(clip_grad|weight_decay.*)",
    r"tokens\.(train_steps|val_check_interval|limit_.*)", r"parallelism\.tp_(linear_async.*|recompute_allgather)",
)  # fmt: skip


def read_nanotron(keys: Keys, around: Surroundings) -> Settings:
    """`Settings` of a nanotron configuration."""
    sizes = {name: keys.integer(f"model.model_config.{key}") for name, key in SIZES.items()}
    summed = "fp32" if keys.flag("optimizer.accumulate_grad_in_fp32") else "bf16"
    settings = Settings(
        STACK,
        data=keys.degree("parallelism.dp"),
        tensor=keys.degree("parallelism.tp"),
        pipeline=keys.degree("parallelism.pp"),
        context=keys.degree("parallelism.context_parallel_size"),
        expert=keys.degree("parallelism.expert_parallel_size"),
        micro_batch=keys.integer("tokens.micro_batch_size"),
        num_microbatches=keys.integer("tokens.batch_accumulation_per_replica"),
        seq_len=keys.integer("tokens.sequence_length"),
        zero_stage=keys.integer("optimizer.zero_stage", least=0) or 0,
        sequence_parallel=keys.word("parallelism.tp_mode", MODES, False),
        recompute="full" if keys.flag("parallelism.recompute_layer") else "none",
        schedule=keys.word("parallelism.pp_engine", ENGINES, "gpipe"),
        job={
            "precision": keys.word("model.dtype", PRECISIONS, "bf16"),
            "grad_dtype": summed,
            "reduce_dtype": summed,
            "optimizer": keys.word("optimizer.optimizer_factory.name", OPTIMIZERS, "adamw"),
        },
        sizes={name: size for name, size in sizes.items() if size is not None},
        assumed=_assumed(keys),
    )
    keys.ignore(*IGNORED)
    return replace(settings, unknown=keys.unknown())


def _assumed(keys: Keys) -> tuple[str, ...]:
    if keys.degree("parallelism.pp") > 1:
        return ("stages of equal numbers of layers (nanotron cuts by its own estimate of costs)",)
    return ()

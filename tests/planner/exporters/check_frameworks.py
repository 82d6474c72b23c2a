"""Read an exported file with its framework's own parser; print, as JSON, what the framework would get.

    python check_frameworks.py deepspeed deepspeed.json 4

The last arguments are the number of processes, where the parser checks against it.
"""

import dataclasses
import importlib.util
import json
import os
import sys
import types
from pathlib import Path


def accelerate_fsdp1(path):
    """As `accelerate launch` and the plugin read it; what needs an accelerator is switched off."""
    from accelerate import FullyShardedDataParallelPlugin
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_multi_gpu_env

    arguments = ["--config_file", path, "--main_process_ip", "localhost", "train.py"]
    parsed, _, _ = _validate_launch_command(launch_command_parser().parse_args(arguments))
    os.environ.update(prepare_multi_gpu_env(parsed))
    os.environ["FSDP_SYNC_MODULE_STATES"] = os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"
    plugin = FullyShardedDataParallelPlugin()
    plugin.set_mixed_precision(parsed.mixed_precision)  # as Accelerator does
    return {
        "version": plugin.fsdp_version,
        "strategy": plugin.sharding_strategy.name,
        "checkpointing": plugin.activation_checkpointing,
        "processes": parsed.num_processes,
        "precision": parsed.mixed_precision,
        "reduces": str(plugin.mixed_precision_policy.reduce_dtype),
    }


def hf_trainer(path):
    from transformers import HfArgumentParser, TrainingArguments

    data = json.loads(Path(path).read_text())
    (arguments,) = HfArgumentParser(TrainingArguments).parse_dict({**data, "use_cpu": True})
    return {
        "micro_batch": arguments.per_device_train_batch_size,
        "accumulation": arguments.gradient_accumulation_steps,
        "bf16": arguments.bf16,
        "optim": arguments.optim.value,
        "fsdp": bool(arguments.fsdp),
        "fsdp_config": arguments.fsdp_config or {},
        "gradient_checkpointing": arguments.gradient_checkpointing,
    }


def deepspeed(path, processes):
    """With DeepSpeed's own check of the batch."""
    from deepspeed.runtime import config as module

    class Groups:
        @staticmethod
        def get_data_parallel_world_size():
            return int(processes)

    module.dist.get_rank = lambda: 0
    config = module.DeepSpeedConfig(path, mpu=Groups())
    zero = config.zero_config
    device = getattr(zero.offload_optimizer, "device", None)
    return {
        "batch": config.train_batch_size,
        "micro_batch": config.train_micro_batch_size_per_gpu,
        "accumulation": config.gradient_accumulation_steps,
        "stage": int(zero.stage),
        "bucket": zero.reduce_bucket_size,
        "offload": getattr(device, "value", device),
        "bf16": config.bfloat16_config.enabled,
        "tensor": config.tensor_parallel_config.autotp_size,
    }


def torchtitan(path, processes):
    """Its configuration manager and its check of degrees; the package itself wants accelerators when imported."""
    package = types.ModuleType("torchtitan")
    package.__path__ = importlib.util.find_spec("torchtitan").submodule_search_locations
    sys.modules["torchtitan"] = package
    from torchtitan.config.manager import ConfigManager
    from torchtitan.distributed.parallel_dims import ParallelDims

    config = ConfigManager().parse_args(["--job.config_file", path])
    p = config.parallelism
    dims = ParallelDims(
        dp_replicate=p.data_parallel_replicate_degree,
        dp_shard=p.data_parallel_shard_degree,
        cp=p.context_parallel_degree,
        tp=p.tensor_parallel_degree,
        pp=p.pipeline_parallel_degree,
        ep=p.expert_parallel_degree,
        etp=p.expert_tensor_parallel_degree,
        world_size=int(processes),
    )
    names = ("dp_replicate", "dp_shard", "cp", "tp", "pp", "ep", "etp")
    return {
        "dims": {name: getattr(dims, name) for name in names},
        "parallelism": dataclasses.asdict(p),
        "training": dataclasses.asdict(config.training),
        "activation_checkpoint": dataclasses.asdict(config.activation_checkpoint),
    }


def torchtitan_python(path):
    """The exported module, applied to a configuration of torchtitan's own classes (0.3.0, in a folder of its own)."""
    sys.path.insert(0, os.environ["TORCHTITAN_0_3"])
    package = types.ModuleType("torchtitan")
    package.__path__ = [str(Path(os.environ["TORCHTITAN_0_3"]) / "torchtitan")]
    sys.modules["torchtitan"] = package
    from torchtitan.config import TrainingConfig

    spec = importlib.util.spec_from_file_location("registry", path)
    registry = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(registry)
    training = TrainingConfig()
    config = registry.apply(types.SimpleNamespace(training=training))
    return {
        "parallelism": dataclasses.asdict(config.parallelism),
        "training": dataclasses.asdict(dataclasses.replace(training)),
        "checkpointing": type(config.activation_checkpoint).__qualname__,
    }


def megatron(path):
    """The sections of the overrides as Megatron Core's dataclasses take them, with their checks of each other.

    A layout of stages is parsed by its own class. Sizes of the model stand for those of a recipe.
    """
    from megatron.core.distributed.distributed_data_parallel_config import DistributedDataParallelConfig
    from megatron.core.optimizer.optimizer_config import OptimizerConfig
    from megatron.core.transformer.transformer_config import TransformerConfig

    sections = json.loads(Path(path).read_text())
    fields = {field.name for field in dataclasses.fields(TransformerConfig)}
    sizes = {"num_layers": 8, "hidden_size": 64, "num_attention_heads": 8}
    experts = {"num_moe_experts": 4} if sections["model"]["expert_model_parallel_size"] > 1 else {}
    recipe = {"seq_length"}  # of Megatron-Bridge's model providers
    given = {key: value for key, value in sections["model"].items() if key not in recipe}
    model = TransformerConfig(**sizes, **experts, pipeline_dtype="float32", bf16=True, **given)
    ddp = DistributedDataParallelConfig(**sections["ddp"])
    optimizer = OptimizerConfig(**sections["optimizer"])
    layout = model.pipeline_model_parallel_layout
    return {
        "unknown": sorted(set(given) - fields),
        "tensor": model.tensor_model_parallel_size,
        "sequence_parallel": model.sequence_parallel,
        "pipeline": model.pipeline_model_parallel_size,
        "virtual": model.virtual_pipeline_model_parallel_size,
        "context": model.context_parallel_size,
        "expert": model.expert_model_parallel_size,
        "recompute": model.recompute_granularity,
        "layers": layout
        and [sum(kind.name == "decoder" for kind in s) for rank in layout.layout for s in rank],
        "distributed_optimizer": ddp.use_distributed_optimizer,
        "strategy": ddp.data_parallel_sharding_strategy,
        "optimizer": optimizer.optimizer,
    }


def axolotl(path):
    """Its pydantic schema, with the checks of keys against each other; what a user must add is made up.

    For context parallelism it looks whether the kernels are installed, which want an accelerator.
    """
    import yaml
    from axolotl.utils.schemas.config import AxolotlInputConfig
    from axolotl.utils.schemas.fsdp import FSDPConfig

    sys.modules["ring_flash_attn"] = types.ModuleType("ring_flash_attn")
    given = yaml.safe_load(Path(path).read_text())
    own = {
        "base_model": "model",
        "datasets": [{"path": "data", "type": "alpaca"}],
        "learning_rate": 1e-4,
        "num_epochs": 1,
    }
    config = AxolotlInputConfig(**own, **given)
    unknown = set(given) - set(AxolotlInputConfig.model_fields)
    unknown |= set(given.get("fsdp_config", {})) - set(FSDPConfig.model_fields)
    names = ("sequence_len", "micro_batch_size", "gradient_accumulation_steps", "bf16", "fsdp_version",
             "dp_shard_size", "dp_replicate_size", "context_parallel_size", "gradient_checkpointing",
             "sample_packing", "attn_implementation")  # fmt: skip
    return {
        "unknown": sorted(unknown),
        "fsdp_config": config.fsdp_config.model_dump(exclude_none=True) if config.fsdp_config else None,
        **{name: getattr(config, name) for name in names},
    }


def maxtext(path, *settings):
    """Its configuration with all checks, on CPU devices; it refuses keys that it does not know."""
    from maxtext.configs import pyconfig

    own = ("run_name=run", "skip_jax_distributed_system=true", "hardware=cpu", "dataset_type=synthetic")
    config = pyconfig.initialize(["", path, *own, *settings])
    axes = ("tensor", "context", "expert", "fsdp", "data", "pipeline")
    return {
        "axes": {axis: getattr(config, f"ici_{axis}_parallelism") for axis in axes},
        "batch": config.global_batch_size_to_train_on,
        "micro_batch": config.micro_batch_size_to_train_on,
        "accumulation": config.gradient_accumulation_steps,
        "remat": config.remat_policy,
        "pipeline_micro_batches": config.num_pipeline_microbatches,
        "layers_per_stage": config.num_layers_per_pipeline_stage,
    }


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))

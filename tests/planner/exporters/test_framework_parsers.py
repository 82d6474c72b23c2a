"""Exported files mean to the framework's own parser what the plan says."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tiny_llama import ACCELERATE, installed, run_check, tiny_model, tiny_plan

from planner.evaluation.cuts import with_cuts
from planner.exporters.registry import export
from planner.plans import Plan

SHARDED: dict[str, Any] = {"data": 4, "zero_stage": 3, "sharding": "FULL_SHARD", "shard_degree": 4}
BF16 = {"precision": "bf16"}


MODULES = {
    "accelerate_fsdp1": ACCELERATE,
    "hf_trainer": ("transformers.training_args", "accelerate"),
    "deepspeed": ("deepspeed.runtime.config",),
    "torchtitan": ("torch.distributed.tensor", "torch._functorch.partitioners", "tyro"),
    "torchtitan_python": ("torch.distributed.tensor", "torch._functorch.partitioners", "tyro"),
    "megatron": ("megatron.core.optimizer.optimizer_config", "megatron.core.transformer.transformer_config"),
    "axolotl": ("axolotl.utils.schemas.config",),
    "maxtext": ("maxtext.configs.pyconfig",),
}
"""What the checks of `check_frameworks.py` import, as far as it takes long."""


def read(
    plan: Plan, target: str, check: str, folder: Path, *arguments: str, **environment: str
) -> dict[str, Any]:
    """The first file of ``target`` as its framework reads it."""
    for name, text in export(plan, target).items():
        (folder / name).write_text(text)
    file = folder / next(iter(export(plan, target)))
    output = run_check("check_frameworks.py", check, file, *arguments, modules=MODULES[check], **environment)
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


FSDP1 = {
    "full shard": (SHARDED | {"recompute": "full"}, "FULL_SHARD"),
    "ZeRO 2": (SHARDED | {"zero_stage": 2, "sharding": "SHARD_GRAD_OP"}, "SHARD_GRAD_OP"),
    "replicas": ({"data": 4, "replicate_degree": 4}, "NO_SHARD"),
}


@pytest.mark.torch
@pytest.mark.skipif(not installed("accelerate"), reason="accelerate is not installed")
@pytest.mark.parametrize("case", FSDP1)
def test_accelerate_reads_the_strategy_of_fsdp1(case: str, tmp_path: Path) -> None:
    degrees, strategy = FSDP1[case]
    plan = tiny_plan(job=BF16, **degrees)
    found = read(plan, "accelerate-fsdp1", "accelerate_fsdp1", tmp_path)
    assert found == {
        "version": 1,
        "strategy": strategy,
        "checkpointing": plan.plan.recompute == "full",
        "processes": 4,
        "precision": "bf16",
        "reduces": "torch.bfloat16",
    }


TRAINER = {
    "full shard": (SHARDED, True, {"reshard_after_forward": True, "activation_checkpointing": False}),
    "ZeRO 2, recompute": (
        SHARDED | {"zero_stage": 2, "sharding": "SHARD_GRAD_OP", "recompute": "full", "micro_batch": 2},
        True,
        {"reshard_after_forward": False, "activation_checkpointing": True},
    ),
    "replicas, recompute": ({"data": 4, "replicate_degree": 4, "recompute": "full"}, False, {}),
}


@pytest.mark.torch
@pytest.mark.skipif(not installed("transformers"), reason="transformers is not installed")
@pytest.mark.parametrize("case", TRAINER)
def test_trainer_reads_its_arguments(case: str, tmp_path: Path) -> None:
    degrees, fsdp, section = TRAINER[case]
    plan = tiny_plan(job=BF16 | {"optimizer": "adafactor"}, **degrees)
    found = read(plan, "hf-trainer", "hf_trainer", tmp_path)
    assert (found["micro_batch"], found["accumulation"]) == (
        plan.plan.micro_batch,
        plan.plan.num_microbatches,
    )
    assert (found["bf16"], found["optim"], found["fsdp"]) == (True, "adafactor", fsdp)
    assert {key: found["fsdp_config"][key] for key in section} == section
    assert found["gradient_checkpointing"] is (not fsdp)


DEEPSPEED = {
    "ZeRO 3": (SHARDED, {"stage": 3, "tensor": 0, "offload": None}),
    "ZeRO 1, optimizer on the host": (
        SHARDED | {"zero_stage": 1, "sharding": "NO_SHARD", "offload": ("optimizer",)},
        {"stage": 1, "tensor": 0, "offload": "cpu"},
    ),
    "ZeRO 2, tensor": (
        SHARDED | {"zero_stage": 2, "sharding": "SHARD_GRAD_OP", "tensor": 2, "sequence_parallel": False},
        {"stage": 2, "tensor": 2, "offload": None},
    ),
    "replicas": ({"data": 4, "replicate_degree": 4}, {"stage": 0, "tensor": 0, "offload": None}),
}


@pytest.mark.torch
@pytest.mark.skipif(not installed("deepspeed"), reason="deepspeed is not installed")
@pytest.mark.parametrize("case", DEEPSPEED)
def test_deepspeed_reads_its_configuration(case: str, tmp_path: Path) -> None:
    degrees, expected = DEEPSPEED[case]
    plan = tiny_plan(job=BF16, **degrees)
    found = read(plan, "deepspeed", "deepspeed", tmp_path, str(plan.plan.data))
    assert {key: found[key] for key in expected} == expected
    assert found["bf16"] is True
    assert (found["batch"], found["micro_batch"], found["accumulation"]) == (16, 1, 4)


TITAN: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "full shard": (SHARDED, {"dp_replicate": 1, "dp_shard": 4}),
    "hybrid, tensor": (
        SHARDED | {"sharding": "HYBRID_SHARD", "shard_degree": 2, "replicate_degree": 2, "tensor": 2},
        {"dp_replicate": 2, "dp_shard": 2, "tp": 2},
    ),
    "context": (SHARDED | {"context": 2, "shard_degree": 8}, {"dp_shard": 4, "cp": 2}),
    "pipeline": (SHARDED | {"pipeline": 2, "schedule": "gpipe"}, {"dp_shard": 4, "pp": 2}),
}


@pytest.mark.torch
@pytest.mark.skipif(not installed("torchtitan"), reason="torchtitan is not installed")
@pytest.mark.parametrize("case", TITAN)
def test_torchtitan_reads_its_toml(case: str, tmp_path: Path) -> None:
    degrees, expected = TITAN[case]
    plan = tiny_plan(tiny_model(num_hidden_layers=8), job=BF16, **degrees)
    if plan.plan.pipeline > 1:
        plan = plan.model_copy(update={"plan": with_cuts(plan.plan, 8, (0, 3, 8))})
    found = read(plan, "torchtitan-0.2", "torchtitan", tmp_path, str(plan.plan.num_devices))
    assert (
        found["dims"]
        == dict.fromkeys(("dp_replicate", "dp_shard", "cp", "tp", "pp", "ep", "etp"), 1) | expected
    )
    assert found["activation_checkpoint"]["mode"] == "none"
    assert found["training"]["global_batch_size"] == 16
    if plan.plan.pipeline > 1:
        assert found["parallelism"]["pipeline_parallel_schedule"] == "GPipe"
        assert found["training"]["local_batch_size"] == plan.plan.num_microbatches
        assert [len(part) for part in found["parallelism"]["module_fqns_per_model_part"]] == [1 + 3, 5 + 2]


TITAN_PYTHON: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "hybrid, tensor, alternate": (
        TITAN["hybrid, tensor"][0] | {"recompute": "alternate"},
        {"data_parallel_replicate_degree": 2, "data_parallel_shard_degree": 2, "tensor_parallel_degree": 2},
        "SelectiveAC.Config",
    ),
    "context, ZeRO 2, full": (
        TITAN["context"][0] | {"recompute": "full", "zero_stage": 2, "sharding": "SHARD_GRAD_OP"},
        {"context_parallel_degree": 2, "fsdp_reshard_after_forward": "never"},
        "FullAC.Config",
    ),
    "pipeline": (
        TITAN["pipeline"][0],
        {"pipeline_parallel_degree": 2, "pipeline_parallel_schedule": "GPipe"},
        "NoneType",
    ),
}


@pytest.mark.torch
@pytest.mark.skipif(
    "TORCHTITAN_0_3" not in os.environ, reason="torchtitan 0.3.0 is in no folder named by TORCHTITAN_0_3"
)
@pytest.mark.parametrize("case", TITAN_PYTHON)
def test_torchtitan_takes_its_python(case: str, tmp_path: Path) -> None:
    degrees, expected, checkpointing = TITAN_PYTHON[case]
    plan = tiny_plan(tiny_model(num_hidden_layers=8), job=BF16, **degrees)
    found = read(plan, "torchtitan", "torchtitan_python", tmp_path)
    assert {key: found["parallelism"][key] for key in expected} == expected
    assert found["checkpointing"] == checkpointing
    assert (found["training"]["global_batch_size"], found["training"]["seq_len"]) == (16, 16)


ZERO1: dict[str, Any] = SHARDED | {"zero_stage": 1, "sharding": "NO_SHARD"}

MEGATRON: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "tensor, context, recompute": (
        ZERO1 | {"tensor": 2, "context": 2, "shard_degree": 8, "recompute": "full"},
        {"tensor": 2, "sequence_parallel": True, "context": 2, "recompute": "full", "distributed_optimizer": True},
    ),
    "ZeRO 3": (SHARDED, {"strategy": "optim_grads_params", "layers": None}),
    "experts": (
        ZERO1 | {"expert": 4},
        {"expert": 4, "strategy": "no_shard"},
    ),
    "equal stages": (
        {"data": 2, "pipeline": 2, "virtual_stages": 2, "schedule": "interleaved"},
        {"pipeline": 2, "virtual": 2, "layers": None, "distributed_optimizer": False},
    ),
    "uneven stages": ({"data": 2, "pipeline": 2}, {"pipeline": 2, "layers": [3, 5]}),
}  # fmt: skip


@pytest.mark.torch
@pytest.mark.skipif(not installed("megatron"), reason="megatron-core is not installed")
@pytest.mark.parametrize("case", MEGATRON)
def test_megatron_core_takes_the_overrides(case: str, tmp_path: Path) -> None:
    degrees, expected = MEGATRON[case]
    model = tiny_model(model_type="mixtral", num_local_experts=4, num_experts_per_tok=2, num_hidden_layers=8)
    plan = tiny_plan(model, job=BF16, **degrees)
    if case == "uneven stages":
        plan = plan.model_copy(update={"plan": with_cuts(plan.plan, 8, (0, 3, 8))})
    found = read(plan, "megatron-bridge", "megatron", tmp_path)
    assert {key: found[key] for key in expected} == expected
    assert (found["unknown"], found["optimizer"]) == ([], "adam")


AXOLOTL: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "full shard": (SHARDED, {"dp_shard_size": 4, "dp_replicate_size": 1}),
    "context, recompute": (
        SHARDED | {"context": 2, "shard_degree": 8, "recompute": "full"},
        {"dp_shard_size": 4, "context_parallel_size": 2},
    ),
    "hybrid, ZeRO 2": (
        SHARDED | {"zero_stage": 2, "sharding": "HYBRID_SHARD", "shard_degree": 2, "replicate_degree": 2},
        {"dp_shard_size": 2, "dp_replicate_size": 2},
    ),
    "replicas, recompute": (
        {"data": 4, "replicate_degree": 4, "recompute": "full"},
        {"gradient_checkpointing": True},
    ),
}


@pytest.mark.torch
@pytest.mark.skipif(not installed("axolotl"), reason="axolotl is not installed")
@pytest.mark.parametrize("case", AXOLOTL)
def test_axolotl_reads_its_keys(case: str, tmp_path: Path) -> None:
    degrees, expected = AXOLOTL[case]
    plan = tiny_plan(job=BF16, **degrees)
    found = read(plan, "axolotl", "axolotl", tmp_path)
    assert {key: found[key] for key in expected} == expected
    assert (found["unknown"], found["bf16"]) == ([], True)
    assert (found["sequence_len"], found["micro_batch_size"]) == (16, 1)
    if plan.plan.zero_stage:
        assert found["fsdp_config"]["reshard_after_forward"] is (plan.plan.zero_stage == 3)
        assert found["fsdp_config"]["activation_checkpointing"] is (plan.plan.recompute == "full")


@pytest.mark.torch
@pytest.mark.skipif(not installed("axolotl"), reason="axolotl is not installed")
def test_axolotl_packs_documents(tmp_path: Path) -> None:
    plan = tiny_plan(job=BF16 | {"document_len": 8}, **SHARDED)
    found = read(plan, "axolotl", "axolotl", tmp_path)
    assert (found["unknown"], found["sample_packing"]) == ([], True)
    assert found["attn_implementation"] == "flash_attention_2"


MAXTEXT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "tensor, ZeRO 3, selective": (
        SHARDED | {"tensor": 2, "recompute": "selective"},
        {
            "axes": {"tensor": 2, "fsdp": 4},
            "remat": "minimal_with_context",
            "accumulation": 4,
            "micro_batch": 4,
        },
    ),
    "context, hybrid": (
        SHARDED
        | {
            "context": 2,
            "sharding": "HYBRID_SHARD",
            "shard_degree": 4,
            "replicate_degree": 2,
            "recompute": "full",
        },
        {"axes": {"context": 2, "fsdp": 2, "data": 2}, "remat": "full"},
    ),
    "pipeline": (
        {"data": 2, "pipeline": 4, "schedule": "gpipe", "replicate_degree": 2, "recompute": "full"},
        {
            "axes": {"data": 2, "pipeline": 4},
            "pipeline_micro_batches": 8,
            "layers_per_stage": 2,
            "accumulation": 1,
        },
    ),
    "experts": (
        SHARDED | {"expert": 2, "recompute": "full"},
        {"axes": {"expert": 2, "fsdp": 2}, "remat": "full"},
    ),
}


@pytest.mark.jax
@pytest.mark.skipif(not installed("maxtext"), reason="maxtext is not installed")
@pytest.mark.parametrize("case", MAXTEXT)
def test_maxtext_reads_its_overrides(case: str, tmp_path: Path) -> None:
    degrees, expected = MAXTEXT[case]
    has_experts = degrees.get("expert", 1) > 1
    experts = (
        {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2} if has_experts else {}
    )
    plan = tiny_plan(tiny_model(num_hidden_layers=8, **experts), job=BF16, **degrees)
    sizes = ["base_num_decoder_layers=8"]
    if has_experts:
        sizes += ["num_experts=4", "base_moe_mlp_dim=7168"]
    environment = {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={plan.plan.num_devices}",
    }
    found = read(plan, "maxtext", "maxtext", tmp_path, *sizes, **environment)
    ones = dict.fromkeys(("tensor", "context", "expert", "fsdp", "data", "pipeline"), 1)
    assert found.pop("axes") == ones | expected["axes"]
    assert {key: found[key] for key in expected if key != "axes"} == {
        k: v for k, v in expected.items() if k != "axes"
    }
    assert found["batch"] == plan.job.global_batch

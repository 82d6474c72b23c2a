"""What words of single formats mean; the expected meanings are their documentation's."""

from typing import Any

import pytest

from cluster_specs.catalog import load_cluster
from planner.evaluation.cuts import sizes_of
from planner.exporters.stages import cuts_of
from planner.importers.registry import Imported, import_text
from planner.importers.settings import Given
from planner.models.catalog import load_model

MODEL, LARGE = load_model("llama-3.1-8b"), load_model("llama-3.1-405b")

ONE, TWO, MANY = load_cluster("dgx-h100:1"), load_cluster("dgx-h100:2"), load_cluster("dgx-h100:16")

GIVEN = Given(global_batch=256, seq_len=4096, micro_batch=1)


def read(name: str, text: str) -> Imported:
    return import_text(text, name, MODEL, TWO, GIVEN)


MEGATRON: dict[str, tuple[str, dict[str, Any]]] = {
    "plain data parallelism": ("", {"zero_stage": 0, "replicate_degree": 16}),
    "distributed optimizer": ("--use-distributed-optimizer", {"zero_stage": 1, "shard_degree": 16}),
    "two instances": (
        "--use-distributed-optimizer --num-distributed-optimizer-instances 2",
        {"zero_stage": 1, "shard_degree": 8, "replicate_degree": 2},
    ),
    "Megatron-FSDP": ("--use-megatron-fsdp", {"zero_stage": 3}),
    "Megatron-FSDP, gradients": (
        "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads",
        {"zero_stage": 2},
    ),
    "torch FSDP2": ("--use-torch-fsdp2", {"zero_stage": 3}),
    "sequence parallelism": (
        "--tensor-model-parallel-size 2 --sequence-parallel",
        {"tensor": 2, "sequence_parallel": True},
    ),
    "whole residuals": ("--tensor-model-parallel-size 2", {"sequence_parallel": False}),
    "recompute": ("--recompute-granularity full --recompute-method uniform", {"recompute": "full"}),
    "recompute attention": ("--recompute-activations", {"recompute": "attention"}),
    "recompute norms": (
        "--recompute-granularity selective --recompute-modules layernorm",
        {"recompute": "selective"},
    ),
    "virtual stages": (
        "--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 2",
        {"virtual_stages": 4, "schedule": "interleaved", "stages": ()},
    ),
    "layout": (
        "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et*7|(t*8|)*2t*9L'",
        {"virtual_stages": 2, "schedule": "interleaved"},
    ),
    "pattern": (
        f"--pipeline-model-parallel-size 2 --hybrid-layer-pattern '{'M' * 7}|{'-*' * 4}|{'ME' * 4}|{'*' * 9}'",
        {"virtual_stages": 2, "schedule": "interleaved"},
    ),
    "pattern without stages": (
        f"--pipeline-model-parallel-size 2 --hybrid-override-pattern {'M-' * 16}",
        {"virtual_stages": 1, "schedule": "1f1b"},
    ),
    "offload": ("--optimizer-cpu-offload --use-precision-aware-optimizer", {"offload": ("optimizer",)}),
}


@pytest.mark.parametrize("case", MEGATRON)
def test_megatron(case: str) -> None:
    text, expected = MEGATRON[case]
    found = read("args.sh", text)
    assert {key: getattr(found.plan.plan, key) for key in expected} == expected
    assert found.unknown == ()


CUTS = {
    "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et*15|t*17L'": (15, 17),
    "--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 5": (5, 9, 9, 9),
    "--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 5 --decoder-last-pipeline-num-layers 7": (
        5, 10, 10, 7,
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", CUTS)
def test_megatron_cuts(text: str) -> None:
    assert sizes_of(cuts_of(read("args.sh", text).plan)) == CUTS[text]


def test_embedding_and_loss_may_count_as_layers() -> None:
    """Llama-3.1-405B: 126 layers and two more that count make 16 stages of 8."""
    ends = " ".join(f"--account-for-{end}-in-pipeline-split" for end in ("embedding", "loss"))
    text = f"--pipeline-model-parallel-size 16 {ends}"
    found = import_text(text, "args.sh", LARGE, MANY, GIVEN)
    assert sizes_of(cuts_of(found.plan)) == (7, *[8] * 14, 7)


JOBS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "megatron bf16": (
        "a.sh",
        "--bf16",
        {"precision": "bf16", "grad_dtype": "fp32", "stack": "megatron-serial"},
    ),
    "megatron overlap": ("a.sh", "--bf16 --overlap-grad-reduce", {"stack": "megatron-unfused"}),
    "megatron fsdp": ("a.sh", "--bf16 --use-megatron-fsdp", {"stack": "megatron-unfused"}),
    "megatron loss": ("a.sh", "--bf16 --cross-entropy-loss-fusion", {"stack": "megatron-serial-fused"}),
    "megatron both": (
        "a.sh",
        "--bf16 --overlap-grad-reduce --cross-entropy-loss-fusion",
        {"stack": "megatron"},
    ),
    "megatron fp8": (
        "a.sh",
        "--bf16 --fp8-format hybrid",
        {"precision": "fp8", "fp8_scaling": "delayed", "narrow_weight_gathers": False},
    ),
    "megatron fp8 by blocks": (
        "a.sh",
        "--bf16 --fp8-format e4m3 --fp8-recipe mxfp8 --fp8-param-gather",
        {"fp8_scaling": "mxfp8", "narrow_weight_gathers": True},
    ),
    "megatron fp8 by code": ("a.sh", "--fp8-format e4m3 --fp8-recipe custom", {"fp8_scaling": None}),
    "megatron bf16 scales": ("a.sh", "--bf16 --fp8-recipe mxfp8", {"fp8_scaling": None}),
    "megatron fp4": ("a.sh", "--bf16 --fp4-format e2m1 --fp4-recipe nvfp4", {"precision": "fp4"}),
    "megatron fp32": ("a.sh", "--tensor-model-parallel-size 1", {"precision": "fp32"}),
    "megatron gradients": ("a.sh", "--bf16 --grad-reduce-in-bf16", {"grad_dtype": "bf16"}),
    "megatron context": ("a.sh", "--cp-comm-type a2a", {"context_exchange": "all_to_all"}),
    "megatron experts": (
        "a.sh",
        "--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep",
        {"token_exchange": "hybridep"},
    ),
    "megatron gathered experts": (
        "a.sh",
        "--moe-token-dispatcher-type allgather",
        {"token_exchange": "all_gather"},
    ),
    "megatron experts unsaid": ("a.sh", "--num-experts 8", {"token_exchange": "all_gather"}),
    "megatron flex": ("a.sh", "--moe-token-dispatcher-type flex", {"token_exchange": "deepep"}),
    "megatron attention": ("a.sh", "--attention-backend unfused", {"attention": "plain"}),
    "megatron graphs": (
        "a.sh",
        "--cuda-graph-impl transformer_engine --cuda-graph-scope attn moe_router",
        {"cuda_graphs": False, "graph_parts": ("attn", "moe_router")},
    ),
    "megatron whole graphs": (
        "a.sh",
        "--cuda-graph-impl local --cuda-graph-scope full_iteration",
        {"cuda_graphs": True, "graph_parts": ()},
    ),
    "accelerate": (
        "a.yaml",
        "distributed_type: FSDP\nmixed_precision: fp16",
        {"precision": "fp16", "stack": "hf-fsdp"},
    ),
    "accelerate deepspeed": (
        "a.yaml",
        "distributed_type: DEEPSPEED",
        {"precision": "fp32", "stack": "deepspeed-transformers"},
    ),
    "deepspeed by the trainer": (
        "a.json",
        '{"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}}',
        {"stack": "deepspeed-transformers"},
    ),
    "deepspeed tuned": (
        "a.json",
        '{"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 3}, "autotuning": {"fast": true}}',
        {"stack": "deepspeed"},
    ),
    "deepspeed": (
        "a.json",
        '{"zero_optimization": {"stage": 1}, "fp16": {"enabled": true}, "optimizer": {"type": "Muon"}}',
        {"precision": "fp16", "optimizer": "muon", "stack": "deepspeed"},
    ),
    "deepspeed types": (
        "a.json",
        '{"zero_optimization": {"stage": 1}, "bf16": {"enabled": true}, "data_types": {"grad_accum_dtype": "bf16"}, '
        '"communication_data_type": "fp32"}',
        {"precision": "bf16", "grad_dtype": "bf16", "reduce_dtype": "fp32"},
    ),
    "trainer": (
        "a.json",
        '{"per_device_train_batch_size": 1, "gradient_accumulation_steps": 16, "bf16": true, "optim": "adafactor"}',
        {"precision": "bf16", "optimizer": "adafactor"},
    ),
    "torchtitan": (
        "a.toml",
        '[training]\nlocal_batch_size = 1\nseq_len = 4096\ndtype = "bfloat16"\n',
        {"precision": "bf16", "master_weights": False, "grad_dtype": "bf16", "stack": "torch-eager"},
    ),
    "torchtitan, each weight by itself": (
        "a.toml",
        "[training]\nseq_len = 4096\n[optimizer]\nearly_step_in_backward = true\n",
        {"step_in_backward": True},
    ),
    "torchtitan compiled": (
        "a.toml",
        "[training]\nseq_len = 4096\n[compile]\nenable = true\n",
        {"stack": "torch-compiled-loss"},
    ),
    "torchtitan layers": (
        "a.toml",
        '[training]\nseq_len = 4096\n[compile]\nenable = true\ncomponents = ["model"]\n',
        {"stack": "torch-fsdp2"},
    ),
    "torchtitan loss": (
        "a.toml",
        '[training]\nseq_len = 4096\n[compile]\nenable = true\ncomponents = ["loss"]\n',
        {"stack": "torch-loss-alone"},
    ),
    "torchtitan nothing": (
        "a.toml",
        "[training]\nseq_len = 4096\n[compile]\nenable = true\ncomponents = []\n",
        {"stack": "torch-eager"},
    ),
    "maxtext": (
        "a.yml",
        "dtype: bfloat16\nopt_type: sgd\nmax_target_length: 4096\nper_device_batch_size: 1\n"
        "ici_fsdp_parallelism: 8\ndcn_data_parallelism: 2\ngradient_accumulation_steps: 16",
        {"precision": "bf16", "optimizer": "sgd", "stack": "jax-xla"},
    ),
    "nanotron": (
        "a.yaml",
        "parallelism: {dp: 16, pp: 1, tp: 1}\nmodel: {dtype: float16}\noptimizer: {accumulate_grad_in_fp32: false}",
        {"precision": "fp16", "grad_dtype": "bf16", "stack": "nanotron"},
    ),
}


@pytest.mark.parametrize("case", JOBS)
def test_jobs(case: str) -> None:
    name, text, expected = JOBS[case]
    job = read(name, text).plan.job
    assert {key: getattr(job, key) for key in expected} == expected


STATES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "DDP": ("a.yaml", "distributed_type: MULTI_GPU", {"zero_stage": 0, "data": 16}),
    "FSDP1 by number": (
        "a.yaml",
        "distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: 2}",
        {"zero_stage": 2, "sharding": "SHARD_GRAD_OP"},
    ),
    "FSDP1 hybrid": (
        "a.yaml",
        "distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: HYBRID_SHARD}",
        {"zero_stage": 3, "sharding": "HYBRID_SHARD", "shard_degree": 8, "replicate_degree": 2},
    ),
    "FSDP2 without resharding": (
        "a.yaml",
        "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: false}",
        {"zero_stage": 2},
    ),
    "FSDP2, activations on the host": (
        "a.yaml",
        "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2, fsdp_activation_checkpointing: true, "
        "fsdp_activation_checkpointing_offload: true}",
        {"recompute": "full", "offload": ("activations",)},
    ),
    "accelerate's DeepSpeed": (
        "a.yaml",
        "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 2, offload_optimizer_device: cpu}",
        {"zero_stage": 2, "offload": ("optimizer",)},
    ),
    "accelerate's DeepSpeed, weights too": (
        "a.yaml",
        "distributed_type: DEEPSPEED\n"
        "deepspeed_config: {zero_stage: 3, offload_optimizer_device: cpu, offload_param_device: cpu}",
        {"zero_stage": 3, "offload": ("optimizer", "weights")},
    ),
    "the Trainer's old words": (
        "a.json",
        '{"per_device_train_batch_size": 1, "gradient_accumulation_steps": 16, "fsdp": "shard_grad_op auto_wrap"}',
        {"zero_stage": 2},
    ),
    "the Trainer without FSDP": (
        "a.json",
        '{"per_device_train_batch_size": 1, "gradient_accumulation_steps": 16, "gradient_checkpointing": true}',
        {"zero_stage": 0, "recompute": "full"},
    ),
    "torchtitan default in a pipeline": (
        "a.toml",
        "[training]\nlocal_batch_size = 32\nseq_len = 4096\n[parallelism]\npipeline_parallel_degree = 2\n",
        {"zero_stage": 2, "num_microbatches": 32, "recompute": "full", "recompute_every": 2},
    ),
    "torchtitan replicas": (
        "a.toml",
        "[training]\nlocal_batch_size = 1\nseq_len = 4096\nglobal_batch_size = 256\n[parallelism]\n"
        "data_parallel_replicate_degree = 16\ndata_parallel_shard_degree = 1\n",
        {"zero_stage": 0, "data": 16, "num_microbatches": 16},
    ),
}


@pytest.mark.parametrize("case", STATES)
def test_states(case: str) -> None:
    name, text, expected = STATES[case]
    given = GIVEN._replace(global_batch=None) if "trainer" in case.lower() or "pipeline" in case else GIVEN
    choice = import_text(text, name, MODEL, TWO, given).plan.plan
    assert {key: getattr(choice, key) for key in expected} == expected


def test_torchtitan_cuts_stages_by_its_own_rule() -> None:
    """The example of `generate_llm_fqn_per_model_part`'s rule: the first and last stage count a layer more."""
    text = (
        "[training]\nlocal_batch_size = 32\nseq_len = 4096\n[parallelism]\npipeline_parallel_degree = 4\n"
        'pipeline_parallel_schedule = "1F1B"\n'
    )
    found = import_text(text, "a.toml", MODEL, TWO, GIVEN._replace(global_batch=None))
    assert sizes_of(cuts_of(found.plan)) == (8, 9, 8, 7)


def test_torchtitan_says_that_it_drains_the_pipeline_more_often() -> None:
    text = (
        "[training]\nlocal_batch_size = 8\nglobal_batch_size = 256\nseq_len = 4096\n"
        "[parallelism]\npipeline_parallel_degree = 2\n"
    )
    found = import_text(text, "a.toml", MODEL, TWO, GIVEN)
    assert "one pipeline pass a step (torchtitan makes 4, each with a bubble of its own)" in found.assumed


def test_torchtitan_says_that_logits_are_priced_as_split() -> None:
    text = (
        "[training]\nlocal_batch_size = 1\nseq_len = 4096\n[parallelism]\ntensor_parallel_degree = 2\n"
        "disable_loss_parallel = {}\n"
    )
    said = "a loss of split logits (disable_loss_parallel gathers them whole)"
    for flag in ("true", "false"):
        assert (said in import_text(text.format(flag), "a.toml", MODEL, TWO, GIVEN).assumed) is (
            flag == "true"
        )

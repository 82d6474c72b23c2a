"""The words of a run's source say which software it had, and of which release."""

from pathlib import Path
from typing import Any

import pytest

from planner.runs import plan_from_run
from planner.runs.files import load_rows
from planner.runs.origins import Origin, find_origin
from planner.runs.releases import variant

SAMPLE = Path(__file__).parents[2] / "data" / "runs_sample.jsonl"
ROW: dict[str, Any] = next(row for row in load_rows(SAMPLE) if row["id"] == "us-0001")


def changed(**parallel: Any) -> dict[str, Any]:
    return {**ROW, "parallel": {**ROW["parallel"], **parallel}}


@pytest.mark.parametrize(
    ("words", "stack"),
    [
        ("nanotron-sweep us-1 H100 8 devices tensor 4 pipeline 2", "nanotron-keeping"),
        ("nanotron-sweep us-1 H100 512 devices tensor 32 pipeline 1", "nanotron-keeping"),
        ("nanotron-sweep us-1 H100 128 devices tensor 8 pipeline 16", "nanotron-checked"),
        ("nanotron-sweep us-1 H100 512 devices tensor 8 pipeline 16", "nanotron-polling"),
        ("nanotron-sweep us-1 H100 128 devices tensor 32 pipeline 2", "nanotron-polling"),
        ("nanotron my-run H100 512 devices tensor 8 pipeline 16", "nanotron"),
        ("Google gpu-recipes NeMo a3 H100 8 devices tensor 1 pipeline 1", "nemo"),
        ("AMD Primus primus/zero-bubble MI355X 8 devices tensor 1 pipeline 4", "megatron"),
        ("ATorch 3D atorch/1 A100 DeepSpeed ZeRO-1 8 devices tensor 2 pipeline 2", "atorch-deepspeed"),
        ("llm.c llm.c/gpt2-124m A100 8 devices tensor 1 pipeline 1", "llm-c"),
        ("Composer, MosaicGPT of 2022 mosaicgpt/7b A100 8 devices tensor 1 pipeline 1", "composer-2022"),
        ("Composer, llm-foundry issue 1153 a H100 8 devices tensor 1 pipeline 1", "composer-2023.10"),
        (
            "llm-foundry llmf/mpt-13b-a100_80gb-8 A100-SXM4-80GB 8 devices tensor 1 pipeline 1",
            "composer-2023.10",
        ),
        ("llm-foundry llmf/mpt-1b-a100_40gb-8 A100-SXM4-40GB 8 devices tensor 1 pipeline 1", "composer-2023"),
        ("Fast-LLM fast-llm/llama3.1-8b-h100 H100 32 devices tensor 1 pipeline 1", "fast-llm"),
        (
            "AMD Primus primus/qwen3-235b-mi355x-32-1f1b MI355X 32 devices tensor 1 pipeline 4",
            "megatron-serial-fused",
        ),
        ("Megatron-LM issue 756 a H100 16 devices tensor 2 pipeline 1", "megatron-unfused"),
        ("KempnerForge kempner-forge/01 H200 1 devices tensor 1 pipeline 1", "kempner-forge"),
        ("prime-rl prime-rl/4B-H200 H200 8 devices tensor 1 pipeline 1", "prime-rl"),
        ("NeMo launcher, July 2022 a A100 8 devices tensor 2 pipeline 1", "nemo-2022"),
        ("NeMo launcher, July 2022 a A100 128 devices tensor 8 pipeline 8", "megatron-2022"),
        ("NeMo launcher A100 a A100 8 devices tensor 1 pipeline 1", "nemo-2022"),
        ("Kwai ATC24 kwai/1 H800 256 devices tensor 2 pipeline 16", "megatron-serial"),
        ("Megatron-LLaMA megatron-llama/13b-32 A100 32 devices tensor 2 pipeline 1", "megatron-llama"),
        ("Aleph Alpha layouts aleph/1 A100 64 devices tensor 4 pipeline 8", "aleph-alpha-scaling"),
        ("PaddleNLP in FlagPerf paddle/1 A100 ZeRO-2 8 devices tensor 2 pipeline 1", "paddle"),
        ("Marin speedruns marin/1 TPU v5p 16 devices tensor 1 pipeline 1", "levanter"),
        ("ColossalAI colossal/1 B200 ZeRO-1 16 devices tensor 2 pipeline 4", "colossalai"),
        ("transformers my-run H100 8 devices tensor 1 pipeline 1", "hf-fsdp"),
        ("MLPerf LoRA, DeepSpeed a H100 DeepSpeed ZeRO-3 8 devices tensor 1", "deepspeed-transformers"),
        ("MLPerf LoRA a H100 8 devices tensor 4 pipeline 1", "nemo"),
        ("LLaMA-Factory sft H100 FULL_SHARD 8 devices tensor 1 pipeline 1", "hf-fsdp"),
        ("LLaMA-Factory sft H100 ZeRO-3 8 devices tensor 1 pipeline 1", "deepspeed-transformers"),
        ("xtuner sft H100 ZeRO-3 8 devices tensor 1 pipeline 1", "deepspeed"),
        ("accelerate, FSDP and ZeRO H100 FULL_SHARD 8 devices tensor 1 pipeline 1", "hf-fsdp"),
        ("my-run H100 FSDP2 8 devices tensor 1 pipeline 1", "torch-eager"),
    ],
)
def test_versions_of_software_follow_from_the_words_of_a_run(words: str, stack: str) -> None:
    found = find_origin(words)
    assert found is not None
    assert found.stack == stack


@pytest.mark.parametrize(
    ("source", "stack"),
    [
        ("pytorch/torchtitan:benchmarks/llama3_h100_202412_torchtitan.md", "torch-fsdp2"),
        ("pytorch/torchtitan:benchmarks/llama3-8b_h200_202506.md", "torch-compiled-loss"),
        ("notes on torchtitan of March 2025", "torch-fsdp2"),
        ("notes on torchtitan of December 2025", "torch-compiled-loss"),
        ("pytorch/torchtitan:benchmarks/llama3_gb200_202603.md", "torch-compiled-loss"),
        ("notes of December 2025", "torch-fsdp2"),
        ("pytorch/torchtitan@2025120a1b2c:docs/performance.md", "torch-fsdp2"),  # a commit, no date
        ("pytorch/torchtitan@b5bcd76c66d0:benchmarks/llama3_h100_2025-03_torchtitan.md", "torch-fsdp2"),
        (
            "pytorch/torchtitan@b5bcd76c66d0:torchtitan/components/quantization/nvfp4.md",
            "torch-compiled-loss",
        ),
    ],
)
def test_torchtitan_compiles_its_loss_since_april_2025(source: str, stack: str) -> None:
    row = ROW | {"series": "torchtitan", "source": source}
    assert plan_from_run(row)[0].job.stack == stack


@pytest.mark.parametrize(
    ("series", "compiled", "stack"),
    [
        ("torchtune", None, "torch-eager"),
        ("torchtune", True, "torch-compiled-loss"),
        ("OLMo-core", None, "torch-compiled-loss"),
        ("OLMo-core", False, "torch-eager"),
        ("mine", None, "torch-eager"),
        ("mine", True, "torch-compiled-loss"),
    ],
)
def test_what_is_compiled_is_said_by_a_program_or_a_run(
    series: str, compiled: bool | None, stack: str
) -> None:
    """pytorch/torchtune compiles where its configurations say so, allenai/OLMo-core unless they do not."""
    row = changed(compile=compiled) | {"series": series, "source": "notes"}
    plan, assumed = plan_from_run(row)
    assert plan.job.stack == stack
    assert (f"stack={stack}" in assumed) is (series == "mine")


@pytest.mark.parametrize(
    ("series", "source", "fused"),
    [
        ("torchtitan", "pytorch/torchtitan:benchmarks/llama3_h100_202412_torchtitan.md", False),
        ("torchtitan", "pytorch/torchtitan:benchmarks/llama3_h100_2025-03_torchtitan.md", True),
        ("torchtitan", "pytorch/ao@36027d82d1ad:torchao/prototype/float8nocompile/README.md", False),
        ("torchtitan", "pytorch/torchtitan@b5bcd76c66d0:torchtitan/components/quantization/nvfp4.md", True),
        ("llm-foundry", "notes of 2024-12", None),
    ],
)
def test_torchtitan_updates_in_one_kernel_since_february_2025(
    series: str, source: str, fused: bool | None
) -> None:
    assert plan_from_run(ROW | {"series": series, "source": source})[0].job.fused_optimizer is fused


@pytest.mark.parametrize(
    ("source", "compiled", "stack"),
    [
        ("torchtitan, 2024-12", True, "torch-fsdp2"),
        ("torchtitan, 2025-06", True, "torch-compiled-loss"),
        ("torchtitan, 2025-06", False, "torch-eager"),
    ],
)
def test_every_torchtitan_splits_its_local_batch_for_a_pipeline(
    source: str, compiled: bool, stack: str
) -> None:
    row = changed(dp=2, tp=1, pp=4, micro_batch=8, global_batch=16, zero_stage=None, compile=compiled)
    plan = plan_from_run(row | {"series": "torchtitan", "source": source})[0]
    assert (plan.job.stack, plan.plan.micro_batch, plan.plan.num_microbatches) == (stack, 1, 8)


@pytest.mark.parametrize("own", [{"source": None}, {"parallel": {"stack": "torch-compiled-loss"}}])
def test_somebodys_own_run_of_torchtitan_is_no_old_one(own: dict[str, Any]) -> None:
    """A series without a source, or beside a stack that the run names, says nothing about the year."""
    parallel = ROW["parallel"] | own.get("parallel", {})
    row = ROW | {"series": "torchtitan", "source": "notes"} | own | {"parallel": parallel}
    assert plan_from_run(row)[0].job.fused_optimizer is None


def test_a_run_that_names_its_kernels_is_taken_at_its_word() -> None:
    row = ROW | {"series": "torchtitan", "source": "notes of 2024-12"}
    named = row | {"parallel": row["parallel"] | {"optim": "adamw_fused"}}
    assert plan_from_run(named)[0].job.fused_optimizer is True


@pytest.mark.parametrize(
    ("name", "stack"),
    [
        ("NeMo perf summary nemo-launcher/llama3-70b-64-pretrain-gb128", "nemo-unfused"),
        ("NeMo perf summary nemo-v2.0.0/llama2-7b-8-sft-gb32", "nemo-unfused"),
        ("NeMo perf summary nemo-v2.0.0/llama3-70b-64-pretrain-gb128", "nemo"),
        ("NeMo perf summary nemo-v2.1.0/nemotron-8b-64-pretrain-gb256", "nemo"),
        ("NeMo perf summary nemo-v2.1.0/nemotron-340b-128-pretrain-gb32", "nemo-unfused"),
        ("DGXC benchmarking dgxc/v24.11.1/grok1-64L-H100-512-bf16", "nemo-unfused"),
        ("MLPerf GPT-3 175B mlperf/v3.1/gpt3-175b-eos_n64_ngc23.09", "nemo-unfused"),
        ("MLPerf GPT-3 175B mlperf/v4.0/gpt3-175b-eos_n64_ngc24.04", "nemo-unfused"),
        ("MLPerf GPT-3 175B mlperf/v4.1/gpt3-175b-eos_n64_ngc24.09", "nemo"),
        ("Google gpu-recipes NeMo gpu-recipes/a3mega-gpt3-175b-256-fp8", "nemo-2024"),
        ("DGXC benchmarking dgxc/v25.05.05/grok1-H100-512-bf16", "nemo"),
        ("DGXC benchmarking dgxc/v25.02.02/llama405b-126L-H100-576-bf16", "nemo"),
        ("DGXC benchmarking dgxc/v24.11.1/pax-gpt3-175b-H100-128-fp8", "jax-xla"),
    ],
)
def test_configurations_of_a_release_say_whether_its_loss_is_fused(name: str, stack: str) -> None:
    origin = find_origin(name)
    assert origin is not None
    assert origin.stack == stack


@pytest.mark.parametrize(
    ("source", "stack"),
    [
        ("Megatron-Bridge@067f987df03b:docs/performance-summary-archive.md [25.11]", "nemo-25.11"),
        ("Megatron-Bridge@067f987df03b:docs/performance-summary-archive.md [26.02.01]", "nemo"),
        ("Megatron-Bridge@067f987 examples/model_verification_cards/qwen3-8b/card.yaml", "nemo"),
        ("NVIDIA/dgxc-benchmarking@v25.05.05:grok1/README.md", "nemo-25.11"),
    ],
)
def test_a_version_by_month_says_which_release_a_run_had(source: str, stack: str) -> None:
    assert variant(Origin("nemo"), {}, source).stack == stack
    assert variant(Origin("nemo-unfused"), {}, source).stack == "nemo-unfused"


@pytest.mark.parametrize(
    ("attention", "kernel"),
    [
        ("flash-1", "flash-1"),
        ("FlashAttention-1", "flash-1"),
        ("fa1", "flash-1"),
        ("fa2", "flash-2"),
        ("FLASH_ATTENTION_2", "flash-2"),
    ],
)
def test_versions_of_flash_attention_are_told_apart(attention: str, kernel: str) -> None:
    assert plan_from_run(changed(attention=attention))[0].job.attention == kernel


def test_internlm_had_the_first_flash_attention() -> None:
    found = find_origin("InternEvo internevo/tgs-tp1-z-1-8 A100 8 devices tensor 1 pipeline 1")
    assert found == Origin("internevo", "flash-1")


PAX = {
    "series": "JAX-Toolbox Pax",
    "source": "NVIDIA/JAX-Toolbox@bcbbfa578be9:rosetta/rosetta/projects/pax/README.md (older revisions)",
}


@pytest.mark.parametrize(
    ("size", "container", "recompute", "expected"),
    [
        ("126m", "2023-10", "unspecified", ("plain", "none")),
        ("126m", "2024-04", "unspecified", ("plain", "none")),
        ("5b", "2023-10", "unspecified", ("plain", "products")),
        ("5b", "2024-04", "unspecified", ("flash", "products")),
        ("175b", "2023-10", None, ("plain", "full")),
        ("175b", "2024-04", None, ("flash", "full")),
        ("5b", "2024-04", "full", ("flash", "full")),
    ],
)
def test_paxs_containers_fuse_attention_since_april_2024_and_checkpoint_by_model(
    size: str, container: str, recompute: str | None, expected: tuple[str, str]
) -> None:
    notes = f"TransformerEngine=True; remat policy not stated; container {container}."
    row = changed(recompute=recompute) | PAX | {"id": f"pax/gpt3-{size}-H100-bf16-te", "notes": notes}
    plan = plan_from_run(row)[0]
    assert (plan.job.attention, plan.plan.recompute) == expected


def test_the_month_of_notes_counts_where_the_source_names_none() -> None:
    old, new = "container 2023-10", "NVIDIA/JAX-Toolbox, June 2024"
    found = Origin("jax-xla")
    assert variant(found, {}, new, old).attention == "flash"
    assert variant(found, {}, "NVIDIA/JAX-Toolbox", old).attention == "plain"


@pytest.mark.parametrize(
    ("page", "given", "masters"),
    [
        ("docs/reference_throughput.md", {}, False),
        ("docs/reference_throughput.md", {"master_dtype": "fp32"}, True),
        ("docs/training_optimizations.md", {}, True),
    ],
)
def test_vectorlms_table_of_throughput_has_weights_in_sixteen_bits(
    page: str, given: dict[str, str], masters: bool
) -> None:
    """VectorInstitute/vectorlm@9045f08 profiling/benchmark.py: ``model.bfloat16()``; its trainer keeps fp32."""
    row = changed(zero_stage=3, grad_dtype=None, **given)
    row |= {"series": "VectorLM", "source": f"VectorInstitute/vectorlm@9045f08ac1af:{page}"}
    job = plan_from_run(row)[0].job
    assert (job.stack, job.master_weights) == ("hf-fsdp", masters)
    assert job.grad_dtype == ("fp32" if masters else "bf16")

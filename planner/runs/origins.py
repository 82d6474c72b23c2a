"""Which software a series of published runs had, by the words of its source: a table of patterns, tried in order."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Origin(NamedTuple):
    """Software of a series of published runs."""

    stack: str
    attention: str = "flash"
    expert_tensor: int | None = None
    """Tensor degree inside an expert where the run does not say; None: that of the whole model."""
    token_exchange: str = "all_to_all"
    """How tokens reach their experts where the run does not say."""
    recompute: str = "none"
    """Policy where the run does not say."""
    fills_stages: bool = False
    """Where layers do not divide, stages are full but for the last, rather than nearly equal."""
    reduce_dtype: str | None = None
    """Type in which gradients travel where the run does not say; None: the stack's."""
    master_dtype: str | None = None
    """Type of the weights that are stepped where the run does not say; None: fp32."""
    batch_per_device: bool = False
    """A batch is printed for each device, tensor and context ranks too, and is one micro-batch of them together."""
    batch_per_rank: bool = False
    """A batch that data ranks cannot share is that of each of them, and one micro-batch where there is no pipeline."""
    sequence_parallel: bool | None = None
    """Whether tensor ranks share what lies between layers' products where the run does not say; None: as the stack."""


ORIGINS: Sequence[tuple[str, Origin]] = (
    (r"Neuron", Origin("neuronx")),
    (r"gpu-recipes.*nemo.*a3(mega|ultra)(?!.*405b)", Origin("nemo-2024")),
    (r"gpu-recipes.*(nemo|megatron)", Origin("nemo")),
    (r"DGXC.*maxtext", Origin("jax-xla", recompute="mlp", batch_per_device=True, sequence_parallel=True)),
    (r"maxtext|tpu-recipes", Origin("jax-xla", batch_per_device=True, sequence_parallel=True)),
    (r"torchprime", Origin("torch-xla", sequence_parallel=True)),
    (r"torch[-_]xla|PyTorch/XLA", Origin("torch-xla")),
    (r"Levanter|Marin", Origin("levanter")),
    (r"JAX-Toolbox Pax.*126m", Origin("jax-xla", "plain")),
    (r"JAX-Toolbox Pax.*\b5b", Origin("jax-xla", recompute="products")),
    (r"JAX-Toolbox Pax", Origin("jax-xla", recompute="full")),
    (r"tpu|xla|JAX|AXLearn|\bpax|Google gpu-recipes", Origin("jax-xla")),
    (r"ml-engineering", Origin("deepspeed-liger", "native")),
    (r"SC21 .*zero3", Origin("deepspeed", "plain")),
    (r"ColossalAI", Origin("colossalai", batch_per_rank=True)),
    (r"Paddle", Origin("paddle")),
    (r"BLOOM|bigscience|vTrain|MT-NLG", Origin("deepspeed-2022", "plain")),
    (r"DeepSpeed Azure", Origin("deepspeed", "plain")),
    (
        r"Megatron-LM (Jan|Sep|README)|SC21|DLPerf|Alpa .*megatron",
        Origin("megatron-2021", "plain"),
    ),
    (r"Korthikanti", Origin("megatron-2022", "plain")),
    (r"NeMo launcher.* pipeline 1$", Origin("nemo-2022", "plain")),
    (r"NeMo launcher", Origin("megatron-2022", "plain")),
    (r"Alpa", Origin("alpa", "plain")),
    (r"nanotron[- ]sweep.* (512 devices tensor \d+|tensor 32) pipeline (?!1$)", Origin("nanotron-polling")),
    (r"nanotron[- ]sweep.* (?!8 )\d+ devices tensor \d+ pipeline (?!1$)", Origin("nanotron-checked")),
    (r"nanotron[- ]sweep", Origin("nanotron-keeping")),
    (r"nanotron", Origin("nanotron")),
    (r"torch-tracker", Origin("torch-blocks")),
    (r"VectorLM", Origin("hf-fsdp")),
    (r"InternEvo", Origin("internevo", "flash-1")),
    (r"llm\.c", Origin("llm-c")),
    (r"ATorch 3D", Origin("atorch-deepspeed")),
    (r"Megatron-LLaMA", Origin("megatron-llama")),
    (r"Aleph Alpha", Origin("aleph-alpha-scaling")),
    (r"llm-foundry (.*_80gb|issue)", Origin("composer-2023.10")),
    (r"llm-foundry", Origin("composer-2023")),
    (r"torchtitan", Origin("torch-fsdp2", recompute="alternate", reduce_dtype="fp32")),
    (r"fms-fsdp|TinyLlama", Origin("torch-fsdp1")),
    (r"Fast-LLM", Origin("fast-llm")),
    (r"KempnerForge", Origin("kempner-forge")),
    (r"prime-rl", Origin("prime-rl")),
    (r"fms|nnScaler", Origin("torch-fsdp2")),
    (
        r"Megatron-Bridge",
        Origin("nemo", expert_tensor=1, token_exchange="hybridep", fills_stages=True),
    ),
    (r"MoE ModelZoo", Origin("megatron", expert_tensor=1)),
    (r"AutoModel", Origin("nemo-automodel")),
    (
        r"nemo-launcher/|nemo-v2\.[01]\.0/(gpt3|llama2|nemotron-340b)|dgxc/v2(4|5\.0[12])\S*/(gpt3|grok)|"
        r"mlperf/v(3\.\d|4\.0)/gpt3",
        Origin("nemo-unfused", fills_stages=True),
    ),
    (r"MLPerf.*DeepSpeed", Origin("deepspeed-transformers")),
    (r"NeMo|DGXC|MLPerf", Origin("nemo", fills_stages=True)),
    (r"Zero-bubble PP", Origin("megatron-2021", "plain")),
    (
        r"(Hugging ?Face|\bHF\b|transformers|accelerate|axolotl|\bTRL\b|LLaMA-?Factory|swift).*\bZeRO-?[1-3]",
        Origin("deepspeed-transformers"),
    ),
    (r"BERT on SQuAD", Origin("nvidia-bert", "plain")),
    (r"DeepSpeed|NeoX", Origin("deepspeed")),
    (r"FlagPerf", Origin("megatron-serial")),
    (r"Kwai", Origin("megatron-serial")),
    (r"Pai-Megatron|xtuner Megatron|AMD Primus primus/qwen3", Origin("megatron-serial-fused")),
    (r"AMD Primus|Megatron-LM llama example", Origin("megatron")),
    (r"Megatron|MegaScale|VocabularyParallelism", Origin("megatron-unfused")),
    (r"xtuner", Origin("deepspeed")),
    (r"Qwen's profile", Origin("hf-reentrant")),
    (
        r"Hugging ?Face|\bHF\b|transformers|\bTrainer\b|accelerate|ATorch|axolotl|\bTRL\b|lightning|litgpt|"
        r"LLaMA-?Factory|swift|\bverl\b|oumi",
        Origin("hf-fsdp"),
    ),
    (r"OLMo-core", Origin("torch-compiled-loss")),
    (r"torchtune", Origin("torch-eager")),
    (r"MosaicGPT", Origin("composer-2022")),
    (r"MosaicML|Composer", Origin("composer-2023")),
    (r"T5X|Flax|EasyLM", Origin("jax-xla")),
    (r"FSDP", Origin("torch-eager")),
)
"""Found in "series id gpu sharding devices tensor pipeline" of a row; the first match wins. Before 2022 attention was
not fused, nor was it in the runs of Zero-bubble PP: their printed memory has every head's scores and their dropout.
Losses are fused, and attention is native, where a source says so of its runs (stas00/ml-engineering
insights/when-to-upgrade-gpus: Liger-Kernel; FlashAttention-3 on H200, -4 on B200). torchtitan's own configurations
recompute every other product where there is room, else everything (pytorch/torchtitan@00d1c0e
``models/llama3/config_registry.py``: 8B ``selective``, 70B and 405B ``full``), and reduce gradients in fp32, which is
all that ``mixed_precision_reduce`` may be (``config/configs.py``). DGXC's recipe of MaxText keeps the
products of attention (NVIDIA/dgxc-benchmarking@v24.11.1 ``maxtext/configure.sh``). MaxText's
``per_device_batch_size`` times all devices is a step's batch, and before it could accumulate gradients one micro-batch
(AI-Hypercomputer/maxtext@76bd53b ``MaxText/pyconfig.py``). Its tensor ranks share what layers hand on, by its width
instead of the sequence, which is as much (``MaxText/configs/base.yml``: ``activation_embed`` lies over ``tensor``).
So do torchprime's (AI-Hypercomputer/torchprime@abd579d configs/model/sharding/llama-fsdp-tp.yaml).

Of NVIDIA's configurations of Paxml, that of 126M has no repeated layers, which alone are checkpointed, that of 5B keeps
products, and others have Paxml's policy, which keeps nothing (google/paxml@b397693 ``paxml/contrib/gpu/scripts_gpu/
configs.py``, ``paxml/tasks/lm/model_params.py``). Figures of 126M are without fused attention in every container
(NVIDIA/JAX-Toolbox@00056429 ``rosetta/rosetta/projects/pax/README.md``).

NeMo 1 fuses the loss where it is told to: ``cross_entropy_loss_fusion`` is in none of the launcher's configurations
of 24.05, in those of Llama 3 and of smaller Nemotrons of 24.07 (NVIDIA/NeMo-Framework-Launcher
``launcher_scripts/conf/training``), and in DGXC's of Llama (``llama3.1/llama3.1_405b.yaml``). MLPerf's GPT-3 has it
from 4.1 on (mlcommons/training_results_v4.1@b87b9e3
``NVIDIA/benchmarks/gpt3/implementations/eos_n32_ngc24.09_nemo/conf/custom.yaml``; 4.0's has not).
Google's recipes for its container 24.07 leave the loss unfused, and what tensor ranks exchange exposed
(AI-Hypercomputer/gpu-recipes@2e1fd5e ``src/frameworks``, all nine of a3mega and a3ultra but
those of 405B: ``ub_tp_comm_overlap`` is false).

The sweep of nanotron ran over weeks and versions, which its rows do not name. That pipelines over nodes had their
collectives checked, and that those of 64 nodes and of 32 tensor ranks used the version that polls, follows from their
times (0.5 s per micro-batch of two stages, 1 s of more, whatever its size); what runs without a pipeline had, from
their memory (`LEANER`).

Qwen's profile is of PyTorch 2.0 (QwenLM/Qwen@2df8e8a README.md), whose checkpoints repeat layers whole.

Megatron-LM overlaps what data ranks exchange, and fuses the loss, where it is told to. Scripts of Kwai tell it neither
(kwai/Megatron-Kwai@b2646e4 ``examples/atc24``); Primus's schedules of its own, and Pai-Megatron-Patch's script of Qwen3
unless a run says so, the second alone (AMD-AGI/Primus@fd1eeab ``docs_deprecated/tech_blogs/primus_pipeline``,
alibaba/Pai-Megatron-Patch@0f5c122 ``examples/qwen3/run_mcore_qwen3.sh``, InternLM/xtuner
``docs/en/benchmark/megatron_moe_benchmark.md``); Primus's configurations, the ModelZoo's and the example of Llama both.
Other runs are taken to overlap, and not to fuse.

Experts are whole on every rank in the recipes of Megatron Bridge (NVIDIA-NeMo/Megatron-Bridge@067f987
``scripts/performance``, which dispatch with DeepEP or HybridEP) and in the tables of the MoE ModelZoo
(yanring/Megatron-MoE-ModelZoo@e865051 ``best_practice/qwen3/readme.md``, column ETP).

InternLM's table of throughput was there before FlashAttention-2, and asks for the first, of version 1.0.5
(InternLM/InternEvo@fa7337b doc/en/train_performance.md, install.md: July 2023).

ColossalAI prints batches of a data rank (hpcaitech/ColossalAI@4f9953b README.md, "Batch Size per DP"), each one
micro-batch unless there is a pipeline (examples/language/llama/benchmark.py: ``--mbs``).

FlagPerf starts Megatron-LM without ``--overlap-grad-reduce`` (FlagOpen/FlagPerf@8f45ae0
training/benchmarks/llama3_8B/megatron/pretrain_llama3.sh). OLMo-core's scripts compile model and loss
(allenai/OLMo-core@04811a4 src/scripts/train/OLMo2-7B.py: ``compile``, ``compile_loss``), torchtune's recipes nothing
unless ``compile`` is set (pytorch/torchtune@bd2a0fc recipes/configs).
"""


LEANER: Mapping[str, str] = {"nanotron-keeping": "nanotron-checked"}
"""Stack of runs whose source does not name its version -> another version that they may have had, which needs less
memory. Both are of one sweep: of its runs without a pipeline, those that hold gathered inputs took as long as that
stack predicts, and those that do not took as long as if every collective was checked."""


def find_origin(text: str) -> Origin | None:
    """The `Origin` of a run, by the words of its series, id and sharding; None if unknown."""
    return next((origin for pattern, origin in ORIGINS if re.search(pattern, text, re.IGNORECASE)), None)

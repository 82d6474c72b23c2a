"""Series of published runs by the round in which they were transcribed."""

from collections.abc import Mapping

FIFTH = (
    "ATorch 3D",
    "ATorch FSDP",
    "FlashAttention training",
    "Hugging Face accelerate, FSDP and ZeRO",
    "Levanter",
    "TRL at a million tokens",
    "TransformerEngine on MI300X and H200",
    "YaFSDP's table of FSDP",
    "lightning-thunder's benchmark of litgpt",
    "torchprime",
    "torchtitan in PithTrain issue 79",
    "torchtitan pull request 1690",
    "xtuner speed benchmark",
)
"""Series that were transcribed fifth, by name."""

SIXTH = (
    "Composer, llm-foundry issue 1153",
    "Marin speedruns",
    "Mesh Transformer JAX",
    "NeMo issue 8059",
    "PaddleNLP",
    "PaddleNLP in FlagPerf",
    "Pai-Megatron-Patch issue 643",
    "nanoGPT",
    "nanochat",
    "oumi",
    "torchao's layers of experts",
)
"""Series that were transcribed sixth, by name; all are in the report split."""

SEVENTH = (
    "Cluster Toolkit's MaxText guide",
    "ColossalAI issues 4551 and 4744",
    "Composer, MosaicGPT of 2022",
    "EasyContext",
    "FSDP and DeepSpeed on Falcon-7B",
    "Lambda's guide to 405B",
    "Marin's Grug of 1024",
    "Marin's Grug of 90B on 256 H100",
    "Marin's Grug on TPU",
    "Marin's Grug on a node of H100",
    "Marin's Grug on nodes of B200",
    "Marin's Grug on racks of GB200",
    "MarinFold, Levanter on H100",
    "MarinFold, NeMo",
    "MaxText's guide to logs",
    "Megatron on Marin's Grug",
    "Megatron-LM sweep on MI355X",
    "Megatron-LM's recipes of mixtures",
    "fms-acceleration",
    "torchtitan issue 1789",
)
"""Series that were transcribed seventh, by name; all are in the report split."""

EIGHTH = (
    "AWS's dispatchers of Megatron-Bridge",
    "JaxPP on Marin's Grug",
    "NVIDIA's BERT in PyTorch",
    "NeMo 24.07, fine-tuning",
    "NeMo AutoModel, LoRA",
    "OpenLLaMA, EasyLM",
    "OpenLM",
    "Pai-Megatron-Patch issue 658",
    "Qwen's profile of fine-tuning, transformers",
    "Qwen's profile of fine-tuning, transformers, ZeRO-2",
    "Qwen's profile of fine-tuning, transformers, ZeRO-3",
    "TransformerEngine's tutorial of Llama",
    "fsdp_qlora",
    "halo",
    "nanoGPT issue 110",
    "tpuchat, JAX",
    "transformers' BERT by ModelCenter",
)
"""Series that were transcribed eighth, by name; all are in the report split."""

NINTH = (
    "AMD's MaxText on MI355X",
    "BioNeMo's Mixtral, AutoModel",
    "BioNeMo's Mixtral, Transformer Engine",
    "BloombergGPT",
    "H2O-Danube",
    "JAX-Toolbox Pax on A100",
    "LLM-Shearing, Composer",
    "Lightning's strategies on GPT-2 XL",
    "Llama 3 8B of the TPU wiki, JAX",
    "Llama 3 8B of the TPU wiki, torchax",
    "Modalities",
    "ProLong",
    "Pythia, GPT-NeoX",
    "Smol Training Playbook, nanotron",
    "StarCoder",
    "TinyMathReason, MaxText",
    "tpu-recipes of November, dense",
)
"""Series that were transcribed ninth, by name; all are in the report split."""

TENTH = (
    "EasyDeL issue 205",
    "Infinigence's Megatron on 4090",
    "LUMI, BigCode's Megatron-LM",
    "LUMI, GPT-NeoX",
    "LUMI, Megatron-DeepSpeed",
    "Lucie, Megatron-DeepSpeed on A100",
    "MAD's torchtune on MI350X",
    "NVIDIA's notes on Megatron-Bridge, 70B",
    "NVIDIA's notes on Megatron-Bridge, mixtures",
    "Open-Llama, accelerate",
    "swiss-ai's Megatron-LM",
    "torchtitan commit 7a04053",
    "vuiseng9's NeMo on B200",
)
"""Series that were transcribed tenth, by name. On two rates of boards that had been assumed were fitted since."""

ELEVENTH = (
    "AWS's ESM-2 on A10G",
    "GPT-2 124M on RunPod's boards",
    "Lambda's BERT on SQuAD",
    "MLPerf BERT on A100 PCIe",
    "MLPerf Llama2-70B LoRA",
    "MLPerf Llama2-70B LoRA, DeepSpeed",
    "Megatron-LLaMA on A800, issue 22",
    "milabench's BERT",
    "parameter-golf baseline",
    "swiss-ai's Megatron-LM, first sizes on GH200",
    "torchtune's table of boards",
    "universal-llm-trainer",
    "whyNLP's TinyLlama, DeepSpeed",
    "whyNLP's TinyLlama, accelerate",
)
"""Series that were transcribed eleventh, by name, two thirds of them on boards that no series had been on."""

TWELFTH = (
    "DeepSpeed issue 192",
    "DeepSpeed issue 5507",
    "DeepSpeed's table of BERT on SQuAD",
    "DeepSpeed's tutorials of ZeRO",
    "Hugging Face's guide to one GPU",
    "LLaMA-Factory issue 4133",
    "Liger-Kernel issue 311",
    "Megatron-LM in libai issue 475",
    "Megatron-LM issue 606",
    "Megatron-LM's golden values",
    "OpenRLHF issue 698",
    "TRL's Ulysses on Qwen3-4B",
    "litgpt",
    "litgpt's pretraining beside Thunder, eager",
    "litgpt's table of resources",
    "llm.c of October 2024",
    "ms-swift's examples",
    "ms-swift's guide to Qwen3",
    "torchtitan pull request 382",
    "torchtune's table of Llama 2",
)
"""Series that were transcribed twelfth, by name, for peaks and verdicts of memory; of litgpt some were in before."""

THIRTEENTH = (
    "MLPerf Llama2-70B LoRA with peaks",
    "MLPerf Llama3.1-405B with peaks",
    "MLPerf Llama3.1-8B on H100 with peaks",
)
"""Series that were transcribed thirteenth, by name: runs whose logs print the time of a step and a peak of memory."""

FOURTH_DENSE = frozenset({"AXLearn", "KempnerForge", "nanotron, July 2024", "prime-rl", "shard_map in JAX"})
"""Series of the dense runs that were transcribed fourth."""

FOURTH_MIXTURES = frozenset(
    {
        "MegaScale-MoE",
        "Megatron-LM issue 756",
        "Megatron-MoE ModelZoo issue 7",
        "MoE parallel folding",
        "NousResearch torchtitan",
        "prime-rl",
        "tpu-recipes-ironwood mixtures",
        "tpu-recipes-trillium mixtures",
        "tpu-recipes-v5p mixtures",
    }
)
"""Series of the mixtures that were transcribed fourth."""

ROUNDS: Mapping[str, frozenset[str]] = {
    "transcribed last": frozenset(
        {
            "Aleph Alpha layouts",
            "DeepSeek-V3 report, HAI-LLM",
            "FlagPerf",
            "Megatron-Bridge verification cards",
            "Nemotron-4 340B report",
            "ms-swift",
            "torchtitan notes on Qwen3",
        }
    ),
    "transcribed after those": frozenset(
        {"AWS Neuron Trn1", "Fast-LLM", "NeMo launcher, July 2022", "OLMo-core", "PaLM"}
    ),
    "transcribed since": frozenset(
        {
            "AMD Primus notes",
            "IBM float8 on torchtitan",
            "JAX-Toolbox MaxText",
            "MLPerf GPT-3 175B",
            "Megatron-LLaMA",
            "llm.c",
        }
    ),
    "transcribed fourth": FOURTH_DENSE | FOURTH_MIXTURES,
    "transcribed fifth": frozenset(FIFTH),
    "transcribed sixth": frozenset(SIXTH),
    "transcribed seventh": frozenset(SEVENTH),
    "transcribed eighth": frozenset(EIGHTH),
    "transcribed ninth": frozenset(NINTH),
    "transcribed tenth": frozenset(TENTH),
    "transcribed eleventh": frozenset(ELEVENTH),
    "transcribed twelfth": frozenset(TWELFTH),
    "transcribed thirteenth": frozenset(THIRTEENTH),
}
"""Series transcribed when everything else was in place, round by round; priced once before they led to anything."""

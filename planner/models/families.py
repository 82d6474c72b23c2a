"""Every family of models that Meshwright can read: Hugging Face ``model_type`` -> graph builder."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

from planner.graph import Graph
from planner.models import (
    classics,
    decoders,
    diffusion,
    electra,
    encoder_decoders,
    encoders,
    hybrids,
    mixtures,
    modern_encoders,
    newer_mixtures,
    recent,
    recent_mixtures,
    resnet,
    vision,
)
from planner.models.config import TransformerConfig
from planner.models.measured import FAMILY, read_run_model
from planner.models.reading import ConfigReader
from planner.models.transformer import transformer_graph

Architecture = Literal["decoder", "encoder", "encoder-decoder", "other"]

GraphBuilder = Callable[[ConfigReader, str, int], Graph]
"""Configuration, name and sequence length -> graph."""


def _decoder(read_config: Callable[[ConfigReader, str], TransformerConfig]) -> GraphBuilder:
    return lambda read, name, seq_len: transformer_graph(read_config(read, name), seq_len)


DECODERS: Mapping[str, Callable[[ConfigReader, str], TransformerConfig]] = MappingProxyType(
    {
        "afmoe": recent_mixtures.afmoe,
        "arcee": recent.arcee,
        "axk1": newer_mixtures.axk1,
        "bamba": hybrids.bamba,
        "biogpt": classics.biogpt,
        "bitnet": recent.bitnet,
        "bloom": classics.bloom,
        "codegen": classics.codegen,
        "cohere": decoders.cohere,
        "cohere2": recent.cohere2,
        "cohere2_moe": newer_mixtures.cohere2_moe,
        "ctrl": classics.ctrl,
        "cwm": recent.cwm,
        "dbrx": newer_mixtures.dbrx,
        "deepseek_v2": mixtures.deepseek,
        "deepseek_v3": mixtures.deepseek,
        "dots1": recent_mixtures.dots1,
        "ernie4_5": recent.ernie,
        "ernie4_5_moe": recent_mixtures.ernie_moe,
        "exaone": recent.exaone,
        "exaone4": recent.exaone4,
        "exaone_moe": recent_mixtures.exaone_moe,
        "falcon": classics.falcon,
        "falcon_h1": hybrids.falcon_h1,
        "flex_olmo": recent_mixtures.flex_olmo,
        "flint": newer_mixtures.flint,
        "gemma": decoders.gemma,
        "gemma2": decoders.gemma2,
        "gemma3_text": decoders.gemma3,
        "glm": recent.glm,
        "glm4": recent.glm4,
        "glm4_moe": mixtures.glm4_moe,
        "glm4_moe_lite": recent_mixtures.glm4_moe_lite,
        "gpt2": classics.gpt2,
        "gpt_bigcode": classics.gpt_bigcode,
        "gpt_neo": classics.gpt_neo,
        "gpt_neox": classics.gpt_neox,
        "gpt_oss": mixtures.gpt_oss,
        "gptj": classics.gptj,
        "granite": decoders.llama,
        "granite_swa": recent.granite_swa,
        "granitemoe": mixtures.granitemoe,
        "granitemoe_swa": newer_mixtures.granitemoe_swa,
        "granitemoehybrid": hybrids.granitemoehybrid,
        "granitemoeshared": recent_mixtures.granitemoeshared,
        "helium": decoders.llama,
        "hunyuan_v1_dense": recent.hunyuan,
        "hunyuan_v1_moe": recent_mixtures.hunyuan_moe,
        "hy_v3": newer_mixtures.hy_v3,
        "hyperclovax": recent.hyperclovax,
        "internlm3": recent.internlm3,
        "iquestcoder": recent.iquestcoder,
        "jais2": recent.jais2,
        "kimi_k2": mixtures.deepseek,
        "kolibri1": newer_mixtures.kolibri1,
        "laguna": newer_mixtures.laguna,
        "llama": decoders.llama,
        "llama4_text": mixtures.llama4,
        "mamba2": hybrids.mamba2,
        "mellum": newer_mixtures.mellum,
        "mimo_v2_flash": newer_mixtures.mimo_v2_flash,
        "minicpm3": recent.minicpm3,
        "minimax_m2": mixtures.minimax_m2,
        "ministral": recent.ministral,
        "ministral3": recent.ministral,
        "mistral": decoders.mistral,
        "mistral4": recent_mixtures.mistral4,
        "mixtral": mixtures.mixtral,
        "mpt": classics.mpt,
        "nanochat": recent.nanochat,
        "nemotron": decoders.nemotron,
        "nemotron_h": hybrids.nemotron_h,
        "olmo": recent.olmo,
        "olmo2": decoders.olmo2,
        "olmo3": recent.olmo3,
        "olmoe": mixtures.olmoe,
        "openai-gpt": classics.openai_gpt,
        "opt": classics.opt,
        "persimmon": classics.persimmon,
        "phi": classics.phi,
        "phi3": decoders.phi3,
        "phimoe": recent_mixtures.phimoe,
        "qwen2": decoders.qwen2,
        "qwen2_moe": mixtures.qwen2_moe,
        "qwen3": decoders.qwen3,
        "qwen3_5_moe_text": hybrids.qwen3_5_moe,
        "qwen3_5_text": hybrids.qwen3_5,
        "qwen3_moe": mixtures.qwen3_moe,
        "qwen3_next": hybrids.qwen3_next,
        "sarvam_mla": newer_mixtures.sarvam_mla,
        "sarvam_moe": newer_mixtures.sarvam_moe,
        "seed_oss": recent.seed_oss,
        "smollm3": decoders.smollm3,
        "solar_open": recent_mixtures.solar_open,
        "stablelm": decoders.stablelm,
        "starcoder2": decoders.starcoder2,
        "vaultgemma": recent.vaultgemma,
        "xglm": classics.xglm,
        "youtu": recent.youtu,
    }
)
"""Decoders: ``model_type`` -> reader of its configuration."""

SAME_TOWER: Mapping[str, str] = MappingProxyType(
    {
        "qwen2_vl": "qwen2",
        "qwen2_vl_text": "qwen2",
        "qwen2_5_omni_text": "qwen2",
        "qwen2_5_vl": "qwen2",
        "qwen2_5_vl_text": "qwen2",
        "qwen3_5": "qwen3_5_text",
        "qwen3_5_moe": "qwen3_5_moe_text",
        "qwen3_omni_moe_text": "qwen3_moe",
        "qwen3_vl_text": "qwen3",
        "qwen3_vl_moe_text": "qwen3_moe",
    }
)
"""``model_type`` of models with several towers, or of the text tower of one -> the decoder that this tower is."""

OTHERS: Mapping[str, GraphBuilder] = MappingProxyType(
    {
        "bart": encoder_decoders.bart_graph,
        "bert": encoders.bert_graph,
        "camembert": encoders.roberta_graph,
        "distilbert": encoders.distilbert_graph,
        "clip_vision_model": vision.clip_vision_graph,
        "dinov2": vision.dinov2_graph,
        "dit": diffusion.dit_graph,
        "electra": electra.electra_graph,
        "eurobert": modern_encoders.eurobert_graph,
        "m2m_100": encoder_decoders.m2m_graph,
        "marian": encoder_decoders.marian_graph,
        "mbart": encoder_decoders.mbart_graph,
        "modernbert": modern_encoders.modernbert_graph,
        "mt5": encoder_decoders.mt5_graph,
        "pegasus": encoder_decoders.pegasus_graph,
        "resnet": resnet.resnet_graph,
        "roberta": encoders.roberta_graph,
        "siglip_vision_model": vision.siglip_vision_graph,
        "t5": encoder_decoders.t5_graph,
        "umt5": encoder_decoders.umt5_graph,
        "vit": encoders.vit_graph,
        "whisper": encoder_decoders.whisper_graph,
        "xlm-roberta": encoders.roberta_graph,
    }
)
"""Everything else: ``model_type`` -> builder."""

_CONTRASTIVE = "is trained beside a tower of images, by a loss over all pairs of a batch"
_SELECTIVE = "has state-space layers of the first Mamba, which decay each channel by itself"
TRACE = "trace the model as FILE.py:NAME instead (docs/traced-models.md)"
"""What to do with a model that no builder knows."""

UNPRICED: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("falcon_mamba", "jamba", "mamba", "zamba"), _SELECTIVE),
        **dict.fromkeys(("clip_text_model", "siglip_text_model", "siglip2_text_model"), _CONTRASTIVE),
        "internlm2": "has a class beside its weights, none in transformers",
        "zamba2": "has attention layers that share their weights",
        "kimi_linear": "has linear attention that decays each channel of its keys by itself",
        "minimax": "has lightning attention, which decays but does not learn how fast",
        **dict.fromkeys(("lfm2", "lfm2_moe"), "has short gated convolutions in place of most attention"),
        **dict.fromkeys(
            ("deberta", "deberta-v2"), "has scores that add products with vectors of relative positions"
        ),
        "olmo_hybrid": "has norms before its gated delta rule, but after its attention",
        **dict.fromkeys(("recurrent_gemma", "rwkv", "xlstm"), "has recurrent layers"),
        **dict.fromkeys(
            ("deepseek_v32", "glm_moe_dsa"),
            "has an indexer that chooses the keys of each query, whose kernels are not priced",
        ),
        "deepseek_v4": "has attention to keys that are compressed along the sequence",
        **dict.fromkeys(
            ("gemma3n", "gemma3n_text", "gemma4", "gemma4_text"),
            "has a table of vectors for every layer, and layers that may share keys and values",
        ),
        "apertus": "has an activation with weights of its own",
        "longcat_flash": "has experts that do nothing, and two attentions in a layer",
        "diffllama": "has attention that is the difference of two, over halves of its values",
        "doge": "has attention that chooses the keys of each query by a mask of its values",
        "jetmoe": "has attention whose heads are chosen for each token, as experts are",
        "zaya": "has convolutions of queries and keys, and routers that hand on what they made",
        "chatglm": "names its sizes in a way of its own, from before transformers had the class",
    }
)
"""``model_type`` that is known and has no builder -> why: layers whose kernels no operator here stands for.

Source: the classes of huggingface/transformers 5.24.0; of ``chatglm`` the code beside the weights.
"""

FIXED_LENGTHS: Mapping[str, Callable[[ConfigReader], int]] = MappingProxyType(
    {
        "clip_vision_model": encoders.vit_tokens,
        "dinov2": encoders.vit_tokens,
        "dit": diffusion.dit_tokens,
        "resnet": resnet.resnet_tokens,
        "siglip_vision_model": vision.siglip_tokens,
        "vit": encoders.vit_tokens,
    }
)
"""Families whose sequence length follows from their configuration: ``model_type`` -> tokens of one input."""

FAMILIES: Mapping[str, GraphBuilder] = MappingProxyType(
    {
        **{model_type: _decoder(read) for model_type, read in DECODERS.items()},
        **OTHERS,
        FAMILY: _decoder(read_run_model),
    }
)
"""``model_type`` -> builder."""

ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {
        **dict.fromkeys((*DECODERS, FAMILY), "decoder"),
        **dict.fromkeys(
            (
                *("bert", "camembert", "distilbert", "electra"),
                *("eurobert", "modernbert", "roberta", "xlm-roberta"),
            ),
            "encoder",
        ),
        "dit": "other",
        "resnet": "other",
        **dict.fromkeys(
            ("bart", "m2m_100", "marian", "mbart", "mt5", "pegasus", "t5", "umt5", "whisper"),
            "encoder-decoder",
        ),
        **dict.fromkeys(("clip_vision_model", "dinov2", "siglip_vision_model", "vit"), "encoder"),
    }
)
"""``model_type`` -> what kind of model it is."""

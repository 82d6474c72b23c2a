"""Live tensors of families that no shipped model has, by PyTorch's tracker, kept as data with their configurations.

    pip install torch==2.13.0 transformers==5.24.0
    python benchmarks/tracking_families.py NAME    # a case of CASES, into tests/data/torch_families.jsonl

As tracking_transformers.py. T5's kin run plain attention: a bias that learns is no input of a flash kernel.
"""

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tracking_transformers

from planner.models.families import ARCHITECTURES

TRUTH = Path(__file__).parents[1] / "tests" / "data" / "torch_families.jsonl"

SEQUENCE_TO_SEQUENCE = {
    "d_model": 1024, "encoder_layers": 12, "decoder_layers": 12, "encoder_attention_heads": 16,
    "decoder_attention_heads": 16, "encoder_ffn_dim": 4096, "decoder_ffn_dim": 4096, "max_position_embeddings": 1024,
}  # fmt: skip

CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "bart": {"vocab_size": 50265, **SEQUENCE_TO_SEQUENCE},
    "mbart": {"vocab_size": 250054, "activation_function": "relu", **SEQUENCE_TO_SEQUENCE},
    "mt5": {
        "vocab_size": 250112, "d_model": 1024, "d_kv": 64, "d_ff": 2816, "num_layers": 24, "num_decoder_layers": 24,
        "num_heads": 16,
    },
    "umt5": {
        "vocab_size": 256384, "d_model": 512, "d_kv": 64, "d_ff": 1024, "num_layers": 8, "num_decoder_layers": 8,
        "num_heads": 6,
    },
    "modernbert": {
        "vocab_size": 50368, "hidden_size": 1024, "intermediate_size": 2624, "num_hidden_layers": 28,
        "num_attention_heads": 16, "max_position_embeddings": 8192, "local_attention": 128,
    },
    "eurobert": {
        "vocab_size": 128256, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
        "num_attention_heads": 12, "max_position_embeddings": 8192,
    },
    "gpt_bigcode": {
        "vocab_size": 49152, "n_embd": 6144, "n_layer": 40, "n_head": 48, "n_positions": 8192, "n_inner": 24576,
    },
    "gpt_neo": {
        "vocab_size": 50257, "hidden_size": 2048, "num_layers": 24, "num_heads": 16, "max_position_embeddings": 2048,
        "window_size": 256, "attention_types": [[["global", "local"], 12]],
    },
    "gptj": {
        "vocab_size": 50400, "n_embd": 4096, "n_layer": 28, "n_head": 16, "rotary_dim": 64, "n_positions": 2048,
    },
    "bitnet": {
        "vocab_size": 128256, "hidden_size": 2560, "intermediate_size": 6912, "num_hidden_layers": 30,
        "num_attention_heads": 20, "num_key_value_heads": 5, "max_position_embeddings": 4096,
    },
    "biogpt": {
        "vocab_size": 42384, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
        "num_attention_heads": 16, "max_position_embeddings": 1024,
    },
    "jais2": {
        "vocab_size": 150272, "hidden_size": 3328, "intermediate_size": 26624, "num_hidden_layers": 32,
        "num_attention_heads": 26, "max_position_embeddings": 8192,
    },
    "persimmon": {
        "vocab_size": 262144, "hidden_size": 4096, "intermediate_size": 16384, "num_hidden_layers": 36,
        "num_attention_heads": 64, "max_position_embeddings": 16384,
    },
    "xglm": {
        "vocab_size": 256008, "d_model": 1024, "ffn_dim": 4096, "num_layers": 24, "attention_heads": 16,
        "max_position_embeddings": 2048,
    },
    "m2m_100": {"vocab_size": 256206, "activation_function": "relu", **SEQUENCE_TO_SEQUENCE},
    "electra": {
        "vocab_size": 30522, "embedding_size": 128, "hidden_size": 256, "num_hidden_layers": 12,
        "num_attention_heads": 4, "intermediate_size": 1024, "max_position_embeddings": 512, "type_vocab_size": 2,
        "architectures": ["ElectraForMaskedLM"],
    },
    "vit": {
        "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096,
        "image_size": 224, "patch_size": 16, "num_labels": 1000,
    },
    "dinov2": {
        "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "mlp_ratio": 4, "image_size": 224,
        "patch_size": 14, "num_labels": 1000,
    },
    "clip_vision_model": {
        "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096,
        "image_size": 224, "patch_size": 14, "architectures": ["CLIPVisionModel"],
    },
    "siglip_vision_model": {
        "hidden_size": 1152, "num_hidden_layers": 27, "num_attention_heads": 16, "intermediate_size": 4304,
        "image_size": 384, "patch_size": 14,
    },
}  # fmt: skip
"""Sizes of BART-large, mBART-large-50, mT5-large, UMT5-small, ModernBERT-large, EuroBERT-210m, StarCoder, GPT-Neo-1.3B,
GPT-J-6B, BitNet b1.58 2B4T, BioGPT, Jais 2 8B, Persimmon-8B, XGLM-564M, NLLB-200-distilled-600M, ELECTRA-small with the
generator's head; ViT-large-16, DINOv2-large on 224 pixels, and the towers of images of CLIP-ViT-L-14 and
SigLIP-so400m-14 on 384 pixels."""

PLAIN_ONLY = frozenset({"gpt_neo", "gptj", "mt5", "umt5", "xglm"})
"""Families whose class has no flash attention, or runs it only without its bias."""

LENGTHS: Mapping[str, int] = {
    "clip_vision_model": 257, "dinov2": 257, "eurobert": 1024, "gpt_bigcode": 2048, "gpt_neo": 1024, "gptj": 1024,
    "modernbert": 1024, "siglip_vision_model": 729, "vit": 197,
}  # fmt: skip
"""Tokens, where they are not 512."""

MICRO_BATCHES: Mapping[str, int] = {
    "clip_vision_model": 32, "dinov2": 32, "electra": 64, "gpt_bigcode": 2, "gpt_neo": 4, "gptj": 2, "umt5": 16,
    "vit": 32,
}  # fmt: skip
"""Sequences at once, where they are not 8."""

DROPPING = (
    "bart", "biogpt", "electra", "gpt_bigcode", "m2m_100", "mt5", "xglm",
)  # fmt: skip
"""Families whose class drops a share of results by itself."""

CASES: Mapping[str, Mapping[str, Any]] = {
    f"{family}/{recompute}-{LENGTHS.get(family, 512)}-{attn}": {
        "attn": attn, "recompute": recompute, "micro_batch": MICRO_BATCHES.get(family, 8),
    }
    for family in CONFIGS
    for recompute in ("none", "full")
    for attn in ("flash", "plain")
    if family not in PLAIN_ONLY or attn == "plain"
} | {
    f"{family}/none-{LENGTHS.get(family, 512)}-plain-dropout": {
        "attn": "plain", "recompute": "none", "micro_batch": MICRO_BATCHES.get(family, 8), "dropout": True,
    }
    for family in DROPPING
}  # fmt: skip
"""Family, recomputation, tokens and kernel -> what differs from what is usual."""

TASKS = {"decoder": "CausalLM", "encoder": "MaskedLM", "encoder-decoder": "Seq2SeqLM"}
IMAGES = {
    "clip_vision_model": "AutoModel", "dinov2": "AutoModelForImageClassification", "siglip_vision_model": "AutoModel",
    "vit": "AutoModelForImageClassification",
}  # fmt: skip
CLASSES = {family: f"AutoModelFor{TASKS[ARCHITECTURES[family]]}" for family in CONFIGS} | IMAGES


def measured(name: str) -> dict[str, Any]:
    """The case as a run with its measurement, beside the configuration of its model."""
    tracking_transformers.CLASSES = {**tracking_transformers.CLASSES, **CLASSES}
    row = tracking_transformers.row_of_case(name, CASES[name])
    family = row["model"]["name"]
    config = {"model_type": family, **CONFIGS[family]}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config))
        run = {**row, "model": {**row["model"], "name": str(path)}}
        found = tracking_transformers.measured(run)
    return {**row, "source": row["source"].replace("transformers.py", "families.py"), "config": config,
            "measured": found}  # fmt: skip


def main() -> None:
    """Measure one case: each wants a process of its own."""
    made = measured(sys.argv[1])
    lines = TRUTH.read_text().splitlines() if TRUTH.exists() else []
    rows = {row["id"]: row for row in map(json.loads, lines)} | {made["id"]: made}
    TRUTH.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows.values()))
    print(f"{made['id']:50s} {made['measured']}")


if __name__ == "__main__":
    main()

"""Live tensors of families that no shipped model has, by PyTorch's tracker, kept as data with their configurations.

    pip install torch==2.13.0 transformers==5.23.0
    python benchmarks/tracking_families.py NAME    # a case of CASES, into tests/data/torch_families.jsonl

As tracking_transformers.py. T5's kin run plain attention: a bias that learns is no input of a flash kernel. Weights
that begin as truncated normals begin as they are, since rejecting a draw looks at its value.
"""

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tracking_transformers

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
}  # fmt: skip
"""Sizes of BART-large, mBART-large-50, mT5-large, UMT5-small, ModernBERT-large, EuroBERT-210m."""

ENCODERS = frozenset({"modernbert", "eurobert"})
BIASED = frozenset({"mt5", "umt5"})

CASES: Mapping[str, Mapping[str, Any]] = {
    f"{family}/{recompute}-{1024 if family in ENCODERS else 512}-{attn}": {
        "attn": attn, "recompute": recompute, "micro_batch": 16 if family == "umt5" else 8,
    }
    for family in CONFIGS
    for recompute in ("none", "full")
    for attn in ("flash", "plain")
    if family not in BIASED or attn == "plain"
}  # fmt: skip
"""Family, recomputation, tokens and kernel -> what differs from what is usual."""

CLASSES = {f: "AutoModelForMaskedLM" if f in ENCODERS else "AutoModelForSeq2SeqLM" for f in CONFIGS}


def measured(name: str) -> dict[str, Any]:
    """The case as a run with its measurement, beside the configuration of its model."""
    import transformers.initialization

    transformers.initialization.trunc_normal_ = lambda tensor, *_, **__: tensor
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

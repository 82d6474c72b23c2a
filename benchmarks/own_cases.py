"""Cases that our own scripts measure, and rows of them kept as data in tests/published."""

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

PUBLISHED = Path(__file__).resolve().parent.parent / "tests" / "published"

GPT: Mapping[str, Any] = {"gated_mlp": False, "bias": True, "positions": "rotary"}
SIZES: Mapping[str, Mapping[str, Any]] = {
    "8b": {"hidden": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128, "ffn_hidden": 14336, "vocab": 128256},
    "1b": {"hidden": 2048, "heads": 32, "kv_heads": 8, "head_dim": 64, "ffn_hidden": 8192, "vocab": 128256},
    "70b": {
        "hidden": 8192,
        "heads": 64,
        "kv_heads": 8,
        "head_dim": 128,
        "ffn_hidden": 28672,
        "vocab": 128256,
    },
    "7b": {"hidden": 4096, "heads": 32, "kv_heads": 32, "head_dim": 128, "ffn_hidden": 11008, "vocab": 32000},
    "7bv": {"hidden": 4096, "heads": 32, "kv_heads": 32, "head_dim": 128, "ffn_hidden": 11008, "vocab": 1024},
    "8bv": {"hidden": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128, "ffn_hidden": 14336, "vocab": 1024},
    "xl": {"hidden": 1600, "heads": 25, "kv_heads": 25, "head_dim": 64, "ffn_hidden": 4304, "vocab": 50257},
    "13b": {"hidden": 5120, "heads": 40, "kv_heads": 40, "head_dim": 128, "ffn_hidden": 13824, "vocab": 32000},
    "14b": {"hidden": 5120, "heads": 40, "kv_heads": 8, "head_dim": 128, "ffn_hidden": 13824, "vocab": 152064},
    "3b": {"hidden": 2048, "heads": 16, "kv_heads": 2, "head_dim": 128, "ffn_hidden": 11008, "vocab": 151936},
    "2b": {"hidden": 2048, "heads": 8, "kv_heads": 1, "head_dim": 256, "ffn_hidden": 16384, "vocab": 256128},
    "405b": {"hidden": 16384, "heads": 128, "kv_heads": 8, "head_dim": 128, "ffn_hidden": 53248, "vocab": 128256},
    "olmo2": {
        "hidden": 4096, "heads": 32, "kv_heads": 32, "head_dim": 128, "ffn_hidden": 11008, "vocab": 100352,
        "qk_norm": "full",
    },
    "granite": {
        "hidden": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128, "ffn_hidden": 12800, "vocab": 49152, "tied": True,
    },
    "starcoder2": {
        "hidden": 4608, "heads": 36, "kv_heads": 4, "head_dim": 128, "ffn_hidden": 18432, "vocab": 49152, **GPT,
        "sliding_window": 4096, "tied": True,
    },
    "4b": {
        "hidden": 2560, "heads": 32, "kv_heads": 8, "head_dim": 128, "ffn_hidden": 9728, "vocab": 151936,
        "qk_norm": "head", "tied": True,
    },
    "nemo": {"hidden": 5120, "heads": 32, "kv_heads": 8, "head_dim": 128, "ffn_hidden": 14336, "vocab": 131072},
    "smollm": {
        "hidden": 576, "heads": 9, "kv_heads": 3, "head_dim": 64, "ffn_hidden": 1536, "vocab": 49152, "tied": True,
    },
}  # fmt: skip
"""Widths of models; layers are few, as all are alike."""

Row = dict[str, Any]


def measure_cases(
    file: str,
    cases: Iterable[str],
    row_of: Callable[[str], Row],
    measured: Callable[[Row], Mapping[str, Any]],
    wanted: str,
) -> None:
    """Measure the cases whose name has ``wanted`` and write each row at once; rows that exist stay as they are."""
    path, names = PUBLISHED / file, list(cases)
    rows = {}
    if path.exists():
        rows = {row["id"]: row for row in map(json.loads, path.read_text().splitlines())}
    for row in (row_of(name) for name in names if wanted in name):
        row["measured"] = measured(row)
        rows[row["id"]] = row
        print(f"{row['id']:50s} {row['measured']}", file=sys.stderr)
        known = [rows[key] for key in (row_of(name)["id"] for name in names) if key in rows]
        path.write_text("".join(json.dumps(r, separators=(",", ":")) + "\n" for r in known))

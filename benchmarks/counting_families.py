"""FLOPs that torch counts of transformers' small models, and which layers have windows, beside their parameters.

    pip install torch==2.13.0 transformers==5.24.0
    python benchmarks/counting_families.py    # write tests/data/hf_parameters.jsonl and default_parameters.jsonl again

A row of the first needs a class and its configuration; parameters are added where it has none, by name, those without a
gradient left out. The second has how many parameters classes have by default.

Models run on the CPU with eager attention, which multiplies whole matrices of scores, and experts of which each takes
only the tokens that chose it. The backward is that of all parameters.

Source: ``torch.utils.flop_counter.FlopCounterMode``.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.graph import has_scans
from planner.models.catalog import build_graph
from planner.models.model import Model

TRUTH = Path(__file__).parents[1] / "tests" / "data" / "hf_parameters.jsonl"

DEFAULTS = TRUTH.with_name("default_parameters.jsonl")

TOKENS = 16
"""Of the one sequence that is counted; no small model has room for fewer."""

LANGUAGE = ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForConditionalGeneration", "MTModel")
"""Ends of the names of classes that take tokens and their labels."""

SOUND = frozenset({"whisper"})
"""Families that take something else."""

IMAGE = frozenset({"clip_vision_model", "dinov2", "siglip_vision_model"})
"""Families that take pixels."""

RESULTS = ("logits", "image_embeds", "pooler_output", "last_hidden_state")
"""What such models make, the last thing first."""

EVERY_EXPERT = frozenset({"llama4_text"})
"""Families whose class multiplies every token with every expert, to forget what was not chosen."""

ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0}
"""Tokens within the small vocabularies, unlike those of the classes' defaults."""


def is_counted(row: Mapping[str, Any]) -> bool:
    """Whether the class runs what it is counted for; linear recurrences have counts of their own (scan_flops)."""
    family = row["config"]["model_type"]
    if family in IMAGE:
        return True
    if family in EVERY_EXPERT | SOUND or not row["class"].endswith(LANGUAGE):
        return False
    return not has_scans(build_graph(Model(name="small", family=family, config=row["config"]), TOKENS))


def counted(row: Mapping[str, Any]) -> dict[str, Any]:
    """FLOPs of one sequence, forward and backward, and kinds of attention as the class has worked them out."""
    import transformers
    from torch.utils.flop_counter import FlopCounterMode

    build = getattr(transformers, row["class"])
    config = configured(row, attn_implementation="eager", experts_implementation="eager")
    model = build(config).eval()  # in training some classes skip layers at random
    with FlopCounterMode(display=False) as forward:
        loss = loss_of(model, row["config"]["model_type"])
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    found = {
        "tokens": TOKENS,
        "fwd_flops": forward.get_total_flops(),
        "bwd_flops": backward.get_total_flops(),
    }
    kinds = getattr(config, "layer_types", None)
    return found | ({"attention": kinds} if kinds else {})


def configured(row: Mapping[str, Any], **more: Any) -> Any:
    """The configuration of a row, of the class that transformers has for its family."""
    from transformers import AutoConfig

    return AutoConfig.for_model(**ENDS | row["config"], **more)


def with_parameters(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with every parameter of its class that has a gradient, by name."""
    if "parameters" in row:
        return dict(row)
    import torch
    import transformers

    with torch.device("meta"):
        model = getattr(transformers, row["class"])(configured(row))
    named = {name: p.numel() for name, p in model.named_parameters() if p.requires_grad}
    versions = f"transformers {transformers.__version__} on torch {torch.__version__.partition('+')[0]}"
    source = f"{versions}, meta device, named_parameters() that have a gradient"
    return {**row, "parameters": named, "source": source}


def by_default(row: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of a row's class with its default configuration, and the keys of that which have a value."""
    import torch
    import transformers

    config = transformers.AutoConfig.for_model(row["config"]["model_type"])
    with torch.device("meta"):
        model = getattr(transformers, row["class"])(config)
    said = {name: value for name, value in config.to_dict().items() if value is not None}
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return {"class": row["class"], "config": said, "parameters": trained}


def loss_of(model: Any, family: str) -> Any:
    """The model's own, or the sum of its result where it has none."""
    import torch

    if family not in IMAGE:
        tokens = torch.arange(TOKENS)[None]
        return model(input_ids=tokens, labels=tokens).loss
    side = model.config.image_size
    result = model(pixel_values=torch.zeros(1, 3, side, side))
    return next(result[name] for name in RESULTS if result.get(name) is not None).sum()


def main() -> None:
    """Count every row again."""
    rows = [with_parameters(json.loads(line)) for line in TRUTH.read_text().splitlines()]
    found = [{**row, **counted(row)} if is_counted(row) else row for row in rows]
    TRUTH.write_text("".join(json.dumps(row) + "\n" for row in found))
    named = {json.loads(line)["config"]["model_type"] for line in DEFAULTS.read_text().splitlines()}
    first = {row["config"]["model_type"]: row for row in reversed(rows)}
    defaults = [by_default(first[family]) for family in sorted(named)]
    DEFAULTS.write_text("".join(json.dumps(row) + "\n" for row in defaults))


if __name__ == "__main__":
    main()

"""What a run trains: its `Model`, with what its sizes leave unsaid."""

import re
from collections.abc import Sequence

from cluster_specs.errors import InputError
from planner.models.model import Model
from planner.runs.assumptions import Assumptions
from planner.runs.record import RunFile

NORMED_QUERIES: Sequence[tuple[str, str]] = (
    (r"qwen-?3(?![.-]?(5|next))|gemma-?3", "head"),
    (r"olmo-?2|olmoe", "full"),
)
"""Families by their names -> ``qk_norm`` where a run gives sizes alone.

Source: huggingface/transformers ``modeling_qwen3.py``, ``modeling_qwen3_moe.py``, ``modeling_gemma3.py`` (``q_norm``
of a head's dims), ``modeling_olmo2.py``, ``modeling_olmoe.py`` (of all heads).
"""


def model_of(run: RunFile, vocabulary_multiple: int, assume: Assumptions) -> Model:
    """What is trained; of sizes, with the rows that the stack adds to its tables (0: none).

    Raises ``InputError`` where the run has neither name, configuration nor sizes, or they do not fit together.
    """
    from planner.models.catalog import load_model, model_of_run

    if run.model.config is not None:
        return load_model(run.model.config)
    if run.model.by_sizes:
        sizes = {key: value for key, value in run.model if value is not None}
        rows = sizes.get("vocab")
        if vocabulary_multiple and isinstance(rows, int) and rows % vocabulary_multiple:
            sizes["vocab"] = vocabulary_multiple * (rows // vocabulary_multiple + 1)
            assume.made.append(f"vocab={sizes['vocab']} (as the stack pads {rows})")
        family = _normed_queries(run)
        if "qk_norm" not in sizes and family is not None:
            sizes["qk_norm"] = family
            assume.made.append(f"qk_norm={family} (as {run.model.name} has it)")
        return model_of_run(sizes)
    if run.model.name is None:
        raise InputError("model needs a name, a config path, or sizes (layers, hidden, heads, vocab, ...)")
    return load_model(run.model.name)


def _normed_queries(run: RunFile) -> str | None:
    name = run.model.name or ""
    return next((norm for pattern, norm in NORMED_QUERIES if re.match(pattern, name, re.IGNORECASE)), None)

"""What a run trains: its `Model`, with what its sizes leave unsaid."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from cluster_specs.errors import InputError
from planner.models.dropout import shares_of, with_dropout
from planner.models.model import Model
from planner.runs.assumptions import Assumptions
from planner.runs.record import ModelSection, RunFile

FAMILIES: Sequence[tuple[str, Mapping[str, str | bool]]] = (
    (r"qwen-?3(?![.-]?(5|next))|gemma-?[34]", {"qk_norm": "head"}),
    (r"olmo-?2|olmoe", {"qk_norm": "full"}),
    (r"nemotron-?4|nemotron-(8|15|22)b", {"positions": "rotary", "bias": False, "activation": "relu2"}),
    (r"gpt-?neox|pythia", {"positions": "rotary"}),
    (r"falcon-\d+b", {"positions": "rotary", "bias": False}),
    (r"bloom", {"positions": "none"}),
)
"""Families by their names -> what they have where a run gives sizes alone.

Source: huggingface/transformers ``modeling_qwen3.py``, ``modeling_qwen3_moe.py``, ``modeling_gemma3.py``,
``modeling_gemma4.py`` (``q_norm`` of a head's dims), ``modeling_olmo2.py``, ``modeling_olmoe.py`` (of all heads),
``modeling_gpt_neox.py``, ``modeling_falcon.py``, ``modeling_bloom.py`` (ALiBi); arXiv:2402.16819, section 2.1
(Nemotron-4).
"""

WINDOWS: Sequence[tuple[str, int, int]] = (
    (r"gemma-?4-e?2b", 512, 5),
    (r"gemma-?4-e?4b", 512, 6),
    (r"gemma-?4", 1024, 6),
    (r"gemma-?3-1b", 512, 6),
    (r"gemma-?3-", 1024, 6),
    (r"gemma-?2-", 4096, 2),
    (r"gpt-?oss", 128, 2),
    (r"olmo-?3", 4096, 4),
)
"""Families by their names -> tokens that a layer's attention sees, in all but one of so many layers.

Source: AI-Hypercomputer/maxtext@6aa8b844 ``src/maxtext/configs/models/gemma3-4b.yml``, ``gemma3-12b.yml``,
@61851770 ``gemma4-31b.yml``, @0c6ae931 ``gemma4-e2b.yml`` (``sliding_window_size``), ``src/maxtext/models/gemma3.py``,
``gemma4.py``, ``gemma4_small.py`` (attention patterns); google/gemma-3-1b-pt ``config.json``; huggingface/transformers
``configuration_gemma2.py``, ``configuration_gpt_oss.py``, ``configuration_olmo3.py`` (``sliding_window``,
``layer_types``).
"""


def model_of(run: RunFile, vocabulary_multiple: int, dropout: float, assume: Assumptions) -> Model:
    """What is trained; of sizes, with the rows that the stack adds to its tables (0: none), and its ``dropout``.

    Raises ``InputError`` where the run has neither name, configuration nor sizes, or they do not fit together.
    """
    from planner.models.catalog import load_model, model_of_run

    if run.model.config is not None:
        return _as_trained(load_model(run.model.config), run.model)
    if run.model.by_sizes:
        sizes = {key: value for key, value in run.model if value is not None}
        rows = sizes.get("vocab")
        if vocabulary_multiple and isinstance(rows, int) and rows % vocabulary_multiple:
            sizes["vocab"] = vocabulary_multiple * (rows // vocabulary_multiple + 1)
            assume.made.append(f"vocab={sizes['vocab']} (as the stack pads {rows})")
        for field, usual in _of_family(run).items():
            if field not in sizes:
                sizes[field] = usual
                assume.made.append(f"{field}={usual} (as {run.model.name} has it)")
        if not {"ffn_hidden", "d_ff", "experts"} & sizes.keys() and isinstance(sizes.get("hidden"), int):
            sizes["ffn_hidden"] = _usual_width(sizes["hidden"], gated=sizes.get("gated_mlp", True))
            assume.made.append(f"ffn_hidden={sizes['ffn_hidden']} (as Megatron-LM has it)")
        return _dropping(model_of_run(sizes), _said_dropout(run.model, sizes, dropout, assume))
    if run.model.name is None:
        raise InputError("model needs a name, a config path, or sizes (layers, hidden, heads, vocab, ...)")
    return _as_trained(load_model(run.model.name), run.model)


def _as_trained(model: Model, said: ModelSection) -> Model:
    """``model`` with what a run says of its training."""
    return _predicting(_dropping(model, said), said.max_predictions_per_seq)


def _said_dropout(
    said: ModelSection, sizes: Mapping[str, Any], usual: float, assume: Assumptions
) -> ModelSection:
    """``said``, with the ``usual`` share of models without gates where it names none."""
    if not usual or sizes.get("gated_mlp", True) or said.dropout is not None:
        return said
    assume.made.append(f"dropout={usual:g} (the stack's default)")
    return said.model_copy(update={"dropout": usual})


def _dropping(model: Model, said: ModelSection) -> Model:
    """``model`` with the shares that a run has in place of its own; of scores alone, with its own of the rest."""
    if said.dropout is None and said.attention_dropout is None:
        return model
    share = shares_of(model).sums if said.dropout is None else said.dropout
    return with_dropout(model, share, said.attention_dropout)


def _predicting(model: Model, most: int | None) -> Model:
    """The encoder with a head over at most so many tokens of each sequence."""
    from planner.models.catalog import build_graph
    from planner.models.encoders import PREDICTIONS

    if most is None:
        return model
    few = model.model_copy(update={"config": {**model.config, "max_predictions_per_seq": most}})
    if PREDICTIONS not in build_graph(few, 1).dims:
        raise InputError(
            f"max_predictions_per_seq is of encoders whose head predicts masked tokens, which {model.name} has not"
        )
    return few


def _usual_width(hidden: int, *, gated: bool) -> int:
    """Of a feed-forward layer where nobody says: ``4 h``; with gates as many weights, in multiples of 64.

    Source: NVIDIA/Megatron-LM ``megatron/training/arguments.py`` (``ffn_hidden_size`` that is not given).
    """
    return 8 * hidden // 3 // 64 * 64 if gated else 4 * hidden


def _of_family(run: RunFile) -> Mapping[str, str | bool | int]:
    name, layers = run.model.name or "", run.model.layers or 0
    has = next((has for pattern, has in FAMILIES if re.match(pattern, name, re.IGNORECASE)), {})
    found = ((window, every) for pattern, window, every in WINDOWS if re.match(pattern, name, re.IGNORECASE))
    for window, every in found:
        return {**has, "sliding_window": window, "sliding_window_layers": layers - layers // every}
    return has

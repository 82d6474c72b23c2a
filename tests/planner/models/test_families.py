"""Parameters of every family, against transformers' own classes."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from planner.errors import InputError
from planner.flops import Counting
from planner.graph import Graph, count_parameters, has_scans
from planner.models.catalog import build_graph, load_model, sequence_length
from planner.models.families import ARCHITECTURES, FAMILIES
from planner.models.model import Model
from planner.operators import backward_flops, forward_flops

DATA = Path(__file__).parents[2] / "data"

MODEL_TYPES = {
    "LlamaForCausalLM": "llama",
    "MixtralForCausalLM": "mixtral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "Gemma2ForCausalLM": "gemma2",
    "GPT2LMHeadModel": "gpt2",
    "DeepseekV3ForCausalLM": "deepseek_v3",
    "T5ForConditionalGeneration": "t5",
    "BertModel": "bert",
    "ViTForImageClassification": "vit",
}

CLASS_DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma2-9b": {"sliding_window": 4096},
    "gpt2": {"n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257},
    "bert-large": {"max_position_embeddings": 512, "type_vocab_size": 2},
}
"""Sizes that the counted objects took from their classes' defaults, which we never do."""


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text().splitlines()]


def graph_of(model: Model) -> Graph:
    return build_graph(model, sequence_length(model) or 1)


@pytest.mark.parametrize("row", rows("models"), ids=lambda row: row["name"])
def test_shipped_models_have_their_parameters(row: dict[str, Any]) -> None:
    model = load_model(row["name"])
    assert model.parameters == row["params_total"]
    assert count_parameters(graph_of(model)) == row["params_total"]


@pytest.mark.parametrize("row", rows("params_truth"), ids=lambda row: row["name"])
def test_parameters_equal_those_of_the_class(row: dict[str, Any]) -> None:
    config = {**CLASS_DEFAULTS.get(row["name"], {}), **row["config"], "architectures": [row["cls"]]}
    model = Model(name=row["name"], family=MODEL_TYPES[row["cls"]], config=config)
    assert count_parameters(graph_of(model)) == row["n_params"]


def expert_parameters(graph: Graph) -> float:
    return sum(
        count * graph.elements(t)
        for block, count in graph.instances()
        for t in block.tensors
        if t.role == "weight" and "experts" in t.dims and not t.name.startswith("w_router")
    )


@pytest.mark.parametrize(
    "row", [row for row in rows("models") if "params_routed_experts" in row], ids=lambda row: row["name"]
)
def test_routed_experts_have_their_parameters(row: dict[str, Any]) -> None:
    graph = graph_of(load_model(row["name"]))
    routed = expert_parameters(graph)
    assert routed == row["params_routed_experts"]
    active = row["params_total"] - routed * (1 - row["config"]["num_experts_per_tok"] / graph.dims["experts"])
    assert active == row["params_active_per_token"]


def framework_parameters(graph: Graph) -> dict[str, int]:
    """Path in the framework's module -> elements, layers numbered in each stack."""
    again = {second for _, second in graph.tied}
    reached: Counter[str] = Counter()
    found: Counter[str] = Counter()
    for name in (graph.first, *graph.sequence, graph.last):
        assert name is not None
        weights = [
            t for t in graph.block[name].tensors if t.role == "weight" and f"{name}.{t.name}" not in again
        ]
        stacks = {t.path.split("{layer}")[0] for t in weights if "{layer}" in t.path}
        for t in weights:
            number = str(reached[t.path.split("{layer}")[0]])
            found[t.path.replace("{layer}", number)] += round(graph.elements(t))
        reached.update(stacks)
    return dict(found)


def small_graph(row: dict[str, Any]) -> Graph:
    model = Model(name="small", family=row["config"]["model_type"], config=row["config"])
    return build_graph(model, sequence_length(model) or row.get("tokens", 8))


@pytest.mark.parametrize(
    "row", rows("hf_parameters"), ids=lambda row: f"{row['class']}-{len(row['parameters'])}"
)
def test_every_parameter_of_the_class_is_there(row: dict[str, Any]) -> None:
    """Name by name, element by element; a fused parameter is the sum of its parts."""
    assert framework_parameters(small_graph(row)) == row["parameters"]


def test_every_family_is_compared_with_its_class() -> None:
    """But for DiT (no class in transformers), Kimi K2 (DeepSeek's) and models given by sizes alone."""
    compared = {row["config"]["model_type"] for row in rows("hf_parameters")}
    assert set(FAMILIES) - compared == {"dit", "kimi_k2", "transformer"}
    assert set(ARCHITECTURES) == set(FAMILIES)


@pytest.mark.parametrize(
    "row",
    [row for row in rows("hf_parameters") if "tokens" in row],
    ids=lambda row: f"{row['class']}-{row['fwd_flops']}-{len(row['parameters'])}",
)
def test_flops_of_the_class_are_what_torch_counts(row: dict[str, Any]) -> None:
    """Exactly: eager attention, which multiplies whole matrices (benchmarks/counting_families.py)."""
    graph, eager = small_graph(row), Counting(causal=False, attention_kernel="plain")
    assert forward_flops(graph, 1, eager) == row["fwd_flops"]
    assert backward_flops(graph, 1, eager) == row["bwd_flops"]


@pytest.mark.parametrize(
    "row",
    [row for row in rows("hf_parameters") if "attention" in row],
    ids=lambda row: f"{row['class']}-{row['fwd_flops']}",
)
def test_layers_have_windows_where_those_of_the_class_have(row: dict[str, Any]) -> None:
    graph = small_graph(row)
    windows = [
        any(op.attributes.get("window") for op in graph.block[name].ops if op.kind == "attention")
        for name in graph.sequence
    ]
    assert windows == [kind == "sliding_attention" for kind in row["attention"]]


LETTERS = {
    "model_type": "exaone4",
    "num_hidden_layers": 10,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 100,
    "sliding_window": 8,
}


def test_letters_say_which_layers_have_windows() -> None:
    """As configuration_exaone4.py has it: ``LLLG`` is every fourth layer, and the last one is full whatever it says."""
    config = {**LETTERS, "sliding_window_pattern": "LLLG"}
    graph = build_graph(Model(name="small", family="exaone4", config=config), 16)
    full = [i for i, name in enumerate(graph.sequence) if not name.startswith("window")]
    assert full == [3, 7, 9]
    with pytest.raises(InputError, match="letters L and G, found 'LXG'"):
        build_graph(
            Model(name="small", family="exaone4", config=LETTERS | {"sliding_window_pattern": "LXG"}), 16
        )


@pytest.mark.parametrize(("cap", "capped"), [({}, True), ({"final_logit_softcapping": None}, False)])
def test_nanochat_caps_its_logits_unless_told_not_to(cap: dict[str, Any], capped: bool) -> None:
    row = next(row for row in rows("hf_parameters") if row["config"]["model_type"] == "nanochat")
    without = {key: value for key, value in row["config"].items() if key != "final_logit_softcapping"}
    graph = build_graph(Model(name="small", family="nanochat", config=without | cap), 16)
    assert graph.last is not None
    assert capped == any(op.name == "logit_cap" for op in graph.block[graph.last].ops)


def test_flops_of_every_decoder_are_compared() -> None:
    """But those of linear recurrences (tests/planner/test_scans.py), and of Llama 4, whose class runs all experts."""
    language = [
        row for row in rows("hf_parameters") if ARCHITECTURES[row["config"]["model_type"]] == "decoder"
    ]
    others = {row["config"]["model_type"] for row in language if "tokens" not in row}
    scans = {row["config"]["model_type"] for row in language if has_scans(small_graph(row))}
    assert others == scans | {"llama4_text"}


def test_minimax_m2_has_the_parameters_of_its_class() -> None:
    """With the defaults of ``MiniMaxM2Config`` in transformers 5.23.0, which are the released sizes, on meta device."""
    config = {
        "model_type": "minimax_m2",
        "vocab_size": 200064,
        "hidden_size": 3072,
        "intermediate_size": 1536,
        "num_hidden_layers": 62,
        "num_attention_heads": 48,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_experts_per_tok": 8,
        "num_local_experts": 256,
        "tie_word_embeddings": False,
    }
    graph = build_graph(Model(name="minimax-m2", family="minimax_m2", config=config), 8)
    assert count_parameters(graph) == 228_689_748_992

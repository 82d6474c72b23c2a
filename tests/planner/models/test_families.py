"""Parameters of every family, against transformers' own classes."""

import json
from collections import Counter
from contextlib import suppress
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


@pytest.mark.parametrize("row", rows("default_parameters"), ids=lambda row: str(row["config"]["model_type"]))
def test_parameters_equal_those_of_the_class_by_default(row: dict[str, Any]) -> None:
    """With the sizes that its configuration has where nobody says otherwise (benchmarks/counting_families.py)."""
    model = Model(name="default", family=row["config"]["model_type"], config=row["config"])
    assert count_parameters(graph_of(model)) == row["parameters"]


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


def test_dbrx_has_the_parameters_of_its_class() -> None:
    """With the released sizes, of ``DbrxForCausalLM`` in transformers 5.24.0, on meta device: Databricks' "132B"."""
    config = {
        "model_type": "dbrx",
        "vocab_size": 100352,
        "d_model": 6144,
        "n_layers": 40,
        "n_heads": 48,
        "attn_config": {"kv_n_heads": 8, "clip_qkv": 8},
        "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
    }
    graph = build_graph(Model(name="dbrx", family="dbrx", config=config), 8)
    assert count_parameters(graph) == 131_596_523_520


def small(family: str, **changes: Any) -> Graph:
    """The first small model of a family, with other values of some keys."""
    row = next(row for row in rows("hf_parameters") if row["config"]["model_type"] == family)
    return build_graph(Model(name="small", family=family, config=row["config"] | changes), 16)


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("axk1", {"q_lora_rank": None}, "missing key 'q_lora_rank'"),
        ("dbrx", {"attn_config": 3}, "attn_config must be a table, found 3"),
        ("dbrx", {"attn_config": {}}, r"\(attn_config\): missing key 'kv_n_heads'"),
        ("dbrx", {"attn_config": {"kv_n_heads": 3}}, "4 heads are not a multiple of 3 key-value heads"),
        ("granite_swa", {"layer_rope_theta": [0]}, "lists 1 layers, num_hidden_layers says 5"),
        ("hy_v3", {"mlp_bias": True}, "mlp_bias is not supported with experts"),
        ("internlm3", {"bias": True}, "qkv_bias must be as bias is"),
        ("iquestcoder", {"clip_qkv": 8}, "clip_qkv is not supported"),
        ("iquestcoder", {"use_sliding_window": True}, "use_sliding_window is not supported"),
        ("laguna", {"gating": False}, "gating must be true, per-head or per-element, found False"),
        ("laguna", {"gating": "per-element", "attention_bias": True}, "beside a gate without one"),
        ("laguna", {"moe_apply_router_weight_on_input": True}, "is not supported"),
        ("laguna", {"num_attention_heads_per_layer": [4]}, "must be a number for each of the 2 layers"),
        ("laguna", {"num_attention_heads_per_layer": [4, 0]}, "must be a number for each of the 2 layers"),
        (
            "laguna",
            {"num_attention_heads_per_layer": [4, 8]},
            "one number for layers with a window and one for",
        ),
        ("mimo_v2_flash", {"n_shared_experts": 1}, "n_shared_experts must be 0"),
        ("mimo_v2_flash", {"num_key_value_heads": 8}, "8 heads are not a multiple of 16 key-value heads"),
        ("openai-gpt", {"n_inner": 96}, "n_inner is not supported"),
        ("xglm", {"add_cross_attention": True}, "add_cross_attention must be false"),
    ],
)
def test_what_a_family_does_not_follow_is_refused(family: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        small(family, **changes)


def operators(graph: Graph, kind: str) -> dict[str, list[str]]:
    """Block -> names of its operators of a kind."""
    return {block.name: [op.name for op in block.ops if op.kind == kind] for block in graph.blocks}


def test_sinks_and_key_heads_of_mimo_go_with_windows() -> None:
    """As modeling_mimo_v2_flash.py has it: sinks, and twice the key heads, where there is a window."""
    graph = small("mimo_v2_flash")
    keys = {name: graph.block[name].tensor["k"].dims[2] for name in set(graph.sequence)}
    sunk = {name: "sinks" in graph.block[name].tensor for name in set(graph.sequence)}
    assert keys == {
        name: "window_kv_heads" if name.startswith("window") else "kv_heads" for name in set(graph.sequence)
    }
    assert sunk == {name: name.startswith("window") for name in set(graph.sequence)}
    assert graph.dims["window_kv_heads"] == 2 * graph.dims["kv_heads"]
    longer = small("mimo_v2_flash", sliding_window_size=8)  # counts the tokens before, without one's own
    windows = {
        op.attributes["window"] for block in longer.blocks for op in block.ops if op.kind == "attention"
    }
    assert windows == {0, 9}


def test_clipping_takes_an_operator_and_no_parameters() -> None:
    """DBRX without ``clip_qkv`` has the same parameters, but no operator that clips."""
    bare = small("dbrx", attn_config={"kv_n_heads": 2})
    assert operators(small("olmo", clip_qkv=8), "elementwise")["layer"][0] == "qkv_clip"
    assert operators(small("dbrx"), "elementwise")["layer"][0] == "qkv_clip"
    assert "qkv_clip" not in operators(bare, "elementwise")["layer"]
    assert count_parameters(bare) == count_parameters(small("dbrx"))


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_key_that_is_left_out_means_what_it_means_to_the_class(family: str, tmp_path: Path) -> None:
    """Or the configuration is refused."""
    classes = pytest.importorskip("transformers").CONFIG_MAPPING
    if family not in classes:
        pytest.skip("transformers has no class of this name")
    path = tmp_path / "config.json"

    def loaded(config: dict[str, Any]) -> Graph:
        path.write_text(json.dumps({**config, "architectures": None, "model_type": family}))
        model = load_model(path)
        return build_graph(model, sequence_length(model) or 128)

    every = json.loads(classes[family]().to_json_string(use_diff=False))
    try:
        named = loaded(every)
    except InputError as refused:
        pytest.skip(f"its default is refused: {refused}")
    for key in load_model(path).config.keys() - {"architectures"}:
        with suppress(InputError):
            assert loaded({name: value for name, value in every.items() if name != key}) == named, key

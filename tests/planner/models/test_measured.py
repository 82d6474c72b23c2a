"""Models of the run format."""

import json
from pathlib import Path
from typing import Any

import pytest

from planner.errors import InputError
from planner.graph import count_parameters
from planner.models.catalog import build_graph, load_model, model_of_run, transformer_from_run

DENSE = {"layers": 4, "hidden": 64, "heads": 4, "ffn_hidden": 96, "vocab": 100}

SAMPLE = Path(__file__).parents[2] / "data" / "runs_sample.jsonl"


def graph_of(fields: dict[str, Any], seq_len: int = 64) -> Any:
    return build_graph(transformer_from_run(fields), seq_len)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        (
            "llama-3-8b",
            {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn_hidden": 14336, "vocab": 128256},
        ),
        (
            "qwen3-8b",
            {
                "layers": 36,
                "hidden": 4096,
                "heads": 32,
                "kv_heads": 8,
                "ffn_hidden": 12288,
                "vocab": 151936,
                "qk_norm": "head",
            },
        ),
        (
            "mixtral-8x7b",
            {
                "layers": 32,
                "hidden": 4096,
                "heads": 32,
                "kv_heads": 8,
                "ffn_hidden": 14336,
                "vocab": 32000,
                "experts": 8,
                "topk": 2,
            },
        ),
        (
            "deepseek-v3",
            {
                "layers": 61,
                "hidden": 7168,
                "heads": 128,
                "kv_heads": 128,
                "head_dim": 128,
                "ffn_hidden": 18432,
                "vocab": 129280,
                "experts": 256,
                "topk": 8,
                "moe_ffn_hidden": 2048,
                "moe_layers": 58,
                "shared_expert_ffn": 2048,
                "mla": {"q_lora": 1536, "kv_lora": 512, "qk_nope": 128, "qk_rope": 64, "v_dim": 128},
            },
        ),
        (
            "llama-4-maverick",
            {
                "layers": 48,
                "hidden": 5120,
                "heads": 40,
                "kv_heads": 8,
                "head_dim": 128,
                "ffn_hidden": 16384,
                "vocab": 202048,
                "experts": 128,
                "topk": 1,
                "moe_ffn_hidden": 8192,
                "moe_layers": 24,
                "shared_experts": 1,
            },
        ),
    ],
)
def test_sizes_give_the_same_parameters_as_the_configuration(name: str, fields: dict[str, Any]) -> None:
    """Exactly, for families whose layers are the canonical ones."""
    model = transformer_from_run({**fields, "tied": False})
    assert model.parameters == load_model(name).parameters
    assert count_parameters(build_graph(model, 128)) == model.parameters


def test_sizes_without_gates_are_those_of_gpt() -> None:
    """The parameters that OpenAI's GPT-2 XL has: learned positions, layer norms, biases of every product."""
    fields = {"layers": 48, "hidden": 1600, "heads": 25, "ffn_hidden": 6400, "vocab": 50257, "seq": 1024}
    model = transformer_from_run(fields | {"gated_mlp": False})
    assert model.parameters == 1_557_611_200
    kinds = [(op.kind, op.name) for op in build_graph(model, 1024).block["layer"].ops]
    assert kinds == [(op.kind, op.name) for op in build_graph(load_model("gpt2-xl"), 1024).block["layer"].ops]


@pytest.mark.parametrize(
    ("change", "fewer"),
    [
        ({"positions": "none"}, 32 * 64),
        ({"norm": "layer_no_bias"}, (2 * 4 + 1) * 64),
        ({"bias": False}, 4 * (3 * 64 + 64 + 96 + 64)),
        ({"gated_mlp": True, "tied": True}, 32 * 64 + 9 * 64 + 4 * (4 * 64 + 96 + 64) - 4 * 96 * 64),
    ],
)
def test_what_runs_say_that_gpt_has_not(change: dict[str, Any], fewer: int) -> None:
    gpt = DENSE | {"gated_mlp": False, "seq": 32}
    assert transformer_from_run(gpt).parameters - transformer_from_run(gpt | change).parameters == fewer


def published_models() -> list[dict[str, Any]]:
    rows = [json.loads(line)["model"] for line in SAMPLE.read_text().splitlines()]
    return list({json.dumps(row, sort_keys=True): row for row in rows if row.get("layers")}.values())


@pytest.mark.parametrize("fields", published_models(), ids=lambda row: str(row.get("name")))
def test_published_runs_can_be_read(fields: dict[str, Any]) -> None:
    model = transformer_from_run(fields)
    printed = fields.get("params_b")
    if printed and not fields.get("mtp_layers"):
        assert model.parameters == pytest.approx(printed * 1e9, rel=0.05)


@pytest.mark.parametrize(("gated", "tied"), [(True, False), (False, True)])
def test_tying_where_nothing_is_said(gated: bool, tied: bool) -> None:
    assert bool(graph_of(DENSE | {"gated_mlp": gated}).tied) == tied


@pytest.mark.parametrize("tied", [True, False])
def test_printed_parameters_tell_the_tying(tied: bool) -> None:
    known = transformer_from_run(DENSE | {"tied": tied})
    model = transformer_from_run(DENSE | {"params_b": known.parameters / 1e9})
    assert model.parameters == known.parameters
    assert model.config["tied"] is tied


def test_order_of_dense_and_expert_layers() -> None:
    moe = DENSE | {"experts": 4, "topk": 2, "moe_ffn_hidden": 32}
    dense, experts = "dense_layer", "moe_layer"
    assert graph_of(moe).sequence == ("layer",) * 4
    assert graph_of(moe | {"first_dense_layers": 1}).sequence == (dense, *(experts,) * 3)
    assert graph_of(moe | {"moe_layers": 2}).sequence == (dense, experts) * 2
    assert graph_of(moe | {"moe_layers": 3}).sequence == (dense, *(experts,) * 3)
    assert graph_of(moe | {"moe_layers": 0}).sequence == ("layer",) * 4


def test_windows_are_spread_over_the_layers() -> None:
    graph = graph_of(DENSE | {"sliding_window": 8, "sliding_window_layers": 2})
    assert graph.sequence == ("full_layer", "window_layer") * 2
    graph = graph_of(DENSE | {"sliding_window": 8})
    assert graph.block["layer"].tensor
    attention = next(op for op in graph.block["layer"].ops if op.kind == "attention")
    assert attention.attributes["window"] == 8


def test_queries_and_keys_may_be_normalised_over_all_heads() -> None:
    """OLMo 2: ``q_norm`` has a weight for each dim of all heads (transformers modeling_olmo2.py)."""
    plain, whole = (transformer_from_run(DENSE | {"qk_norm": word}).parameters for word in ("none", "full"))
    assert whole - plain == 4 * (64 + 64)
    with pytest.raises(InputError, match="qk_norm must be none, head or full, found 'query'"):
        transformer_from_run(DENSE | {"qk_norm": "query"})


def test_gates_of_norms_and_heads_are_narrow_products() -> None:
    """Marin's Grug: two of rank r for each norm before a half or the head, one column a head; no other weights."""
    plain, gated = transformer_from_run(DENSE), transformer_from_run(DENSE | {"norm_gate_rank": 8})
    assert gated.parameters - plain.parameters == (2 * 4 + 1) * 2 * 64 * 8
    heads = transformer_from_run(DENSE | {"head_gates": True, "exclusive_heads": True})
    assert heads.parameters - plain.parameters == 4 * 64 * DENSE["heads"]
    whole = [op.name for op in graph_of(DENSE | {"norm_gate_rank": 8, "head_gates": True}).block["layer"].ops]
    assert whole.index("attention") < whole.index("head_gate") < whole.index("attn_out")
    assert whole.index("mlp_norm") < whole.index("mlp_gate") < whole.index("gate_up")


def test_prediction_modules_share_embedding_and_head() -> None:
    """A module adds one layer, a product of 2 h x h and three norms; its table and head are the model's."""
    plain = transformer_from_run(DENSE | {"tied": False})
    more = transformer_from_run(DENSE | {"tied": False, "mtp_layers": 1})
    graph = build_graph(plain, 8)
    layer = sum(graph.elements(t) for t in graph.block["layer"].tensors if t.role == "weight")
    assert more.parameters - plain.parameters == layer + 2 * 64 * 64 + 3 * 64
    assert build_graph(more, 8).tied == (
        ("embedding.weight", "head.mtp0_weight"),
        ("head.weight", "head.mtp0_head_weight"),
    )


BROKEN = [
    ({"layers": None}, "missing key 'layers'"),
    ({"layers": 0}, "layers must be from 1"),
    ({"hidden": -1}, "hidden must be from 1"),
    ({"hidden": 66}, "hidden 66 is not a multiple of 4 heads"),
    ({"heads": 2.5}, "heads must be a whole number"),
    ({"kv_heads": 3}, "kv_heads must divide the 4 heads"),
    ({"ffn_hidden": None}, "missing key 'ffn_hidden' or 'd_ff'"),
    ({"vocab": None}, "missing key 'vocab'"),
    ({"tied": "yes"}, "tied must be true or false"),
    ({"experts": 4}, "missing key 'topk'"),
    ({"experts": 4, "topk": 8}, "topk must be at most the 4 experts"),
    ({"experts": 4, "topk": 2, "moe_layers": 5}, "moe_layers must be at most the 4 layers"),
    ({"mla": {"q_lora": 8}}, "mla: missing key 'kv_lora'"),
    ({"mla": 3}, "mla must be a table"),
]


@pytest.mark.parametrize(("change", "message"), BROKEN, ids=lambda value: str(value)[:50])
def test_wrong_fields_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"tiny.*{message}"):
        transformer_from_run({**DENSE, "name": "tiny", **change})


V3 = DENSE | {"experts": 256, "topk": 8, "moe_ffn_hidden": 32}


def groups_of(fields: dict[str, Any]) -> tuple[int | None, int | None]:
    dims = graph_of(fields).dims
    return dims.get("expert_groups"), dims.get("chosen_groups")


def test_experts_are_in_groups_as_said() -> None:
    assert groups_of(V3 | {"expert_groups": 4, "chosen_groups": 2}) == (4, 2)
    assert groups_of(V3 | {"expert_groups": 4}) == groups_of(V3) == (None, None)
    with pytest.raises(InputError, match="expert_groups must divide the 256 experts, found 3"):
        transformer_from_run(V3 | {"expert_groups": 3})


def test_groups_that_a_run_leaves_open_are_those_of_the_shipped_model_of_its_name() -> None:
    def dims(fields: dict[str, Any]) -> Any:
        return build_graph(model_of_run(fields), 8).dims

    assert dims(V3 | {"name": "DeepSeek-V3"})["chosen_groups"] == 4
    assert "chosen_groups" not in dims(V3 | {"name": "DeepSeek-V3", "topk": 4})
    assert "chosen_groups" not in dims(V3 | {"name": "DeepSeek-V3", "expert_groups": 1})
    assert build_graph(load_model("deepseek-v3"), 8).dims["expert_groups"] == 8
    assert "expert_groups" not in build_graph(load_model("kimi-k2"), 8).dims

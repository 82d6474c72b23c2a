"""The graphs of layers: names, order and dims that pricing and exporters rely on."""

from typing import Any

import pytest
from pydantic import ValidationError

from planner import plan
from planner.graph import Graph, count_parameters
from planner.models.catalog import build_graph, list_models, load_model, sequence_length
from planner.models.config import LayerKind, TransformerConfig
from planner.models.model import Model
from planner.models.transformer import transformer_graph
from planner.plans import Plan

LLAMA_OPS = [
    "attn_norm",
    "qkv",
    "rotary",
    "attention",
    "attn_out",
    "attn_residual",
    "mlp_norm",
    "gate_up",
    "activation",
    "down",
    "mlp_residual",
]
MOE_OPS = ["router", "dispatch", "expert_gate_up", "expert_activation", "expert_down", "combine"]
SHARED_OPS = ["shared_gate_up", "shared_activation", "shared_down", "combine_add"]
LATENT_OPS = [
    "q_down",
    "q_norm",
    "q_up",
    "kv_down",
    "kv_split",
    "kv_norm",
    "kv_up",
    "rotary",
    "attention",
    "attn_out",
]


def graph_of(name: str, seq_len: int = 256) -> Graph:
    model = load_model(name)
    return build_graph(model, sequence_length(model) or seq_len)


def ops(name: str, block: str) -> list[str]:
    return [op.name for op in graph_of(name).block[block].ops]


def test_order_of_a_dense_layer() -> None:
    assert ops("llama-3-8b", "layer") == LLAMA_OPS


def test_order_of_a_layer_with_experts() -> None:
    assert ops("mixtral-8x7b", "layer") == [*LLAMA_OPS[:7], *MOE_OPS, "mlp_residual"]


def test_order_of_latent_attention() -> None:
    expected = ["attn_norm", *LATENT_OPS, "attn_residual", "mlp_norm", *MOE_OPS, *SHARED_OPS, "mlp_residual"]
    assert ops("deepseek-v3", "moe_layer") == expected
    assert "q_down" not in ops("deepseek-v2-lite", "moe_layer")


def test_norms_around_each_half() -> None:
    names = ops("gemma-2-9b", "full_layer")
    assert names.index("attn_out") < names.index("attn_post_norm") < names.index("attn_residual")
    assert names.index("down") < names.index("mlp_post_norm") < names.index("mlp_residual")


def test_parallel_halves_read_the_same_norm() -> None:
    block = graph_of("falcon-7b").block["layer"]
    readers = [op.name for op in block.ops if "attn_normed" in op.inputs]
    assert readers == ["qkv", "gate_up"]
    assert [op.name for op in block.ops][-2:] == ["attn_residual", "mlp_residual"]
    two = graph_of("falcon-40b").block["layer"]
    assert [op.name for op in two.ops if "x" in op.inputs] == ["attn_norm", "mlp_norm", "attn_residual"]


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("gemma-2-9b", ("window_layer", "full_layer") * 2),
        ("gemma-3-12b", (*("window_layer",) * 5, "full_layer", "window_layer")),
        ("gpt-oss-120b", ("window_layer", "full_layer") * 2),
        ("mistral-7b-v0.1", ("layer",) * 3),
        ("deepseek-v3", (*("dense_layer",) * 3, "moe_layer")),
        ("llama-4-scout", (*("chunk_rotary_layer",) * 3, "full_unrotated_layer")),
        ("llama-4-maverick", ("chunk_dense_rotary_layer", "chunk_moe_rotary_layer")),
    ],
)
def test_order_of_kinds_of_layers(name: str, start: tuple[str, ...]) -> None:
    graph = graph_of(name)
    assert graph.sequence[: len(start)] == start
    assert graph.num_layers == load_model(name).config["num_hidden_layers"]


def test_equal_layers_are_one_block() -> None:
    graph = graph_of("llama-3.1-405b")
    assert [b.name for b in graph.blocks] == ["embedding", "layer", "head"]
    assert [(run.block, run.count) for run in graph.layers] == [("layer", 126)]


@pytest.mark.parametrize("name", list_models())
def test_blocks_hand_over_what_the_next_receives(name: str) -> None:
    graph = graph_of(name)
    chain = [graph.first, *graph.sequence, graph.last]
    for before, after in zip(chain, chain[1:], strict=False):
        assert before is not None
        assert after is not None
        left, right = graph.block[before], graph.block[after]
        handed = [left.tensor[t].dims for t in left.outputs]
        assert handed == [right.tensor[t].dims for t in right.inputs]


@pytest.mark.parametrize("name", list_models())
def test_every_tensor_is_used_and_every_weight_has_a_path(name: str) -> None:
    graph = graph_of(name)
    for block in graph.blocks:
        used = {t for op in block.ops for t in (*op.inputs, *op.weights, *op.outputs)}
        auxiliary = {name for op in block.ops for v in op.attributes.values() for name in str(v).split()}
        for tensor in block.tensors:
            assert tensor.name in used | auxiliary | set(block.inputs)
            assert bool(tensor.path) == (tensor.role == "weight")
        numbered = [t.path for t in block.tensors if "{layer}" in t.path]
        assert not numbered or block.name in graph.sequence


@pytest.mark.parametrize("name", list_models())
def test_tied_weights_have_the_same_sizes(name: str) -> None:
    graph = graph_of(name)
    for pair in graph.tied:
        first, second = (graph.block[block].tensor[t] for block, t in (p.split(".", 1) for p in pair))
        assert [graph.dims[d] for d in first.dims] == [graph.dims[d] for d in second.dims]


def test_key_value_heads_follow_heads() -> None:
    graph = graph_of("llama-3-8b")
    assert graph.follows == {"kv_heads": "heads"}
    assert graph.block["layer"].tensor["k"].dims == ("batch", "seq", "kv_heads", "head_dim")
    assert graph.block["layer"].tensor["context"].dims == ("batch", "seq", "heads", "head_dim")


def test_routed_tokens_are_topk_copies() -> None:
    graph = graph_of("deepseek-v3", 4096)
    routed = graph.block["moe_layer"].tensor["routed"]
    assert graph.elements(routed) == pytest.approx(4096 * 8 * 7168)
    assert graph.block["moe_layer"].tensor["router_logits"].dtype == "fp32"


def test_cross_attention_reads_the_encoder() -> None:
    graph = graph_of("whisper-large-v2")
    cross = next(op for op in graph.block["decoder_layer"].ops if op.name == "cross_attention")
    assert cross.attributes["kv_dim"] == "encoder_seq"
    assert cross.attributes["causal"] is False
    assert graph.dims["encoder_seq"] == 1500
    assert graph.sequence == (*("encoder_layer",) * 32, "bridge", *("decoder_layer",) * 32)


WINDOWED = TransformerConfig(
    name="windowed",
    layers=(LayerKind(attention="window"), LayerKind()) * 8,
    hidden=4096,
    heads=32,
    kv_heads=4,
    head_dim=128,
    ffn=14336,
    vocab=128256,
    window=1024,
    sinks="all",
    head_gates=True,
)


@pytest.mark.parametrize("pins", [{}, {"tensor": 4}, {"tensor": 8, "recompute": "full"}])
def test_heads_of_windows_that_are_as_many_cost_the_same(pins: dict[str, Any]) -> None:
    """Under dims of their own as under those of all layers, whether these are split or not."""

    def planned(**own: int) -> Plan:
        graph = transformer_graph(WINDOWED.model_copy(update=own), 4096)
        model = Model(name="windowed", family="graph", graph=graph, parameters=count_parameters(graph))
        return plan(model, "dgx-h100:1", global_batch=64, seq_len=4096, **pins)

    alike, apart = planned(), planned(window_heads=32, window_kv_heads=4)
    assert apart.estimate.step_time_s == alike.estimate.step_time_s
    assert apart.estimate.memory_bytes == alike.estimate.memory_bytes


def test_heads_of_windows_need_their_key_heads() -> None:
    with pytest.raises(ValidationError, match="need the number of their key-value heads"):
        TransformerConfig(**WINDOWED.model_dump() | {"window_heads": 64})

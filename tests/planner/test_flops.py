"""FLOPs against torch's counter, and closed forms."""

import json
from pathlib import Path
from typing import Any

import pytest

from planner.flops import Counting, keys_per_query, matmul_dims
from planner.graph import Block, Graph, Op
from planner.models.catalog import build_graph, load_model, sequence_length, transformer_from_run
from planner.models.model import Model
from planner.operators import (
    backward_flops,
    forward_flops,
    model_flops,
    op_flops,
    recompute_flops,
    recomputed_shares,
)

ROWS = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data" / "flops_truth.jsonl").read_text().splitlines()
]

RENAMED = {"ffn": "ffn_hidden", "top_k": "topk", "expert_ffn": "moe_ffn_hidden"}

LENGTHS = {"gpt2": 1024, "bert": 512, "t5": 512}
"""Tokens of the counted runs of these families; t5-large read and wrote 512."""


def counted(row: dict[str, Any]) -> tuple[Graph, int, str, Counting]:
    """Graph, batch, recomputation, conventions of a row: transformers ran eager attention, others flash."""
    config = dict(row["config"])
    batch = int(config.pop("micro_batch", None) or config.pop("batch"))
    policy = config.pop("ac", "none")
    if "image" in config:
        return build_graph(load_model("resnet-50"), 1), batch, policy, Counting(causal=False)
    if "model_type" in config:
        model = Model(name=row["model"], family=config["model_type"], config=config)
        length = sequence_length(model) or LENGTHS[model.family]
        return build_graph(model, length), batch, policy, Counting(False, "plain")
    fields = {RENAMED.get(key, key): value for key, value in config.items()}
    model = transformer_from_run({**fields, "tied": False})
    return build_graph(model, config["seq"]), batch, policy, Counting(False, "flash")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["model"])
def test_flops_equal_torchs_counter(row: dict[str, Any]) -> None:
    """Exactly: full attention matrices, flash backward as 2.5 forward, no last product with checkpointing."""
    graph, batch, policy, counting = counted(row)

    def again(block: Block) -> dict[str, float]:
        return recomputed_shares(graph, block, policy, counting.attention_kernel)

    backward = backward_flops(graph, batch, counting) + recompute_flops(graph, batch, again, counting)
    assert forward_flops(graph, batch, counting) == row["fwd_flops"]
    assert backward == row["bwd_flops"]


MODERNBERT = {
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 384,
    "vocab_size": 1024,
    "max_position_embeddings": 512,
    "global_attn_every_n_layers": 2,
    "local_attention": 32,
}


@pytest.mark.parametrize(
    ("predicting", "counted_flops"),
    [({}, 4_328_521_728), ({"sparse_prediction": True, "max_predictions_per_seq": 20}, 3_903_848_448)],
)
def test_a_head_of_the_masked_tokens_alone_has_the_flops_that_torch_counts(
    predicting: dict[str, Any], counted_flops: int
) -> None:
    """A step of transformers 5 on 2 x 128 tokens with 20 labels in each, eager attention (``FlopCounterMode``)."""
    model = Model(name="small", family="modernbert", config=MODERNBERT | predicting)
    graph, counting = build_graph(model, 128), Counting(False, "plain")
    assert forward_flops(graph, 2, counting) + backward_flops(graph, 2, counting) == counted_flops


def llama(seq_len: int) -> Graph:
    return build_graph(load_model("llama-3-8b"), seq_len)


def test_model_flops_are_six_n_plus_causal_attention() -> None:
    """PaLM's formula: 6 N per token and 6 L H Q T for causal attention, N without the embedding.

    Source: Chowdhery et al., arXiv:2204.02311, appendix B (12 L H Q T, halved by the causal mask).
    """
    tokens, layers, width = 8192, 32, 4096
    parameters = 8_030_261_248 - 128256 * 4096 - 65 * 4096
    expected = tokens * (6 * parameters + 6 * layers * width * tokens)
    assert model_flops(llama(tokens), 1) == expected
    assert model_flops(llama(tokens), 3) == 3 * expected
    assert model_flops(llama(tokens), 1, causal=False) == expected + tokens * 6 * layers * width * tokens


@pytest.mark.parametrize(("name", "window"), [("mistral-7b-v0.1", 4096), ("gpt-oss-120b", 128)])
def test_window_limits_the_keys(name: str, window: int) -> None:
    length = 16384
    graph = build_graph(load_model(name), length)
    block = next(b for b in graph.blocks if any(op.attributes.get("window") for op in b.ops))
    attention = next(op for op in block.ops if op.kind == "attention")
    exact = sum(min(i + 1, window) for i in range(length)) / length
    assert keys_per_query(attention, graph, Counting()) == pytest.approx(exact, rel=1e-2)


@pytest.mark.parametrize("length", [512, 8192, 65536])
def test_chunks_limit_the_keys(length: int) -> None:
    graph = build_graph(load_model("llama-4-scout"), length)
    attention = next(op for op in graph.block["chunk_rotary_layer"].ops if op.kind == "attention")
    exact = sum(i % 8192 + 1 for i in range(length)) / length
    assert keys_per_query(attention, graph, Counting()) == pytest.approx(exact, rel=1e-2)
    assert keys_per_query(attention, graph, Counting(causal=False)) == length


def test_latent_attention_counts_both_widths() -> None:
    """Scores over nope + rope = 192, values over 128 per head."""
    graph = build_graph(load_model("deepseek-v3"), 4096)
    block = graph.block["moe_layer"]
    attention = next(op for op in block.ops if op.kind == "attention")
    flops = op_flops(attention, block, graph, Counting(causal=False))
    pairs = 4096 * 4096 * 128
    assert flops.forward == 2 * pairs * (192 + 128)
    assert flops.backward == 2 * pairs * (3 * 192 + 2 * 128)
    assert flops.backward_weight == 0


def _expert_product() -> tuple[Graph, Block, Op]:
    graph = build_graph(load_model("mixtral-8x7b"), 1024)
    block = graph.block["layer"]
    return graph, block, next(op for op in block.ops if op.name == "expert_gate_up")


def test_experts_see_topk_copies_of_a_token() -> None:
    graph, block, op = _expert_product()
    assert op_flops(op, block, graph).forward == 2 * 1024 * 2 * (2 * 4096 * 14336)


def test_dims_of_a_grouped_product_have_roles() -> None:
    _, block, op = _expert_product()
    (_, gate), (_, up) = matmul_dims(op, block)
    assert gate == up
    assert gate.grouped == ("experts",)
    assert gate.rows == ("batch", "seq")
    assert gate.columns == ("expert_ffn",)
    assert gate.contracted == ("hidden",)


def test_biases_cost_no_flops() -> None:
    graph = build_graph(load_model("qwen2.5-7b"), 128)
    block = graph.block["layer"]
    qkv = next(op for op in block.ops if op.name == "qkv")
    assert len(qkv.weights) == 6
    assert op_flops(qkv, block, graph).forward == 2 * 128 * 3584 * (28 + 4 + 4) * 128


def test_first_product_on_data_has_no_input_gradient() -> None:
    graph = build_graph(load_model("resnet-50"), 1)
    block = graph.block["embedding"]
    stem = op_flops(block.ops[0], block, graph)
    assert stem.backward_input == 0
    assert stem.backward_weight == stem.forward == 2 * 112 * 112 * 64 * 3 * 49

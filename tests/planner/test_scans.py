"""Models of linear recurrences, against torch's counter, published counts of parameters, and what users may ask."""

import json
from pathlib import Path
from typing import Any

import pytest

import planner
from cost_models.scans import PRODUCTS, ScanShape, held_bytes
from planner import api
from planner.errors import InputError, Unsupported
from planner.exporters.registry import EXPORTERS, export, nearest
from planner.exporters.scans import FAMILIES, MODULES, SPLITTING
from planner.graph import Graph
from planner.models.catalog import build_graph, load_model
from planner.models.families import DECODERS
from planner.models.model import Model
from planner.operators import Counting, forward_flops, model_flops, op_flops, saved_tensors
from planner.validation import validate

ROWS = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data" / "scan_flops.jsonl").read_text().splitlines()
]

COUNTING = Counting(causal=False, attention_kernel="plain")

REFERENCE = {"qwen3_next": {"key_pairs": 2, "value_pairs": 1, "states": 3}}
"""Batched products that transformers' plain version of a recurrence has for a token; it solves by substitution."""

STATE_SPACE = {"key_pairs": 1, "value_pairs": 1, "states": 2}
"""The same of Mamba-2: pairs of each head, masked or not; states are passed on as one more product."""


def graph_of(row: dict[str, Any]) -> Graph:
    return build_graph(Model(name="counted", family=row["model"], config=row["config"]), row["seq"])


def by_kind(graph: Graph, *kinds: str) -> float:
    return sum(
        count * op_flops(op, block, graph, COUNTING).forward
        for block, count in graph.instances()
        for op in block.ops
        if op.kind in kinds
    )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["model"])
def test_products_with_weights_equal_torchs_counter(row: dict[str, Any]) -> None:
    assert by_kind(graph_of(row), "matmul") == row["fwd_by_op"]["aten.mm"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["model"])
def test_products_of_chunks_equal_torchs_counter(row: dict[str, Any]) -> None:
    """Of transformers' plain version, which has other products than the kernels, in the words of their table."""
    graph, seq = graph_of(row), row["seq"]
    dims = graph.dims
    heads = dims["state_groups"] * dims["group_heads"]
    keys, values, chunk = dims["state_keys"], dims["state_values"], dims["chunk"]
    shape = ScanShape(seq, dims["state_groups"], heads, keys, values, chunk)
    layers = sum(count for block, count in graph.instances() if any(op.kind == "scan" for op in block.ops))
    reference = REFERENCE.get(row["model"], STATE_SPACE)
    expected = seq * sum(times * PRODUCTS[name](shape) for name, times in reference.items())
    if row["model"] not in REFERENCE:
        boundaries = seq // chunk + 1
        expected += 2 * boundaries**2 * heads * keys * values
    assert layers * expected + by_kind(graph, "attention") == row["fwd_by_op"]["aten.bmm"]


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row["model"] in ("qwen3_next", "nemotron_h")], ids=lambda row: row["model"]
)
def test_whole_models_are_within_one_per_cent_of_torchs_counter(row: dict[str, Any]) -> None:
    """Though kernels have other products: pairs of a group once, and masked ones not at all."""
    assert forward_flops(graph_of(row), 1, COUNTING) == pytest.approx(row["fwd_flops"], rel=0.01)


LIBRARIES = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data" / "scan_kept.jsonl").read_text().splitlines()
]
"""What autograd functions of fla and mamba_ssm keep and make (benchmarks/tracking_scans.py)."""


def layer_of(row: dict[str, Any]) -> Graph:
    """One layer as wide as a row's, of the family that has such a recurrence."""
    sizes = {
        "vocab_size": 64,
        "hidden_size": 64,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
    }
    if row["rule"] == "ssd":
        mixer = {
            "mamba_num_heads": row["heads"],
            "n_groups": row["groups"],
            "ssm_state_size": row["key_dim"],
            "mamba_head_dim": row["value_dim"],
            "chunk_size": row["chunk"],
            "conv_kernel": 4,
            "layers_block_type": ["linear_attention"],
        }
        return build_graph(Model(name="m", family="nemotron_h", config={**sizes, **mixer}), row["seq"])
    mixer = {
        "linear_num_value_heads": row["heads"],
        "linear_num_key_heads": row["groups"],
        "linear_key_head_dim": row["key_dim"],
        "linear_value_head_dim": row["value_dim"],
        "linear_conv_kernel_dim": 4,
        "layer_types": ["linear_attention"],
        "num_hidden_layers": 1,
        "num_experts": 2,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 8,
        "shared_expert_intermediate_size": 8,
    }
    return build_graph(Model(name="m", family="qwen3_next", config={**sizes, **mixer}), row["seq"])


@pytest.mark.parametrize("row", LIBRARIES, ids=lambda row: f"{row['rule']}-{row['seq']}")
def test_kernels_keep_what_their_libraries_save(row: dict[str, Any]) -> None:
    """To the byte; mamba_ssm's function holds the gate and the statistics of the norm as well."""
    graph = layer_of(row)
    assert graph.dims["chunk"] == row["chunk"]
    block = graph.block[graph.sequence[0]]
    kinds = ("scan", "gated_norm") if row["rule"] == "ssd" else ("scan",)
    names = {name for op in block.ops if op.kind in kinds for name in str(op.attributes["kept"]).split()}
    widths = {"compute": 2, "fp32": 4}
    kept = sum(graph.elements(block.tensor[name]) * widths[block.tensor[name].dtype] for name in names)
    assert row["batch"] * kept == row["kept_bytes"]


@pytest.mark.parametrize("row", LIBRARIES, ids=lambda row: f"{row['rule']}-{row['seq']}")
def test_backwards_hold_what_their_libraries_make(row: dict[str, Any]) -> None:
    """Of mamba_ssm's function with the gradient that the norm hands to the scan."""
    sizes = (row[name] for name in ("groups", "heads", "key_dim", "value_dim", "chunk"))
    tokens = row["batch"] * row["seq"]
    shape = ScanShape(tokens, *sizes, sequences=row["batch"])
    handed = 2 * tokens * row["heads"] * row["value_dim"] if row["rule"] == "ssd" else 0
    held = held_bytes(row["rule"], shape, "bf16") + handed
    assert held == pytest.approx(row["backward_bytes"], rel=0.03 if row["groups"] < row["heads"] else 0.06)


def test_published_counts_of_parameters() -> None:
    """Nemotron 3 Nano 4B as NVIDIA-NeMo/Megatron-Bridge@067f987 counted it, examples/model_verification_cards."""
    assert load_model("nemotron-3-nano-4b").parameters == 3_973_556_832


def test_models_ask_for_the_recurrence_whatever_the_chunk() -> None:
    config = load_model("nemotron-h-8b").config
    found = {
        chunk: model_flops(
            build_graph(Model(name="m", family="nemotron_h", config={**config, "chunk_size": chunk}), 8192), 1
        )
        for chunk in (64, 256)
    }
    assert found[64] == found[256]


@pytest.mark.parametrize(
    ("name", "block", "convolved"),
    [
        ("qwen3-next-80b-a3b", "delta_layer", {"scan_value_convolved"}),
        ("nemotron-h-8b", "ssd_layer", set[str]()),
    ],
)
def test_kernels_keep_little_of_what_convolutions_make(name: str, block: str, convolved: set[str]) -> None:
    """One keeps queries and keys as it normalised them, the other makes all of it again."""
    graph = build_graph(load_model(name), 4096)
    kept = set(saved_tensors(graph.block[block], "none"))
    assert {tensor for tensor in kept if tensor.endswith("_convolved")} == convolved
    assert {"scan_gate", "scanned"} <= kept


def test_sequences_are_not_split() -> None:
    question = {"global_batch": 16, "seq_len": 8192}
    with pytest.raises(
        InputError, match="--context 2 splits sequences, which linear recurrences of nemotron-h-8b"
    ):
        planner.plan("nemotron-h-8b", "dgx-h100:1", **question, context=2)
    answer = planner.plan("nemotron-h-8b", "dgx-h100:1", **question)
    assert answer.plan.context == 1
    assert any("were not measured" in warning for warning in answer.warnings)


RUN = {
    "model": {"name": "nemotron-h-8b", "seq": 8192},
    "hardware": {"gpu": "H100-SXM-80GB", "n_gpus": 8, "gpus_per_node": 8},
    "parallel": {
        "dp": 8,
        "sharding": "FULL_SHARD",
        "micro_batch": 1,
        "global_batch": 16,
        "precision": "bf16",
    },
}


def test_whoever_sees_an_estimate_hears_what_was_not_measured() -> None:
    """Of a run by hand, too, which no search has warned about."""
    judged = api.judged(RUN)
    (said,) = (warning for warning in judged.warnings if "linear recurrences" in warning)
    assert "were not measured" in said
    assert said[1:] in " ".join(planner.explain(judged).split())
    dense = api.judged({**RUN, "model": {"name": "llama-3.1-8b", "seq": 8192}})
    assert not any("linear recurrences" in warning for warning in dense.warnings)


def test_programs_of_xla_do_not_have_the_kernels_that_are_priced() -> None:
    answer = planner.plan("nemotron-h-8b", "tpu-v5p:2x2x2", global_batch=16, seq_len=4096)
    assert any("jax-xla is priced with PyTorch's kernels" in warning for warning in answer.warnings)


def test_tensor_ranks_split_groups_of_heads() -> None:
    with pytest.raises(
        InputError, match="--tensor 16 does not divide state_groups 8 of nemotron-h-8b; legal: 1, 2"
    ):
        planner.plan("nemotron-h-8b", "dgx-h100:2", global_batch=16, seq_len=8192, tensor=16)


def test_targets_know_families_by_the_names_that_plans_have() -> None:
    """Of text towers, not of configurations with several: a plan of Qwen3.5 is of ``qwen3_5_text``."""
    named = frozenset().union(*FAMILIES.values())
    assert named <= set(DECODERS)
    assert "qwen3_5_text" in FAMILIES["megatron-bridge"]


@pytest.mark.parametrize("target", EXPORTERS)
def test_targets_carry_recurrences_or_refuse_in_a_sentence(target: str) -> None:
    answer = planner.plan("nemotron-h-8b", "dgx-h100:1", global_batch=16, seq_len=4096, tensor=2)
    if target in SPLITTING:
        assert "split linear recurrences" not in _refusal(answer, target)
    elif target in MODULES:
        assert "does not split linear recurrences over tensor ranks" in _refusal(answer, target)
    else:
        assert f"target {target} is not known to have the linear recurrences" in _refusal(answer, target)
    assert set(FAMILIES) | set(MODULES) <= set(EXPORTERS)


@pytest.mark.parametrize("target", ["levanter", "nanotron"])
def test_targets_without_recurrences_say_so_before_degrees_are_changed(target: str) -> None:
    """Neither has a pipeline of experts: a plan without would be refused again."""
    answer = planner.plan(
        "qwen3-next-80b-a3b", "dgx-h100:8", global_batch=64, seq_len=4096, pipeline=4, expert=8, zero_stage=1
    )
    with pytest.raises(Unsupported, match=f"target {target} is not known to have the linear recurrences"):
        nearest(answer, target)


def _refusal(answer: planner.Plan, target: str) -> str:
    try:
        export(answer, target)
    except Unsupported as error:
        return str(error)
    return ""


RUNS = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data" / "scan_runs.jsonl").read_text().splitlines()
]
"""Published steps of such models; nothing is fitted to them."""


@pytest.mark.parametrize("row", RUNS, ids=lambda row: row["id"])
def test_published_steps_take_longer_than_rooflines_but_within_the_interval(row: dict[str, Any]) -> None:
    """Dense models of the same series are right within 1 %: what is missing is the kernels'."""
    (found,) = validate([row]).rows
    assert found.step_time_error is not None
    assert -0.12 < found.step_time_error < 0
    assert found.inside_interval

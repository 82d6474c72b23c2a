"""Megatron's own rules, and its layout of stages."""

import json
import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_llama import tiny_model, tiny_plan

from planner.errors import InputError, Unsupported
from planner.evaluation.cuts import sizes_of, with_cuts
from planner.evaluation.megatron_layout import read_layout, read_pattern, write_layout
from planner.exporters.megatron import settings
from planner.exporters.registry import export
from planner.importers.registry import import_text
from planner.importers.settings import Given
from planner.models.catalog import load_model
from planner.models.dropout import shares_of

ZERO_1: dict[str, Any] = {"data": 4, "zero_stage": 1, "shard_degree": 4}

MIXTRAL = {
    "model_type": "mixtral",
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": None,
}

RULES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], str]] = {
    "odd chunks": ({}, {"seq_len": 18}, {"context": 2, "shard_degree": 8}, "18 tokens in the 4 pieces"),
    "whole residuals of experts": (
        MIXTRAL, {}, {"tensor": 2, "sequence_parallel": False}, "experts with tensor parallelism but without",
    ),
    "split experts": (MIXTRAL | {"num_local_experts": 6}, {}, {"expert": 4}, "6 experts over 4 ranks"),
    "no pipeline": ({}, {}, {"virtual_stages": 2}, "virtual stages without a pipeline"),
    "Megatron-FSDP in a pipeline": (
        {}, {}, {"pipeline": 2, "zero_stage": 3, "sharding": "FULL_SHARD"}, "Megatron-FSDP",
    ),
    "Megatron-FSDP with Muon": (
        {}, {"optimizer": "muon"}, {"zero_stage": 3, "sharding": "FULL_SHARD"}, "muon with Megatron-FSDP",
    ),
    "instances with experts": (
        MIXTRAL, {}, {"expert": 2, "shard_degree": 2, "replicate_degree": 2}, "several instances",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", RULES)
@pytest.mark.parametrize("target", ["megatron-lm", "megatron-bridge"])
def test_what_megatron_asserts_is_refused_here(case: str, target: str) -> None:
    model, job, degrees, reason = RULES[case]
    plan = tiny_plan(tiny_model(num_hidden_layers=8, **model), job, **ZERO_1 | degrees)
    with pytest.raises(Unsupported, match=reason):
        export(plan, target)


def flags(text: str) -> list[str]:
    return shlex.split(text.partition("MEGATRON_ARGS=(")[2].rpartition(")")[0])


def test_uneven_stages_become_a_layout_and_even_ones_do_not() -> None:
    model = tiny_model(num_hidden_layers=8)
    even = tiny_plan(model, pipeline=2, virtual_stages=2, schedule="interleaved")
    words = flags(export(even, "megatron-lm")["megatron_args.sh"])
    assert words[words.index("--num-virtual-stages-per-pipeline-rank") + 1] == "2"
    assert "--pipeline-model-parallel-layout" not in words
    uneven = even.model_copy(update={"plan": with_cuts(even.plan, 8, (0, 1, 4, 6, 8))})
    words = flags(export(uneven, "megatron-lm")["megatron_args.sh"])
    assert words[words.index("--pipeline-model-parallel-layout") + 1] == "Et|t*3|t*2|t*2L"
    assert "--num-virtual-stages-per-pipeline-rank" not in words


@pytest.mark.parametrize("cuts", [(0, 13, 26, 39, 52), (0, 10, 26, 41, 52)])
def test_stages_of_unlike_layers_are_a_pattern(cuts: tuple[int, ...]) -> None:
    """NVIDIA's own pattern in pieces: Megatron asserts that such models have no other layout."""
    model = load_model("nemotron-h-8b")
    plan = tiny_plan(model, {"seq_len": 4096}, pipeline=2, virtual_stages=2, schedule="interleaved")
    plan = plan.model_copy(update={"plan": with_cuts(plan.plan, 52, cuts)})
    words = flags(export(plan, "megatron-lm")["megatron_args.sh"])
    pattern = words[words.index("--hybrid-layer-pattern") + 1]
    assert pattern.replace("|", "") == model.config["hybrid_override_pattern"]
    assert read_pattern(f"{pattern}/ME/ME") == cuts
    assert "--pipeline-model-parallel-layout" not in words
    assert "--num-virtual-stages-per-pipeline-rank" not in words
    overrides = json.loads(export(plan, "megatron-bridge")["megatron_bridge.json"])
    assert overrides["model"]["hybrid_layer_pattern"] == pattern


def test_arguments_and_overrides_say_the_same() -> None:
    plan = tiny_plan(tiny_model(num_hidden_layers=8), {"precision": "bf16"}, **ZERO_1, pipeline=2, tensor=2)
    words = flags(export(plan, "megatron-lm")["megatron_args.sh"])
    overrides = json.loads(export(plan, "megatron-bridge")["megatron_bridge.json"])
    for section in settings(plan):
        for field, value in overrides[section].items():
            flag = "--" + field.replace("_", "-")
            if value is True and field != "grad_reduce_in_fp32":
                assert flag in words
            elif not isinstance(value, bool):
                assert words[words.index(flag) + 1] == str(value)


@pytest.mark.parametrize(("model", "grouped"), [("mixtral-8x7b", True), ("llama-3.1-8b", False)])
def test_experts_are_one_product_as_they_are_priced(model: str, grouped: bool) -> None:
    plan = tiny_plan(load_model(model), {"seq_len": 4096}, data=2)
    text = export(plan, "megatron-lm")["megatron_args.sh"]
    assert ("--moe-grouped-gemm" in flags(text)) is grouped
    overrides = json.loads(export(plan, "megatron-bridge")["megatron_bridge.json"])["model"]
    assert overrides.get("moe_grouped_gemm", False) is grouped
    asked = Given(global_batch=plan.job.global_batch, seq_len=plan.job.seq_len)
    assert import_text(text, "args.sh", plan.model, plan.cluster, asked).unknown == ()


@pytest.mark.parametrize(
    ("precision", "fused"), [("bf16", True), ("fp8", True), ("fp16", False), ("fp32", False)]
)
def test_a_loss_is_fused_where_its_gradients_may_be_in_bf16(precision: str, fused: bool) -> None:
    text = export(tiny_plan(data=2, job={"precision": precision}), "megatron-lm")["megatron_args.sh"]
    assert ("--cross-entropy-loss-fusion" in text) is fused


def test_exported_arguments_are_read_as_the_stack_that_was_priced() -> None:
    plan = tiny_plan(data=2, zero_stage=1, shard_degree=2, job={"precision": "bf16"})
    text = export(plan, "megatron-lm")["megatron_args.sh"]
    asked = Given(global_batch=plan.job.global_batch, seq_len=plan.job.seq_len)
    assert import_text(text, "args.sh", plan.model, plan.cluster, asked).plan.job.stack == "megatron"


def test_the_exchange_of_keys_and_values_is_said_where_the_job_chooses_one() -> None:
    chosen = export(tiny_plan(data=2, context=2, job={"context_exchange": "all_to_all"}), "megatron-lm")
    assert "--cp-comm-type a2a" in chosen["megatron_args.sh"]
    assert "--cp-comm-type" not in export(tiny_plan(data=2, context=2), "megatron-lm")["megatron_args.sh"]


def test_a_model_is_described_where_megatron_has_all_of_it() -> None:
    plan = tiny_plan(load_model("llama-3.1-8b"), {"seq_len": 4096})
    text = export(plan, "megatron-lm")["megatron_args.sh"]
    assert "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336" in text
    assert "--group-query-attention --num-query-groups 8" in text
    assert "--attention-dropout 0.0 --hidden-dropout 0.0" in text  # Megatron's own are 0.1 each
    other = tiny_plan(load_model("gemma-2-9b"), {"seq_len": 4096})
    text = export(other, "megatron-lm")["megatron_args.sh"]
    assert "--num-layers" not in text
    assert "The arguments that describe gemma-2-9b are your script's" in text


@pytest.mark.parametrize(
    ("dropout", "share", "said"),
    [
        (" --hidden-dropout 0.0", 0.0, []),
        (" --hidden-dropout 0.3", 0.3, []),
        ("", 0.1, ["hidden-dropout=0.1 (Megatron's own; give --hidden-dropout 0 where nothing is dropped)"]),
    ],
)
def test_what_megatron_drops_is_read(dropout: str, share: float, said: list[str]) -> None:
    plan = tiny_plan(load_model("llama-3.1-8b"), {"seq_len": 4096})
    text = export(plan, "megatron-lm")["megatron_args.sh"].replace(" --hidden-dropout 0.0", dropout)
    asked = Given(global_batch=plan.job.global_batch, seq_len=plan.job.seq_len)
    found = import_text(text, "args.sh", plan.model, plan.cluster, asked)
    assert shares_of(found.plan.model) == (share, 0.0)
    assert (found.plan.model == plan.model) is (share == 0)
    assert [note for note in found.assumed if note.startswith("hidden-dropout")] == said
    again = export(found.plan, "megatron-lm")["megatron_args.sh"]
    assert f"--attention-dropout 0.0 --hidden-dropout {share}" in again


LAYOUTS = {
    "Et*3|(tt|)*2t*3L": (3, 2, 2, 3),
    "Ettt|t|ttL": (3, 1, 2),
    "Et*3,|,(tt|)*29,mL": (3, *[2] * 29, 0),
    "E|(t|t*2|)*2|L": (0, 1, 2, 1, 2, 0, 0),
}
"""Layout -> layers by stage; the grammar is that of its module's docstring."""


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_are_read(layout: str) -> None:
    assert sizes_of(read_layout(layout)) == LAYOUTS[layout]


@given(st.lists(st.integers(1, 40), min_size=2, max_size=40), st.integers(0, 3))
def test_layouts_read_back(sizes: list[int], predictions: int) -> None:
    cuts = tuple(sum(sizes[:s]) for s in range(len(sizes) + 1))
    text = write_layout(cuts, predictions)
    assert read_layout(text) == cuts
    assert text.count("(") <= len(sizes) / 2


@pytest.mark.parametrize("layout", ["t|tL", "Et|t", "Et|xL", "Et|(tL", "", "E(t*99999|)*99999L"])
def test_broken_layouts_are_refused(layout: str) -> None:
    with pytest.raises(InputError, match="pipeline layout"):
        read_layout(layout)

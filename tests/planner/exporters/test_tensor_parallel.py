"""Plans become torch's styles where torch has them, and are refused, with the operator, where it has not."""

from typing import Any

import pytest
from tiny_llama import stage, tiny_model, tiny_plan

from planner.errors import Unsupported
from planner.exporters.fsdp import to_fsdp2
from planner.exporters.placements import Layout, layout_of
from planner.exporters.tensor_parallel import embedding_styles, module_styles
from planner.plans import Parallelism


def layout(changes: dict[str, dict[str, str]], **model: Any) -> Layout:
    """The tiny Llama over two tensor ranks; ``changes`` replace strategies of its layer's operators."""
    plan = tiny_plan(tiny_model(**model), tensor=2)
    strategies = {op: dict(s) for op, s in layout_of(plan, "test").strategies["layer"].items()}
    chosen = (stage(Parallelism(tensor=2), {"layer": strategies | changes}),)
    return layout_of(tiny_plan(tiny_model(**model), tensor=2, stages=chosen), "test")


def styles(changes: dict[str, dict[str, str]], **model: Any) -> dict[str, str]:
    found = layout(changes, **model)
    return module_styles(found, found.graph.block["layer"])


def test_megatrons_layer_in_torchs_words() -> None:
    """The pairs of column and row, gathered and scattered along the sequence, of arXiv:2205.05198."""
    assert styles({}) == {
        "input_layernorm": "SequenceParallel(sequence_dim=1, use_local_output=True)",
        "self_attn": "GatherSequence()",
        "self_attn.q_proj": "ColwiseParallel()",
        "self_attn.k_proj": "ColwiseParallel()",
        "self_attn.v_proj": "ColwiseParallel()",
        "self_attn.o_proj": "RowwiseParallel(output_layouts=Shard(1))",
        "post_attention_layernorm": "SequenceParallel(sequence_dim=1, use_local_output=True)",
        "mlp": "GatherSequence()",
        "mlp.gate_proj": "ColwiseParallel()",
        "mlp.up_proj": "ColwiseParallel()",
        "mlp.down_proj": "RowwiseParallel(output_layouts=Shard(1))",
    }


def test_whole_residuals_need_no_gathering() -> None:
    whole = {op: {} for op in ("attn_norm", "attn_residual", "mlp_norm", "mlp_residual")}
    found = styles(whole)
    assert found["self_attn.o_proj"] == "RowwiseParallel(output_layouts=Replicate())"
    assert not {"self_attn", "mlp", "input_layernorm"} & found.keys()


def test_tables_are_split_by_rows_or_columns_and_their_results_whole() -> None:
    rows = layout({})
    assert embedding_styles(rows, rows.graph.block["embedding"]) == {
        "model.embed_tokens": "RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate())"
    }
    sharding = {"embedding": {"embedding": {"tensor": "hidden"}}}
    columns = layout_of(tiny_plan(tensor=2, stages=(stage(Parallelism(tensor=2), sharding),)), "test")
    assert embedding_styles(columns, columns.graph.block["embedding"]) == {
        "model.embed_tokens": "ColwiseParallel(output_layouts=Replicate())"
    }


REFUSALS: dict[str, tuple[dict[str, dict[str, str]], str]] = {
    "sequence-split product": (
        {"qkv": {"tensor": "seq"}},
        r"reads q split along heads, which was left split along seq",
    ),
    "resharding inside": ({"activation": {}}, r"activation reads gate whole, which was left split along ffn"),
    "sum over hidden": ({"gate_up": {"tensor": "hidden"}}, r"reads mlp_normed split along hidden"),
    "residual changes": ({"mlp_residual": {}}, r"reads attn_residual whole, which was left split along seq"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_torch_has_no_style_for_is_refused(case: str) -> None:
    changes, message = REFUSALS[case]
    with pytest.raises(Unsupported, match=message):
        styles(changes)


def test_fused_projections_are_refused() -> None:
    with pytest.raises(Unsupported, match=r"qkv_proj\.weight, in which several projections are fused"):
        styles({}, model_type="phi3")


def test_layers_and_head_must_agree_on_the_residual() -> None:
    head = {"head": {"final_norm": {}, "lm_head": {"tensor": "vocab"}, "loss": {"tensor": "vocab"}}}
    with pytest.raises(Unsupported, match="one layout of hidden states between layers"):
        to_fsdp2(tiny_plan(tensor=2, stages=(stage(Parallelism(tensor=2), head),)))


def test_a_whole_product_of_a_part_of_the_sequence_is_refused() -> None:
    head = {"head": {"final_norm": {"tensor": "seq"}, "lm_head": {}, "loss": {}}}
    with pytest.raises(
        Unsupported, match="lm_head is whole on every rank, but its input is split along the seq"
    ):
        to_fsdp2(tiny_plan(tensor=2, stages=(stage(Parallelism(tensor=2), head),)))

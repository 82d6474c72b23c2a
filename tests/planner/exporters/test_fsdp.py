"""The exported FSDP2 script trains in PyTorch, on several processes, with the numbers of one."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from tiny_llama import TORCH, installed, run_check, stage, tiny_model, tiny_plan

from planner.errors import Unsupported
from planner.evaluation.cuts import with_cuts
from planner.exporters.fsdp import to_fsdp2
from planner.exporters.placements import layout_of
from planner.models.catalog import load_model
from planner.models.model import Model
from planner.plans import Parallelism, Plan

Q, O_PROJ = "model.layers.0.self_attn.q_proj.weight", "model.layers.1.self_attn.o_proj.weight"
NORM, EMBEDDING, HEAD = "model.layers.0.input_layernorm.weight", "model.embed_tokens.weight", "lm_head.weight"

GPT2_UNTIED = {**load_model("gpt2").config, "tie_word_embeddings": False}

HYBRID: dict[str, Any] = {
    "data": 4,
    "tensor": 2,
    "zero_stage": 3,
    "sharding": "HYBRID_SHARD",
    "shard_degree": 2,
    "replicate_degree": 2,
    "micro_batch": 2,
}


def qk_norm_plan(model: Model, **degrees: Any) -> Plan:
    """Norms of queries and keys split by heads, as the projections leave them."""
    strategies = layout_of(tiny_plan(model, **degrees), "fsdp2").strategies["layer"]
    sharding = {op: dict(strategy) for op, strategy in strategies.items()}
    sharding["q_norm"] = sharding["k_norm"] = {"data": "batch", "tensor": "heads"}
    return tiny_plan(model, stages=(stage(Parallelism(**degrees), {"layer": sharding}),), **degrees)


ONE_BY_ONE = {"grouped": False}
"""Updates where torch takes seconds to find the layout of grouped ones: over replicas and tensor ranks."""

CASES: dict[str, tuple[Plan, dict[str, Any], dict[str, list[int]]]] = {
    "hybrid sharding, tensor, sequence, selective": (
        tiny_plan(recompute="selective", **HYBRID),
        ONE_BY_ONE,
        {Q: [16, 64], O_PROJ: [32, 32], NORM: [32], EMBEDDING: [32, 64], HEAD: [32, 64]},
    ),
    "fully sharded, full recompute": (
        tiny_plan(
            data=4, micro_batch=2, zero_stage=3, sharding="FULL_SHARD", shard_degree=4, recompute="full"
        ),
        {},
        {Q: [16, 64], O_PROJ: [16, 64], NORM: [16], EMBEDDING: [32, 64]},
    ),
    "replicas, tensor without sequence": (
        tiny_plan(data=2, tensor=2, micro_batch=4, replicate_degree=2, sequence_parallel=False),
        ONE_BY_ONE,
        {Q: [32, 64], O_PROJ: [64, 32], NORM: [64], EMBEDDING: [64, 64]},
    ),
    "ZeRO 2, tied embeddings, norms of heads": (
        qk_norm_plan(
            tiny_model(model_type="qwen3", tie_word_embeddings=True),
            data=2, tensor=2, micro_batch=4, zero_stage=2, sharding="SHARD_GRAD_OP", shard_degree=2,
        ),
        {"tied": True, "qk_norm": True},
        {Q: [16, 64], "model.layers.0.self_attn.k_norm.weight": [4], EMBEDDING: [32, 64]},
    ),
    "biases, uneven vocabulary": (
        tiny_plan(tiny_model(model_type="qwen2", vocab_size=127), tensor=4, micro_batch=8),
        {"bias": True, "vocab": 127},
        {Q: [16, 64], "model.layers.0.self_attn.q_proj.bias": [16], EMBEDDING: [32, 64]},
    ),
}  # fmt: skip

needs_torch = [pytest.mark.torch, pytest.mark.skipif(not installed("torch"), reason="torch is not installed")]


def run(plan: Plan, settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    exported = folder / "fsdp2_plan.py"
    exported.write_text(to_fsdp2(plan)["fsdp2_plan.py"])
    return json.loads(
        run_check("check_torch.py", exported, json.dumps(settings), modules=TORCH).splitlines()[-1]
    )


@pytest.mark.parametrize("case", [pytest.param(case, marks=needs_torch) for case in CASES])
def test_exported_steps_equal_one_process(case: str, tmp_path: Path) -> None:
    plan, settings, local = CASES[case]
    found = run(plan, settings, tmp_path)
    assert found["loss_error"] < 1e-5
    assert found["norm_error"] < 1e-5
    assert found["param_error"] < 1e-4 * found["moved"]
    assert {name: found["local"][name] for name in local} == local


@pytest.mark.parametrize("_", [pytest.param(None, marks=needs_torch)])
def test_mixed_precision_follows_the_fp32_loss(_: None, tmp_path: Path) -> None:
    found = run(tiny_plan(job={"precision": "bf16"}, **HYBRID), ONE_BY_ONE, tmp_path)
    assert 1e-6 < found["loss_error"] < 0.01
    assert found["param_error"] < 0.1 * found["moved"]


def constants(text: str) -> dict[str, str]:
    """Constants of a script, as written."""
    return {
        node.targets[0].id: ast.unparse(node.value)
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }


PRECISIONS: dict[str, tuple[dict[str, Any], tuple[str, str, str]]] = {
    "fp32": ({"precision": "fp32"}, ("torch.float32", "None", "None")),
    "bf16": ({"precision": "bf16"}, ("torch.float32", "torch.bfloat16", "torch.bfloat16")),
    "fp16": ({"precision": "fp16"}, ("torch.float32", "torch.float16", "torch.float16")),
    "bf16, fp32 reduction": (
        {"precision": "bf16", "reduce_dtype": "fp32"},
        ("torch.float32", "torch.bfloat16", "torch.float32"),
    ),
    "bf16 throughout": (
        {"precision": "bf16", "grad_dtype": "bf16", "master_weights": False},
        ("torch.bfloat16", "None", "torch.bfloat16"),
    ),
}


@pytest.mark.parametrize("case", PRECISIONS)
def test_types_of_parameters_computation_and_reduction(case: str) -> None:
    job, expected = PRECISIONS[case]
    found = constants(to_fsdp2(tiny_plan(job=job, **HYBRID))["fsdp2_plan.py"])
    assert tuple(found[name] for name in ("MODEL_DTYPE", "PARAM_DTYPE", "REDUCE_DTYPE")) == expected


def test_offload_and_resharding_are_constants() -> None:
    sharded = {"data": 4, "shard_degree": 4, "zero_stage": 2}
    found = constants(to_fsdp2(tiny_plan(offload=("optimizer", "weights"), **sharded))["fsdp2_plan.py"])
    assert (found["CPU_OFFLOAD"], found["RESHARD_AFTER_FORWARD"], found["MESH_SHAPE"]) == (
        "True",
        "False",
        "(1, 1, 4, 1)",
    )


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "schedule": ({"pipeline": 2, "schedule": "v-half"}, "no schedule v-half, only gpipe, 1f1b, .*zb-v"),
    "split backward": (
        {
            "pipeline": 2,
            "virtual_stages": 2,
            "schedule": "zb-v",
            "data": 2,
            "zero_stage": 3,
            "shard_degree": 2,
        },
        "between the two backward passes of schedule zb-v .* --zero 2",
    ),
    "context": (
        {"context": 2},
        "shards states over context ranks; plan again with --zero 3, or with --context 1",
    ),
    "pieces": (
        {"context": 16, "zero_stage": 3, "shard_degree": 16},
        "in 32 pieces, which do not divide 16",
    ),
    "half of the context": (
        {"context": 4, "zero_stage": 3, "shard_degree": 2, "replicate_degree": 2},
        "2 ranks cut groups of 4",
    ),
    "expert": ({"data": 2, "expert": 2}, "shards states beside expert parallelism; plan again with --zero 3"),
    "expert beside tensor": (
        {"data": 2, "expert": 2, "tensor": 2, "zero_stage": 3, "shard_degree": 2},
        "plan again with --tensor 1, or export to jax",
    ),
    "zero 1": ({"data": 2, "zero_stage": 1}, "plan again with --zero 2 or 3"),
    "attention": (
        {"recompute": "attention"},
        "recomputes none, selective, products, alternate, full, not 'attention'",
    ),
    "weights": ({"offload": ("weights",)}, "weights and optimizer together, not weights alone"),
    "activations": ({"offload": ("activations",)}, "does not offload activations"),
    "uneven heads": ({"tensor": 8}, r"operator qkv splits kv_heads = 4 unevenly over 8 ranks"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals_name_the_reason(case: str) -> None:
    changes, message = REFUSALS[case]
    with pytest.raises(Unsupported, match=message):
        to_fsdp2(tiny_plan(**changes))


def test_stages_and_their_ranks_are_constants() -> None:
    plan = tiny_plan(
        tiny_model(num_hidden_layers=8),
        pipeline=2,
        virtual_stages=2,
        schedule="interleaved",
        tensor=2,
        micro_batch=4,
    )
    uneven = plan.model_copy(update={"plan": with_cuts(plan.plan, 8, (0, 1, 4, 7, 8))})
    found = constants(to_fsdp2(uneven)["fsdp2_plan.py"])
    assert found["STAGES"] == "((0, 1), (1, 4), (4, 7), (7, 8))"
    assert found["RANKS"] == "((0, 2), (1, 3))"
    assert found["SCHEDULE"] == "'Interleaved1F1B'"
    assert (found["EMBEDDINGS"], found["HEAD"]) == ("('model.embed_tokens',)", "('model.norm', 'lm_head')")
    assert found["MESH_SHAPE"] == "(2, 1, 1, 2)"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (tiny_model(tie_word_embeddings=True), "cannot tie parameters of the first and the last stage"),
        (load_model("gpt2"), "cannot tie parameters"),
        (load_model("gpt2").model_copy(update={"config": GPT2_UNTIED}), "only hidden states pass"),
    ],
)
def test_pipelines_that_share_more_than_hidden_states_are_refused(model: Model, message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        to_fsdp2(tiny_plan(model, pipeline=2))


def test_sequences_of_windowed_attention_are_not_split() -> None:
    plan = tiny_plan(load_model("gemma-2-9b"), context=2, zero_stage=3, shard_degree=2)
    with pytest.raises(Unsupported, match="plain causal attention only, not .*attention; .* --context 1"):
        to_fsdp2(plan)


def test_axes_of_context_and_experts_are_in_the_mesh_where_they_split() -> None:
    plan = tiny_plan(load_model("mixtral-8x7b"), data=4, expert=2, context=2, zero_stage=3, shard_degree=8)
    found = constants(to_fsdp2(plan)["fsdp2_plan.py"])
    assert found["MESH_NAMES"] == "('pp', 'dp_replicate', 'dp_shard', 'ep', 'cp', 'tp')"
    assert (found["MESH_SHAPE"], found["SHARED"]) == ("(1, 1, 2, 2, 2, 1)", "('dp_shard', 'ep', 'cp')")
    assert found["EXPERTS"] == "{'layer': ('mlp.experts',)}"
    plain = constants(to_fsdp2(tiny_plan(data=2, zero_stage=3, shard_degree=2))["fsdp2_plan.py"])
    assert (plain["SHARED"], plain["EXPERTS"]) == ("('dp_shard',)", "{}")


@pytest.mark.parametrize("precision", ["fp8", "fp4"])
def test_precisions_of_products_alone_are_refused(precision: str) -> None:
    with pytest.raises(Unsupported, match=f"no word for {precision}"):
        to_fsdp2(tiny_plan(job={"precision": precision}))

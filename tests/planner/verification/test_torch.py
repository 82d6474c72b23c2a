"""`verify --with torch`: steps on processes, memory under fake tensors, and a wrong export."""

from typing import Any

import pytest
from tiny_llama import installed, tiny_model, tiny_plan

from planner.errors import Unsupported
from planner.evaluation import evaluate
from planner.exporters.reductions import priced_type
from planner.models.catalog import load_model
from planner.plans import Plan
from planner.verification import with_torch
from planner.verification.miniature import scaled_config
from planner.verification.tools import verify

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not installed("transformers"), reason="torch and transformers are not installed"),
]

SHARDED: dict[str, Any] = {"data": 2, "zero_stage": 3, "sharding": "FULL_SHARD", "shard_degree": 2}


def of_llama(**degrees: Any) -> Plan:
    return tiny_plan(load_model("llama-3.1-8b"), **degrees)


@pytest.mark.usefixtures("warm")
def test_pipeline_with_tensor_and_sharding_trains_as_one_process_does() -> None:
    model = tiny_model(num_hidden_layers=4).model_copy(update={"architecture": "decoder"})
    choice = {"virtual_stages": 2, "schedule": "interleaved", "recompute": "selective"}
    plan = tiny_plan(model, {"precision": "bf16"}, **SHARDED, tensor=2, pipeline=2, **choice)
    answer = verify(plan, "torch")
    assert answer.passed, answer.failures()
    assert "8 gloo processes (data 2, tensor 2, pipeline 2)" in answer.what
    assert answer.checks[1].expected < answer.checks[0].expected
    parts = ("live memory", "parameters and moments")
    assert [c.name for c in answer.comparisons] == [
        f"{p} of pipeline rank {r}" for r in range(2) for p in parts
    ]
    for states in answer.comparisons[1::2]:
        assert states.error == pytest.approx(0, abs=0.02)  # norms are whole on both tensor ranks
    assert (
        answer.comparisons[0].found > answer.comparisons[2].found
    )  # more micro-batches wait on the first rank


FULL = {"zero_stage": 3, "sharding": "FULL_SHARD"}

SPLIT: dict[str, tuple[str, dict[str, Any]]] = {
    "experts, hybrid": (
        "qwen3-30b-a3b",
        {"data": 8, "expert": 2, "shard_degree": 4, "replicate_degree": 2, "zero_stage": 2,
         "sharding": "HYBRID_SHARD", "recompute": "full"},
    ),
    "experts and context, latent attention": (
        "deepseek-v2-lite", FULL | {"data": 4, "expert": 2, "context": 2, "shard_degree": 8},
    ),
    "experts in a pipeline": ("gpt-oss-120b", FULL | {"data": 2, "expert": 2, "shard_degree": 2, "pipeline": 2}),
    "gated delta rule and experts": (
        "qwen3-next-80b-a3b", FULL | {"data": 4, "expert": 2, "shard_degree": 4},
    ),
    "state-space layers in a pipeline": (
        "nemotron-h-8b", FULL | {"data": 2, "shard_degree": 2, "pipeline": 2},
    ),
    "split backward, ZeRO 2": (
        "llama-3.1-8b",
        {"data": 2, "pipeline": 2, "virtual_stages": 2, "schedule": "zb-v", "zero_stage": 2, "shard_degree": 2},
    ),
    "context and tensor, selective": (
        "qwen3-8b", FULL | {"data": 2, "context": 2, "tensor": 2, "shard_degree": 4, "recompute": "selective"},
    ),
    "context and tensor in a pipeline": (
        "llama-3.1-8b", FULL | {"context": 2, "tensor": 2, "shard_degree": 2, "pipeline": 2},
    ),
}  # fmt: skip


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("case", SPLIT)
def test_context_and_experts_train_as_one_process_does(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        with_torch, "_memory", lambda plan, python: ((), ())
    )  # of the full model, tested below
    name, degrees = SPLIT[case]
    answer = verify(tiny_plan(load_model(name), {"seq_len": 512}, **degrees), "torch")
    assert answer.passed, answer.failures()
    for axis in ("context", "expert"):
        assert (f"{axis} 2" in answer.what) == (degrees.get(axis, 1) == 2)
    assert answer.checks[1].expected < answer.checks[0].expected


def test_a_small_model_keeps_names_and_has_no_token_beyond_its_vocabulary(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The name of a function may have as many letters as a model has layers; GLM-4 pads with token 151329."""
    monkeypatch.setattr(with_torch, "_memory", lambda plan, python: ((), ()))
    model = tiny_model(model_type="glm4", num_hidden_layers=4, hidden_act="silu")
    model = model.model_copy(update={"architecture": "decoder"})
    answer = verify(tiny_plan(model, **SHARDED), "torch")
    assert answer.passed, answer.failures()


def test_layers_that_a_pattern_names_are_cut_with_it() -> None:
    model = load_model("nemotron-h-8b")
    config = scaled_config(tiny_plan(model), 2).config
    pattern = "hybrid_override_pattern"
    assert config[pattern] == model.config[pattern][:2]


@pytest.mark.usefixtures("warm")
def test_memory_of_a_small_model_stands_beside_the_predicted() -> None:
    model = tiny_model(hidden_size=256, intermediate_size=688, head_dim=32, vocab_size=1024)
    model = model.model_copy(update={"architecture": "decoder"})
    answer = verify(
        tiny_plan(model, {"seq_len": 128, "precision": "bf16"}, **SHARDED | {"data": 8, "shard_degree": 8}),
        "torch",
    )
    assert answer.passed, answer.failures()
    whole, states = answer.comparisons
    assert whole.error == pytest.approx(0, abs=0.03)
    assert any("stack transformers-fsdp2); the plan is for torch-fsdp2" in note for note in answer.notes)
    assert states.error == pytest.approx(
        0, abs=0.01
    )  # parameters and both moments: 12 bytes each, over 8 ranks
    assert states.found == pytest.approx(12 * 1.91e6 / 8, rel=0.05)
    assert whole.found > states.found


@pytest.mark.usefixtures("warm")
def test_memory_is_tracked_of_models_that_hold_constants() -> None:
    """Gemma scales its embeddings by a number, which the mode of fake tensors could not copy."""
    shipped = load_model("gemma-2-9b")
    small = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "vocab_size": 128}
    model = shipped.model_copy(update={"config": {**shipped.config, **small}})
    plan = tiny_plan(model, {"seq_len": 64}, **SHARDED)
    (whole, states), notes = with_torch._memory(plan, None)
    assert "transformers writes out all scores for gemma2: both numbers do, the plan does not" in notes
    assert states.error == pytest.approx(0, abs=0.01)
    assert whole.found > states.found


def test_both_numbers_are_of_the_program_that_runs() -> None:
    plan = of_llama(job={"precision": "bf16"}, **SHARDED)
    tracked = with_torch.as_tracked(plan, "eager")
    assert (tracked.job.stack, tracked.job.attention_kernel) == (with_torch.MODULES, "plain")
    assert tracked.job.reduce_dtype == priced_type(plan) != plan.job.grad_dtype
    assert tracked.plan == plan.plan
    assert evaluate(tracked).tensor_bytes > evaluate(plan).tensor_bytes
    assert len(list(with_torch._of_memory(tracked, tracked))) == 1


@pytest.mark.usefixtures("warm")
def test_a_wrong_export_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    right = with_torch.to_fsdp2

    def wrong(plan: Plan) -> dict[str, str]:
        text = right(plan)["fsdp2_plan.py"]
        spoiled = text.replace("NUM_MICROBATCHES = 2", "NUM_MICROBATCHES = 1")
        spoiled = spoiled.replace("mesh[names[0]]", 'mesh["dp_replicate"]')
        assert spoiled != text
        return {"fsdp2_plan.py": spoiled}

    monkeypatch.setattr(with_torch, "to_fsdp2", wrong)
    monkeypatch.setattr(with_torch, "_memory", lambda plan, python: ((), ()))
    answer = verify(of_llama(**SHARDED), "torch")
    assert not answer.passed


def test_what_is_no_decoder_is_refused() -> None:
    with pytest.raises(Unsupported, match="causal language models"):
        verify(tiny_plan(load_model("bert-base")), "torch")


@pytest.mark.usefixtures("warm")
def test_memory_is_of_models_that_drop_nothing() -> None:
    """GPT-2's configuration drops a tenth: its scores would be written out for that, and every mask be kept."""
    shipped = load_model("gpt2-medium")
    model = shipped.model_copy(update={"config": {**shipped.config, "n_layer": 4}})
    plan = tiny_plan(model, {"seq_len": 512, "precision": "bf16"}, **SHARDED)
    (whole, _), _ = with_torch._memory(plan, None)
    assert whole.error == pytest.approx(0, abs=0.03)

"""Pins are kept, and pins that contradict something are refused with both names."""

import re
from typing import Any

import pytest
from small_cases import CASES, Case, cluster_with, small_llama, small_mixture

from planner.errors import Indivisible, InputError
from planner.models.model import Model
from planner.plans import Job, Pins
from planner.search import plan

KEPT: list[dict[str, Any]] = [
    {"tensor": 2},
    {"data": 2},
    {"tensor": 4, "data": 2},
    {"pipeline": 4},
    {"pipeline": 2, "virtual_stages": 2, "schedule": "interleaved"},
    {"pipeline": 2, "schedule": "zb-h1"},
    {"pipeline": 1},
    {"micro_batch": 2},
    {"zero_stage": 1},
    {"zero_stage": 3, "recompute": "full"},
    {"sharding": "HYBRID_SHARD"},
    {"recompute": "selective"},
    {"context": 2},
]


@pytest.mark.parametrize("pins", KEPT, ids=str)
def test_pins_are_kept(pins: dict[str, Any]) -> None:
    case = CASES["slow network"]
    answer = plan(case.model, case.cluster, Job(global_batch=16, seq_len=4096), Pins(**pins))
    assert {name: getattr(answer.plan, name) for name in pins} == pins
    for other in answer.alternatives:
        assert {name: getattr(other.plan, name) for name in pins} == pins


def test_an_expert_pin_is_kept() -> None:
    case = CASES["experts"]
    answer = plan(case.model, case.cluster, case.job, Pins(expert=2))
    assert answer.plan.expert == 2


REFUSED: list[tuple[Model, dict[str, Any], str, str]] = [
    (small_llama(), {"tensor": 3}, "tensor 3", "8 devices"),
    (small_llama(), {"tensor": 4, "pipeline": 4}, "--tensor 4 x --pipeline 4", "8 devices"),
    (small_llama(num_attention_heads=12), {"tensor": 8}, "--tensor 8", "heads 12"),
    (small_llama(num_hidden_layers=2), {"pipeline": 4}, "--pipeline 4", "2 layers"),
    (small_llama(), {"pipeline": 4, "virtual_stages": 4}, "--pipeline 4 x 4", "8 layers"),
    (small_llama(), {"pipeline": 1, "virtual_stages": 2}, "--virtual-stages 2", "pipeline of 1"),
    (small_llama(), {"expert": 2}, "--expert 2", "no experts"),
    (small_mixture(), {"expert": 8}, "--expert 8", "4 experts"),
    (small_mixture(), {"expert": 4, "data": 2}, "--expert 4", "--data 2"),
    (small_mixture(), {"expert": 4, "data": 1, "context": 2}, "--expert 4", "--data 1 x --context 2"),
    (small_llama(), {"data": 8}, "batch 12", "--data 8"),
    (small_llama(), {"data": 4, "micro_batch": 2}, "--micro-batch 2", "3 sequences"),
    (small_llama(), {"micro_batch": 5}, "--micro-batch 5", "batch of 12"),
    (small_llama(), {"zero_stage": 1, "sharding": "FULL_SHARD"}, "--zero 1", "--sharding FULL_SHARD"),
    (small_llama(), {"schedule": "zb-v", "virtual_stages": 3}, "--virtual-stages 3", "--schedule zb-v"),
    (small_llama(), {"schedule": "1f2b"}, "--schedule '1f2b'", "1f1b"),
    (small_llama(), {"recompute": "some"}, "--recompute 'some'", "selective"),
]


@pytest.mark.parametrize(("model", "pins", "one", "other"), REFUSED, ids=[str(row[1]) for row in REFUSED])
def test_contradictions_are_refused_by_name(model: Model, pins: dict[str, Any], one: str, other: str) -> None:
    case = Case(model, cluster_with("a100-4x-50g:2"), Job(global_batch=12, seq_len=1024), Pins(**pins))
    with pytest.raises(InputError, match=re.escape(one)) as refusal:
        plan(case.model, case.cluster, case.job, case.pins)
    assert other in str(refusal.value)


@pytest.mark.parametrize(
    ("pins", "reason"),
    [
        ({"pipeline": 2}, "stages of a pipeline"),
        ({"unequal_stages": True}, "stages of a pipeline"),
        ({"recompute": "full,none"}, "stages of a pipeline"),
        ({"offload": ("optimizer",)}, "leave out --offload optimizer"),
        ({"expert": 2}, "leave out --expert 2"),
    ],
)
def test_gradients_that_have_to_wait_are_refused_where_each_weight_is_stepped_by_itself(
    pins: dict[str, Any], reason: str
) -> None:
    job = Job(global_batch=16, seq_len=1024, step_in_backward=True)
    with pytest.raises(InputError, match=f"--step-in-backward: .*{reason}"):
        plan(small_mixture(), cluster_with("dgx-h100:1"), job, Pins.model_validate(pins))


def test_a_batch_of_several_micro_batches_leaves_no_plan_and_says_why() -> None:
    job = Job(global_batch=2048, seq_len=16384, step_in_backward=True)
    with pytest.raises(Indivisible, match="one micro-batch a step"):
        plan(small_llama(), cluster_with("dgx-h100:1"), job, Pins())


@pytest.mark.parametrize("pins", [{"zero_stage": 2}, {"sharding": "SHARD_GRAD_OP"}], ids=str)
def test_gradients_can_be_sharded_beside_whole_weights_of_a_compiled_program(pins: dict[str, Any]) -> None:
    case = CASES["slow network"]
    job = Job(global_batch=16, seq_len=4096, stack="jax-xla")
    found = plan(case.model, case.cluster, job, Pins(**pins))
    assert found.plan.zero_stage == 2
    assert not any("ZeRO" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    ("stack", "pins", "said"),
    [
        ("torch-fsdp2", Pins(zero_stage=1), "torch-fsdp2 has no ZeRO 1 (but 0, 2, 3)"),
        ("megatron", Pins(sharding="HYBRID_SHARD"), "megatron has no ZeRO 3 (but 0, 1)"),
        (
            "deepspeed",
            Pins(pipeline=2, schedule="interleaved"),
            "deepspeed has no schedule interleaved (but 1f1b)",
        ),
        ("deepspeed", Pins(zero_stage=1, pipeline=2), None),
    ],
)
def test_what_a_stack_does_not_have_is_planned_with_a_warning(
    stack: str, pins: Pins, said: str | None
) -> None:
    job = Job(global_batch=16, seq_len=1024, stack=stack)
    warnings = plan(small_llama(), cluster_with("dgx-h100:2"), job, pins).warnings
    assert [w.split(":")[0] for w in warnings if w.startswith(f"{stack} has no")] == ([said] if said else [])

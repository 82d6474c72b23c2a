"""What a target cannot express is refused, by name."""

from typing import Any

import pytest
from tiny_llama import stage, tiny_model, tiny_plan

from planner.errors import Unsupported
from planner.evaluation.cuts import with_cuts
from planner.exporters.limits import CHECKS, Limits, check_limits, expresses, refusals, refused
from planner.exporters.nearest import MENDS
from planner.exporters.registry import EXPORTERS, LIMITS, export
from planner.plans import Parallelism, Plan

EXPERTS = tiny_model(model_type="mixtral", num_local_experts=4, num_experts_per_tok=2, num_hidden_layers=8)

LEAST = Limits(
    zero_stages=(3,), recompute={"none": "no"}, precision={"bf16": "yes"}, optimizers={"adamw": "a"}
)
"""A target that can do little."""

SPLIT = LEAST._replace(axes=("tensor", "pipeline"), schedules={"1f1b": "1F1B"}, sequence_parallel=True)

SHARDED: dict[str, Any] = {"data": 4, "zero_stage": 3, "sharding": "FULL_SHARD", "shard_degree": 4}


def plan_of(job: dict[str, Any] | None = None, **changes: Any) -> Plan:
    model = tiny_model(num_hidden_layers=8)
    return tiny_plan(model, job={"precision": "bf16", **(job or {})}, **SHARDED | changes)


def cut(plan: Plan, *cuts: int) -> Plan:
    return plan.model_copy(update={"plan": with_cuts(plan.plan, 8, cuts)})


def by_stage() -> Plan:
    """Two stages, of which the second recomputes."""
    plan = cut(plan_of(pipeline=2), 0, 3, 8)
    first, second = plan.plan.stages
    stages = (first, second.model_copy(update={"recompute": "full"}))
    return plan.model_copy(update={"plan": plan.plan.model_copy(update={"stages": stages})})


def split_by_hidden() -> Plan:
    """The embedding's columns are split, as Megatron never does."""
    plan = tiny_plan(job={"precision": "bf16"}, **SHARDED, tensor=2)
    stages = (stage(plan.plan, {"embedding": {"embedding": {"tensor": "hidden", "data": "batch"}}}),)
    return plan.model_copy(update={"plan": plan.plan.model_copy(update={"stages": stages})})


CASES: dict[str, tuple[Plan, Limits, str, str]] = {
    "pipeline": (plan_of(pipeline=2), LEAST, "axes", r"pipeline parallelism \(the plan has pipeline 2"),
    "expert": (plan_of(expert=2), LEAST, "axes", "expert parallelism .*plan again with --expert 1"),
    "precision": (plan_of({"precision": "fp8"}), LEAST, "precision", r"precision fp8 \(it has bf16\)"),
    "optimizer": (plan_of({"optimizer": "muon"}), LEAST, "optimizer", r"optimizer muon \(it has adamw\)"),
    "half weights": (plan_of({"master_weights": False}), LEAST, "weights", "without fp32 copies"),
    "layout": (split_by_hidden(), SPLIT, "layout", r"\(embedding.embedding\)"),
    "uneven stages": (cut(plan_of(pipeline=2), 0, 3, 8), SPLIT, "stages", r"2 of 3 to 5 layers"),
    "recompute": (plan_of(recompute="full"), LEAST, "recompute", r"recompute full \(it has none\)"),
    "recompute by stage": (by_stage(), SPLIT, "recompute", r"recomputation by stage \(full, none\)"),
    "whole residuals": (plan_of(tensor=2, sequence_parallel=False), SPLIT, "sequence", "without sequence"),
    "split residuals": (
        plan_of(tensor=2),
        SPLIT._replace(sequence_parallel=False),
        "sequence",
        "with sequence parallelism",
    ),
    "schedule": (plan_of(pipeline=2, schedule="gpipe"), SPLIT, "schedule", r"schedule gpipe \(it has 1f1b\)"),
    "ZeRO": (plan_of(zero_stage=1, sharding="NO_SHARD"), LEAST, "states", r"ZeRO 1 \(it has 3\)"),
    "hybrid": (plan_of(shard_degree=2), LEAST, "states", "ZeRO 3 over 2 of 4 ranks"),
    "offload": (plan_of(offload=("optimizer",)), LEAST, "offload", "offload of the optimizer"),
    "whole experts": (
        tiny_plan(EXPERTS, {"precision": "bf16"}, **SHARDED, tensor=2, experts_over_tensor=True),
        SPLIT,
        "experts",
        "tensor ranks with whole experts",
    ),
    "experts over context": (
        tiny_plan(
            EXPERTS, {"precision": "bf16"}, **SHARDED | {"data": 2}, context=2, expert=4, replicate_degree=1
        ),
        LEAST._replace(axes=("context", "expert")),
        "axes",
        "experts over context ranks .*divides data 2",
    ),
    "loss": (plan_of({"fused_loss": True}), LEAST, "loss", "a loss computed in chunks"),
}


@pytest.mark.parametrize("case", CASES)
def test_refusals_name_what_cannot_be_said(case: str) -> None:
    plan, limits, aspect, reason = CASES[case]
    assert aspect in {refusal.aspect for refusal in refusals(plan, limits)}
    with pytest.raises(Unsupported, match=f"target any cannot express .*{reason}"):
        check_limits(plan, "any", limits)


def test_every_aspect_has_a_case() -> None:
    assert {aspect for _, _, aspect, _ in CASES.values()} == set(CHECKS)
    assert set(MENDS) < set(CHECKS)


def test_what_can_be_said_is_not_refused() -> None:
    assert refusals(plan_of(), LEAST) == ()
    assert refusals(cut(plan_of(pipeline=2), 0, 3, 8), SPLIT._replace(uneven_stages=True)) == ()
    assert refusals(plan_of(data=1, shard_degree=1, zero_stage=0), LEAST) == ()  # one rank shares with nobody


def test_all_reasons_are_given_at_once() -> None:
    with pytest.raises(Unsupported, match="pipeline parallelism .*; nor recompute full"):
        check_limits(plan_of(pipeline=2, recompute="full"), "any", LEAST)


@pytest.mark.parametrize("target", LIMITS)
def test_targets_refuse_beyond_their_limits(target: str) -> None:
    limits = LIMITS[target]
    for axis in {"tensor", "pipeline", "context"} - set(limits.axes):
        with pytest.raises(Unsupported, match=axis if target != "accelerate" else "target accelerate"):
            export(plan_of(**{axis: 2}), target)
    for policy in {"none", "selective", "attention", "full"} - set(limits.recompute):
        with pytest.raises(Unsupported, match=policy):
            export(plan_of(recompute=policy), target)


@pytest.mark.parametrize("target", LIMITS)
def test_the_catalogue_says_what_the_limits_say(target: str) -> None:
    said = " ".join((*EXPORTERS[target].expresses, *EXPORTERS[target].refuses))
    assert all(axis in said for axis in ("data", "tensor", "pipeline"))
    if target != "accelerate":
        assert EXPORTERS[target].expresses == expresses(LIMITS[target])
        assert EXPORTERS[target].refuses == refused(LIMITS[target])


def test_stages_of_an_interleaved_plan_are_uneven_one_by_one() -> None:
    choice = Parallelism(pipeline=2, virtual_stages=2, schedule="interleaved", num_microbatches=4)
    plan = plan_of(pipeline=2).model_copy(update={"plan": with_cuts(choice, 8, (0, 1, 4, 6, 8))})
    reasons = [refusal.reason for refusal in refusals(plan, SPLIT)]
    assert "uneven stages (4 of 1 to 3 layers)" in reasons

"""The nearest plan that a target can express: same degrees, really priced, its loss stated, the best of its kind."""

import re
from typing import Any

import pytest

from cluster_specs.catalog import load_cluster
from planner.errors import Unsupported
from planner.evaluation import evaluate
from planner.evaluation.cuts import with_cuts
from planner.exporters.limits import refusals
from planner.exporters.reductions import as_reduced_by
from planner.exporters.registry import LIMITS, export, nearest
from planner.exporters.stages import cuts_of
from planner.models.catalog import load_model
from planner.plans import Faster, Job, Parallelism, Plan
from planner.search.recommend import doubts, strains

MODEL, CLUSTER = load_model("llama-3.1-8b"), load_cluster("dgx-h100:1")

DEGREES = ("data", "tensor", "pipeline", "context", "expert", "micro_batch", "num_microbatches")

ZERO_1: dict[str, Any] = {"zero_stage": 1, "sharding": "NO_SHARD"}


def plan_of(job: dict[str, Any] | None = None, **choice: Any) -> Plan:
    settings = Job(global_batch=64, seq_len=4096, stack="megatron", **(job or {}))
    degrees = {"data": 4, "pipeline": 2, "shard_degree": choice.get("data", 4), **ZERO_1, **choice}
    count = 64 // (degrees["data"] * degrees.get("micro_batch", 1))
    return Plan(
        model=MODEL, cluster=CLUSTER, job=settings, plan=Parallelism(**degrees, num_microbatches=count)
    )


def cut(plan: Plan, *cuts: int) -> Plan:
    return plan.model_copy(update={"plan": with_cuts(plan.plan, 32, cuts)})


def by_stage(plan: Plan, *policies: str) -> Plan:
    stages = tuple(
        s.model_copy(update={"recompute": policy})
        for s, policy in zip(plan.plan.stages, policies, strict=True)
    )
    return plan.model_copy(update={"plan": plan.plan.model_copy(update={"stages": stages})})


CASES: dict[str, tuple[Plan, str, str]] = {
    "uneven stages": (cut(plan_of(recompute="full"), 0, 15, 32), "nanotron", "equal stages"),
    "recompute by stage": (by_stage(cut(plan_of(), 0, 15, 32), "full", "none"), "megatron-lm", "recompute"),
    "policy": (plan_of(recompute="selective"), "megatron-lm", "recompute"),
    "sequence parallelism": (
        plan_of(data=2, tensor=2, sequence_parallel=False, recompute="full", shard_degree=2),
        "torchtitan-0.2",
        "sequence parallelism on",
    ),
    "schedule": (plan_of(schedule="gpipe", recompute="full"), "megatron-lm", "schedule 1f1b"),
    "virtual stages": (
        plan_of(schedule="interleaved", virtual_stages=2, recompute="full"),
        "nanotron",
        "schedule .* with 1 stages a rank",
    ),
    "states": (plan_of(pipeline=1, data=8, recompute="full"), "hf-trainer", "ZeRO [23] over 8 ranks"),
    "loss": (plan_of({"fused_loss": True}, recompute="full"), "megatron-lm", "the whole logits at once"),
    "rule of one target": (
        plan_of(zero_stage=2, sharding="SHARD_GRAD_OP", recompute="full"),
        "megatron-lm",
        "ZeRO 1 over 4 ranks",
    ),
}


@pytest.mark.parametrize("target", ["fsdp1", "accelerate", "torchtitan", "nanotron"])
def test_an_offload_is_never_dropped(target: str) -> None:
    plan = plan_of(pipeline=1, offload=("optimizer",), recompute="full")
    with pytest.raises(Unsupported, match=r"offload of the optimizer \(it has (none|activations)\)"):
        nearest(plan, target)


@pytest.mark.parametrize("case", CASES)
def test_the_nearest_plan_can_be_exported_and_says_what_it_costs(case: str) -> None:
    plan, target, words = CASES[case]
    with pytest.raises(Unsupported):
        export(plan, target)
    found = nearest(plan, target)
    assert export(found, target)
    assert refusals(found, LIMITS[target]) == ()
    assert all(getattr(found.plan, name) == getattr(plan.plan, name) for name in DEGREES)
    assert found.estimate == evaluate(found)
    assert found.estimate.fits
    before, after = evaluate(plan).step_time_s, found.estimate.step_time_s
    note = found.warnings[-1]
    assert re.search(words, note)
    change = "slower" if after >= before else "faster"
    assert f"{after:.4g} s a step instead of {before:.4g} ({abs(after / before - 1):.1%} {change})" in note
    assert any(note in text for text in export(found, target).values())


def test_the_fastest_policy_that_fits_is_taken() -> None:
    plan = plan_of(recompute="selective")
    found = nearest(plan, "megatron-lm")
    others = [plan.model_copy(update={"plan": plan.plan.model_copy(update={"recompute": p})})
              for p in LIMITS["megatron-lm"].recompute]  # fmt: skip
    room = CLUSTER.device.memory * (1 - plan.job.memory_headroom)
    estimates = {o.plan.recompute: evaluate(o) for o in others}
    fitting = {name: e.step_time_s for name, e in estimates.items() if e.memory_bytes <= room}
    assert found.plan.recompute == min(fitting, key=lambda name: fitting[name])


def test_stages_keep_their_cuts_where_the_target_can_say_them() -> None:
    plan = by_stage(cut(plan_of(), 0, 15, 32), "full", "none")
    assert cuts_of(nearest(plan, "megatron-lm")) == (0, 15, 32)


def test_other_recomputation_asks_for_a_plan_of_its_own() -> None:
    large = plan_of(micro_batch=8)
    mixed = by_stage(cut(large, 0, 15, 32), "full", "none")
    assert "planned with --recompute full from the start" in nearest(mixed, "megatron-lm").warnings[-1]
    uneven = cut(plan_of(recompute="full"), 0, 15, 32)
    assert "from the start" not in nearest(uneven, "nanotron").warnings[-1]


def reduced_in_bf16(model: str, seq_len: int, **choice: Any) -> Plan:
    """Flat units reduced in 16 bits; torchtitan reduces in 32, for which they keep as many gradients again."""
    degrees = {"pipeline": 1, "data": 8, "zero_stage": 3, "sharding": "FULL_SHARD", **choice}
    job = Job(global_batch=64, seq_len=seq_len, stack="hf-fsdp", reduce_dtype="bf16")
    return plan_of(**degrees).model_copy(update={"model": load_model(model), "job": job})


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (reduced_in_bf16("llama-3.1-8b", 4096), "recompute .*, gradients reduced in fp32"),
        (
            reduced_in_bf16("gemma-2-9b", 4096, zero_stage=2, sharding="SHARD_GRAD_OP", recompute="full"),
            "ZeRO 3 over 8 ranks, gradients reduced in fp32",
        ),
    ],
)
def test_what_the_type_of_reductions_takes_is_made_room_for(plan: Plan, words: str) -> None:
    assert evaluate(plan).fits
    assert not evaluate(as_reduced_by(plan, "torchtitan")).fits
    found = nearest(plan, "torchtitan")
    assert found.estimate is not None
    assert found.estimate.fits
    assert re.search(words, found.warnings[-1])


def test_a_type_of_reductions_that_leaves_no_room_is_refused() -> None:
    plan = reduced_in_bf16("gemma-2-9b", 6144, recompute="full")
    assert evaluate(plan).fits
    with pytest.raises(
        Unsupported, match="torchtitan reduces gradients in fp32, not bf16; no plan of the same"
    ):
        nearest(plan, "torchtitan")


def test_what_was_said_of_the_plan_before_its_change_is_not_said_of_the_changed_one() -> None:
    said = "only 2.0% of device memory is left: fragmentation or longer batches may exceed it"
    faster = Faster(change="recompute", value="mlp", step_time_s=1.0)
    planned = plan_of(recompute="selective").model_copy(
        update={"warnings": (said,), "faster_with": (faster,), "explanation": "mostly activations"}
    )
    found = nearest(planned, "megatron-lm")
    assert found.plan.recompute != planned.plan.recompute
    assert found.estimate is not None
    assert found.warnings[:-1] == (*doubts(found), *strains(found.estimate))
    assert (found.faster_with, found.explanation) == ((), "")
    assert not any("2.0% of device memory" in text for text in export(found, "megatron-lm").values())


def test_degrees_are_not_touched() -> None:
    with pytest.raises(Unsupported, match="pipeline parallelism .*plan again with --pipeline 1"):
        nearest(plan_of(), "hf-trainer")


def test_recomputation_that_has_no_equal_names_what_to_plan_with() -> None:
    tight = plan_of(
        pipeline=1, data=8, recompute="selective", micro_batch=8, zero_stage=3, sharding="FULL_SHARD"
    )
    tight = tight.model_copy(update={"job": Job(global_batch=64, seq_len=65536, stack="levanter")})
    with pytest.raises(Unsupported, match="fits; plan with --recompute none or full$"):
        nearest(tight, "levanter")


def test_nothing_that_fits_is_refused() -> None:
    whole = plan_of(pipeline=1, data=8, recompute="full", zero_stage=3, sharding="FULL_SHARD", micro_batch=1)
    large = whole.model_copy(update={"model": load_model("llama-3.1-70b")})
    with pytest.raises(
        Unsupported, match="ZeRO 3 .*no plan of the same degrees that it can express fits"
    ) as by_other:
        nearest(large, "nanotron")
    assert str(by_other.value).endswith(f" as {large.job.stack} runs it; plan with --stack nanotron")
    own = large.model_copy(update={"job": large.job.model_copy(update={"stack": "nanotron"})})
    with pytest.raises(Unsupported, match="no plan of the same degrees that it can express fits$"):
        nearest(own, "nanotron")

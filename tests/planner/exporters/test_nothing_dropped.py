"""Whatever a plan chooses is in the exported files, refused, or said to be left out: never dropped in silence."""

from collections.abc import Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import pytest
from tiny_llama import stage, tiny_model, tiny_plan

from cluster_specs.catalog import load_cluster
from planner.errors import Unsupported
from planner.evaluation.cuts import with_cuts
from planner.exporters.header import describe
from planner.exporters.limits import CHECKS
from planner.exporters.registry import EXPORTERS, export
from planner.exporters.unsaid import CHOICES, SAYS, unsaid
from planner.models.adapters import Adapter
from planner.models.catalog import load_model
from planner.operators import RECOMPUTE_POLICIES
from planner.plans import Job, Parallelism, Plan

EXPERTS = {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}

BASES: Mapping[str, dict[str, Any]] = MappingProxyType(
    {
        "fully sharded": {"data": 8, "zero_stage": 3, "sharding": "FULL_SHARD", "shard_degree": 8},
        "ZeRO 1": {"data": 8, "zero_stage": 1, "shard_degree": 8},
        "replicas": {"data": 8, "replicate_degree": 8},
        "pipeline": {"data": 2, "pipeline": 4, "zero_stage": 3, "shard_degree": 2, "schedule": "1f1b"},
        "gpipe": {"data": 2, "pipeline": 4, "replicate_degree": 2, "schedule": "gpipe"},
        "tensor": {"data": 4, "tensor": 2, "zero_stage": 3, "shard_degree": 4},
        "tensor, ZeRO 1": {"data": 4, "tensor": 2, "zero_stage": 1, "shard_degree": 4},
        "context": {"data": 4, "context": 2, "zero_stage": 3, "sharding": "FULL_SHARD", "shard_degree": 8},
        "context, ZeRO 1": {"data": 4, "context": 2, "zero_stage": 1, "shard_degree": 8},
        "experts": {"data": 8, "expert": 4, "zero_stage": 3, "shard_degree": 8},
        "experts and tensor": {"data": 4, "expert": 2, "tensor": 2, "zero_stage": 1, "shard_degree": 4},
    }
)
"""Plans of which each target can express some; every one with and without recomputation."""

PLAIN = ("none", "full")
"""Policies of the bases."""

CHANGES: Mapping[str, dict[str, Any]] = MappingProxyType(
    {
        "data": {"data": 16, "shard_degree": 16, "replicate_degree": 1},
        "tensor": {"tensor": 4},
        "pipeline": {"pipeline": 2},
        "context": {"context": 2},
        "expert": {"expert": 2},
        "virtual_stages": {"virtual_stages": 2},
        "micro_batch": {"micro_batch": 2},
        "num_microbatches": {"num_microbatches": 32},
        "zero_stage": {"zero_stage": 2, "sharding": "SHARD_GRAD_OP"},
        "shard_degree": {"sharding": "HYBRID_SHARD", "shard_degree": 2, "replicate_degree": 4},
        "secondary_degree": {"secondary_degree": 2},
        "sequence_parallel": {"sequence_parallel": False},
        "experts_over_tensor": {"experts_over_tensor": True},
        "schedule": {"schedule": "zb-h1"},
        "offload": {"offload": ("activations",)},
        "recompute_every": {"recompute": "full", "recompute_every": 2},
        "offload_share": {"offload": ("activations",), "offload_share": 0.5},
        **{
            f"recompute {policy}": {"recompute": policy}
            for policy in RECOMPUTE_POLICIES
            if policy not in PLAIN
        },
    }
)
"""Field of `Parallelism` -> another choice."""

JOBS: Mapping[str, Any] = MappingProxyType(
    {
        "global_batch": 256,
        "seq_len": 32,
        "precision": "fp16",
        "autocast": True,
        "optimizer": "sgd",
        "master_weights": False,
        "grad_dtype": "bf16",
        "reduce_dtype": "fp32",
        "attention": "plain",
        "fused_loss": True,
        "mlp_tiles": 8,
        "fused_optimizer": False,
        "step_in_backward": True,
        "narrow_gathers": False,
        "narrow_weight_gathers": True,
        "narrow_gate_inputs": True,
        "fp8_scaling": "delayed",
        "narrow_attention": "delayed",
        "cuda_graphs": True,
        "graph_parts": ("attn",),
        "context_exchange": "all_to_all",
        "token_exchange": "deepep",
        "expert_routing": "consecutive",
        "overlap_experts": True,
        "expert_capacity": 1.25,
        "document_len": 16,
        "adapter": Adapter(r=8, target_modules=("q_proj",), base="nf4"),
    }
)
"""Field of `Job` -> another choice."""

NOT_CONFIGURED = {"stack", "memory_headroom", "expert_imbalance"}
"""Fields of `Job` that only say how to predict and to search."""

SAID_WITH_ANOTHER = {"sharding", "replicate_degree", "recompute", "stages"}
"""Fields of `Parallelism` that change together with one of `CHANGES`, or have tests of their own below."""


PIPELINES, SPLIT = ("pipeline", "gpipe"), ("tensor", "tensor, ZeRO 1", "experts and tensor")
SHARING = tuple(name for name, degrees in BASES.items() if degrees.get("shard_degree", 1) > 1)
MIXED = ("experts", "experts and tensor")

MATTERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "virtual_stages": PIPELINES,
        "schedule": PIPELINES,
        "zero_stage": SHARING,
        "shard_degree": tuple(name for name in SHARING if name != "pipeline"),  # which has as many ranks
        "secondary_degree": ("fully sharded", "tensor", "context", "experts"),  # of ZeRO 3
        "sequence_parallel": SPLIT,
        "narrow_gathers": SPLIT,
        "narrow_weight_gathers": SHARING,
        "experts_over_tensor": ("experts and tensor",),
        "context_exchange": ("context", "context, ZeRO 1"),
        "token_exchange": MIXED,
        "expert_routing": MIXED,
        "overlap_experts": MIXED,
        "expert_capacity": MIXED,
    }
)
"""Field -> the bases in which it means anything, where these are not all."""


def base(
    name: str, recompute: str, job: dict[str, Any] | None = None, changes: dict[str, Any] | None = None
) -> Plan:
    model = tiny_model(num_hidden_layers=8, **(EXPERTS if "experts" in name else {}))
    degrees = {"recompute": recompute} | BASES[name] | (changes or {})
    count = degrees.pop("num_microbatches", 16)
    plan = tiny_plan(model, {"precision": "bf16", **(job or {})}, **degrees)
    choice = plan.plan.model_copy(update={"num_microbatches": count})
    batch = (job or {}).get("global_batch", choice.data * choice.micro_batch * count)
    return plan.model_copy(
        update={"plan": choice, "job": plan.job.model_copy(update={"global_batch": batch})}
    )


def body(plan: Plan, target: str) -> str:
    """The files less what the header says of every plan; its warnings, and the job's line, stay."""
    said = [line for line in describe(plan) if not line.startswith("job:") and line not in plan.warnings]
    text = "\n".join(export(plan, target).values())
    text = text.replace(
        f" in documents of {plan.job.document_len}", ""
    )  # which the job's line has of every target
    return "\n".join(line for line in text.splitlines() if line.removeprefix("# ") not in said)


@cache
def unchanged(name: str, recompute: str, target: str) -> str:
    return body(base(name, recompute), target)


@cache
def expressible(target: str) -> tuple[tuple[str, str], ...]:
    """Names of the bases, and what is recomputed, that ``target`` exports."""
    return tuple(_expressible(target))


def _expressible(target: str) -> Iterator[tuple[str, str]]:
    for name in BASES:
        for recompute in PLAIN:
            try:
                export(base(name, recompute), target)
            except Unsupported:
                continue
            yield name, recompute


def dropped(target: str, field: str, job: dict[str, Any], changes: dict[str, Any]) -> list[str]:
    """Bases of which a changed plan is exported as if nothing had changed."""
    found = []
    for name, recompute in expressible(target):
        if name not in MATTERS.get(field, BASES):
            continue
        try:
            after = base(name, recompute, job, changes)
        except ValueError:
            continue  # no such plan: an expert degree beside too few ranks, and the like
        if after.plan.num_devices > 64 or after == base(name, recompute):
            continue
        try:
            if body(after, target) == unchanged(name, recompute, target):
                found.append(f"{name}, recompute {recompute}")
        except (Unsupported, ValueError):
            continue
    return found


@pytest.mark.parametrize("target", EXPORTERS)
def test_every_target_expresses_some_plan(target: str) -> None:
    assert list(expressible(target))


@pytest.mark.parametrize("target", EXPORTERS)
@pytest.mark.parametrize("field", CHANGES)
def test_no_choice_of_parallelism_is_dropped(field: str, target: str) -> None:
    assert not dropped(target, field, {}, CHANGES[field])


@pytest.mark.parametrize("target", EXPORTERS)
@pytest.mark.parametrize("field", JOBS)
def test_no_choice_of_the_job_is_dropped(field: str, target: str) -> None:
    assert not dropped(target, field, {field: JOBS[field]}, {})


def test_every_field_of_a_plan_is_tried() -> None:
    assert set(Job.model_fields) == set(JOBS) | NOT_CONFIGURED
    fields = {name.split()[0] for name in CHANGES} | SAID_WITH_ANOTHER
    assert set(Parallelism.model_fields) == fields
    assert set(SAYS) <= set(EXPORTERS)
    assert set(CHOICES) <= set(Job.model_fields) | set(Parallelism.model_fields)


def by_stage(plan: Plan) -> Plan:
    cut = with_cuts(plan.plan, 8, (0, 1, 4, 6, 8))
    stages = (*cut.stages[:3], cut.stages[3].model_copy(update={"recompute": "full"}))
    return plan.model_copy(update={"plan": cut.model_copy(update={"stages": stages})})


def uneven(plan: Plan) -> Plan:
    return plan.model_copy(update={"plan": with_cuts(plan.plan, 8, (0, 1, 4, 6, 8))})


def unlike(plan: Plan) -> Plan:
    """A last stage with another mesh."""
    cut = uneven(plan).plan
    last = cut.stages[-1].model_copy(update={"mesh": {"tensor": 2, "context": 1, "expert": 1, "data": 1}})
    return plan.model_copy(update={"plan": cut.model_copy(update={"stages": (*cut.stages[:-1], last)})})


def by_operator(plan: Plan) -> Plan:
    """One product of every layer that is not split."""
    layer = {"layer": {"attn_out": {}}}
    return plan.model_copy(
        update={"plan": plan.plan.model_copy(update={"stages": (stage(plan.plan, layer),)})}
    )


STAGES = {
    "uneven stages": (uneven, ("pipeline", "gpipe")),
    "recomputation by stage": (by_stage, ("pipeline", "gpipe")),
    "stages with meshes of their own": (unlike, ("pipeline", "gpipe")),
    "operators split in another way": (by_operator, ("tensor", "tensor, ZeRO 1")),
}


@pytest.mark.parametrize("target", EXPORTERS)
@pytest.mark.parametrize("case", STAGES)
def test_no_choice_of_stages_is_dropped(case: str, target: str) -> None:
    change, names = STAGES[case]
    for name, recompute in expressible(target):
        if name in names:
            before = base(name, recompute)
            try:
                assert body(change(before), target) != body(before, target), name
            except Unsupported:
                continue


def test_every_aspect_of_limits_is_tried() -> None:
    """By a change above: aspects are checked by name, so that a new one is not forgotten here."""
    assert set(CHECKS) == {
        "axes", "precision", "optimizer", "weights", "layout", "stages", "recompute", "sequence", "schedule", "states",
        "offload", "loss", "experts",
    }  # fmt: skip


def test_trainers_of_language_models_say_that_others_are_missing() -> None:
    vision = base("replicas", "none")
    vision = vision.model_copy(update={"model": load_model("vit-b-16")})
    assert "axolotl trains decoders on text" in " ".join(unsaid(vision, "axolotl"))
    assert list(unsaid(vision, "accelerate")) == []


@pytest.mark.parametrize("target", ["torchtitan", "maxtext"])
def test_what_keeps_documents_apart_unasked_is_said(target: str) -> None:
    alone, packed = (base("fully sharded", "none", {"document_len": length}) for length in (None, 16))
    assert any("--document-len" in words for words in unsaid(alone, target))
    assert not any("documents" in words for words in unsaid(packed, target))
    assert any("packed with documents" in words for words in unsaid(packed, "torchtitan-0.2"))
    on_tpus = alone.model_copy(update={"cluster": load_cluster("tpu-v5p:2x2x2")})
    assert not any("documents" in words for words in unsaid(on_tpus, target))

"""What an exporter writes, the importer of the same format reads back as the same plan."""

import itertools
import re
from collections.abc import Iterator
from typing import Any

import pytest
from tiny_llama import cluster, tiny_model

from cluster_specs.catalog import load_cluster
from planner.errors import Unsupported
from planner.evaluation.cuts import with_cuts
from planner.exporters.reductions import priced_type
from planner.exporters.registry import EXPORTERS, LIMITS, export, nearest
from planner.exporters.stages import normal_form
from planner.importers.registry import FORMATS, Imported, import_text
from planner.importers.settings import Given
from planner.plans import Job, Parallelism, Plan

LAYERS, BATCH, SEQ_LEN = 8, 32, 64

MODEL = tiny_model(num_hidden_layers=LAYERS)

FILES = {
    "accelerate": "accelerate",
    "accelerate-fsdp1": "accelerate",
    "hf-trainer": "hf-trainer",
    "deepspeed": "deepspeed",
    "torchtitan-0.2": "torchtitan",
    "megatron-lm": "megatron-lm",
    "maxtext": "maxtext",
    "nanotron": "nanotron",
}
"""Export target -> format that reads its first file."""

PIPELINES: list[dict[str, Any]] = [
    {"pipeline": 1},
    {"pipeline": 2, "schedule": "1f1b"},
    {"pipeline": 4, "schedule": "gpipe"},
    {"pipeline": 2, "schedule": "interleaved", "virtual_stages": 2},
]

MEMORY = [
    ("none", ()),
    ("selective", ()),
    ("attention", ()),
    ("full", ()),
    ("full", ("optimizer",)),
    ("full", ("optimizer", "weights")),
]
"""Recomputation and offload."""

CUTS = {2: (0, 3, 8), 4: (0, 1, 4, 6, 8)}
"""Uneven cuts, by number of stages."""


def states(zero: int, ranks: int) -> Iterator[dict[str, Any]]:
    """Over all ranks, and over half of them."""
    names = {0: "NO_SHARD", 1: "NO_SHARD", 2: "SHARD_GRAD_OP", 3: "FULL_SHARD"}
    if zero == 0:
        yield {"zero_stage": 0, "shard_degree": 1, "replicate_degree": ranks}
        return
    yield {"zero_stage": zero, "sharding": names[zero], "shard_degree": ranks, "replicate_degree": 1}
    if ranks >= 4:
        hybrid = "HYBRID_SHARD" if zero == 3 else names[zero]
        yield {
            "zero_stage": zero,
            "sharding": hybrid,
            "shard_degree": ranks // 2,
            "replicate_degree": 2,
        }


def plans() -> Iterator[Plan]:
    for data, tensor, context, pipeline, zero, (recompute, offload) in itertools.product(
        (1, 4, 8), (1, 2), (1, 2), PIPELINES, range(4), MEMORY
    ):
        if zero and data * context == 1:
            continue
        if "weights" in offload and zero != 3:
            continue
        for choice in states(zero, data * context):
            micro = 2 if pipeline["pipeline"] == 2 else 1
            degrees = {"data": data, "tensor": tensor, "context": context, "micro_batch": micro, **pipeline}
            count = BATCH // (data * micro)
            fields = {
                **degrees,
                **choice,
                "recompute": recompute,
                "offload": offload,
                "num_microbatches": count,
            }
            yield plan_of(Parallelism(**fields))


def plan_of(choice: Parallelism) -> Plan:
    """On two nodes, where there is more than one device: what is inside a node and what is not must be told apart."""
    nodes = 2 if choice.num_devices % 2 == 0 else 1
    shape = {"nodes": nodes, "devices_per_node": choice.num_devices // nodes}
    job = Job(global_batch=BATCH, seq_len=SEQ_LEN, stack="torch-fsdp2")
    where = cluster(choice.num_devices).model_copy(update=shape)
    return Plan(model=MODEL, cluster=where, job=job, plan=choice)


def uneven(plan: Plan) -> Plan:
    p = plan.plan
    cuts = CUTS.get(p.pipeline * p.virtual_stages)
    return plan if cuts is None else plan.model_copy(update={"plan": with_cuts(p, LAYERS, cuts)})


def read_back(plan: Plan, target: str) -> Imported:
    name, text = next(iter(export(plan, target).items()))
    given = Given(plan.job.global_batch, plan.job.seq_len, plan.plan.micro_batch)
    return import_text(text, name, plan.model, plan.cluster, given)


@pytest.mark.parametrize("target", FILES)
def test_export_then_import_is_the_same_plan(target: str) -> None:
    tried, hybrids = 0, 0
    for plan in itertools.chain(plans(), map(uneven, plans())):
        try:
            found = read_back(plan, target)
        except Unsupported:
            continue
        tried += 1
        hybrids += 1 < plan.plan.replicate_degree < plan.plan.data * plan.plan.context
        assert normal_form(found.plan) == normal_form(plan)
        assert found.format.name == FILES[target]
        assert found.unknown == ()
    assert tried >= 16
    assert hybrids > 0 or not LIMITS[target].hybrid


READ_TYPES = [
    ("accelerate", 3),
    *itertools.product(("hf-trainer", "torchtitan-0.2", "deepspeed", "nanotron", "megatron-lm"), (0, 1, 3)),
]
"""Target, and ZeRO stage of a plan that may be mended for it."""


@pytest.mark.parametrize(
    "choice", [{}, {"reduce_dtype": "fp32"}, {"grad_dtype": "bf16", "reduce_dtype": "bf16"}]
)
@pytest.mark.parametrize(("target", "zero"), READ_TYPES)
def test_gradients_are_read_to_travel_as_they_were_priced(
    target: str, zero: int, choice: dict[str, Any]
) -> None:
    plan = plan_of(Parallelism(data=8, num_microbatches=4, **next(states(zero, 8))))
    job = plan.job.model_copy(update=choice)
    there = plan.model_copy(update={"job": job, "cluster": load_cluster("dgx-h100:1")})
    written = nearest(there, target)
    assert priced_type(read_back(written, target).plan) == priced_type(written)


def test_every_format_is_read_back_from_its_target() -> None:
    written = set(FILES.values())
    assert {f.name for f in FORMATS.values()} - written == {
        "hf-fsdp-config"
    }  # holds no batch: tested by itself
    assert {f.target for f in FORMATS.values()} <= set(EXPORTERS)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(("target", "zero"), [("megatron-lm", 1), ("torchtitan-0.2", 3)])
def test_experts_may_have_context_ranks(target: str, zero: int, whole: bool) -> None:
    """Four expert ranks of two data ranks; whole experts are spread over the tensor ranks too."""
    mixture = tiny_model(
        model_type="mixtral", num_local_experts=8, num_experts_per_tok=2, num_hidden_layers=LAYERS
    )
    sharding = "FULL_SHARD" if zero == 3 else "NO_SHARD"
    states = {"zero_stage": zero, "sharding": sharding, "shard_degree": 4}
    choice = Parallelism(
        data=2, context=2, tensor=2, expert=4, experts_over_tensor=whole, num_microbatches=16, **states
    )
    plan = plan_of(choice).model_copy(update={"model": mixture})
    degree = 8 if whole else 4
    written = "".join(export(plan, target).values()).replace("-", "_")
    assert re.search(rf"expert_(model_parallel_size|parallel_degree)\W+{degree}\b", written)
    assert read_back(plan, target).plan.plan == choice


@pytest.mark.parametrize(("policy", "every"), [("full", 1), ("full", 3), ("alternate", 1)])
def test_torchtitan_recomputes_layers_by_number(policy: str, every: int) -> None:
    plan = plan_of(Parallelism(data=8, num_microbatches=2, recompute=policy, recompute_every=every))
    found = read_back(plan, "torchtitan-0.2").plan.plan
    assert (found.recompute, found.recompute_every) == (policy, every)


@pytest.mark.parametrize("early", [False, True])
def test_torchtitan_steps_weights_within_the_backward(early: bool) -> None:
    """Up to 0.2.2; the files of 0.3.0, which has no such key, say in their header that it is missing."""
    sharded = {"zero_stage": 3, "sharding": "FULL_SHARD", "shard_degree": 8}
    plan = plan_of(Parallelism(data=8, num_microbatches=1, **sharded))
    plan = plan.model_copy(update={"job": plan.job.model_copy(update={"step_in_backward": early})})
    assert read_back(plan, "torchtitan-0.2").plan.job.step_in_backward == early
    assert ("stepped within the backward" in "".join(export(plan, "torchtitan").values())) == early


@pytest.mark.parametrize(("target", "zero"), [("megatron-lm", 0), ("deepspeed", 3), ("accelerate", 3)])
def test_others_do_not_recompute_layers_by_number(target: str, zero: int) -> None:
    sharded = {"zero_stage": zero, "sharding": "FULL_SHARD", "shard_degree": 8} if zero else {}
    choice = Parallelism(data=8, num_microbatches=2, recompute="full", recompute_every=3, **sharded)
    with pytest.raises(Unsupported, match="in one of 3 layers only"):
        export(plan_of(choice), target)

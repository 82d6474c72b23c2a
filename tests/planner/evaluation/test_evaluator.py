"""An estimate's parts add up, and its communication is what one counts by hand."""

from collections.abc import Mapping
from typing import Literal

import pytest

from cluster_specs.catalog import load_cluster
from cost_models.intervals import spread
from planner.errors import InputError
from planner.evaluation.blocks import block_cost
from planner.evaluation.evaluator import Evaluator
from planner.evaluation.terms import block_terms
from planner.models.catalog import load_model
from planner.plans import Estimate, Job, Parallelism, StagePlan

SEQ_LEN, HIDDEN, BF16, FP32 = 4096, 4096, 2, 4
LLAMA_8B = 8_030_261_248
"""Parameters of Llama-3.1-8B: its safetensors index on Hugging Face."""


def evaluator_of(model: str, batch: int, cluster: str = "dgx-h100:1", **job: object) -> Evaluator:
    fields = {"global_batch": batch, "seq_len": SEQ_LEN, "reduce_dtype": "fp32", **job}
    return Evaluator(load_model(model), load_cluster(cluster), Job.model_validate(fields))


PLANS = [
    ("llama-3.1-8b", Parallelism(data=16, micro_batch=1, num_microbatches=4)),
    (
        "llama-3.1-8b",
        Parallelism(
            data=16,
            num_microbatches=4,
            zero_stage=3,
            sharding="FULL_SHARD",
            shard_degree=16,
            recompute="full",
        ),
    ),
    (
        "llama-3.1-8b",
        Parallelism(
            tensor=4,
            data=2,
            pipeline=2,
            num_microbatches=32,
            zero_stage=1,
            shard_degree=2,
            recompute="selective",
        ),
    ),
    (
        "llama-3.1-8b",
        Parallelism(
            tensor=2, context=2, pipeline=4, virtual_stages=2, num_microbatches=64, schedule="interleaved"
        ),
    ),
    (
        "mixtral-8x7b",
        Parallelism(
            data=16,
            expert=8,
            num_microbatches=4,
            zero_stage=3,
            sharding="HYBRID_SHARD",
            shard_degree=8,
            replicate_degree=2,
        ),
    ),
    (
        "t5-small",
        Parallelism(
            data=8, tensor=2, num_microbatches=8, zero_stage=2, sharding="SHARD_GRAD_OP", shard_degree=8
        ),
    ),
]


@pytest.mark.parametrize(("model", "plan"), PLANS, ids=range(len(PLANS)))
def test_parts_add_up(model: str, plan: Parallelism) -> None:
    estimate = evaluator_of(model, 64, "dgx-h100:2", seq_len=512).estimate(plan)
    assert sum(estimate.time.values()) == pytest.approx(estimate.step_time_s, rel=1e-12)
    assert sum(estimate.memory.values()) == pytest.approx(estimate.memory_bytes, rel=1e-12)
    assert min(estimate.time.values()) > 0
    assert min(estimate.memory.values()) > 0
    assert estimate.tensor_bytes <= estimate.reserved_bytes <= estimate.memory_bytes
    assert estimate.fits == (estimate.memory_bytes <= estimate.memory_limit_bytes)


@pytest.mark.parametrize(
    ("model", "parameters", "table"),
    [
        ("t5-small", 60_506_624, 32_128 * 512),
        ("whisper-large-v2", 1_543_304_960, 51_865 * 1280),
        ("bert-large", 335_174_458, 30_522 * 1024),
        ("phi-2", 2_779_683_840, 0),
    ],
)
def test_a_stage_holds_weights_once_that_its_blocks_share(model: str, parameters: int, table: int) -> None:
    """Parameters of the classes of transformers; a ``table`` that both halves of a pipeline use is on both."""
    evaluator = evaluator_of(model, 8, seq_len=448)

    def held(stages: int) -> float:
        plan = Parallelism(data=8 // stages, pipeline=stages, num_microbatches=8)
        return sum(group.elements for stage in evaluator.stages(plan) for group in stage.weights)

    assert (held(1), held(2)) == (parameters, parameters + table)


@pytest.mark.parametrize(
    "cuts",
    [(0, 10, 20, 30, 32), (0, 11, 22, 32, 32), (0, 0, 16, 32, 32)],
    ids=["uneven", "head alone", "both ends alone"],
)
def test_embedding_and_head_are_on_one_stage_each(cuts: tuple[int, ...]) -> None:
    evaluator = evaluator_of("llama-3.1-8b", 8)
    plan = Parallelism(data=2, pipeline=4, num_microbatches=4)
    stages = evaluator.stages(plan, cuts=cuts)
    assert [bool(stage.logits_bytes) for stage in stages] == [False, False, False, True]
    assert [len(stage.end_units) for stage in stages] == [1, 0, 0, 1]
    even = evaluator.stages(plan)
    assert sum(stage.seconds for stage in stages) == pytest.approx(sum(stage.seconds for stage in even))


@pytest.mark.parametrize(("model", "kind"), [("llama-3.1-8b", "dense"), ("mixtral-8x7b", "experts")])
def test_intervals_are_those_of_models_with_and_without_experts(
    model: str, kind: Literal["dense", "experts"]
) -> None:
    found = evaluator_of(model, 8, stack="nemo").estimate(Parallelism(data=8, zero_stage=1, shard_degree=8))
    low, high = found.step_time_interval_s
    assert low * (1 + spread(kind).faster) == pytest.approx(found.step_time_s)
    assert high / (1 + spread(kind).slower) == pytest.approx(found.step_time_s)


def test_short_steps_may_take_longer_by_seconds_that_nothing_explains() -> None:
    """Steps of torchtitan on 8 devices are up to 0.35 s longer than their parts (docs/accuracy.md)."""
    evaluator = evaluator_of("llama-3.1-8b", 8, stack="torch-fsdp2")
    found = evaluator.estimate(Parallelism(data=8, zero_stage=3, sharding="FULL_SHARD", shard_degree=8))
    low, high = found.step_time_interval_s
    assert found.step_time_s / low == pytest.approx(1 + spread("dense").faster)
    assert high - found.step_time_s * (1 + spread("dense").slower) == pytest.approx(
        evaluator.software.unexplained
    )
    assert evaluator.software.unexplained == pytest.approx(0.25)


@pytest.mark.parametrize(("model", "plan"), PLANS, ids=range(len(PLANS)))
def test_rates_follow_from_the_step_time(model: str, plan: Parallelism) -> None:
    estimate = evaluator_of(model, 64, "dgx-h100:2", seq_len=512).estimate(plan)
    assert estimate.tokens_per_s == pytest.approx(64 * 512 / estimate.step_time_s)
    assert estimate.tokens_per_s_per_device == pytest.approx(estimate.tokens_per_s / plan.num_devices)
    assert 0 < estimate.mfu <= estimate.hfu < 1
    low, high = estimate.step_time_interval_s
    assert low < estimate.step_time_s < high


def data_parallel(zero_stage: int, sharding: str, num_microbatches: int, **job: object) -> Estimate:
    """Llama-3.1-8B on 8 ranks that differ in their data only."""
    plan = Parallelism.model_validate(
        {
            "data": 8,
            "num_microbatches": num_microbatches,
            "zero_stage": zero_stage,
            "sharding": sharding,
            "shard_degree": 8 if zero_stage else 1,
            "replicate_degree": 1 if zero_stage else 8,
        }
    )
    return evaluator_of("llama-3.1-8b", 8 * num_microbatches, **job).estimate(plan)


RING = 7 / 8
"""Share of an array that each of 8 ranks sends in an all-gather or reduce-scatter; an all-reduce is both."""

DATA_PARALLEL: list[tuple[int, str, Mapping[str, float]]] = [
    (0, "NO_SHARD", {"all_reduce": 2 * RING * FP32 * LLAMA_8B}),
    (1, "NO_SHARD", {"reduce_scatter": RING * FP32 * LLAMA_8B, "all_gather": RING * BF16 * LLAMA_8B}),
    (
        2,
        "SHARD_GRAD_OP",
        {"reduce_scatter": 3 * RING * FP32 * LLAMA_8B, "all_gather": 3 * RING * BF16 * LLAMA_8B},
    ),
    (
        3,
        "FULL_SHARD",
        {"reduce_scatter": 3 * RING * FP32 * LLAMA_8B, "all_gather": 3 * 2 * RING * BF16 * LLAMA_8B},
    ),
]
"""Of three micro-batches: ZeRO, arXiv:1910.02054, section 7; PyTorch FSDP reduces and gathers for every one."""


@pytest.mark.parametrize(
    ("zero_stage", "sharding", "sent"), DATA_PARALLEL, ids=["ddp", "zero-1", "zero-2", "zero-3"]
)
def test_bytes_of_data_parallelism(zero_stage: int, sharding: str, sent: Mapping[str, float]) -> None:
    assert data_parallel(zero_stage, sharding, 3).communication == pytest.approx(sent, rel=1e-9)


STATES: list[tuple[int, str, Mapping[str, float]]] = [
    (0, "NO_SHARD", {"weights": 2, "gradients": 4, "master_weights": 4, "optimizer": 8}),
    (1, "NO_SHARD", {"weights": 2, "gradients": 4, "master_weights": 4 / 8, "optimizer": 8 / 8}),
    (3, "FULL_SHARD", {"gradients": 4 / 8, "optimizer": 8 / 8}),
]
"""Bytes per parameter of AdamW with bf16 weights: ZeRO, arXiv:1910.02054, figure 1, gradients kept in fp32."""


@pytest.mark.parametrize(("zero_stage", "sharding", "per_parameter"), STATES, ids=["ddp", "zero-1", "zero-3"])
def test_bytes_of_states(zero_stage: int, sharding: str, per_parameter: Mapping[str, float]) -> None:
    memory = data_parallel(zero_stage, sharding, 1, stack="deepspeed").memory
    for component, num_bytes in per_parameter.items():
        assert memory[component] == pytest.approx(num_bytes * LLAMA_8B, rel=1e-3)


def layer_bytes(model: str, plan: Parallelism, policy: str = "none", **job: object) -> Mapping[str, float]:
    """Sent by one device for one micro-batch through one layer."""
    evaluator = evaluator_of(model, 64, **job)
    return evaluator.block(plan, evaluator.main_layer, policy, {}).sent_bytes


ACTIVATION = SEQ_LEN * HIDDEN * BF16


def test_bytes_of_tensor_parallelism_with_sequences() -> None:
    """Two all-gathers and two reduce-scatters each way: Korthikanti et al., arXiv:2205.05198, section 4.2.2."""
    sent = layer_bytes("llama-3.1-8b", Parallelism(tensor=8))
    assert sent == pytest.approx(
        {"all_gather": 4 * RING * ACTIVATION, "reduce_scatter": 4 * RING * ACTIVATION}
    )


def test_bytes_of_tensor_parallelism_without_sequences() -> None:
    """Two all-reduces each way: Megatron, arXiv:1909.08053, figure 4."""
    sent = layer_bytes("llama-3.1-8b", Parallelism(tensor=8, sequence_parallel=False))
    assert sent == pytest.approx({"all_reduce": 4 * 2 * RING * ACTIVATION})


SENT_BY_STACKS = [
    ("torch-fsdp2", "none", 4, 4),
    ("megatron", "none", 6, 4),
    ("jax-xla", "none", 6, 4),
    ("torch-fsdp2", "full", 6, 5),
    ("megatron", "full", 8, 6),
    ("jax-xla", "full", 6, 5),
]
"""Gathers and scatters of a layer: what is not kept gathered is gathered again, unless the repeated forward just has.

PyTorch and XLA stop before the sum behind the last product (collectives of tracker and compiler); Megatron does not.
Source: Korthikanti et al., arXiv:2205.05198, section 4.2.2 (Megatron); tests/published/torch_memory.jsonl (PyTorch);
tests/published/xla_compiled.jsonl (XLA).
"""


@pytest.mark.parametrize(("stack", "policy", "gathers", "scatters"), SENT_BY_STACKS)
def test_bytes_of_tensor_parallelism_by_stack(stack: str, policy: str, gathers: int, scatters: int) -> None:
    evaluator = evaluator_of("llama-3.1-8b", 64, stack=stack)
    sent = evaluator.block(Parallelism(tensor=8), evaluator.main_layer, policy, {}).sent_bytes
    expected = {"all_gather": gathers * RING * ACTIVATION, "reduce_scatter": scatters * RING * ACTIVATION}
    assert sent == pytest.approx(expected)


def test_the_head_keeps_its_input_gathered_where_it_is_not_gathered_again() -> None:
    """XLA's program runs the head's backward at once, so that it gathers once and keeps the result."""
    megatron, xla = (
        evaluator_of("llama-3.1-8b", 64, stack="megatron"),
        evaluator_of("llama-3.1-8b", 64, stack="jax-xla"),
    )
    for evaluator, gathers in ((megatron, 2), (xla, 1)):
        assert evaluator.graph.last is not None
        sent = evaluator.block(Parallelism(tensor=8), evaluator.graph.last, "none", {}).sent_bytes
        assert sent["all_gather"] == pytest.approx(gathers * RING * ACTIVATION)


def test_what_is_gathered_again_hides_beside_the_gradient_of_its_input() -> None:
    """Megatron's backward: a collective that is shorter than the compute beside it shows as what it slows that down."""
    evaluator = evaluator_of("llama-3.1-8b", 64, stack="megatron")
    cost = evaluator.block(Parallelism(tensor=2), evaluator.main_layer, "none", {})
    # Forward: two gathers and two scatters. Backward: two gathers show, two more and two scatters hide.
    expected = cost.comm_forward["tensor"] * (2 + 4 * evaluator.software.overlap_slowdown) / 4
    assert cost.comm_backward["tensor"] == pytest.approx(expected, rel=1e-6)


def test_of_a_collective_that_is_longer_than_the_compute_beside_it_the_rest_shows() -> None:
    """Over eight ranks the gather around attention takes longer than the gradient of its input."""
    evaluator = evaluator_of("llama-3.1-8b", 64, stack="megatron")
    cost = evaluator.block(Parallelism(tensor=8), evaluator.main_layer, "none", {})
    forward, backward = cost.comm_forward["tensor"], cost.comm_backward["tensor"]
    assert forward * (2 + 4 * evaluator.software.overlap_slowdown) / 4 < backward < forward * 6 / 4


def test_what_is_gathered_again_needs_a_buffer() -> None:
    """One whole input of a product, which a stack that keeps it counts among what is saved."""
    evaluator, plan = evaluator_of("llama-3.1-8b", 64, stack="megatron"), Parallelism(tensor=8)
    pricer, block = evaluator.pricer(plan), evaluator.graph.block[evaluator.main_layer]
    assignment = evaluator.assignment(plan, block.name, {})
    terms = block_terms(pricer, block, assignment)
    kept = terms._replace(edges={edge: cost._replace(again=()) for edge, cost in terms.edges.items()})
    again, once = (block_cost(pricer, block, each, "none").workspace_bytes for each in (terms, kept))
    assert again - once == pytest.approx(ACTIVATION)


def test_bytes_of_context_parallelism() -> None:
    """Keys and values (8 of 32 heads) are gathered in both passes, their gradients scattered in one."""
    sent = layer_bytes("llama-3.1-8b", Parallelism(context=8), context_exchange="all_gather")
    keys_and_values = 2 * ACTIVATION * 8 / 32
    assert sent == pytest.approx(
        {"all_gather": 2 * RING * keys_and_values, "reduce_scatter": RING * keys_and_values}
    )


def test_bytes_of_expert_parallelism() -> None:
    """Dispatch and combine, each way, of every token's two copies."""
    sent = layer_bytes("mixtral-8x7b", Parallelism(data=8, expert=8))
    assert sent["all_to_all"] == pytest.approx(4 * RING * 2 * ACTIVATION)


def test_every_second_layer_recomputes_half_and_keeps_half() -> None:
    evaluator = evaluator_of("llama-3.1-8b", 64)
    base = Parallelism(data=8, num_microbatches=8, zero_stage=3, sharding="FULL_SHARD", shard_degree=8)
    none, full, half = (
        evaluator.estimate(base.model_copy(update=changes))
        for changes in ({}, {"recompute": "full"}, {"recompute": "full", "recompute_every": 2})
    )
    assert half.time["recompute"] == pytest.approx(full.time["recompute"] / 2)
    assert half.hfu * half.step_time_s == pytest.approx(
        (full.hfu * full.step_time_s + none.hfu * none.step_time_s) / 2
    )
    kept = [found.memory["activations"] for found in (full, half, none)]
    assert kept[1] == pytest.approx((kept[0] + kept[2]) / 2, rel=0.05)


@pytest.mark.parametrize(("degree", "said"), [("data", "data is 4"), ("tensor", "tensor is 2")])
def test_degrees_that_contradict_the_first_stage_are_refused(degree: str, said: str) -> None:
    """Whoever edits a plan file by hand would else be told of the plan that it was before."""
    whole = Parallelism(
        data=2,
        num_microbatches=8,
        stages=(StagePlan(blocks=(0, 32), devices=(0, 2), mesh={"data": 2}),),
    )
    evaluator = evaluator_of("llama-3.1-8b", 16)
    assert evaluator.estimate(whole).step_time_s > 0
    edited = whole.model_copy(
        update={degree: 4 if degree == "data" else 2, "num_microbatches": 8 if degree == "tensor" else 4}
    )
    with pytest.raises(InputError, match=rf"^{said}, but stages\[0\]\.mesh has"):
        evaluator.estimate(edited)

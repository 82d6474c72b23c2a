"""What is counted for few micro-batches holds for many."""

from itertools import product

import pytest

from cluster_specs.catalog import load_cluster
from planner.evaluation import Evaluator
from planner.evaluation.memory import held_activations, steady_microbatches
from planner.models.catalog import load_model
from planner.pipeline.dependencies import arranged, peak_bytes
from planner.pipeline.generators import SCHEDULES, refusal
from planner.plans import Job, Parallelism

MICROBATCHES = (*range(1, 34), 36, 45, 54, 63, 64, 96)
"""Multiples of the ranks, odd remainders, and equal rounds of more micro-batches than ranks."""


def peaks(name: str, p: int, v: int, m: int) -> tuple[float, ...]:
    """Of unequal stages, on every rank."""
    held = [1.0 + (7 * stage) % 5 for stage in range(p * v)]
    late = [1.0 + (5 * stage) % 7 for stage in range(p * v)]  # some more than the forward saved
    return peak_bytes(arranged(name, p, v, m), [a - b for a, b in zip(held, late, strict=True)], late)


def reduced_pipelines(name: str) -> list[tuple[int, int, int, int]]:
    """(ranks, virtual stages, micro-batches, fewer micro-batches), where fewer are simulated."""
    least, most = SCHEDULES[name].stages_per_rank
    found = []
    for p, v, m in product((2, 3, 4, 8), range(least, (most or 3) + 1), MICROBATCHES):
        if not refusal(name, p, v, m):
            plan = Parallelism(pipeline=p, virtual_stages=v, num_microbatches=m, schedule=name)
            found.append((p, v, m, steady_microbatches(plan)))
    return [shape for shape in found if shape[2] != shape[3]]


def check_fewer(name: str, shapes: list[tuple[int, int, int, int]]) -> None:
    for p, v, m, fewer in shapes:
        assert fewer < m
        assert not refusal(name, p, v, fewer), f"{fewer} in place of {m}"
        assert peaks(name, p, v, fewer) == pytest.approx(peaks(name, p, v, m)), f"{fewer} in place of {m}"


@pytest.mark.parametrize("name", SCHEDULES)
def test_fewer_microbatches_hold_as_much(name: str) -> None:
    in_rounds = bool(SCHEDULES[name].requirement)
    check_fewer(name, [s for s in reduced_pipelines(name) if not in_rounds or s[2] % s[0] == 0])


@pytest.mark.parametrize("name", ["interleaved", "interleaved-zb"])
def test_fewer_rounds_of_more_microbatches_than_ranks_hold_as_much(name: str) -> None:
    check_fewer(name, [s for s in reduced_pipelines(name) if s[2] % s[0]])


def test_long_pipelines_are_cut_short() -> None:
    assert any(fewer < m / 4 for _, _, m, fewer in reduced_pipelines("1f1b"))


TOKENS, HIDDEN, VOCABULARY = 2048, 1600, 50257  # of gpt2-xl
LATE = 32.0 * TOKENS * HIDDEN
"""Held by a layer between its input and weight gradient: arXiv:2401.10241, table 1, 32 s b h bytes."""


@pytest.fixture(scope="module")
def gpt() -> Evaluator:
    return Evaluator(
        load_model("gpt2-xl"), load_cluster("dgx-h100:1"), Job(global_batch=64, seq_len=TOKENS // 2)
    )


def pipelined(schedule: str, **changes: object) -> Parallelism:
    numbers = {"data": 2, "pipeline": 4, "micro_batch": 2, "num_microbatches": 16, "schedule": schedule}
    return Parallelism.model_validate(numbers | changes)


@pytest.mark.parametrize("policy", ["none", "full"])
def test_a_split_backward_leaves_inputs_and_output_gradients(gpt: Evaluator, policy: str) -> None:
    """The head's too: its input and the gradient of its logits."""
    plan = pipelined("zb-h1", recompute=policy)
    held = held_activations(plan, gpt.stages(plan))
    head = 2.0 * TOKENS * (HIDDEN + VOCABULARY)
    assert held.until_weight == pytest.approx([12 * LATE, 12 * LATE, 12 * LATE, 12 * LATE + head])
    whole = held_activations(pipelined("1f1b", recompute=policy), gpt.stages(plan))
    assert not any(whole.until_weight)
    assert [sum(both) for both in zip(*held, strict=True)] == pytest.approx(whole.until_input)


def test_a_split_backward_needs_more_memory(gpt: Evaluator) -> None:
    """zb-h1 recomputing all: of four micro-batches on the third rank, three wait for a weight gradient."""
    split, whole = (gpt.estimate(pipelined(name, recompute="full")) for name in ("zb-h1", "1f1b"))
    late = 12 * LATE + 2.0 * TOKENS * (HIDDEN + VOCABULARY)
    assert split.memory_bytes > whole.memory_bytes + 2 * late


def test_offloaded_activations_leave_two_layers_on_the_device(gpt: Evaluator) -> None:
    plan = Parallelism(data=8, micro_batch=1, num_microbatches=8, offload=("activations",))
    here, there = gpt.estimate(plan.model_copy(update={"offload": ()})).memory, gpt.estimate(plan).memory
    assert there["offload_buffers"] == pytest.approx(2 / 48 * here["activations"], rel=0.01)
    assert "activations" not in there


def test_the_answer_says_what_is_alive_when(gpt: Evaluator) -> None:
    found = gpt.estimate(Parallelism(data=8, micro_batch=2, num_microbatches=4, zero_stage=3, shard_degree=8))
    phases = [moment.phase for moment in found.memory_over_step]
    assert (phases[0], phases[-1]) == ("start", "optimizer")
    assert {"loss", "backward"} < set(phases)
    for moment in found.memory_over_step:
        assert moment.tensor_bytes == pytest.approx(sum(moment.tensors.values()))
    peak = max(found.memory_over_step, key=lambda moment: moment.tensor_bytes)
    assert (peak.phase, peak.tensor_bytes) == (found.peak_phase, pytest.approx(found.tensor_bytes))
    assert peak.tensors.items() <= found.memory.items()


def test_pipelines_of_torch_add_gradients_up_whole_and_reduce_them_once(gpt: Evaluator) -> None:
    """torch/distributed/pipelining/stage.py: nothing is reduced until `perform_reduce_grad`."""
    sharded = {"data": 2, "zero_stage": 2, "sharding": "SHARD_GRAD_OP", "shard_degree": 2}
    plan = pipelined("1f1b", **sharded)
    found = gpt.estimate(plan)
    held = sum(group.elements for group in gpt.stages(plan)[0].weights)
    assert found.fullest_stage == 0
    assert found.memory["gradients"] == pytest.approx(held * 2)
    assert found.communication["reduce_scatter"] == pytest.approx(held * 2 / 2, rel=0.01)
    alone = Parallelism.model_validate(sharded | {"micro_batch": 2, "num_microbatches": 16})
    elements = sum(group.elements for group in gpt.stages(alone)[0].weights)
    assert gpt.estimate(alone).communication["reduce_scatter"] == pytest.approx(
        16 * elements * 2 / 2, rel=0.01
    )


def test_pipelines_of_torch_leave_other_stages_gathered(gpt: Evaluator) -> None:
    sharded = {"data": 2, "zero_stage": 3, "sharding": "FULL_SHARD", "shard_degree": 2, "virtual_stages": 3}
    plan = pipelined("interleaved", **sharded)
    whole = 2 * sum(g.elements for s in range(0, 12, 4) for g in gpt.stages(plan)[s].weights)
    backward = [m for m in gpt.estimate(plan).memory_over_step if m.phase == "backward"]
    assert max(m.tensors["gathered_weights"] for m in backward) > 2 / 3 * whole

"""A step laid out in time says the same as the estimate."""

from itertools import pairwise

import pytest

from cluster_specs.catalog import load_cluster
from planner.evaluation.evaluator import Evaluator
from planner.evaluation.timeline import step_timeline
from planner.models.catalog import load_model
from planner.plans import Job, Parallelism


@pytest.fixture(scope="module")
def evaluator() -> Evaluator:
    job = Job(global_batch=32, seq_len=2048)
    return Evaluator(load_model("llama-3.2-1b"), load_cluster("dgx-h100:2"), job)


PLANS = {
    "no pipeline": Parallelism(data=8, num_microbatches=4),
    "1f1b": Parallelism(data=2, tensor=2, pipeline=4, num_microbatches=16),
    "zb-h1": Parallelism(data=2, tensor=2, pipeline=4, num_microbatches=16, schedule="zb-h1"),
    "interleaved": Parallelism(
        data=4, pipeline=4, virtual_stages=2, num_microbatches=8, schedule="interleaved"
    ),
    "v-min": Parallelism(data=4, pipeline=4, virtual_stages=2, num_microbatches=8, schedule="v-min"),
    "chimera": Parallelism(data=2, tensor=2, pipeline=4, num_microbatches=16, schedule="chimera"),
    "written out": Parallelism(
        data=8,
        pipeline=2,
        num_microbatches=4,
        schedule="0F0,0F1,0F2,0F3,0B0,0B1,0B2,0B3\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n",
    ),
    "full recomputation": Parallelism(
        data=4, pipeline=2, num_microbatches=8, recompute="full", zero_stage=1, shard_degree=4
    ),
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_times_and_memory_are_those_of_the_estimate(evaluator: Evaluator, plan: Parallelism) -> None:
    estimate, step = evaluator.estimate(plan), step_timeline(evaluator, plan)
    assert step.step_seconds == pytest.approx(estimate.step_time_s)
    assert step.timeline.busiest_bubble_fraction == pytest.approx(estimate.bubble_fraction, abs=1e-9)
    memory = step.memory_over_time()
    assert len(memory) == plan.pipeline
    peaks = [max(held for _, held in steps) for steps in memory]
    assert max(peaks) == pytest.approx(estimate.memory_bytes)
    assert step.memory_limit_bytes == estimate.memory_limit_bytes
    by_rank = [memory.tensors for memory in step.memory]
    assert max(by_rank) == pytest.approx(estimate.tensor_bytes)
    assert by_rank[0] == pytest.approx(estimate.first_tensor_bytes)
    assert dict(step.after)["optimizer"] == estimate.time["optimizer"]
    for steps in memory:
        assert steps[-1][0] == step.step_seconds
        assert [moment for moment, _ in steps] == sorted(moment for moment, _ in steps)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_every_microbatch_runs_through_every_stage(evaluator: Evaluator, plan: Parallelism) -> None:
    timeline = step_timeline(evaluator, plan).timeline
    forwards = [span for span in timeline.spans() if span.action.work.name == "F"]
    assert len(forwards) == plan.num_microbatches * plan.pipeline * plan.virtual_stages
    crossings = sum(a != b for a, b in pairwise(timeline.schedule.stage_to_rank))
    assert len(list(timeline.transfers())) == 2 * crossings * plan.num_microbatches


def test_a_peak_in_the_optimizer_is_drawn_there() -> None:
    job = Job(global_batch=32, seq_len=128, stack="deepspeed")
    small = Evaluator(load_model("llama-3.2-1b"), load_cluster("dgx-h100:2"), job)
    plan = Parallelism(data=2, pipeline=2, num_microbatches=16, recompute="full")
    estimate, step = small.estimate(plan), step_timeline(small, plan)
    assert estimate.peak_phase == "optimizer"
    steps = step.memory_over_time()[estimate.fullest_stage]
    moment, most = max(steps, key=lambda entry: entry[1])
    assert most == pytest.approx(estimate.memory_bytes)
    assert moment >= step.timeline.makespan
    assert steps[-1] == (step.step_seconds, pytest.approx(step.resident_bytes[estimate.fullest_stage]))


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_what_ranks_do_besides_fills_the_rest_of_the_step(evaluator: Evaluator, plan: Parallelism) -> None:
    """Gradients are exchanged once a rank is done, the update follows when all are."""
    step = step_timeline(evaluator, plan)
    ends = [row[-1] for row in step.timeline.ends]
    assert [start for start, _ in step.reduces] == ends
    exchanged = step.timeline.makespan + dict(step.after)["data"]
    assert max(end for _, end in step.reduces) == pytest.approx(exchanged)
    updates = [one for one in step.beside() if one.track == "update"]
    for rank in range(plan.pipeline):
        mine = [one for one in updates if one.rank == rank]
        assert mine[0].name == "optimizer"
        assert mine[0].start == pytest.approx(exchanged)
        assert all(a.end == b.start for a, b in pairwise(mine))
        assert mine[-1].end == pytest.approx(step.step_seconds)

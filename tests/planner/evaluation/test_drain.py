"""What follows the last backward: reductions in the drain, tied embeddings, schedules with two copies of a stage."""

import pytest

from cluster_specs.catalog import load_cluster
from cluster_specs.topology import comm_group, route
from cost_models.collectives import all_reduce
from planner.evaluation.evaluator import Evaluator
from planner.evaluation.memory import memory_by_rank
from planner.evaluation.step import Around, handed_on
from planner.evaluation.tails import Tail, last_tail, tails_of
from planner.models.catalog import load_model
from planner.plans import Job, Parallelism

GPT2_EMBEDDING = 50257 * 768
"""Rows and columns of wte in GPT-2's own config.json."""


def evaluator_of(model: str, **job: object) -> Evaluator:
    fields = {"global_batch": 32, "seq_len": 1024, **job}
    return Evaluator(load_model(model), load_cluster("dgx-h100:2"), Job.model_validate(fields))


def test_a_rank_that_is_done_early_reduces_while_others_drain() -> None:
    early = last_tail((10.0, 8.0), (Tail(1.0, 0.5), Tail(2.5, 0.7)))
    assert early == (1.0, 0.7)
    late = last_tail((10.0, 9.5), (Tail(1.0, 0.5), Tail(2.5, 0.7)))
    assert late == (2.0, 0.7)


def test_stages_that_fold_back_on_a_rank_hand_on_for_nothing() -> None:
    """Also where ranks are pools: stages 1 and 2 of a V of four are on the last rank."""
    cluster = load_cluster("dgx-a100-80g:1+dgx-h100:1")
    there, folded, back = handed_on(cluster, [1e9] * 3, [(0, 8), (8, 16), (8, 16), (0, 8)])
    assert folded == 0
    assert there == back > 0


def test_what_is_around_a_plan_is_not_taken_for_what_is_around_another() -> None:
    """Of the same stages, with other numbers of ranks that share states and on other devices."""
    evaluator, around = evaluator_of("gpt2"), Around()
    usual = Parallelism(data=4, pipeline=4, num_microbatches=8, zero_stage=2, shard_degree=4)
    stages, mesh = evaluator.stages(usual), evaluator.mesh(usual)
    changes = ({}, {"shard_degree": 2}, {"zero_stage": 0, "shard_degree": 1}, {"data": 1})
    plans = [usual.model_copy(update=change) for change in changes]
    kept = [around.of(evaluator.setting, plan, mesh, stages) for plan in plans]
    assert kept == [Around().of(evaluator.setting, plan, mesh, stages) for plan in plans]
    assert len(set(kept)) == len(plans)


def test_tied_embeddings_are_reduced_between_first_and_last_stage() -> None:
    evaluator = evaluator_of("gpt2", reduce_dtype="fp32")
    plan = Parallelism(pipeline=4, num_microbatches=32)
    tails = tails_of(evaluator.setting, plan, evaluator.mesh(plan), evaluator.stages(plan))
    stages = evaluator.stages(plan)
    hidden = evaluator.software.overlap_data * (stages[0].backward_input + stages[0].backward_weight)
    group = route(evaluator.cluster, (0, 1), (3, 4))  # devices of one node
    whole = all_reduce(4 * GPT2_EMBEDDING, group).seconds
    beside = min(whole, hidden)
    assert tails[0].data == pytest.approx(whole - beside + evaluator.software.overlap_slowdown * beside)
    assert [tail.data for tail in tails[1:]] == [0.0] * 3
    assert [s.tied_elements for s in stages] == [GPT2_EMBEDDING, 0, 0, 0]


@pytest.mark.parametrize("pipeline", [2, 4, 8])
def test_tied_embeddings_of_a_pipeline_over_a_torus_are_reduced(pipeline: int) -> None:
    """First and last stage of more than two are no row of a torus."""
    job = Job(global_batch=16, seq_len=1024, stack="jax-xla")
    evaluator = Evaluator(load_model("gpt2"), load_cluster("tpu-v5e:4x4"), job)
    plan = Parallelism(data=16 // pipeline, pipeline=pipeline, num_microbatches=pipeline, schedule="gpipe")
    stages, mesh = evaluator.stages(plan), evaluator.mesh(plan)
    untied = [stage._replace(tied_elements=0.0) for stage in stages]
    beside, alone = (tails_of(evaluator.setting, plan, mesh, costs) for costs in (stages, untied))
    assert beside[0].data > alone[0].data
    assert beside[1:] == alone[1:]


def test_a_v_shaped_pipeline_holds_tied_embeddings_on_one_rank() -> None:
    evaluator = evaluator_of("gpt2")
    plan = Parallelism(pipeline=4, virtual_stages=2, num_microbatches=32, schedule="v-half")
    tails = tails_of(evaluator.setting, plan, evaluator.mesh(plan), evaluator.stages(plan))
    assert [tail.data for tail in tails] == [0.0] * 4


def test_chimera_holds_twice_the_weights_and_keeps_them_equal() -> None:
    evaluator = evaluator_of("llama-3.2-1b")
    once = Parallelism(pipeline=4, num_microbatches=32)
    twice = once.model_copy(update={"schedule": "chimera"})
    mesh, stages = evaluator.mesh(once), evaluator.stages(once)

    def states(plan: Parallelism) -> list[float]:
        memory = dict(memory_by_rank(evaluator.setting, plan, mesh, stages))
        return [memory[rank].components["optimizer"] for rank in (0, 3) if rank in memory]

    assert states(twice)[0] == pytest.approx(sum(states(once)))
    # Rank 0 holds stages 0 and 3 and reduces both with rank 3.
    elements = sum(g.elements for s in (stages[0], stages[3]) for g in s.weights)
    size = {"bf16": 2, "fp32": 4}[evaluator.software.reduce_dtype]
    whole = all_reduce(size * elements, comm_group(evaluator.cluster, ((2, 3),))).seconds
    hidden = evaluator.software.overlap_data * sum(
        s.backward_input + s.backward_weight for s in (stages[0], stages[3])
    )
    slowed = evaluator.software.overlap_slowdown * hidden
    assert tails_of(evaluator.setting, twice, mesh, stages)[0].data == pytest.approx(whole - hidden + slowed)


@pytest.mark.parametrize("schedule", ["chimera", "dualpipe"])
def test_two_copies_halve_the_bubble_for_few_microbatches(schedule: str) -> None:
    evaluator = evaluator_of("llama-3.2-1b", global_batch=8)
    once = Parallelism(pipeline=4, num_microbatches=8)
    bubble = {
        name: evaluator.estimate(once.model_copy(update={"schedule": name})).time["bubble"]
        for name in ("1f1b", schedule)
    }
    assert bubble[schedule] < 0.8 * bubble["1f1b"]


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1", "chimera", "dualpipe"])
def test_the_floor_is_below_the_estimate(schedule: str) -> None:
    for model in ("gpt2", "llama-3.2-1b"):
        evaluator = evaluator_of(model)
        plan = Parallelism(
            data=2, pipeline=4, num_microbatches=16, schedule=schedule, zero_stage=1, shard_degree=2
        )
        cuts = evaluator.cuts(plan)
        assert evaluator.floor(plan, {}, cuts) <= evaluator.estimate(plan).step_time_s * (1 + 1e-12)


@pytest.mark.parametrize(("schedule", "stages"), [("zb-h1", 1), ("interleaved", 2), ("breadth-first", 2)])
def test_a_schedule_that_is_written_out_is_priced_as_its_name(schedule: str, stages: int) -> None:
    from planner.pipeline.generators import generate

    evaluator = evaluator_of("llama-3.2-1b")
    named = Parallelism(
        data=2,
        pipeline=4,
        virtual_stages=stages,
        num_microbatches=16,
        schedule=schedule,
        zero_stage=1,
        shard_degree=2,
    )
    written = named.model_copy(update={"schedule": str(generate(schedule, 4, stages, 16))})
    assert evaluator.estimate(written) == evaluator.estimate(named)

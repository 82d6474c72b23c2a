"""Stages that differ: exact on small cases, uniform where all is uniform, and faster pools get more."""

from itertools import pairwise, product

import pytest

from cluster_specs.catalog import load_cluster, what_if
from cluster_specs.pools import join
from planner.errors import InputError, Unsupported
from planner.evaluation.evaluator import Evaluator
from planner.evaluation.tails import Tail
from planner.evaluation.timeline import step_timeline
from planner.exporters.registry import export
from planner.models.catalog import load_model
from planner.pipeline.dependencies import arranged, peak_in_flight
from planner.plans import Job, Parallelism, Pins, Plan, StagePlan
from planner.search import plan
from planner.search.placing import placed
from planner.search.rescheduling import ONE_BY_ONE
from planner.search.submeshes import Choice, in_flight, submesh_sizes
from planner.search.unequal import Combination, UnequalSearch
from tests.planner.search.small_cases import small_llama, small_mixture
from tests.planner.search.unlike_pools import every_cut, mixed, pair, slowly_joined, tight

CASES = {
    "mixed": (small_llama(num_hidden_layers=4), mixed(), Pins()),
    "tight": (
        small_llama(num_hidden_layers=4),
        join([tight(pair("dgx-a100-80g"), 5), pair("dgx-h100")], None, "x"),
        Pins(),
    ),
    "unlike links": (
        small_llama(num_hidden_layers=4),
        join([pair("dgx-h100"), slowly_joined(pair("dgx-h100"))], None, "x"),
        Pins(),
    ),
    "experts": (small_mixture(), mixed(), Pins()),
    "wide vocabulary": (
        small_llama(num_hidden_layers=4, vocab_size=256000),
        pair("dgx-h100"),
        Pins(unequal_stages=True),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_brute_force(name: str) -> None:
    model, cluster, pins = CASES[name]
    one_by_one = pins.model_copy(
        update={"schedule": "1f1b"}
    )  # cuts have one stage a rank, interleaved ones more
    search = UnequalSearch(Evaluator(model, cluster, Job(global_batch=8, seq_len=2048)), one_by_one)
    found = search.run().found[0].estimate.step_time_s
    every = [
        answer.estimate.step_time_s
        for combination in search.combinations()
        for stages in every_cut(search, combination)
        if (answer := search.priced(combination, search.submeshes(combination), stages)) is not None
    ]
    assert len(every) > 20
    assert found == pytest.approx(min(every))


@pytest.mark.parametrize("name", CASES)
def test_bounds_are_below_every_plan(name: str) -> None:
    model, cluster, pins = CASES[name]
    search = UnequalSearch(Evaluator(model, cluster, Job(global_batch=8, seq_len=2048)), pins)
    for combination in search.combinations():
        searched = search.solve(combination)
        priced = [
            found.estimate.step_time_s
            for stages in every_cut(search, combination)
            if (found := search.priced(combination, search.submeshes(combination), stages)) is not None
        ]
        assert search.bound(combination) <= min(priced, default=float("inf"))
        assert searched.bound <= min(priced, default=float("inf"))
        assert bool(searched.found) == bool(priced)
        if priced:
            assert searched.found[0].seconds == pytest.approx(min(priced))


def test_the_faster_pool_gets_more_layers() -> None:
    answer = plan(small_llama(), mixed(), Job(global_batch=32, seq_len=4096), top=1)
    by_pool = {0: 0, 1: 0}
    for stage in answer.plan.stages:
        by_pool[stage.devices[0] // 2] += stage.blocks[1] - stage.blocks[0]
    assert by_pool[1] > 1.5 * by_pool[0] > 0
    assert answer.estimate is not None
    alone = plan(small_llama(), pair("dgx-h100"), Job(global_batch=32, seq_len=4096), top=1)
    assert alone.estimate is not None
    assert answer.estimate.step_time_s < alone.estimate.step_time_s
    assert answer.optimality.proven
    one_by_one = plan(
        small_llama(), mixed(), Job(global_batch=32, seq_len=4096), Pins(schedule="1f1b"), top=1
    )
    assert one_by_one.optimality is not None
    assert one_by_one.optimality.proven


def test_a_pool_that_only_slows_down_stays_idle() -> None:
    slow = {"links.nvlink.bandwidth": "1 GB/s", "device.peak_flops_per_second.bf16": 1e12}
    crawling = what_if(pair("dgx-a100-80g"), slow)
    cluster = join([crawling, pair("dgx-h100")], None, "mixed")
    answer = plan(small_llama(), cluster, Job(global_batch=16, seq_len=2048), top=1)
    assert {stage.devices[0] // 2 for stage in answer.plan.stages} == {1}


def test_uniform_layers_on_a_uniform_cluster_are_split_evenly() -> None:
    # A vocabulary of 128 leaves nothing to do at the ends.
    model = small_llama(num_hidden_layers=8, vocab_size=128)
    pins = Pins(unequal_stages=True, pipeline=4, schedule="1f1b", micro_batch=1)
    four = what_if(load_cluster("dgx-h100"), {"devices_per_node": 4})
    search = UnequalSearch(Evaluator(model, four, Job(global_batch=32, seq_len=2048)), pins)
    best = search.run().found[0].plan
    assert [stage.blocks for stage in best.stages] == [(0, 2), (2, 4), (4, 6), (6, 8)]
    assert len({stage.degrees for stage in best.stages}) == 1


def equal_stages(parallelism: Parallelism, evaluator: Evaluator) -> Parallelism:
    per_stage = parallelism.num_devices // parallelism.pipeline
    cuts = evaluator.cuts(parallelism)
    mesh = {"tensor": parallelism.tensor, "context": 1, "expert": 1, "data": parallelism.data}
    stages = tuple(
        StagePlan(blocks=blocks, devices=(s * per_stage, (s + 1) * per_stage), mesh=mesh)
        for s, blocks in enumerate(pairwise(cuts))
    )
    return parallelism.model_copy(update={"stages": stages})


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("model", ["gpt2", "llama-3.2-1b"])
def test_pools_of_the_same_devices_are_one_cluster(model: str, zero: int) -> None:
    job = Job(global_batch=64, seq_len=1024)
    one = Evaluator(load_model(model), load_cluster("dgx-h100:2"), job)
    two = Evaluator(load_model(model), load_cluster("dgx-h100+dgx-h100"), job)
    degrees = Parallelism(
        data=4, tensor=2, pipeline=2, num_microbatches=16, zero_stage=zero, shard_degree=4 if zero else 1
    )
    written = equal_stages(degrees, one)
    expected, got = one.estimate(written), two.estimate(written)
    assert got.step_time_s == pytest.approx(expected.step_time_s, rel=1e-9)
    assert got.memory_bytes == pytest.approx(expected.memory_bytes, rel=1e-12)
    assert got.mfu == pytest.approx(expected.mfu, rel=1e-9)
    assert sum(got.time.values()) == pytest.approx(got.step_time_s, rel=1e-12)
    assert step_timeline(two, written).step_seconds == pytest.approx(got.step_time_s)


def test_peak_of_mixed_devices_is_the_sum() -> None:
    evaluator = Evaluator(small_llama(), mixed(), Job(global_batch=8, seq_len=1024))
    written = equal_stages(Parallelism(data=2, pipeline=2, num_microbatches=4), evaluator)
    estimate = evaluator.estimate(written)
    peaks = [pool.device.peak_flops_per_second["bf16"] for pool in mixed().pools]
    assert estimate.mfu == pytest.approx(estimate.model_flops_per_s_per_device * 4 / (2 * sum(peaks)))


def stage(devices: tuple[int, int], blocks: tuple[int, int] = (0, 4), **mesh: int) -> StagePlan:
    return StagePlan(blocks=blocks, devices=devices, mesh=mesh)


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ((), "needs `stages` with devices and mesh, 2 of them; found 0"),
        ((stage((0, 2), data=2), stage((1, 3), (4, 8), data=2)), "two pipeline ranks share device 1"),
        ((stage((0, 2), data=2), stage((2, 4), (4, 8), data=1)), "devices 2 to 3 has a mesh of 1"),
        ((stage((0, 2), data=2), stage((3, 5), (4, 8), data=2)), "devices 3 to 4 are in no pool"),
        ((stage((0, 1), data=1), stage((2, 4), (4, 8), data=2)), "data is 2, but stages.0..mesh has 1"),
        ((stage((0, 2), data=2), stage((2, 4), (4, 8), tensor=1, data=2)), None),
    ],
)
def test_stages_that_are_not_whole_are_refused(stages: tuple[StagePlan, ...], message: str | None) -> None:
    evaluator = Evaluator(small_llama(), mixed(), Job(global_batch=8, seq_len=1024))
    written = Parallelism(data=2, pipeline=2, num_microbatches=4, stages=stages)
    if message is None:
        assert evaluator.estimate(written).step_time_s > 0
        return
    with pytest.raises(InputError, match=message):
        evaluator.estimate(written)


def test_a_micro_batch_must_divide_among_every_stage() -> None:
    evaluator = Evaluator(small_llama(), mixed(), Job(global_batch=9, seq_len=1024))
    stages = (stage((0, 1), data=1), stage((2, 4), (4, 8), data=2))
    with pytest.raises(InputError, match="1 sequences of a micro-batch do not divide among 2"):
        evaluator.estimate(Parallelism(pipeline=2, num_microbatches=9, stages=stages))


def test_framework_files_are_refused_for_meshes_of_their_own() -> None:
    stages = (stage((0, 1), data=1), stage((2, 4), (4, 8), data=2))
    written = Plan(
        model=small_llama(),
        cluster=mixed(),
        job=Job(global_batch=8, seq_len=1024),
        plan=Parallelism(pipeline=2, micro_batch=2, num_microbatches=4, stages=stages),
    )
    with pytest.raises(Unsupported, match="meshes of their own"):
        export(written, "jax")


@pytest.mark.parametrize(
    ("pins", "objective", "message"),
    [
        (Pins(schedule="chimera"), "time", "holds every stage twice"),
        (Pins(schedule="0F0,0B0\n1F0,1B0\n"), "time", "give it to the plan that is found"),
        (Pins(sharding="HYBRID_SHARD"), "time", "shard over all"),
        (Pins(recompute="some"), "time", "--recompute 'some'"),
    ],
)
def test_pins_that_cannot_be_are_refused(pins: Pins, objective: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        plan(small_llama(), mixed(), Job(global_batch=8, seq_len=1024), pins, objective)


def test_submeshes_nest() -> None:
    assert submesh_sizes(load_cluster("dgx-h100:2"), 16) == (16, 8, 4, 2)
    assert submesh_sizes(load_cluster("dgx-h100:6"), 48) == (48, 24, 8)
    assert submesh_sizes(load_cluster("tpu-v5e:4x4"), 16) == (16, 8, 4, 2)


@pytest.mark.parametrize("schedule", ONE_BY_ONE)
@pytest.mark.parametrize("num_microbatches", [1, 3, 8, 40])
def test_a_stage_holds_what_the_first_of_the_rest_would(schedule: str, num_microbatches: int) -> None:
    for ranks in (1, 2, 4, 7):
        whole = peak_in_flight(arranged(schedule, ranks, 1, num_microbatches))
        held = tuple(in_flight(schedule, ranks - 1 - rank, num_microbatches) for rank in range(ranks))
        assert held == whole


def every_mesh_and_policy(search: UnequalSearch, combination: Combination):
    """Every cut with every mesh and policy on every stage: nothing is chosen beforehand."""
    evaluator, submeshes = search.evaluator, search.submeshes(combination)
    room = 1 - evaluator.job.memory_headroom
    for stages in every_cut(search, combination):
        layers = tuple(pairwise((0, *(stage.end for stage in stages))))
        used = [submeshes[stage.submesh] for stage in stages]
        pools = [combination.order[submesh.pool] for submesh in used]
        ways = [
            [Choice(0.0, Tail(0, 0), 0.0, way, search.prices[pool].shardings(way)) for way in ways]
            for pool, ways in (
                (pool, search.prices[pool].meshes(submesh.size, combination.share))
                for pool, submesh in zip(pools, used, strict=True)
            )
        ]
        for choices in product(*ways):
            estimate = evaluator.estimate(placed(evaluator, combination.share, layers, choices, pools))
            if estimate.memory_bytes <= room * estimate.memory_limit_bytes:
                yield estimate.step_time_s


@pytest.mark.parametrize("gib", [2.0, 2.6])
def test_equals_every_mesh_and_policy_on_every_stage(gib: float) -> None:
    cluster = join([tight(pair("dgx-a100-80g"), gib), tight(pair("dgx-h100"), gib + 1)], None, "x")
    model = small_llama(num_hidden_layers=3)
    pins = Pins(context=1, zero_stage=1, schedule="1f1b")
    search = UnequalSearch(Evaluator(model, cluster, Job(global_batch=4, seq_len=2048)), pins)
    every = [step for c in search.combinations() for step in every_mesh_and_policy(search, c)]
    found = search.run().found
    assert bool(found) == bool(every)
    if every:
        assert found[0].estimate.step_time_s == pytest.approx(min(every))


@pytest.mark.parametrize(("model", "seq_len", "most"), [("resnet-50", 1, 4096), ("gpt2", 512, 1024)])
def test_many_short_inputs_are_one_micro_batch(model: str, seq_len: int, most: int) -> None:
    """Up to 262,144 tokens on each of two data ranks, as where devices are alike; 64 images leave them idle."""
    search = UnequalSearch(
        Evaluator(load_model(model), mixed(), Job(global_batch=4096, seq_len=seq_len)), Pins()
    )
    assert max(combination.share.sequences for combination in search.combinations()) == most

"""Stages that differ: exact on small cases, uniform where all is uniform, and faster pools get more."""

from itertools import combinations, pairwise, product

import pytest

from cluster_specs.catalog import load_cluster, what_if
from cluster_specs.cluster import ClusterSpec, PriceSpec
from cluster_specs.pools import join
from cluster_specs.topology import pool_of
from planner.errors import Infeasible, InputError, Unsupported
from planner.evaluation.evaluator import Evaluator
from planner.evaluation.setting import ranks_of
from planner.evaluation.step import Tail
from planner.evaluation.timeline import step_timeline
from planner.exporters.registry import export
from planner.models.catalog import load_model
from planner.pipeline.dependencies import arranged, peak_in_flight
from planner.plans import Job, Parallelism, Pins, Plan, StagePlan
from planner.search import plan
from planner.search.placing import placed
from planner.search.rescheduling import ONE_BY_ONE, Answer
from planner.search.submeshes import Choice, Share, in_flight, submesh_sizes
from planner.search.unequal import Combination, Stage, UnequalSearch
from tests.planner.search.small_cases import small_llama, small_mixture


def pair(name: str) -> ClusterSpec:
    """One node of two devices."""
    return what_if(load_cluster(name), {"devices_per_node": 2})


def mixed() -> ClusterSpec:
    """Two A100 and two H100."""
    return join([pair("dgx-a100-80g"), pair("dgx-h100")], None, "mixed")


def tight(cluster: ClusterSpec, gib: float) -> ClusterSpec:
    return what_if(cluster, {"device.memory": gib * 2**30})


def every_cut(search: UnequalSearch, combination: Combination):
    """Every way to cut the layers and fill the pools in order."""
    submeshes = search.submeshes(combination)
    layers = search.evaluator.graph.num_layers
    pools = [search.prices[k].evaluator.cluster.num_devices for k in combination.order]
    for num_stages in range(1, layers + 1):
        for chosen in product(range(len(submeshes)), repeat=num_stages):
            used = [submeshes[k] for k in chosen]
            sums = [sum(s.size for s in used if s.pool == i) for i in range(len(pools))]
            if sums != pools or [s.pool for s in used] != sorted(s.pool for s in used):
                continue
            for ends in product(range(1, layers), repeat=num_stages - 1):
                if all(a < b for a, b in pairwise((0, *ends, layers))):
                    yield tuple(Stage(end, k) for end, k in zip((*ends, layers), chosen, strict=True))


CASES = {
    "mixed": (small_llama(num_hidden_layers=4), mixed(), Pins()),
    "tight": (
        small_llama(num_hidden_layers=4),
        join([tight(pair("dgx-a100-80g"), 5), pair("dgx-h100")], None, "x"),
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
    search = UnequalSearch(Evaluator(model, cluster, Job(global_batch=8, seq_len=2048)), pins)
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
        answer, bound = search.solve(combination)
        priced = [
            found.estimate.step_time_s
            for stages in every_cut(search, combination)
            if (found := search.priced(combination, search.submeshes(combination), stages)) is not None
        ]
        assert search.bound(combination) <= min(priced, default=float("inf"))
        assert bound <= min(priced, default=float("inf"))
        if answer is not None:
            assert answer.estimate.step_time_s == pytest.approx(min(priced))


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
    assert 0 < answer.optimality.gap < 0.5
    one_by_one = plan(
        small_llama(), mixed(), Job(global_batch=32, seq_len=4096), Pins(schedule="1f1b"), top=1
    )
    assert one_by_one.optimality is not None
    assert one_by_one.optimality.gap < 0.01


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
        ((stage((0, 2), data=1), stage((2, 4), (4, 8), data=2)), "devices 0 to 1 has a mesh of 1"),
        ((stage((0, 1), data=1), stage((1, 3), (4, 8), data=2)), "devices 1 to 2 are in no pool"),
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


OTHERS = {
    "interleaved": Pins(schedule="interleaved", virtual_stages=2, micro_batch=1),
    "zb-h1": Pins(schedule="zb-h1", micro_batch=1),
    "zb-v": Pins(schedule="zb-v", micro_batch=1),
    "interleaved-zb": Pins(schedule="interleaved-zb", virtual_stages=2, micro_batch=1),
}


@pytest.mark.parametrize("name", OTHERS)
def test_unlike_stages_under_other_schedules(name: str) -> None:
    model, job = small_llama(num_hidden_layers=6), Job(global_batch=8, seq_len=1024)
    search = UnequalSearch(Evaluator(model, mixed(), job), OTHERS[name])
    outcome = search.run()
    best = outcome.found[0]
    assert best.plan.schedule == name
    assert outcome.bound <= best.estimate.step_time_s
    assert search.evaluator.estimate(best.plan) == best.estimate
    # Every other cut of the same ranks, with as much recomputation, is slower or does not fit.
    homes = ranks_of(best.plan)
    stages, v = best.plan.stages, best.plan.virtual_stages
    for ends in combinations(range(1, 6), len(stages) - 1):
        moved = [
            stages[s].model_copy(update={"blocks": blocks, "sharding": {}})
            for s, blocks in enumerate(pairwise((0, *ends, 6)))
        ]
        other = search.evaluator.estimate(best.plan.model_copy(update={"stages": tuple(moved)}))
        room = 1 - job.memory_headroom
        if other.memory_bytes <= room * other.memory_limit_bytes:
            assert best.estimate.step_time_s <= other.step_time_s * (1 + 1e-9)
    assert all(len(held) == v for held in homes)


def test_other_schedules_are_tried_where_the_stack_has_them() -> None:
    job = Job(global_batch=8, seq_len=1024)
    plain = UnequalSearch(Evaluator(small_llama(), mixed(), job), Pins(schedule="1f1b")).run().found[0]
    free = UnequalSearch(Evaluator(small_llama(), mixed(), job), Pins()).run()
    assert free.found[0].estimate.step_time_s <= plain.estimate.step_time_s
    assert {answer.plan.schedule for answer in free.found} == {"1f1b", "interleaved"}


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


def every_deal(search: UnequalSearch, found: Plan | Parallelism):
    """Steps of the plan's ranks with every mesh, policy and cut; what does not fit is left out."""
    evaluator, room = search.evaluator, 1 - search.evaluator.job.memory_headroom
    share = Share(
        found.data * found.micro_batch, found.num_microbatches, found.zero_stage, found.sharding, "1f1b"
    )
    homes = ranks_of(found)
    firsts = [found.stages[held[0]] for held in homes]
    prices = [search.prices[pool_of(evaluator.whole, stage.devices)] for stage in firsts]
    layers, stages = evaluator.graph.num_layers, len(found.stages)
    for chosen in product(*(price.meshes(2, share) for price in prices)):
        choices = [
            Choice(0.0, Tail(0, 0), 0.0, way, price.shardings(way))
            for way, price in zip(chosen, prices, strict=True)
        ]
        ranks = placed(evaluator, share, [(0, 1)] * len(homes), choices, range(len(homes)))
        for inner in combinations(range(1, layers), stages - 1):
            written = [
                ranks.stages[next(r for r, held in enumerate(homes) if s in held)].model_copy(
                    update={"blocks": blocks, "sharding": {}}
                )
                for s, blocks in enumerate(pairwise((0, *inner, layers)))
            ]
            changed = {
                "stages": tuple(written),
                "schedule": found.schedule,
                "virtual_stages": found.virtual_stages,
            }
            estimate = evaluator.estimate(ranks.model_copy(update=changed))
            if estimate.memory_bytes <= room * estimate.memory_limit_bytes:
                yield estimate.step_time_s


@pytest.mark.parametrize("gib", [80.0, 4.0])
def test_no_deal_of_unlike_ranks_is_below_the_bound(gib: float) -> None:
    cluster = join([tight(pair("dgx-a100-80g"), gib), tight(pair("dgx-h100"), gib + 1)], None, "x")
    pins = Pins(
        schedule="interleaved", virtual_stages=2, pipeline=2, context=1, expert=1, zero_stage=1, micro_batch=1
    )
    model, job = small_llama(num_hidden_layers=7), Job(global_batch=8, seq_len=2048)
    search = UnequalSearch(Evaluator(model, cluster, job), pins)
    outcome = search.run()
    best = outcome.found[0]
    every = list(every_deal(search, best.plan))
    assert len(every) > 50
    assert outcome.bound <= min(every) * (1 + 1e-9)
    assert best.estimate.step_time_s <= min(every) * (1 + 1e-9)


def two_nodes_each(gib: float) -> ClusterSpec:
    """Four A100 and four H100 with so much memory, in nodes of two; an A100 costs a third."""
    priced = {"a100-sxm-80g": 1.0, "h100-sxm-80g": 3.0}
    pools = []
    for name in ("dgx-a100-80g:2", "dgx-h100:2"):
        pool = tight(what_if(load_cluster(name), {"devices_per_node": 2}), gib)
        price = PriceSpec(per_device_hour=priced[pool.device.name])
        pools.append(pool.model_copy(update={"price": price}))
    return join(pools, None, "x")


def money(answer: Plan | Answer) -> float:
    """Of a step, in prices of a device for a second."""
    used = {stage.devices for stage in answer.plan.stages}
    return answer.estimate.step_time_s * sum((end - start) * (1 if start < 4 else 3) for start, end in used)


@pytest.mark.parametrize(
    ("objective", "gib"), [("cost", 3.1), ("cost", 3.2), ("cost", 80.0), ("devices", 3.1), ("devices", 3.2)]
)
def test_other_objectives_equal_brute_force(objective: str, gib: float) -> None:
    cluster, job = two_nodes_each(gib), Job(global_batch=4, seq_len=2048)
    model = small_llama(num_hidden_layers=3)
    pins = Pins(context=1, zero_stage=1, schedule="1f1b")
    evaluator = Evaluator(model, cluster, job)
    answers: list[Answer] = []
    for part in product((0, 2, 4), repeat=2):
        if all(part):
            search = UnequalSearch(evaluator, pins, part)
            answers += [
                answer
                for combination in search.combinations()
                for stages in every_cut(search, combination)
                if (answer := search.priced(combination, search.submeshes(combination), stages)) is not None
            ]
    for k, pool in enumerate(cluster.pools):
        try:
            alone = plan(model, pool, job, pins, objective)
        except Infeasible:
            continue
        moved = tuple(
            stage.model_copy(update={"devices": tuple(end + 4 * k for end in stage.devices)})
            for stage in alone.plan.stages
        )
        answers.append(Answer(alone.plan.model_copy(update={"stages": moved}), alone.estimate))

    def value(answer: Plan | Answer) -> tuple[float, float]:
        seconds = answer.estimate.step_time_s
        return (money(answer) if objective == "cost" else answer.plan.num_devices, seconds)

    found = plan(model, cluster, job, pins, objective)
    assert value(found) == pytest.approx(min(value(answer) for answer in answers))
    assert found.optimality.gap >= 0


def test_the_cost_of_pools_needs_their_prices() -> None:
    free = mixed()
    unknown = free.model_copy(update={"others": (free.others[0].model_copy(update={"price": None}),)})
    with pytest.raises(InputError, match="no price of h100-sxm-80g"):
        plan(small_llama(), unknown, Job(global_batch=8, seq_len=1024), None, "cost")

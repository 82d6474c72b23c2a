"""Rematerialisation by stage: never slower, exact on small cases, and used where early stages hold too much."""

from itertools import combinations, pairwise, product

import pytest

from planner.errors import Infeasible, InputError
from planner.evaluation import evaluate
from planner.evaluation.evaluator import Evaluator
from planner.plans import Job, Parallelism, Pins, Plan, StagePlan
from planner.search import plan
from planner.search.recomputing import relaxed, with_policies
from planner.search.space import SEARCHED_POLICIES
from planner.search.unequal import UnequalSearch
from tests.planner.search.small_cases import cluster_with, small_llama

PINS = {"pipeline": 4, "tensor": 1, "data": 2, "schedule": "1f1b", "zero_stage": 0, "micro_batch": 1}


def test_late_stages_recompute_less_where_memory_is_short() -> None:
    cluster, model = cluster_with("a100-4x-50g:2", 6.5), small_llama(num_hidden_layers=16)
    job = Job(global_batch=32, seq_len=2048)
    steps = {}
    for policy in (None, *SEARCHED_POLICIES):
        try:
            answer = plan(model, cluster, job, Pins.model_validate({**PINS, "recompute": policy}), top=1)
        except Infeasible:
            continue
        assert answer.estimate is not None
        steps[policy] = answer.estimate.step_time_s
        if policy is None:
            policies = [stage.recompute or answer.plan.recompute for stage in answer.plan.stages]
            assert answer.estimate.memory_bytes <= cluster.device.memory * (1 - job.memory_headroom)
    assert len(set(policies)) > 1
    assert SEARCHED_POLICIES.index(policies[0]) > SEARCHED_POLICIES.index(policies[-1])
    assert steps.pop(None) < 0.95 * min(steps.values())


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.8])
def test_equals_every_cut_with_every_policy(share: float) -> None:
    """For a limit between the memory of full recomputation and that of none."""
    job = Job(global_batch=12, seq_len=1024, optimizer="sgd")
    evaluator = Evaluator(small_llama(num_hidden_layers=9), cluster_with("a100-4x-50g:1"), job)
    degrees = Parallelism(pipeline=3, num_microbatches=12, recompute="full")
    mesh = dict.fromkeys(("tensor", "context", "expert", "data"), 1)

    def written(cuts: tuple[int, ...]) -> Parallelism:
        stages = (
            StagePlan(blocks=blocks, devices=(s, s + 1), mesh=mesh) for s, blocks in enumerate(pairwise(cuts))
        )
        return degrees.model_copy(update={"stages": tuple(stages)})

    start = written((0, 3, 6, 9))
    least, most = (
        evaluator.estimate(with_policies(start, [policy] * 3)).memory_bytes for policy in ("full", "none")
    )
    limit = least + share * (most - least)
    every = [
        evaluator.estimate(with_policies(written((0, *ends, 9)), policies))
        for ends in combinations(range(1, 9), 2)
        for policies in product(SEARCHED_POLICIES, repeat=3)
    ]
    found = evaluator.estimate(relaxed(evaluator, start, {}, limit))
    assert found.memory_bytes <= limit
    assert found.step_time_s == pytest.approx(min(e.step_time_s for e in every if e.memory_bytes <= limit))
    assert found.step_time_s < evaluator.estimate(start).step_time_s


@pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
def test_stages_of_one_rank_may_differ(share: float) -> None:
    """With two on each rank: about as fast as the best of all mixtures, and faster than any that ranks do not mix."""
    job = Job(global_batch=8, seq_len=1024, optimizer="sgd")
    evaluator = Evaluator(small_llama(), cluster_with("a100-4x-50g:1"), job)
    degrees = Parallelism(
        pipeline=2, virtual_stages=2, num_microbatches=8, schedule="interleaved", recompute="full"
    )
    stages = (
        StagePlan(blocks=blocks, devices=(s % 2, s % 2 + 1), mesh={})
        for s, blocks in enumerate(pairwise(range(0, 9, 2)))
    )
    start = degrees.model_copy(update={"stages": tuple(stages)})
    every = {
        policies: evaluator.estimate(with_policies(start, policies))
        for policies in product(SEARCHED_POLICIES, repeat=4)
    }
    least, most = (every[(policy,) * 4].memory_bytes for policy in ("full", "none"))
    limit = least + share * (most - least)
    job = job.model_copy(update={"memory_headroom": 1 - limit / evaluator.cluster.device.memory})
    evaluator = Evaluator(small_llama(), cluster_with("a100-4x-50g:1"), job)
    found = evaluator.estimate(relaxed(evaluator, start, {}, limit))
    assert found.memory_bytes <= limit
    fitting = {policies: e.step_time_s for policies, e in every.items() if e.memory_bytes <= limit}
    assert found.step_time_s <= min(fitting.values()) * 1.01
    assert found.step_time_s < min(t for policies, t in fitting.items() if policies[:2] == policies[2:])


def test_recomputed_work_is_counted_by_stage() -> None:
    evaluator = Evaluator(small_llama(), cluster_with("a100-4x-50g:1"), Job(global_batch=8, seq_len=1024))
    degrees = Parallelism(pipeline=2, num_microbatches=8)
    stages = tuple(StagePlan(blocks=b, devices=(i, i + 1), mesh={}) for i, b in enumerate(((0, 2), (2, 8))))
    plans = [
        with_policies(degrees.model_copy(update={"stages": stages}), policies)
        for policies in (("none", "none"), ("full", "none"), ("full", "full"))
    ]
    repeated = [e.hfu * e.step_time_s - e.mfu * e.step_time_s for e in map(evaluator.estimate, plans)]
    assert repeated[0] == pytest.approx(0)
    assert repeated[1] == pytest.approx(repeated[2] / 4)


def policies_of(answer: Plan) -> list[str]:
    return [stage.recompute or answer.plan.recompute for stage in answer.plan.stages]


def test_a_policy_for_each_stage_can_be_fixed() -> None:
    cluster, model = cluster_with("a100-4x-50g:2", 7), small_llama(num_hidden_layers=16)
    job = Job(global_batch=32, seq_len=2048)
    free = plan(model, cluster, job, Pins.model_validate(PINS), top=1)
    pinned = plan(
        model, cluster, job, Pins.model_validate({**PINS, "recompute": ",".join(policies_of(free))}), top=1
    )
    assert policies_of(pinned) == policies_of(free)
    assert pinned.estimate is not None
    assert free.estimate is not None
    assert pinned.estimate.step_time_s <= free.estimate.step_time_s * (1 + 1e-9)
    assert pinned.estimate == evaluate(pinned)


def test_the_same_policy_for_each_stage_is_that_policy() -> None:
    cluster, model = cluster_with("a100-4x-50g:2", 7), small_llama(num_hidden_layers=16)
    job = Job(global_batch=32, seq_len=2048)
    whole, each = (
        plan(model, cluster, job, Pins.model_validate({**PINS, "recompute": policy}), top=1)
        for policy in ("full", "full,full,full,full")
    )
    assert each.plan == whole.plan
    assert each.estimate == whole.estimate


def test_policies_under_which_nothing_fits_are_infeasible() -> None:
    cluster, model = cluster_with("a100-4x-50g:2", 4), small_llama(num_hidden_layers=16)
    asked = Pins.model_validate({**PINS, "recompute": "none,none,full,full"})
    with pytest.raises(Infeasible, match="does not fit"):
        plan(model, cluster, Job(global_batch=32, seq_len=2048), asked)


@pytest.mark.parametrize(
    ("pins", "message"),
    [
        (Pins(recompute="full,some"), "--recompute 'full,some': use one of"),
        (
            Pins(recompute="full,none,none", pipeline=2),
            "is for 3 stages, which contradicts a pipeline of 2 x any",
        ),
        (Pins(recompute="full,none", pipeline=2, virtual_stages=2), "contradicts a pipeline of 2 x 2"),
    ],
)
@pytest.mark.parametrize("unequal", [None, True])
def test_policies_that_fit_no_pipeline_are_refused(pins: Pins, message: str, unequal: bool | None) -> None:
    asked = pins.model_copy(update={"unequal_stages": unequal})
    with pytest.raises(InputError, match=message):
        plan(small_llama(), cluster_with("a100-4x-50g:2"), Job(global_batch=8, seq_len=1024), asked)


def test_unlike_stages_keep_the_policies_that_are_fixed() -> None:
    cluster, job = cluster_with("a100-4x-50g:2"), Job(global_batch=8, seq_len=1024)
    asked = Pins(unequal_stages=True, recompute="full,none", tensor=1, context=1)
    found = UnequalSearch(Evaluator(small_llama(num_hidden_layers=4), cluster, job), asked).run().found[0]
    assert [stage.recompute or found.plan.recompute for stage in found.plan.stages] == ["full", "none"]

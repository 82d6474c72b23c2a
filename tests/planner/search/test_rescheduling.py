"""Unlike stages under schedules with several on a rank, or split backwards: no cut is better, none below the bound."""

from itertools import combinations, pairwise, product

import pytest

from cluster_specs.pools import join
from cluster_specs.topology import pool_of
from planner.evaluation.cuts import ranks_of
from planner.evaluation.evaluator import Evaluator
from planner.evaluation.tails import Tail
from planner.plans import Job, Parallelism, Pins, Plan
from planner.search.branches import Best
from planner.search.offers import Offers
from planner.search.placing import placed
from planner.search.rescheduling import Rescheduling
from planner.search.submeshes import Choice, Share
from planner.search.unequal import UnequalSearch
from tests.planner.search.small_cases import small_llama
from tests.planner.search.unlike_pools import mixed, pair, tight

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
    offers = Offers(search.evaluator, search.prices)
    rescheduling = Rescheduling(search.evaluator, pins, search.prices, offers)
    order = tuple(pool_of(cluster, best.plan.stages[rank].devices) for rank in range(2))
    share = Share(
        best.plan.data * best.plan.micro_batch, best.plan.num_microbatches, 1, best.plan.sharding, "1f1b"
    )
    branches = list(rescheduling.branches(order, share, Best(float("inf"))))
    bounds = [bound for bound, _ in branches]
    assert min(bounds) <= min(next(branch).bound for _, branch in branches) <= min(every) * (1 + 1e-9)

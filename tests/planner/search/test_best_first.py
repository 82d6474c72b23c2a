"""The search's answer is the best of all plans, and its bounds are below every price."""

from collections.abc import Hashable
from typing import get_args

import pytest
from small_cases import (
    CASES,
    ONE_NODE,
    Case,
    Priced,
    cluster_with,
    every_candidate,
    every_plan,
    search_of,
    small_llama,
)

from planner.plans import Estimate, Job, Objective, Offload, Parallelism, Pins
from planner.search import plan
from planner.search.candidates import Candidate
from planner.search.space import families

OBJECTIVES: tuple[Objective, ...] = get_args(Objective)


def value(objective: Objective, choice: Parallelism, estimate: Estimate) -> tuple[float, ...]:
    """What is minimised: seconds, device-seconds, or devices and then seconds."""
    seconds, devices = estimate.step_time_s, choice.num_devices
    return {"time": (seconds,), "cost": (seconds * devices,), "devices": (devices, seconds)}[objective]


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("name", CASES)
def test_no_plan_is_better(name: str, objective: Objective) -> None:
    search, priced = every_plan(name, objective)
    fitting = [found for found in priced if found.estimate.memory_bytes <= search.limit]
    best = min(value(objective, found.plan, found.estimate) for found in fitting)
    model, cluster, job, pins = CASES[name]
    answer = plan(model, cluster, job, pins, objective=objective)
    assert answer.estimate is not None
    assert answer.optimality is not None
    searched = search_of(name, objective).run(5).found[0]
    assert value(objective, searched.plan, searched.estimate) == pytest.approx(best, rel=1e-12)
    # What is done to the best plan afterwards, stage by stage, makes it no worse.
    assert value(objective, answer.plan, answer.estimate) <= tuple(v * (1 + 1e-12) for v in best)
    assert answer.optimality.proven
    assert answer.optimality.evaluated < len(priced)


@pytest.mark.parametrize("name", CASES)
def test_what_is_sought_below_a_time_takes_less_than_that(name: str) -> None:
    """Bounds may be below it where no price is."""
    search, priced = every_plan(name, "time")
    fitting = [found for found in priced if found.estimate.memory_bytes <= search.limit]
    best = min(found.estimate.step_time_s for found in fitting)
    pipelines = any(found.plan.pipeline > 1 for found in priced)
    for share in (0.9, 0.97, 0.99, 0.999, 1.0):
        assert search_of(name, "time").best_below(share * best, pipelines) is None
    found = search_of(name, "time").best_below(1.001 * best, pipelines)
    assert found is not None
    assert found.estimate.step_time_s == pytest.approx(best, rel=1e-12)


def test_few_stages_are_cut_where_only_what_they_hand_on_takes_time() -> None:
    """Bounds that left it out would all be far below the best step, and every candidate's layers would be cut."""
    cluster = cluster_with("dgx-h100:2", 8)
    inside, network = cluster.links
    slow = network.model_copy(update={"bandwidth": 1e-5 * network.bandwidth})
    cluster = cluster.model_copy(update={"links": (inside, slow)})
    search = Case(small_llama(), cluster, Job(global_batch=64, seq_len=1024), Pins(pipeline=2)).search()
    best = search.run(1).found[0]
    assert best.plan.num_microbatches == 64
    assert len(search.floors.cuts) < 20


@pytest.mark.parametrize("name", CASES)
def test_bounds_are_below_every_price(name: str) -> None:
    """Of a lean assignment, the bounds of the fast one that it replaces hold too."""
    search, priced = every_plan(name, "devices")
    for c, _, _, estimate in priced:
        fast = c._replace(lean=False)
        seconds = estimate.step_time_s * (1 + 1e-12)
        memory = estimate.memory_bytes * (1 + 1e-12)
        floors = search.floors
        assert floors.alone(fast) <= floors.first(fast) * (1 + 1e-12)
        assert floors.first(fast) <= seconds
        assert floors.early(c) <= memory
        assert floors.states(c) <= memory
        for floor in (floors.whole(fast), floors.staged(fast), floors.whole(c), floors.staged(c)):
            assert floors.main(fast).seconds <= floors.policy(fast).seconds * (1 + 1e-12)
            assert floors.operators(fast).seconds <= floors.policy(fast).seconds * (1 + 1e-12)
            assert floors.policy(fast).seconds <= floor.seconds * (1 + 1e-12)
            assert floor.seconds <= seconds
        assert max(floors.tailed(fast).seconds, floors.tailed(c).seconds) <= seconds
        for floor in (floors.whole(c), floors.staged(c)):
            assert floor.memory_bytes <= memory


def test_what_comes_after_the_last_backward_tightens_bounds_of_pipelines() -> None:
    """Before their layers are cut; no cut takes less, that which is chosen among them."""
    search, priced = every_plan("pipeline", "devices")
    floors = search.floors
    bounds = [floors.tailed(c).seconds for c, *_ in priced]
    for bound, (c, planned, cuts, _) in zip(bounds, priced, strict=True):
        assert bound <= floors.evaluator.floor(planned, floors.sharding(c), cuts) * (1 + 1e-12)
    tighter = sum(bound > floors.whole(c).seconds for bound, (c, *_) in zip(bounds, priced, strict=True))
    assert tighter > 0.8 * sum(bound > 0 for bound in bounds) > 100


@pytest.mark.parametrize("name", CASES)
def test_a_family_is_bounded_as_each_of_its_candidates_is(name: str) -> None:
    search = search_of(name, "devices")
    floors, seen = search.floors, set[bool]()
    for limit in (search.limit, search.limit / 2, search.limit / 8, search.limit / 64):
        floors.limit = limit
        for family in families(search.evaluator, search.pins, search.objective):
            too_large = [floors.early(c) > limit for c in family]
            assert floors.too_large(family) == all(too_large)
            seen |= {*too_large}
            assert len({floors.first(c) for c in family}) == 1
    assert seen == {False, True}


@pytest.mark.parametrize("offload", [(), ("activations",), ("optimizer",)])
def test_what_is_alike_has_early_bounds_in_common(offload: tuple[Offload, ...]) -> None:
    """So that one of them speaks for all until states are looked at."""
    largest = 0
    for search in (search_of(name, "devices") for name in CASES):
        floors = search.floors
        for family in families(search.evaluator, search.pins, search.objective):
            groups: dict[Hashable, list[Candidate]] = {}
            for c in (c._replace(offload=offload) for c in family):
                groups.setdefault(floors.alike(c), []).append(c)
            for bound in floors.levels[: floors.in_common]:
                assert all(len({bound(c) for c in group}) == 1 for group in groups.values())
            largest = max(largest, *map(len, groups.values()))
    assert (largest > 1) == ("optimizer" not in offload)


def test_lean_assignments_are_tried_where_the_fast_ones_do_not_fit() -> None:
    """On a switch that sums, replicated norms are faster and split ones smaller."""
    pins = Pins(tensor=8, micro_batch=4, recompute="none")
    case = Case(small_llama(), cluster_with(ONE_NODE), Job(global_batch=4, seq_len=2048), pins)
    search = case.search()
    fast, lean = map(search.price, every_candidate(search))
    assert fast.estimate.step_time_s < lean.estimate.step_time_s
    assert lean.estimate.memory_bytes < fast.estimate.memory_bytes
    between = (fast.estimate.memory_bytes + lean.estimate.memory_bytes) / 2 / (1 - case.job.memory_headroom)
    answer = plan(case.model, cluster_with(ONE_NODE, between / 2**30), case.job, pins)
    assert answer.estimate is not None
    assert answer.estimate.step_time_s == lean.estimate.step_time_s


def compositions(priced: Priced) -> set[str]:
    """Kinds of parallelism that occur."""
    degrees = ("data", "tensor", "pipeline", "context", "expert", "virtual_stages")
    return {name for found in priced.found for name in degrees if getattr(found.candidate, name) > 1}


def test_together_the_cases_try_everything() -> None:
    """Or the two tests above would say little."""
    tried = {kind for name in CASES for kind in compositions(every_plan(name, "devices"))}
    assert tried == {"data", "tensor", "pipeline", "context", "expert", "virtual_stages"}
    stages = {f.candidate.zero_stage for name in CASES for f in every_plan(name, "devices").found}
    assert stages == {0, 1, 2, 3}

"""How layers are cut into stages."""

import math

import pytest
from small_cases import every_candidate, search_of

from planner.evaluation.cuts import even_cuts
from planner.evaluation.step import Around, critical_path, step_floor
from planner.search.candidates import parallelism
from planner.search.floors import Floors
from planner.search.stages import cut_layers, moved_by_one


@pytest.mark.parametrize("name", ["pipeline", "any schedule"])
def test_what_is_critical_under_some_cuts_bounds_all_others(name: str) -> None:
    """From below, and more sharply than without it for some."""
    search, sharper = search_of(name, "time"), False
    evaluator = search.evaluator
    for c in {c._replace(lean=False) for c in every_candidate(search) if c.pipeline > 1}:
        plan, shardings, around = parallelism(c), search.sharding(c), Around()
        given = evaluator.setting, plan, evaluator.mesh(plan)
        cuts = even_cuts(evaluator.graph.num_layers, plan.pipeline * plan.virtual_stages)
        path = critical_path(*given, evaluator.stages(plan, shardings, cuts), around)
        for moved in (cuts, *moved_by_one(cuts)):
            stages = evaluator.stages(plan, shardings, moved)
            without = step_floor(*given, stages, around)
            floor = step_floor(*given, stages, around, [path])
            assert without <= floor <= evaluator.seconds(plan, shardings, moved) * (1 + 1e-12)
            sharper |= floor > 1.001 * without
    assert sharper


@pytest.mark.parametrize("name", ["pipeline", "any schedule"])
def test_no_move_makes_a_short_step_shorter(name: str) -> None:
    """By every simulation, whatever bounds say."""
    search = search_of(name, "time")
    evaluator = search.evaluator
    for c in {c._replace(lean=False) for c in every_candidate(search) if c.pipeline > 1}:
        plan, shardings = parallelism(c), search.sharding(c)
        if plan.num_microbatches > 4 * plan.pipeline:
            continue
        cuts = cut_layers(evaluator, plan, shardings)
        least = min(evaluator.seconds(plan, shardings, moved) for moved in (cuts, *moved_by_one(cuts)))
        assert evaluator.seconds(plan, shardings, cuts) <= least * (1 + 1e-8)


def test_what_one_search_cut_to_fit_is_no_other_search_cut() -> None:
    """Searches share cuts, and those with less memory than others cut once more."""
    search = search_of("pipeline", "time")
    candidates = [c for c in every_candidate(search) if c.pipeline > 1 and c.virtual_stages == 1]
    plain = {c: cut_layers(search.evaluator, parallelism(c), search.sharding(c)) for c in candidates}
    recut = 0
    for c in candidates:
        tight = Floors(search.evaluator, search.pins, 0.99 * search.floors.staged(c, math.inf).memory_bytes)
        tight.staged(c)
        recut += tight.cuts[c] != plain[c]
        assert Floors(search.evaluator, search.pins, math.inf).cut(c) == plain[c]
    assert recut

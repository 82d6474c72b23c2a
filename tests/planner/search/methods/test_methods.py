"""Every method finds the best of a small space, is repeatable, and never beats the exact one."""

import pytest

from cluster_specs.catalog import load_cluster
from planner.errors import InputError, UnknownName
from planner.models.catalog import load_model
from planner.plans import Job, Pins
from planner.search.methods.comparison import EXACT, METHODS, compare_methods
from planner.search.methods.problem import BudgetSpent, Problem, Tree, choices_of
from planner.search.space import candidates
from tests.planner.search.small_cases import CASES, every_plan

OTHERS = tuple(name for name in METHODS if name != EXACT)


def compared(name: str, **options):
    case = CASES[name]
    return compare_methods(case.model, case.cluster, case.job, case.pins, **options)


@pytest.mark.parametrize("name", ["slow network", "tight memory"])
def test_none_beats_the_exact_one_and_the_exhaustive_one_equals_it(name: str) -> None:
    answer = compared(name, budget=100_000)
    steps = {r.method: r.estimate.step_time_s for r in answer.results if r.estimate is not None}
    search, found = every_plan(name, "time")
    best = min(f.estimate.step_time_s for f in found if f.estimate.memory_bytes <= search.limit)
    assert steps[EXACT] == pytest.approx(best)
    assert steps["exhaustive"] == pytest.approx(best)
    assert min(steps.values()) == pytest.approx(best)
    # With no limit annealing goes on until it has seen everything.
    assert steps["annealing"] == pytest.approx(best)
    assert {r.method for r in answer.results if r.proven} == {EXACT, "exhaustive"}
    for result in answer.results:
        assert result.slower == pytest.approx(steps[result.method] / best - 1)


@pytest.mark.parametrize("method", OTHERS)
def test_the_same_seed_gives_the_same_answer(method: str) -> None:
    first, second = (compared("experts", methods=(method,), budget=40, seed=3).results[0] for _ in range(2))
    unmeasured = {"cpu_seconds": 0.0}
    assert first.model_copy(update=unmeasured) == second.model_copy(update=unmeasured)
    assert first.evaluated <= 40


@pytest.mark.parametrize("method", ["annealing", "learned"])
def test_another_seed_looks_elsewhere(method: str) -> None:
    def seen(seed: int) -> list[object]:
        case = CASES["slow network"]
        problem = Problem(case.search(), 20)
        run = METHODS[method].run
        assert run is not None
        with pytest.raises(BudgetSpent):
            run(problem, seed)
        return list(problem._prices)

    assert seen(0) != seen(1)


@pytest.mark.parametrize("method", ["annealing", "learned"])
def test_searching_is_better_than_drawing_at_random(method: str) -> None:
    """Over several seeds, with a tenth of the space priced, against the mean of plans that fit."""
    search, found = every_plan("slow network", "time")
    fitting = [f.estimate.step_time_s for f in found if f.estimate.memory_bytes <= search.limit]
    best, mean = min(fitting), sum(fitting) / len(fitting)
    for seed in range(3):
        result = compared("slow network", methods=(method,), budget=len(found) // 10, seed=seed).results[0]
        assert result.estimate is not None
        assert result.estimate.step_time_s < best + 0.25 * (mean - best)


def test_the_tree_has_every_plan_and_no_other() -> None:
    search = CASES["experts"].search()
    space = {choices_of(c) for c in candidates(search.evaluator, search.pins, "time")}
    tree = Tree(tuple(space))
    prefixes = [()]
    for _ in range(8):
        prefixes = [(*prefix, value) for prefix in prefixes for value in tree.values(prefix)]
    assert set(prefixes) == space


def test_a_budget_that_is_spent_is_said() -> None:
    result = compared("slow network", methods=("exhaustive",), budget=5).results[0]
    assert (result.limit, result.evaluated, result.proven) == ("5 evaluations", 5, False)


def test_bad_questions_are_refused() -> None:
    with pytest.raises(InputError, match="--budget 0"):
        compared("experts", budget=0)
    with pytest.raises(UnknownName, match="unknown method 'genetic'"):
        compared("experts", methods=("genetic",))
    with pytest.raises(InputError, match="has pools"):
        compare_methods(
            load_model("gpt2"),
            load_cluster("dgx-a100-80g+dgx-h100"),
            Job(global_batch=8, seq_len=128),
            Pins(),
        )

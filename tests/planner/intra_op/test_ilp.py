import math
import shutil
from dataclasses import replace

import highspy
import numpy as np
import pulp
import pytest
from hypothesis import assume, given, settings
from strategy_problems import every_choice, least_cost, problems, random_problem

from planner.errors import Infeasible, SolverStopped
from planner.intra_op import branching, elimination
from planner.intra_op.ilp import formulate, solve, solve_program
from planner.intra_op.problem import StrategyProblem

GRID = [(4 * r + c, 4 * r + c + 1) for r in range(4) for c in range(3)]
GRID += [(4 * r + c, 4 * r + c + 4) for r in range(3) for c in range(4)]
TREE = [((k - 1) // 2, k) for k in range(1, 10)]

CBC = shutil.which("cbc") or pulp.PULP_CBC_CMD.pulp_cbc_path
needs_cbc = pytest.mark.skipif(not pulp.COIN_CMD(path=CBC).available(), reason="no CBC on this machine")

TINY = StrategyProblem(
    nodes=("matmul", "norm"),
    seconds=([1.0, 2.0], [4.0, math.inf, 3.0]),
    bytes_=([300.0, 100.0], [50.0, 0.0, 70.0]),
    edges=((0, 1),),
    edge_seconds=([[0.0, 0.0, 0.5], [math.inf, 0.0, 0.25]],),
    edge_bytes=([[0.0, 0.0, 8.0], [0.0, 0.0, 0.0]],),
    memory_limit=200.0,
)


def wide(patch: pytest.MonkeyPatch) -> None:
    """As if every problem were too wide to be eliminated."""
    patch.setattr(elimination, "MAX_ENTRIES", 0)


def check(problem: StrategyProblem) -> None:
    """`solve` is right about the optimum, or about there being none."""
    best = least_cost(problem)
    if math.isinf(best):
        with pytest.raises(Infeasible):
            solve(problem)
        return
    solution = solve(problem)
    assert problem.fits(solution.choice)
    assert solution.cost == problem.cost(solution.choice) == pytest.approx(best)
    assert solution.status == "optimal"
    assert solution.gap <= 1e-9


@given(problems())
def test_solve_equals_brute_force(problem):
    check(problem)


@settings(max_examples=40)
@given(problems())
def test_solve_equals_brute_force_without_elimination(problem):
    with pytest.MonkeyPatch.context() as patch:
        wide(patch)
        check(problem)


@settings(max_examples=40)
@given(problems())
def test_solve_equals_brute_force_where_branching_gives_up(problem):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(branching, "MAX_SUBPROBLEMS", 0)
        check(problem)


@settings(max_examples=40)
@given(problems(max_nodes=4))
def test_the_program_alone_equals_brute_force(problem):
    best = least_cost(problem)
    answer = solve_program(problem)
    assert answer.feasible == math.isfinite(best)
    if answer.feasible:
        assert problem.fits(answer.choice)
        assert problem.cost(answer.choice) == answer.lower_bound == pytest.approx(best)
        assert (answer.optimal, answer.method) == (True, "highs")


@needs_cbc
@settings(max_examples=15)
@given(problems(max_nodes=4))
def test_cbc_where_highs_is_missing(problem):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pulp.HiGHS, "available", lambda self: False)
        wide(patch)
        assert solve_program(problem).method == "cbc"
        check(problem)


@given(problems())
def test_infeasible_says_the_least_memory(problem):
    assume(math.isinf(least_cost(problem)) and math.isfinite(least_cost(problem.without_limit())))
    allowed = [c for c in every_choice(problem) if math.isfinite(problem.cost(c))]
    least = min(problem.memory(c) for c in allowed)
    for patched in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            if patched:
                wide(patch)
            with pytest.raises(Infeasible) as caught:
                solve(problem)
        assert caught.value.least_change == f"raise the memory limit to {least:.6g} bytes"
    assert solve(replace(problem, memory_limit=least)).choice in allowed


def test_forbidden_pairs_without_a_way_around(monkeypatch):
    unequal = np.where(np.eye(2) > 0, math.inf, 0.0)
    triangle = StrategyProblem(
        ("a", "b", "c"), (np.zeros(2),) * 3, (np.zeros(2),) * 3, ((0, 1), (1, 2), (0, 2)), (unequal,) * 3
    )
    with pytest.raises(Infeasible, match="forbidden pair"):
        solve(triangle)
    wide(monkeypatch)
    with pytest.raises(Infeasible, match="forbidden pair"):
        solve(triangle)


def test_formulation_is_the_documented_one(golden, tmp_path):
    formulate(TINY).writeLP(tmp_path / "tiny.lp")
    golden("intra_op_tiny.lp", (tmp_path / "tiny.lp").read_text())
    assert solve(TINY).choice == (1, 2)


def test_the_relaxation_of_a_tree_is_integral():
    problem = random_problem(TREE, 4, seed=5)
    model = formulate(problem)
    model.solve(pulp.HiGHS(msg=False, mip=False))
    assert pulp.value(model.objective) == pytest.approx(solve(problem).cost)


def test_methods_agree_on_a_grid_with_a_binding_limit(monkeypatch):
    problem = random_problem(GRID, 4, seed=6)
    fastest, smallest = problem.memory(solve(problem).choice), solve(problem.least_memory()).cost
    limited = replace(problem, memory_limit=(fastest + smallest) / 2)
    by_parts = solve(limited)
    wide(monkeypatch)
    by_program = solve(limited)
    assert (by_parts.method, by_program.method) == ("branching", "highs")
    assert by_parts.cost == pytest.approx(by_program.cost)


def test_a_caller_that_solves_on_more_threads_is_no_hindrance():
    highspy.Highs.resetGlobalScheduler(True)
    theirs = formulate(random_problem(GRID, 3, seed=7))
    theirs.solve(pulp.HiGHS(msg=False, threads=2))
    assert pulp.LpStatus[theirs.status] == "Optimal"
    assert solve_program(TINY).choice == (1, 2)


def test_seconds_of_any_size_are_told_apart():
    for scale in (1e-12, 1.0, 1e12):
        problem = random_problem(GRID, 3, seed=7)
        scaled = replace(
            problem,
            seconds=tuple(scale * a for a in problem.seconds),
            edge_seconds=tuple(scale * a for a in problem.edge_seconds),
        )
        assert solve_program(scaled).choice == solve(problem).choice


def test_a_limit_is_not_stretched_by_the_solver_tolerance():
    # the fast choice is over the limit by a share of 1e-12, far below what a solver can see
    limit = 8e10
    problem = StrategyProblem(("a", "b"), ([1.0, 2.0], [0.0]), ([limit + 1, 1.0], [0.0]), memory_limit=limit)
    assert solve_program(problem).choice == (1, 0)


@pytest.mark.parametrize("patched", [False, True], ids=["branching", "highs"])
def test_a_gap_is_honoured(monkeypatch, patched):
    problem = random_problem(GRID, 4, seed=6)
    fastest, smallest = problem.memory(solve(problem).choice), solve(problem.least_memory()).cost
    limited = replace(problem, memory_limit=(fastest + 3 * smallest) / 4)
    if patched:
        wide(monkeypatch)
    exact, loose = solve(limited), solve(limited, gap=0.2)
    assert loose.lower_bound <= exact.cost <= loose.cost
    assert loose.gap <= 0.2


def test_time_may_run_out(monkeypatch):
    problem = random_problem([(u, v) for v in range(30) for u in range(v)], 10, seed=8, memory_limit=10.0)
    wide(monkeypatch)
    with pytest.raises(SolverStopped, match="highs found no choice of strategies within 0.01 s"):
        solve(problem, seconds=0.01)


def test_runs_repeat(monkeypatch):
    problem = random_problem(GRID, 5, seed=9, memory_limit=5.0)
    assert solve(problem) == solve(problem)
    wide(monkeypatch)
    assert solve(problem) == solve(problem)


def test_no_nodes_cost_nothing():
    empty = StrategyProblem((), (), ())
    assert solve(empty).choice == ()
    assert solve(empty).cost == 0
    assert solve_program(empty).choice == ()

import math

from contest_problems import best, contest_problems, random_contest_problem, soon, unshrunk
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.intra_op import guessing
from planner.intra_op.contest import network_of, solve_contest_problem
from planner.intra_op.guessing import guess
from planner.intra_op.messages import Relaxation
from planner.intra_op.shrinking import shrink


@settings(max_examples=60)
@given(contest_problems(max_ends=2), st.integers(1, 30))
def test_a_guess_is_above_the_optimum_or_bounds_it(problem, cost):
    network = unshrunk(problem)
    if network is None:
        return
    answer = guess(network, {}, cost, math.inf)
    least = best(problem)
    assert answer.decided
    if least is None or least >= cost:
        assert answer.lower_bound == cost
    else:
        choice = [answer.choice[v] for v in range(len(problem.costs))]
        assert problem.fits(choice)
        assert problem.cost(choice) == least
        assert least - 1 < answer.lower_bound <= least


def test_what_is_too_large_to_decide_still_gives_a_choice_and_a_bound(monkeypatch):
    problem = random_contest_problem(60, 4, seed=3, share=0.6)
    optimum = solve_contest_problem(problem, soon())
    assert optimum.gap == 0
    monkeypatch.setattr(guessing, "SMALL", 0)
    network = network_of(problem)
    shrink(network)
    answer = guess(network, {}, 1.1 * optimum.cost, math.inf)
    choice = [answer.choice[v] for v in range(len(problem.costs))]
    assert problem.fits(choice)
    assert answer.lower_bound <= optimum.cost <= problem.cost(choice)


@given(contest_problems(max_ends=2), st.integers(1, 3))
def test_absorbed_messages_change_no_cost_and_no_bound(problem, sweeps):
    network = unshrunk(problem)
    if network is None or not network.nodes:
        return
    relaxation = Relaxation(network, {})
    for _ in range(sweeps):
        relaxation.sweep()
    bound, choice = relaxation.bound().value, relaxation.decode()
    before = network.cost(choice)
    relaxation.absorb()
    assert network.cost(choice) == before
    assert abs(Relaxation(network, {}, {}).bound().value - bound) <= 1e-6 * max(1.0, abs(bound))

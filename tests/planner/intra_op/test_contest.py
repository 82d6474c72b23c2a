import math
import time
from dataclasses import replace

import numpy as np
import pytest
from contest_problems import (
    best,
    best_of_network,
    contest_problems,
    fits,
    random_contest_problem,
    soon,
    unshrunk,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import Infeasible
from planner.intra_op import anytime, contest, hub_branches, hubs, local_polytope, neighbourhood, tree
from planner.intra_op.contest import network_of, solve_contest_problem
from planner.intra_op.hub_branches import HubTree
from planner.intra_op.hubs import Decided
from planner.intra_op.iopddl import NEVER, ContestProblem
from planner.intra_op.liveness import demand, one_hot
from planner.intra_op.local_polytope import solve_program
from planner.intra_op.messages import Relaxation
from planner.intra_op.neighbourhood import Found, NeighbourhoodSearch, greedy
from planner.intra_op.shrinking import shrink


def check(problem: ContestProblem) -> None:
    least = best(problem)
    if least is None:
        with pytest.raises(Infeasible):
            solve_contest_problem(problem, soon())
        return
    solution = solve_contest_problem(problem, soon())
    assert problem.fits(solution.choice)
    assert solution.gap == 0
    assert solution.cost == problem.cost(solution.choice) == solution.lower_bound == least


@settings(max_examples=200, deadline=None)
@given(contest_problems())
def test_equals_brute_force(problem):
    check(problem)


@pytest.mark.parametrize("entries", ["costs", "edge_costs"])
def test_what_every_choice_pays_does_not_drown_the_rest(entries):
    """Beside an entry near `NEVER` a float tells costs apart by 128."""
    problem = random_contest_problem(6, 3, seed=4)
    first, *others = getattr(problem, entries)
    dear = tuple(c + NEVER - 10**6 for c in first)
    check(replace(problem, **{entries: (dear, *others)}))


def take_turns(patch: pytest.MonkeyPatch, share: float = 0.001) -> None:
    """Nothing is small enough for the program, and no phase takes more than a ``share`` of the time."""
    patch.setattr(anytime, "SMALL", -1)
    patch.setattr(tree, "SMALL", -1)
    patch.setattr(anytime, "RELAXING", share)
    patch.setattr(anytime, "SEARCHING", share)


@settings(max_examples=40, deadline=None)
@given(contest_problems(max_ends=2))
def test_equals_brute_force_in_turns(problem):
    """Messages, search and fixing, as for a problem too large for the program."""
    with pytest.MonkeyPatch.context() as patch:
        take_turns(patch)
        check(problem)


@settings(max_examples=40, deadline=None)
@given(contest_problems(max_ends=2))
def test_equals_brute_force_where_every_node_is_a_hub(problem):
    with pytest.MonkeyPatch.context() as patch:
        take_turns(patch)
        patch.setattr(anytime, "BEFORE", 0.001)
        patch.setattr(anytime, "FAR_APART", 0.0)
        patch.setattr(anytime, "LIFTED", -np.inf)
        patch.setattr(anytime, "CLOSING", np.inf)
        patch.setattr(hubs, "MANY", 1)
        check(problem)


def test_hubs_come_first_where_messages_leave_much_open(monkeypatch):
    problem = random_contest_problem(30, 4, seed=7, share=0.2)
    at_once = solve_contest_problem(problem, soon(60.0))
    decided = []
    monkeypatch.setattr(anytime, "SMALL", -1)
    monkeypatch.setattr(anytime, "RELAXING", 0.02)
    monkeypatch.setattr(anytime, "SEARCHING", 0.02)
    monkeypatch.setattr(hubs, "MANY", 3)
    monkeypatch.setattr(anytime, "HubTree", lambda *given: decided.append(given[1]) or HubTree(*given))
    after_hubs = solve_contest_problem(problem, soon(60.0))
    assert decided
    assert after_hubs.cost == after_hubs.lower_bound == at_once.cost
    monkeypatch.setattr(anytime, "FAR_APART", 1.0)
    solve_contest_problem(problem, soon(60.0))
    assert len(decided) == 1


def test_hubs_decided_so_that_nothing_fits_say_nothing_of_the_whole(monkeypatch):
    problem = random_contest_problem(30, 4, seed=7, share=0.2)
    least = solve_contest_problem(problem, soon()).cost
    decided = []

    def greediest(relaxation, _, nodes, *_args, **_named):
        pieces = relaxation.network.pieces
        decided.append({v: int(sum(pieces[v].values(), np.zeros(1)).argmax()) for v in nodes})
        return Decided(decided[-1], 0.0, {})

    monkeypatch.setattr(anytime, "SMALL", -1)
    monkeypatch.setattr(anytime, "RELAXING", 0.02)
    monkeypatch.setattr(anytime, "SEARCHING", 0.02)
    monkeypatch.setattr(anytime, "BEFORE", 0.001)
    monkeypatch.setattr(anytime, "LIFTED", -np.inf)
    monkeypatch.setattr(anytime, "CLOSING", np.inf)
    monkeypatch.setattr(hubs, "MANY", 3)
    monkeypatch.setattr(hub_branches, "dive", greediest)
    answer = solve_contest_problem(problem, soon(5.0))
    assert decided
    assert answer.lower_bound <= least <= answer.cost


def test_a_better_decision_of_hubs_is_solved_too(monkeypatch):
    problem = random_contest_problem(60, 4, seed=7, share=0.1)
    found, solved = iter("ab"), []

    def explore(tree, *_, **__):
        tree.best = decisions[next(found)]

    decisions = {name: Decided({}, 0.0, {}) for name in "ab"}
    decisions["b"] = decisions["b"]._replace(value=-1.0)
    monkeypatch.setattr(anytime, "SMALL", -1)
    monkeypatch.setattr(anytime, "RELAXING", 0.02)
    monkeypatch.setattr(anytime, "FAR_APART", 0.0)
    monkeypatch.setattr(anytime, "LIFTED", -np.inf)
    monkeypatch.setattr(anytime, "CLOSING", np.inf)
    monkeypatch.setattr(anytime, "LOOKS_PER_BRANCHES", 0.0)
    monkeypatch.setattr(hubs, "MANY", 4)
    monkeypatch.setattr(HubTree, "explore", explore)
    monkeypatch.setattr(HubTree, "bound", 0.0)
    monkeypatch.setattr(
        anytime._Anytime, "_solve_decided", lambda _, decided, __: solved.append(decided.value)
    )
    solve_contest_problem(problem, soon(5.0))
    assert solved == [0.0, -1.0]


@pytest.mark.parametrize("settled", [False, True])
def test_hubs_wait_for_messages_that_still_gain_far_below_the_best_choice(monkeypatch, settled):
    problem = random_contest_problem(30, 4, seed=7, share=0.2)
    decided = []
    monkeypatch.setattr(anytime, "SMALL", -1)
    monkeypatch.setattr(anytime, "FAR_APART", 0.0)
    monkeypatch.setattr(anytime, "UNSETTLED", 1e-9)
    monkeypatch.setattr(hubs, "MANY", 3)
    monkeypatch.setattr(anytime, "HubTree", lambda *given: decided.append(given[1]) or HubTree(*given))
    if not settled:  # no round of messages has the time to end by itself
        monkeypatch.setattr(anytime, "BEFORE", 0.0)
        monkeypatch.setattr(anytime, "RELAXING", 0.0)
    solution = solve_contest_problem(problem, soon(60.0 if settled else 1.0))
    assert problem.fits(solution.choice)
    assert bool(decided) == settled


@settings(max_examples=100, deadline=None)
@given(contest_problems(max_ends=2))
def test_the_program_alone_equals_brute_force(problem):
    """Without reductions; forbidden strategies have to go first."""
    network = unshrunk(problem)
    if network is None:
        return
    least, _ = best_of_network(network)
    answer = solve_program(network, soon())
    assert answer.lower_bound == pytest.approx(least)
    if answer.choice is not None:
        assert fits(network, answer.choice)
        assert network.cost(answer.choice) == least


@settings(max_examples=60, deadline=None)
@given(contest_problems(max_ends=2), st.integers(0, 30))
def test_the_program_finds_what_is_below_a_cutoff(problem, cutoff):
    network = network_of(problem)
    try:
        shrink(network, deadline=-math.inf)
        least, _ = best_of_network(network)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(local_polytope, "LEAST_DROPPED", 1e-9)
            answer = solve_program(network, soon(), cutoff)
    except Infeasible:
        assert (best(problem) or math.inf) >= cutoff
        return
    if least < cutoff:
        assert network.cost(answer.choice) == least == pytest.approx(answer.lower_bound)
        assert fits(network, answer.choice)
    else:
        assert answer == (None, math.inf)


@settings(max_examples=30, deadline=None)
@given(contest_problems(max_ends=2))
def test_what_the_solver_lets_through_is_covered(problem):
    """As if the solver's tolerance let every memory row be exceeded."""
    network = unshrunk(problem)
    if network is None:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_polytope.LocalPolytope, "add_row", lambda self, row: self.used.update({row: 0}))
        answer = solve_program(network, soon())
    least, _ = best_of_network(network)
    assert answer.lower_bound == pytest.approx(least)
    assert answer.choice is None or (fits(network, answer.choice) and network.cost(answer.choice) == least)


@given(
    contest_problems(max_ends=2),
    st.dictionaries(st.integers(0, 9), st.sampled_from([0.25, 1.0, 7.0])),
    st.integers(0, 3),
)
def test_bounds_and_margins_hold_for_any_messages_and_prices(problem, prices, sweeps):
    network = unshrunk(problem)
    if network is None:
        return
    relaxation = Relaxation(network, prices)
    least, _ = best_of_network(network)
    value = -math.inf
    for _ in range(sweeps):
        relaxation.sweep()
        assert relaxation.bound().value >= value - 1e-6
        value = relaxation.bound().value
    bound = relaxation.bound()
    assert bound.value <= least + 1e-6
    for v in network.nodes:
        for s in range(network.costs[v].size):
            part = network.copy()
            part.keep(v, np.array([s]))
            assert bound.value + bound.margins[v][s] <= best_of_network(part)[0] + 1e-6


@given(
    contest_problems(max_ends=2),
    st.dictionaries(st.integers(0, 9), st.sampled_from([0.25, 1.0, 7.0])),
    st.integers(0, 3),
    st.randoms(use_true_random=False),
)
def test_regrets_are_what_a_choice_costs_above_the_bound(problem, prices, sweeps, rng):
    """But for what it leaves free of the memory that is priced; whether it fits or not."""
    network = unshrunk(problem)
    if network is None:
        return
    relaxation = Relaxation(network, prices)
    for _ in range(sweeps):
        relaxation.sweep()
    choice = {v: rng.randrange(network.costs[v].size) for v in network.nodes}
    regrets = relaxation.regrets(choice)
    assert min(regrets.values(), default=0.0) >= -1e-6
    free = float(relaxation.prices @ (network.capacity - demand(network, one_hot(network, choice))))
    above = network.cost(choice) - relaxation.bound().value
    assert sum(regrets.values()) + free == pytest.approx(above, abs=1e-6)
    some = {v: s for v, s in choice.items() if v % 2}
    assert relaxation.regrets(some).keys() == some.keys()


def test_prices_return_to_where_the_bound_was_highest():
    problem = random_contest_problem(60, 4, seed=3, share=0.05)
    network = network_of(problem)
    shrink(network)
    relaxation = Relaxation(network, {})
    relaxation.sweep()
    values = []
    for _ in range(30):
        values.append(relaxation.value())
        relaxation.reprice(values[-1], 10 * abs(values[-1]))  # far too long steps
        relaxation.sweep()
    values.append(relaxation.value())
    relaxation.return_to_best()
    assert relaxation.value() == relaxation.best == max(values)


def test_prices_on_memory_close_most_of_the_gap():
    problem = random_contest_problem(60, 4, seed=3, share=0.05)
    network = network_of(problem)
    shrink(network)
    relaxation = Relaxation(network, {})
    for _ in range(10):
        relaxation.sweep()
    first, best_cost = relaxation.bound().value, solve_contest_problem(problem, soon()).cost
    for _ in range(60):
        relaxation.reprice(relaxation.bound().value, best_cost)
        relaxation.sweep()
    assert Relaxation(network, relaxation.known_prices).known_prices == relaxation.known_prices
    assert best_cost - relaxation.best < 0.5 * (best_cost - first)


def test_search_only_ever_improves_and_keeps_count():
    problem = random_contest_problem(120, 5, seed=4, share=0.25)
    network = network_of(problem)
    shrink(network)
    relaxation = Relaxation(network, {})
    relaxation.sweep()
    start = greedy(relaxation)
    assert start is not None
    assert start.cost == network.cost(start.choice)
    search = NeighbourhoodSearch(network, Found(start.choice, start.cost))
    search.improve(soon(2.0))
    found = search.found
    assert found.cost == pytest.approx(network.cost(found.choice))
    assert found.cost < start.cost
    assert search.taken == pytest.approx(demand(network, one_hot(network, found.choice)))
    choice = [s for _, s in sorted(network.expand(found.choice).items())]
    assert problem.fits(choice)
    assert problem.cost(choice) == found.cost


def test_turns_end_with_the_same_proof(monkeypatch):
    problem = random_contest_problem(60, 4, seed=7, share=0.1)
    at_once = solve_contest_problem(problem, soon())
    take_turns(monkeypatch, 0.02)
    in_turns = solve_contest_problem(problem, soon())
    assert in_turns.cost == in_turns.lower_bound == at_once.cost == at_once.lower_bound


def test_search_starts_with_parts_that_the_program_decides_soon():
    """However many strategies nodes have; parts of as many nodes took all the time that one may."""
    few, many = (network_of(random_contest_problem(250, n, seed=4, share=0.25)) for n in (3, 90))
    start = dict.fromkeys(range(250), 0)
    sizes = [NeighbourhoodSearch(n, Found(start, n.cost(start))).size for n in (few, many)]
    assert sizes == [neighbourhood.FIRST_PART, neighbourhood.SMALLEST_PART]


@pytest.mark.parametrize("share", [0.1, 0.3, 0.6])
def test_reductions_do_not_change_the_answer_of_the_program(share):
    problem = random_contest_problem(50, 4, seed=5, share=share)
    network = network_of(problem)
    shrink(network, deadline=-math.inf)
    alone = solve_program(network, soon())
    solution = solve_contest_problem(problem, soon())
    assert solution.cost == solution.lower_bound == network.cost(alone.choice)


def test_any_time_gives_a_choice_that_fits_and_a_bound():
    problem = random_contest_problem(400, 5, seed=6, share=0.2)
    early = solve_contest_problem(problem, soon(0.0))
    late = solve_contest_problem(problem, soon(3.0))
    assert problem.fits(early.choice)
    assert early.lower_bound <= late.lower_bound <= late.cost <= early.cost
    assert late.gap < early.gap


@pytest.mark.parametrize("when", ["_start", "_guess", "_fix"])
def test_ctrl_c_leaves_the_best_choice_so_far(monkeypatch, when):
    def interrupt(self):
        raise KeyboardInterrupt

    problem = random_contest_problem(400, 5, seed=6, share=0.2)
    monkeypatch.setattr(anytime, "SMALL", -1)
    monkeypatch.setattr(anytime._Anytime, when, interrupt)
    solution = solve_contest_problem(problem, soon())
    assert solution.interrupted
    assert problem.fits(solution.choice)
    assert solution.lower_bound <= solution.cost == problem.cost(solution.choice)


def test_ctrl_c_before_any_choice_is_no_answer(monkeypatch):
    def interrupt(network, deadline):
        raise KeyboardInterrupt

    monkeypatch.setattr(anytime, "first_choice", interrupt)
    with pytest.raises(KeyboardInterrupt):
        solve_contest_problem(random_contest_problem(400, 5, seed=6, share=0.2), soon())


def test_time_is_kept_back_for_the_answer(monkeypatch):
    def slowly(problem):
        time.sleep(0.2)
        return network_of(problem)

    given = []
    monkeypatch.setattr(contest, "network_of", slowly)
    monkeypatch.setattr(
        contest, "solve_network", lambda *args: given.append(args[1]) or anytime.solve_network(*args)
    )
    deadline = soon()
    solve_contest_problem(random_contest_problem(20, 3, seed=1), deadline)
    assert given[0] <= deadline - 0.2


def test_too_little_memory_says_so():
    problem = ContestProblem("", ((0, 1),), ((1, 2),), ((7, 5),), (), (), 3)
    with pytest.raises(Infeasible, match="do not fit") as caught:
        solve_contest_problem(problem, soon())
    assert caught.value.least_change == "raise the limit by at least 2 bytes"

import math

import pytest
from contest_problems import best, best_of_network, contest_problems, random_contest_problem, soon, unshrunk
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.intra_op import tree
from planner.intra_op.contest import network_of, solve_contest_problem
from planner.intra_op.shrinking import shrink
from planner.intra_op.tree import solve_tree


@settings(max_examples=60, deadline=None)
@given(contest_problems(max_ends=2), st.sampled_from([math.inf, 3, 9, 30]), st.sets(st.integers(0, 9)))
def test_branches_alone_equal_brute_force(problem, cutoff, rows):
    network = unshrunk(problem)
    if network is None:
        assert best(problem) is None
        return
    least, _ = best_of_network(network)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree, "SMALL", -1)
        answer = solve_tree(network.fork(), rows, soon(), cutoff)
    assert answer.lower_bound == math.inf
    if least < cutoff:
        choice = [answer.choice[v] for v in range(len(problem.costs))]
        assert problem.cost(choice) == least
        assert problem.fits(choice)
    else:
        assert answer.choice is None


def test_branches_where_memory_comes_in_few_sizes(monkeypatch):
    problem = random_contest_problem(40, 4, seed=8, share=0.15)
    coarse = tuple(tuple(40 * (u // 40) for u in usages) for usages in problem.usages)
    problem = type(problem)(
        problem.name, problem.intervals, problem.costs, coarse, problem.edges, problem.edge_costs, 200
    )
    network = network_of(problem)
    shrink(network)
    monkeypatch.setattr(tree, "SMALL", 50)
    answer = solve_tree(network, (), soon())
    solution = solve_contest_problem(problem, soon())
    assert problem.cost([answer.choice[v] for v in range(40)]) == solution.cost == solution.lower_bound


def test_out_of_time_says_what_is_known(monkeypatch):
    network = network_of(random_contest_problem(60, 4, seed=9, share=0.2))
    shrink(network)
    monkeypatch.setattr(tree, "SMALL", -1)
    answer = solve_tree(network, (), -math.inf)
    assert answer == (None, network.floor)


def test_a_fork_leaves_the_network_as_it_is():
    network = network_of(random_contest_problem(40, 4, seed=2, share=0.3))
    shrink(network, deadline=-math.inf)
    fork = network.fork()
    nodes, size, decisions = len(network.nodes), network.size, len(network.decisions)
    shrink(fork)
    assert len(fork.nodes) < nodes
    assert (len(network.nodes), network.size, len(network.decisions)) == (nodes, size, decisions)

import itertools

import numpy as np
from contest_problems import contest_problems, random_contest_problem
from hypothesis import assume, given

from planner.intra_op.contest import network_of
from planner.intra_op.liveness import demand, one_hot, settle
from planner.intra_op.messages import Relaxation
from planner.intra_op.network import Network, Piece
from planner.intra_op.row_dominance import stand_ins


def network(pieces, capacity):
    """Nodes of two strategies, of which the first takes nothing."""
    return Network(
        {v: np.zeros(2) for v in range(len(pieces))},
        {v: Piece(rows, np.array([0.0, most])) for v, (rows, most) in enumerate(pieces)},
        np.array(capacity, dtype=float),
    )


def every_choice(network):
    nodes = sorted(network.nodes)
    for positions in itertools.product(*(range(network.costs[v].size) for v in nodes)):
        yield dict(zip(nodes, positions, strict=True))


@given(contest_problems(max_ends=2))
def test_what_follows_is_not_exceeded_where_its_stand_in_is_not(problem):
    assume(problem.usage_limit is not None)
    whole = network_of(problem)
    follows = stand_ins(whole, range(whole.capacity.size))
    for choice in every_choice(whole):
        fits = demand(whole, one_hot(whole, choice)) <= whole.capacity
        assert all(fits[row] or not fits[other] for row, other in follows.items())


def test_a_small_output_in_the_place_of_a_larger_one_leaves_no_row():
    # one output lives through all three rows; in each, another: of 5, 3 and 4 bytes, and the last row is tighter by 1
    pieces = [((0, 3), 9.0), ((0, 1), 5.0), ((1, 2), 3.0), ((2, 3), 4.0)]
    assert stand_ins(network(pieces, [10, 15, 9]), range(3)) == {1: 0}
    assert stand_ins(network(pieces, [10, 11, 9]), range(3)) == {}
    assert stand_ins(network(pieces, [10, 15, 15]), range(3)) == {1: 0, 2: 0}
    assert stand_ins(network(pieces, [15, 15, 10]), range(3)) == {0: 2, 1: 2}


def test_a_stand_in_takes_over_what_its_rows_cost():
    prices = dict.fromkeys(range(0, 400, 3), 1.0)
    loose, tight = (network_of(random_contest_problem(40, 4, seed=2, share=0.3)) for _ in range(2))
    settle(tight)
    loose_bound, tight_bound = (Relaxation(n, prices).bound().value for n in (loose, tight))
    assert tight.rows.size < loose.rows.size
    assert tight_bound >= loose_bound

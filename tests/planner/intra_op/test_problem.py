import math
from dataclasses import replace

import numpy as np
import pytest

from planner.errors import InputError
from planner.intra_op.problem import Solution, StrategyProblem, relative_gap

PROBLEM = StrategyProblem(
    nodes=("matmul", "norm"),
    seconds=([1.0, 2.0], [4.0, math.inf, 16.0]),
    bytes_=([100.0, 200.0], [1.0, 2.0, 3.0]),
    edges=((0, 1), (1, 0)),
    edge_seconds=([[0.0, 0.0, 0.5], [0.25, 0.0, 0.0]], np.full((3, 2), 32.0)),
    edge_bytes=([[10.0, 0.0, 0.0], [20.0, 0.0, 0.0]], np.zeros((3, 2))),
    memory_limit=221.0,
)


def test_worked_cost_and_memory():
    assert PROBLEM.cost((1, 0)) == 2 + 4 + 0.25 + 32
    assert PROBLEM.memory((1, 0)) == 200 + 1 + 20
    assert PROBLEM.cost((0, 1)) == math.inf
    assert PROBLEM.sizes == (2, 3)


def test_a_choice_fits_up_to_and_with_the_limit():
    assert PROBLEM.fits((1, 0))
    assert not replace(PROBLEM, memory_limit=220.0).fits((1, 0))
    assert replace(PROBLEM, memory_limit=0.0).without_limit().fits((1, 0))


def test_least_memory_prices_bytes_and_keeps_what_is_forbidden():
    smallest = PROBLEM.least_memory()
    assert smallest.cost((1, 0)) == PROBLEM.memory((1, 0))
    assert smallest.cost((0, 1)) == math.inf


def test_bytes_of_edges_and_labels_may_be_left_out():
    bare = replace(PROBLEM, edge_bytes=(), labels=())
    assert bare.memory((1, 0)) == 201
    assert bare.labels == (("0", "1"), ("0", "1", "2"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodes": ("a", "a")}, "unique"),
        ({"seconds": ([1.0, 2.0],)}, "seconds needs one entry per node: 1 given, 2 nodes"),
        ({"bytes_": ([1.0], [1.0, 2.0, 3.0])}, "node matmul: 2 seconds, 1 bytes"),
        ({"labels": (("x",), ("y",) * 3)}, "node matmul: 2 seconds, 2 bytes and 1 labels"),
        ({"seconds": ([], [4.0, 5.0, 6.0])}, "node matmul: seconds need one axis and a strategy"),
        ({"seconds": ([1.0, math.nan], [4.0, 5.0, 6.0])}, "node matmul: seconds must be numbers"),
        ({"seconds": ([1.0, -math.inf], [4.0, 5.0, 6.0])}, "node matmul: seconds must be numbers"),
        ({"bytes_": ([1.0, math.inf], [1.0, 2.0, 3.0])}, "node matmul: bytes must be finite"),
        ({"edges": ((0, 1), (1, 2))}, r"edge \(1, 2\): nodes are numbered 0 to 1"),
        ({"edges": ((0, 1),)}, "edge_seconds needs one table per edge: 2 given, 1 edges"),
        ({"edges": ((1, 0), (1, 0))}, r"edge norm -> matmul: tables must be \(3, 2\)"),
        ({"memory_limit": math.nan}, "memory_limit is not a number"),
    ],
)
def test_wrong_shapes_and_values_are_named(change, message):
    with pytest.raises(InputError, match=message):
        replace(PROBLEM, **change)


def test_a_choice_of_the_wrong_length_is_refused():
    with pytest.raises(InputError, match="1 strategies given for 2 nodes"):
        PROBLEM.cost((0,))


def test_gap_is_relative_to_the_cost():
    assert relative_gap(10.0, 8.0) == 0.2
    assert relative_gap(10.0, 10.0 + 1e-12) == 0
    assert relative_gap(-10.0, -12.0) == 0.2
    assert relative_gap(0.0, -1.0) == math.inf
    assert Solution((0,), 10.0, 8.0, "time limit", "highs").gap == 0.2

import gzip
import json
from pathlib import Path

import pytest
from contest_problems import best, contest_problems, worth
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import InputError
from planner.intra_op.iopddl import ContestProblem, parse_contest_problem, read_contest_problem

TINY = Path(__file__).parents[2] / "data" / "iopddl_tiny.json"


@given(contest_problems(), st.data())
def test_cost_and_peak_are_what_the_rules_say(problem, data):
    choice = tuple(data.draw(st.integers(0, len(costs) - 1)) for costs in problem.costs)
    cost, peak = worth(problem, choice)
    assert (problem.cost(choice), problem.peak(choice)) == (cost, peak)
    assert problem.fits(choice) == (problem.usage_limit is None or peak <= problem.usage_limit)


def test_a_file_by_hand():
    """Nodes 3 + 2 + 1 + 5; edges 0, 2, and (2, 1) at [1, 0] = 2, (3, 3) at [1, 1] = 1."""
    problem = read_contest_problem(TINY)
    assert problem.cost((0, 0, 1, 1)) == 16 == best(problem)
    assert problem.peak((0, 0, 1, 1)) == 7
    assert not problem.fits((1, 1, 0, 0))


def test_compressed_is_the_same(tmp_path):
    file = tmp_path / "problem.json.gz"
    file.write_bytes(gzip.compress(TINY.read_bytes()))
    assert read_contest_problem(file) == read_contest_problem(TINY)


def test_totals_beyond_64_bits_are_exact():
    problem = ContestProblem("", ((0, 1),) * 20, ((10**18 - 1,),) * 20, ((2**62,),) * 20, (), ())
    assert problem.cost([0] * 20) == 20 * (10**18 - 1)
    assert problem.peak([0] * 20) == 20 * 2**62


def changed(path: str, value: object) -> object:
    document = json.loads(TINY.read_text())
    at = document
    *keys, last = path.split(".")
    for key in keys:
        at = at[int(key)] if isinstance(at, list) else at[key]
    if isinstance(at, list):
        at[int(last)] = value
    else:
        at[last] = value
    return document


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("problem", 3, "the document needs 'problem', an object"),
        ("problem.nodes", [], "problem needs 'nodes', an object"),
        ("problem.nodes.intervals.0", [0, 2**63], "node 0: moments lie within 4611686018427387904 of 0"),
        ("problem.nodes.costs", {}, "problem.nodes needs 'costs', a list"),
        ("problem.nodes.costs.1", [1, "x", 2], r"problem.nodes.costs\[1\] must be a list of integers"),
        ("problem.nodes.costs.0", [1.5, 2], r"problem.nodes.costs\[0\] must be a list of integers"),
        ("problem.nodes.usages.2", [1], "node 2: 2 costs and 1 usages"),
        ("problem.nodes.usages", [], "0 usages given for 4 nodes"),
        ("problem.nodes.intervals.0", [1], "node 0: an interval has a start and an end"),
        ("problem.edges.nodes.0", [0, 4], "edge 0 must name nodes from 0 to 3"),
        ("problem.edges.costs.0", [1, 2], "edge 0: 6 costs are needed, 2 given"),
        ("problem.edges.costs", [], "0 tables of costs given for 4 edges"),
        ("problem.usage_limit", "much", "usage_limit must be an integer"),
    ],
)
def test_what_is_wrong_is_named(path, value, message):
    with pytest.raises(InputError, match=message):
        parse_contest_problem(changed(path, value))


def test_no_limit_may_be_given():
    document = changed("problem.usage_limit", None)
    assert parse_contest_problem(document).fits((1, 1, 1, 0))


def test_a_file_of_something_else(tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("no problem")
    with pytest.raises(InputError, match="neither JSON nor JSON compressed by gzip"):
        read_contest_problem(file)
    with pytest.raises(InputError, match="is a folder, a file is needed"):
        read_contest_problem(tmp_path)
    file.write_bytes(b"\x1f\x8bxx")
    with pytest.raises(InputError, match="neither JSON"):
        read_contest_problem(file)


@pytest.mark.parametrize(
    ("choice", "message"), [((0,), "1 strategies given"), ((0, 3, 0, 0), "node 1: strategy 3")]
)
def test_choices_are_checked(choice, message):
    with pytest.raises(InputError, match=message):
        read_contest_problem(TINY).cost(choice)

"""Networks without memory: parts, frontiers and hubs lead to the optimum of the whole."""

import itertools
import math
import time

import numpy as np
import pytest
from contest_problems import soon
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import Infeasible
from planner.intra_op import unlimited
from planner.intra_op.compact import Between, Compact
from planner.intra_op.unlimited import solve_unlimited

NODES, STRATEGIES, CLASSES = 8, 4, 3


def network(seed: int, forbidden: float = 0.0) -> Compact:
    """Nodes of which most are neighbours, by classes of their strategies; some pairs of these are forbidden."""
    rng = np.random.default_rng(seed)
    costs = {v: rng.integers(0, 100, STRATEGIES).astype(float) for v in range(NODES)}
    tables = []
    for pair in itertools.combinations(costs, 2):
        if rng.random() < 0.7:
            table = rng.integers(0, 100, (CLASSES, CLASSES)).astype(float)
            table[rng.random(table.shape) < forbidden] = np.inf
            classes = [rng.permutation(np.arange(STRATEGIES) % CLASSES) for _ in pair]
            tables.append(Between(pair, table, (classes[0], classes[1])))
    return Compact(costs, tables, range(NODES))


def costs_of(whole: Compact) -> np.ndarray:
    """Of all choices."""
    every = np.indices((STRATEGIES,) * NODES).reshape(NODES, -1)
    total = sum(costs[every[v]] for v, costs in whole.costs.items())
    for v, tables in whole.tables.items():
        for w, table in tables.items():
            if v < w:
                total = total + table[whole.classes[v][w][every[v]], whole.classes[w][v][every[w]]]
    return np.asarray(total)


@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"TRIED": 1, "PROVEN": 1, "SWEEPS": 1},
        {"TRIED": 200, "PROVEN": 400, "SWEEPS": 2, "SMALLER": 0.0},
        {"NEAR": 1e-3, "SLIGHT": 0.0, "MOST_SUMS": 0, "MOST_SUMS_OF_A_PART": 0},
    ],
)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), forbidden=st.sampled_from([0.0, 0.2, 0.5]))
def test_equals_brute_force(limits: dict[str, float], seed: int, forbidden: float) -> None:
    """However narrow frontiers are, and however early networks are parted."""
    whole = network(seed, forbidden)
    least = costs_of(whole).min()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in limits.items():
            patch.setattr(unlimited, name, value)
        if np.isinf(least):
            with pytest.raises(Infeasible):
                solve_unlimited(whole.fork(), math.inf)
            return
        answer = solve_unlimited(whole.fork(), math.inf)
        beaten = solve_unlimited(whole.fork(), math.inf, below=least)
        just = solve_unlimited(whole.fork(), math.inf, below=least + 1)
    assert answer.cost == answer.lower_bound == whole.cost(answer.choice) == least
    assert (beaten.choice, beaten.cost, beaten.lower_bound) == ({}, np.inf, least)
    assert just.cost == just.lower_bound == least


def test_no_other_solver_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """And where frontiers may hold little, networks are parted."""
    monkeypatch.setattr(unlimited, "solve_network", None)
    parted = []
    part = unlimited._Search._part
    monkeypatch.setattr(unlimited._Search, "_part", lambda *a: (parted.append(a), part(*a)))
    wholes = [network(seed) for seed in range(6)]
    least = [costs_of(whole).min() for whole in wholes]
    assert [solve_unlimited(whole.fork(), math.inf).cost for whole in wholes] == least
    assert not parted
    monkeypatch.setattr(unlimited, "TRIED", 1)
    monkeypatch.setattr(unlimited, "PROVEN", 1)
    assert [solve_unlimited(whole.fork(), math.inf).cost for whole in wholes] == least
    assert parted


@pytest.mark.parametrize("seed", range(3))
def test_out_of_time_there_is_still_a_choice_and_a_bound(seed: int) -> None:
    whole = network(seed)
    answer = solve_unlimited(whole.fork(), time.monotonic() - 1)
    assert answer.lower_bound <= costs_of(whole).min() <= answer.cost == whole.cost(answer.choice)


def test_time_may_run_out_at_any_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found and proven by then is true."""
    whole = network(5)
    least = costs_of(whole).min()
    monkeypatch.setattr(unlimited, "TRIED", 1)
    monkeypatch.setattr(unlimited, "PROVEN", 1)
    for ticks in range(1, 60, 4):
        clock = iter(range(ticks))
        stopped = property(lambda _, clock=clock: next(clock, None) is None)
        monkeypatch.setattr(unlimited._Search, "stopped", stopped)
        answer = solve_unlimited(whole.fork(), soon(5.0))
        assert answer.lower_bound <= least <= answer.cost == whole.cost(answer.choice)


def test_one_node_and_none() -> None:
    assert solve_unlimited(Compact({0: np.array([3.0, 2.0])}, [], [0]), math.inf).choice == {0: 1}
    assert solve_unlimited(Compact({}, [], []), math.inf).cost == 0

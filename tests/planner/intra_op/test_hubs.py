"""Hubs decided before the rest: bounds hold, and where they are decided well, the rest is exact."""

import random

import numpy as np
import pytest
from contest_problems import best_of_network, contest_problems, random_contest_problem, unshrunk
from hypothesis import given

from planner.intra_op import hubs
from planner.intra_op.contest import network_of
from planner.intra_op.hubs import climb, dive, hubs_of
from planner.intra_op.iopddl import ContestProblem
from planner.intra_op.messages import Relaxation
from planner.intra_op.network import Network


def stars(readers: int, seed: int) -> Network:
    """A chain of which every node reads two hubs alike, and half of the nodes a third one."""
    rng = random.Random(seed)
    costs = {v: np.array([rng.randrange(10) for _ in range(3)], float) for v in range(readers + 3)}
    network = Network(costs, {}, np.zeros(0))

    def table() -> np.ndarray:
        return np.array([[0 if i == j else rng.randrange(1, 20) for j in range(3)] for i in range(3)], float)

    for v in range(3, readers + 3):
        for hub in (0, 1, 2) if v % 2 else (0, 1):
            network.add_table(hub, v, table())
        if v > 3:
            network.add_table(v - 1, v, table())
    return network


def test_hubs_are_what_many_nodes_read() -> None:
    assert hubs_of(stars(60, seed=1)) == [0, 1, 2]


def test_a_choice_read_off_where_hubs_are_decided_meets_the_bound() -> None:
    """With its hubs decided a chain is a chain: messages are exact there."""
    network = stars(40, seed=1)
    relaxation = Relaxation(network, {})
    decided = dive(relaxation, {}, [0, 1, 2])
    assert network.cost(relaxation.decode()) == pytest.approx(decided.value)
    assert {v: s for v, s in relaxation.decode().items() if v < 3} == decided.choice


def test_what_is_decided_stays() -> None:
    assert dive(Relaxation(stars(40, seed=1), {}), {0: 2}, [1, 2]).choice[0] == 2


def test_a_decision_ends_where_its_bound_is_too_high() -> None:
    """What it says then is a bound of what it has decided, and of every choice that has this."""
    best = dive(Relaxation(stars(40, seed=1), {}), {}, [0, 1, 2])
    worse = next(s for s in range(3) if s != best.choice[0])
    whole = dive(Relaxation(stars(40, seed=1), {}), {0: worse}, [1, 2])
    ended = dive(Relaxation(stars(40, seed=1), {}), {0: worse}, [1, 2], enough=best.value / 2)
    assert best.value / 2 <= ended.value <= whole.value + 1e-6
    assert len(ended.choice) < len(whole.choice)


def test_bounds_of_a_decision_agree_wherever_messages_came_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the one that is met after more sweeps looks dearer."""
    monkeypatch.setattr(hubs, "LAST_STEPS", 5)
    monkeypatch.setattr(hubs, "LAST_SWEEPS", 5)
    network = network_of(random_contest_problem(60, 4, seed=7, share=0.1))
    choice = dict.fromkeys(sorted(network.nodes)[:3], 0)
    cold, swept = Relaxation(network, {}), Relaxation(network, {})
    climb(swept, 200)
    late = dive(swept, choice, []).value
    assert dive(Relaxation(network, {}), choice, [], deadline=0.0).value < 0.97 * late
    assert dive(cold, choice, []).value == pytest.approx(late, rel=0.01)


@given(contest_problems(max_ends=2))
def test_what_is_said_of_decided_hubs_is_a_bound(problem: ContestProblem) -> None:
    network = unshrunk(problem)
    if network is None:
        return
    nodes = sorted(network.nodes)[:2]
    relaxation = Relaxation(network, {0: 0.25})
    decided = dive(relaxation, {}, nodes)
    assert decided.choice.keys() == set(nodes)
    part = network.narrowed({v: np.array([s]) for v, s in decided.choice.items()})
    assert decided.value <= best_of_network(part)[0] + 1e-6


def test_held_nodes_are_let_go_again() -> None:
    network = stars(30, seed=3)
    relaxation = Relaxation(network, {})
    for _ in range(10):
        relaxation.sweep()
    free, messages = relaxation.value(), relaxation.snapshot()
    relaxation.hold({0: [2], 1: [1]})
    relaxation.sweep()
    assert relaxation.value() > free
    relaxation.hold({})
    relaxation.restore(messages)
    assert relaxation.value() == free

"""Counted work: the same course on every machine, and a limit on the wall that ends it."""

import random
import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from contest_problems import random_contest_problem

from planner.intra_op import clock
from planner.intra_op.answers import NetworkAnswer
from planner.intra_op.anytime import solve_network
from planner.intra_op.contest import network_of
from planner.intra_op.narrowing import solve_narrowed

SPEEDS = (1e-3, 5e-2, 2e-1)
"""Seconds on the wall from look to look, at most."""


def wall(seconds: float, seed: int = 0) -> Callable[[], float]:
    """A clock on the wall that moves on by up to so many seconds whenever it is looked at."""
    rng, now = random.Random(seed), 0.0

    def monotonic() -> float:
        nonlocal now
        now += seconds * rng.random()
        return now

    return monotonic


def hang(monkeypatch: pytest.MonkeyPatch, monotonic: Callable[[], float]) -> None:
    """Let the solver look at another clock on the wall."""
    monkeypatch.setattr(clock, "time", SimpleNamespace(monotonic=monotonic))


@pytest.mark.parametrize("solve", [solve_network, solve_narrowed])
def test_counted_work_takes_the_same_course_at_any_speed(
    solve: Callable[..., NetworkAnswer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the clock on the wall it does not: where much of the time is gone, other things are tried."""
    problem = random_contest_problem(150, 4, seed=6, share=0.3)

    def answers(by: Callable[[], NetworkAnswer]) -> list[NetworkAnswer]:
        found = []
        for speed in SPEEDS:
            hang(monkeypatch, wall(speed))
            found.append(by())
        return found

    def counting() -> NetworkAnswer:
        with clock.counted(1e6):
            return solve(network_of(problem), 20.0)

    by_count = answers(counting)
    assert by_count[0].proven
    assert by_count.count(by_count[0]) == len(SPEEDS)
    by_wall = answers(lambda: solve(network_of(problem), clock.now() + 20))
    assert by_wall.count(by_wall[0]) < len(SPEEDS)


def test_a_limit_on_the_wall_ends_what_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    hang(monkeypatch, lambda: ticks.pop(0))
    ticks = [100.0, 101.0, 103.0, 104.0, 104.0, 105.0, 107.0]
    with clock.counted(2.0) as deadline:
        clock.work(1.5)
        assert clock.now() == 1.5 < deadline
        assert clock.now() == clock.LATE  # 103: three seconds have passed
        assert clock.half_as_long_again(0.5) == 1.5 + (1.5 - 0.5) / 2  # until 104 + (104 - 100) / 2
        assert clock.now() == 1.5
        assert clock.now() == clock.LATE
    assert not ticks


def test_shares_of_what_is_left_are_numbers_when_it_is_late() -> None:
    with clock.counted(-1.0) as deadline:
        now = clock.now()
        assert now == clock.LATE
        assert clock.now() > now + 0.5 * (deadline - now)
        assert clock.now() > deadline - 0.5 * (deadline - now)


def test_counts_are_of_one_thread_and_what_is_counted_within_counts_outside() -> None:
    elsewhere: list[bool] = []
    with clock.counted(60.0):
        clock.work(3.0)
        with clock.counted(10.0):
            assert clock.now() == 0
            clock.work(1.0)
        assert clock.now() == 4
        other = threading.Thread(target=lambda: elsewhere.append(clock.is_counted()))
        other.start()
        other.join()
    assert elsewhere == [False]
    before = clock.now()
    clock.work(1e6)
    assert clock.now() < before + 1e5

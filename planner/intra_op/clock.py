"""The clock that the solver plans by: that on the wall, or counted work, which runs alike on every machine.

What is tried in which order, and for how long, depends on the time that is left. By the clock on the wall two runs of
one problem may part ways, and of several best choices find another one. So where an answer must not depend on that,
the clock counts work: tables that messages pass, nodes that are reduced, states of frontiers, iterations of linear
programs. A second of it is about one of a core (`benchmarks/limited.py` prints both). Only a limit on the wall ends it
early, after which it is late for everything.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

LATE = 1e300
"""What the clock says when the limit on the wall has passed [s]; finite, so that shares of what is left are numbers."""

MESSAGES_OF_A_GROUP, MESSAGES_OF_AN_ENTRY = 1.2e-5, 1.2e-9
"""About what a pass of messages takes for each level or group of edges, and for each entry of their tables [s]."""

LAYING_OUT = 15
"""Passes of messages that take as long as laying a network's numbers out."""

REDUCING_A_NODE, REDUCING_AN_ENTRY = 2.5e-4, 2e-8
"""The same of a look for reductions of a node, and at each entry of its tables [s]."""

FRONTIER_OF_A_NODE, FRONTIER_OF_A_STATE = 5e-4, 1.2e-7
"""Of one more node on a frontier, and of each of its strategies with each state [s]."""

TRYING_A_MOVE, CUTTING_A_NODE_OUT = 2e-4, 2e-5
"""Of another strategy that is tried for a node, and of a node that goes into a part to be solved anew [s]."""

PIVOT_OF_A_COLUMN, PIVOT_WITH_CUTS = 2e-8, 5e-8
"""Of an iteration of a linear program, and of one within the integer program, for each column [s]."""

PIVOTS_TO_BEGIN = 100
"""Iterations that take as long as the solver needs to begin."""

BRANCH, BRANCH_OF_A_COLUMN = 5e-4, 2e-5
"""Of a branch of the integer program, and for each column of it [s]."""


class _Counter(threading.local):
    """Work of one thread."""

    done: float | None = None
    """Seconds so far; None where the clock on the wall counts."""
    began, end = 0.0, LATE
    """When it began to count, and its limit, on the wall (`time.monotonic`)."""


_counter = _Counter()


def now() -> float:
    """Seconds by the clock that counts."""
    wall = time.monotonic()
    if _counter.done is None:
        return wall
    return LATE if wall > _counter.end else _counter.done


def is_counted() -> bool:
    """Whether it is work that counts, not the clock on the wall."""
    return _counter.done is not None


def work(seconds: float) -> None:
    """Count what was done, in about the seconds that it takes."""
    if _counter.done is not None:
        _counter.done += seconds


def half_as_long_again(began: float) -> float:
    """When half as long again as since ``began`` has passed; puts a limit on the wall off that has passed before."""
    wall = time.monotonic()
    if _counter.done is not None and wall > _counter.end:
        _counter.end = wall + (wall - _counter.began) / 2
    reached = now()
    return reached + (reached - began) / 2


def wall_left(deadline: float) -> float:
    """Seconds on the wall until a solver that cannot count must end, at ``deadline`` by the clock that counts."""
    limit = deadline if _counter.done is None else _counter.end
    return limit - time.monotonic()


@contextmanager
def counted(seconds: float) -> Iterator[float]:
    """Count work from zero, within so many seconds of it and on the wall; gives the deadline.

    What is counted within counts outside, too.
    """
    before, wall = (_counter.done, _counter.began, _counter.end), time.monotonic()
    _counter.done, _counter.began, _counter.end = 0.0, wall, wall + seconds
    try:
        yield seconds
    finally:
        done, (_counter.done, _counter.began, _counter.end) = _counter.done, before
        work(done)

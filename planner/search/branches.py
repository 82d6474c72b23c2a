"""Parts of a space of plans, looked into where a better plan may be, until there can be none.

A branch is an iterator that knows ever more: what none of its plans can be below, and plans with their price. The one
that promises most is asked next, so nothing is worked out for a branch that a cheap bound excludes in the end.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from planner.evaluation.evaluator import Evaluator
from planner.evaluation.sites import step_time
from planner.plans import Estimate, Parallelism

Progress = Callable[[int, int], None]


class Answer(NamedTuple):
    """A plan with its price."""

    plan: Parallelism
    estimate: Estimate

    @property
    def seconds(self) -> float:
        """Of a step."""
        return self.estimate.step_time_s


class Known(NamedTuple):
    """What a branch has come to know."""

    bound: float
    """No plan that it has not given yet is below this [s]."""
    answer: Answer | None = None
    last: bool = False
    """Whether it stops with this bound; a branch that just ends has no more plans."""


Branch = Iterator[Known]


@dataclass
class Best:
    """The shortest step known so far, for branches to look no further than that."""

    seconds: float


class Searched(NamedTuple):
    """Plans, best first; what no step of the space is below [s]; branches that bounds excluded."""

    found: tuple[Answer, ...]
    bound: float
    excluded: int


def search(
    branches: Sequence[tuple[float, Branch]], best: Best, progress: Progress | None = None
) -> Searched:
    """Looks into all branches, each with its first bound, that may have a plan below ``best``, which it updates."""
    queue = [(bound, number, branch) for number, (bound, branch) in enumerate(branches)]
    heapq.heapify(queue)
    found: list[Answer] = []
    stopped = float("inf")
    while queue and queue[0][0] < best.seconds:
        if progress is not None:
            progress(len(branches) - len(queue), len(branches))
        bound, number, branch = heapq.heappop(queue)
        for known in branch:
            if known.answer is not None:
                found.append(known.answer)
                best.seconds = min(best.seconds, known.answer.seconds)
            bound = max(bound, known.bound)
            if known.last:
                stopped = min(stopped, bound)
            else:
                heapq.heappush(queue, (bound, number, branch))
            break
    left = queue[0][0] if queue else float("inf")
    found.sort(key=lambda answer: answer.seconds)
    return Searched(tuple(found), min(stopped, left, best.seconds), len(queue))


def priced(evaluator: Evaluator, plan: Parallelism, below: float = float("inf")) -> Answer | None:
    """The plan with its estimate; None where it does not fit, or its step does not take less than ``below`` [s].

    Where stages differ, memory and all else are worked out only of steps that do.
    """
    if below < float("inf") and evaluator.differs(plan):
        places = evaluator.sites(plan)
        if step_time(evaluator.whole, plan, places).total >= below:
            return None
    estimate = evaluator.estimate(plan)
    fits = estimate.fits_with(evaluator.job.memory_headroom)
    return Answer(plan, estimate) if fits and estimate.step_time_s < below else None

"""What order of the sweep's runs can be attained by who does not know which version of its software each had.

A run's settings tell its version but for a share, which took as long as a slower version would have. No field says
which runs these are, and one of them takes up to thirty times as long as its neighbours. The order that is left to a
model that is exact otherwise follows from that share and from how much a run differs from its repeat, by drawing both.
"""

import math
import random
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from judging import Judged
from stalls import MIN_RUNS, run_of

from planner.evaluation import evaluate
from planner.runs.origins import LEANER
from planner.runs.unpublished import TOLD
from planner.validation import spearman

SLOWER: Mapping[str, str] = {**LEANER, "nanotron-checked": "nanotron-polling"}
"""Version that a run's settings tell -> the slower one that some such runs had."""

REPEATED = 0.04
"""Median difference of step time between two publications of one configuration."""

SPREAD = REPEATED / (statistics.NormalDist().inv_cdf(0.75) * math.sqrt(2))
"""Standard deviation of one publication's time, in logarithms."""

TELLING = 1.25
"""Least ratio of the two versions' times at which a measured time tells which it was."""

DRAWS = 400


class Versions(NamedTuple):
    """A run under the version that its settings tell, and under the slower one that it may have had."""

    group: tuple[str, int]
    stack: str
    predicted: float
    """Of a step [s]."""
    slower: float | None
    """The same under the slower version [s]; None where the version is known, or hardly matters."""
    measured: float

    @property
    def was_slower(self) -> bool:
        """Whether its time is nearer to that of the slower version."""
        if self.slower is None:
            return False
        return abs(math.log(self.measured / self.slower)) < abs(math.log(self.measured / self.predicted))


class Attainable(NamedTuple):
    """Rank correlations of one group of runs."""

    median: float
    """Of an exact model that does not know versions, over draws."""
    tenth: float
    """A tenth of the draws have less."""
    told: float
    """Ours, under whichever of the two versions is nearer to what was measured."""


def versions_of(judged: Iterable[Judged]) -> list[Versions]:
    """Runs with a measured time."""
    return [_versions(row) for row in judged if row.row.step_time_error is not None]


def _versions(row: Judged) -> Versions:
    assert row.plan is not None
    run, job = run_of(row), row.plan.job
    known = any(text.endswith(f"({TOLD})") for text in row.row.assumed)
    slower = None
    if job.stack in SLOWER and not known:
        other = job.model_copy(update={"stack": SLOWER[job.stack]})
        seconds = evaluate(row.plan.model_copy(update={"job": other})).step_time_s
        slower = seconds if seconds > TELLING * run.predicted else None
    return Versions(run.group, job.stack, run.predicted, slower, run.measured)


def shares(runs: Iterable[Versions]) -> dict[str, float]:
    """Version that settings tell -> share of such runs that had the slower one."""
    found: dict[str, list[bool]] = defaultdict(list)
    for run in runs:
        if run.slower is not None:
            found[run.stack].append(run.was_slower)
    return {stack: statistics.mean(each) for stack, each in sorted(found.items())}


def attainable(runs: Sequence[Versions]) -> dict[tuple[str, int], Attainable]:
    """(model, nodes) -> how well its runs can be ordered; groups that are worth a correlation."""
    share, draw = shares(runs), random.Random(0)
    groups: dict[tuple[str, int], list[Versions]] = defaultdict(list)
    for run in runs:
        groups[run.group].append(run)
    found = {}
    for name, group in sorted(groups.items()):
        if len(group) >= MIN_RUNS:
            drawn = [_correlation([_drawn(r, share, draw) for r in group], group) for _ in range(DRAWS)]
            nearer = [(r.slower if r.slower and r.was_slower else r.predicted, r.measured) for r in group]
            tenth = sorted(drawn)[DRAWS // 10]
            found[name] = Attainable(statistics.median(drawn), tenth, spearman(nearer) or 0.0)
    return found


def _drawn(run: Versions, share: Mapping[str, float], draw: random.Random) -> float:
    slower = run.slower if run.slower and draw.random() < share[run.stack] else None
    return (slower or run.predicted) * math.exp(draw.gauss(0.0, SPREAD))


def _correlation(drawn: Sequence[float], group: Sequence[Versions]) -> float:
    return spearman([(run.predicted, seconds) for run, seconds in zip(group, drawn, strict=True)]) or 0.0

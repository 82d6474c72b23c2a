"""Runs of the sweep that stalled, found without a model, and what they leave of any order of alternatives.

A micro-batch cannot take longer than a larger one on the same mesh, nor all stages of a pipeline together than those
of a longer one, but for noise. A run whose micro-batches took more than twice as long as those of another run with as
large or larger ones, as many stages or more and at most twice as many micro-batches, same model, same tensor degree,
is called stalled: its version of the software polls, or checks every collective, which no field of its row says. A
model of time that knows of no versions can order runs no better than one that is exact wherever a run did not stall;
ours knows where they polled for the most part, and reads from the memory of a run what else it had
(`planner/runs/vocabulary.py`, `unpublished.py`).
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from judging import Judged

from planner.evaluation import evaluate
from planner.runs.origins import LEANER
from planner.runs.unpublished import TOLD
from planner.validation import spearman

FACTOR = 2.0
"""Over the time of a micro-batch that is as large or larger."""

MIN_RUNS = 4
"""Fewest runs of a group whose order is worth a correlation."""


class Run(NamedTuple):
    """One run of the sweep."""

    group: tuple[str, int]
    """Model and number of nodes: the runs of one are alternatives to each other."""
    mesh: tuple[object, ...]
    stages: int
    micro_batch: int
    num_microbatches: int
    predicted: float
    """Of a step [s]."""
    beforehand: float
    """The same by someone who does not know the run's memory, and so not which version it had."""
    measured: float

    @property
    def each(self) -> float:
        """Measured, of one micro-batch on all stages, one after the other [s]."""
        return self.measured / self.num_microbatches * self.stages


class Order(NamedTuple):
    """Rank correlations of predicted and measured time within the groups."""

    median: float
    least: float
    groups: int
    best_among_three: int
    """Groups whose fastest run is among the three that we say are fastest."""


class Group(NamedTuple):
    """How well runs of one model on one number of nodes are ordered."""

    runs: int
    spearman: float | None
    """None where there are too few."""
    place: int
    """Of the fastest run, in our order."""


def runs_of(judged: Iterable[Judged]) -> list[Run]:
    """Rows with a measured time."""
    return [run_of(row) for row in judged if row.row.step_time_error is not None]


def run_of(row: Judged) -> Run:
    assert row.row.predicted is not None
    assert row.row.step_time_error is not None
    parallel, nodes = row.source["parallel"], row.source["nodes"]
    model = row.source["model"]["name"]
    predicted = row.row.predicted.step_time_s
    return Run(
        group=(model, nodes),
        mesh=(model, parallel["tp"], parallel["pp"] > 1, nodes > 1),
        stages=parallel["pp"],
        micro_batch=parallel["micro_batch"],
        num_microbatches=parallel["grad_accum"],
        predicted=predicted,
        beforehand=_beforehand(row),
        measured=predicted / (1 + row.row.step_time_error),
    )


def _beforehand(row: Judged) -> float:
    assert row.row.predicted is not None
    assert row.plan is not None
    usual = {leaner: stack for stack, leaner in LEANER.items()}.get(row.plan.job.stack)
    if usual is None or not any(text.endswith(f"({TOLD})") for text in row.row.assumed):
        return row.row.predicted.step_time_s
    job = row.plan.job.model_copy(update={"stack": usual})
    return evaluate(row.plan.model_copy(update={"job": job})).step_time_s


def _harder(other: Run, run: Run) -> bool:
    """Whether ``run`` cannot take `FACTOR` times as long for a micro-batch, and its share of what comes once a step.

    That share is ``FACTOR`` times as large at most where ``other`` has as many times as many micro-batches.
    """
    larger = other.micro_batch >= run.micro_batch and other.stages >= run.stages
    return other is not run and larger and other.num_microbatches <= FACTOR * run.num_microbatches


def without_stall(runs: Sequence[Run]) -> list[float]:
    """Time that each run would have taken had it not stalled [s]; as measured where it did not."""
    by_mesh: dict[tuple[object, ...], list[Run]] = defaultdict(list)
    for run in runs:
        by_mesh[run.mesh].append(run)
    times = []
    for run in runs:
        others = [o.each for o in by_mesh[run.mesh] if _harder(o, run)]
        least = min(others, default=run.each)
        times.append(run.measured * least / run.each if run.each > FACTOR * least else run.measured)
    return times


def order(runs: Sequence[Run], predicted: Sequence[float]) -> Order:
    """How well ``predicted`` [s] orders the runs of every group."""
    groups: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    for run, seconds in zip(runs, predicted, strict=True):
        groups[run.group].append((seconds, run.measured))
    found = [_group(pairs) for pairs in groups.values()]
    known = sorted(group.spearman for group in found if group.spearman is not None)
    best = sum(group.place <= 3 for group in found if group.spearman is not None)
    return Order(statistics.median(known), known[0], len(known), best)


def _group(pairs: Sequence[tuple[float, float]]) -> Group:
    """Of (predicted, measured) times."""
    place = sorted(pairs).index(min(pairs, key=_measured)) + 1
    return Group(len(pairs), spearman(pairs) if len(pairs) >= MIN_RUNS else None, place)


def _measured(pair: tuple[float, float]) -> float:
    return pair[1]


def orders(judged: Iterable[Judged]) -> tuple[int, Mapping[str, Order]]:
    """(how many runs stalled, whose order -> how good it is)."""
    runs = runs_of(judged)
    unstalled, steady = without_stall(runs), steady_of(runs)
    return len(runs) - len(steady), {
        "ours, all runs": order(runs, [run.predicted for run in runs]),
        "ours, all runs, without a look at their memory": order(runs, [run.beforehand for run in runs]),
        "ours, runs that did not stall": order(steady, [run.predicted for run in steady]),
        "a model exact but for stalls, all runs": order(runs, unstalled),
    }


def steady_of(runs: Sequence[Run]) -> list[Run]:
    """Those that did not stall."""
    return [run for run, time in zip(runs, without_stall(runs), strict=True) if time == run.measured]


def groups(judged: Iterable[Judged]) -> dict[tuple[str, int], tuple[Group, Group]]:
    """(model, nodes) -> the order of all its runs, and of those that did not stall."""
    runs = runs_of(judged)
    steady = steady_of(runs)
    return {
        name: (_ordered(name, runs), _ordered(name, steady)) for name in sorted({run.group for run in runs})
    }


def _ordered(name: tuple[str, int], runs: Iterable[Run]) -> Group:
    return _group([(run.predicted, run.measured) for run in runs if run.group == name])

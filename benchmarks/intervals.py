"""How wide the 80 % intervals of step time have to be for runs of a source that nothing was fitted on.

    python benchmarks/intervals.py    # print widths and coverage

A user's runs are a draw of a source and then of its runs, and sources differ more than runs of one do (`spreads`). A
width is therefore the 80 % quantile of the errors of runs of the fit split, each as if its series had been left out
(`left_out`), every source weighing the same, and one that was not seen as much as any: it may err by anything, so that
the others have to hold its share too (hierarchical conformal prediction, arXiv:2306.06342). Of a stack with
``unexplained`` seconds, the errors are those beyond these. Dense models and mixtures of experts apart:

* Dense: a source is a series. No stack is shown by the four series that its own width would take, so that all stacks
  have the width of all series.
* Mixtures: three series are too few, so that a source is what one series has on one device; all stacks have the width
  of the stacks that have four.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from judging import RUNS, Judged, LeftOut, grouped, inside, judge, left_out, split_of

from cluster_specs.software import load_software
from planner.runs.releases import RELEASES

SHARE = 0.8
"""Of measurements that are to lie inside."""

FEWEST = 4
"""Sources that hold the share of them and of one more."""

Stack = tuple[str, bool]
"""Name, and whether models have experts."""


def has_experts(row: Judged) -> bool:
    """Whether the model of a run is a mixture."""
    return (row.source["model"].get("experts") or 0) > 1


def stack_of(row: Judged) -> Stack:
    """What a run's interval depends on."""
    assert row.plan is not None
    return row.plan.job.stack, has_experts(row)


def shipped(stack: Stack) -> float:
    """Width that estimates have."""
    software = load_software(stack[0])
    return software.uncertainty_experts if stack[1] else software.uncertainty


def widths(rows: Iterable[Judged]) -> dict[Stack, float]:
    """Width by stack, of the stacks that the fit split shows."""
    dense: dict[str, list[LeftOut]] = defaultdict(list)
    mixtures: dict[str, list[LeftOut]] = defaultdict(list)
    for name, runs in left_out(rows).items():
        for run in runs:
            if run.row.split == "fit" and has_experts(run.row):
                mixtures[f"{name}, {run.row.device}"].append(run)
            elif run.row.split == "fit":
                dense[name].append(run)
    shown = sorted({stack_of(run.row) for runs in mixtures.values() for run in runs})
    programs = sorted({_program(stack) for stack, _ in shown})
    own = [[s for runs in mixtures.values() if (s := _of_program(runs, name))] for name in programs]
    widest = max(quantile(found, unseen=1) for found in own if len(found) >= FEWEST)
    stacks = sorted({stack_of(run.row) for runs in dense.values() for run in runs})
    return dict.fromkeys(stacks, quantile(list(dense.values()), unseen=1)) | dict.fromkeys(shown, widest)


def _program(stack: str) -> str:
    """The stack that ``stack`` is a release of, or itself."""
    return next((release.stack for release in RELEASES if release.other == stack), stack)


def _of_program(runs: Sequence[LeftOut], name: str) -> list[LeftOut]:
    return [run for run in runs if _program(stack_of(run.row)[0]) == name]


def beyond(run: LeftOut) -> float:
    """Logarithm of what was predicted over what was measured, less the seconds that may stay unexplained."""
    measured = run.row.row.predicted.step_time_s / (1 + run.error) if run.row.row.predicted else math.nan
    predicted = measured * (1 + run.without)
    excess = max(0.0, measured - predicted)
    allowed = min(excess, load_software(stack_of(run.row)[0]).unexplained or 0.0)
    return abs(math.log(predicted / (measured - allowed)))


def quantile(series: Sequence[Sequence[LeftOut]], unseen: int = 0) -> float:
    """Relative half-width that holds the share of all runs, every series weighing the same, those unseen too."""
    return _weighted([(beyond(run), 1 / len(runs)) for runs in series for run in runs], unseen)


def _weighted(errors: Sequence[tuple[float, float]], unseen: int = 0) -> float:
    """Of (logarithm of an error, weight) the least that holds `SHARE` of the weight, and of ``unseen`` beside it."""
    least, reached = SHARE * (sum(weight for _, weight in errors) + unseen), 0.0
    for error, weight in sorted(errors):
        reached += weight
        if reached >= least - 1e-9:
            return math.expm1(error)
    raise ValueError("no runs")


def dense_series(rows: Iterable[Judged]) -> dict[str, list[LeftOut]]:
    """Series -> its runs of dense models, each as if the series had been left out."""
    found = {name: [r for r in runs if not has_experts(r.row)] for name, runs in left_out(rows).items()}
    return {name: runs for name, runs in found.items() if runs}


def held(series: Mapping[str, Sequence[LeftOut]]) -> dict[str, list[bool]]:
    """Series -> of each run whether it is inside the width that all other series of the fit split give."""
    fit = {name: runs for name, runs in series.items() if split_of(name) == "fit"}
    found = {}
    for name, runs in series.items():
        width = quantile([others for other, others in fit.items() if other != name], unseen=1)
        found[name] = [math.expm1(beyond(run)) <= width for run in runs]
    return found


def spreads(series: Iterable[Sequence[LeftOut]]) -> tuple[float, float]:
    """(between sources, within one): share by which four fifths of series are off at most in the median, and by which
    four fifths of runs differ from the median of their series, every series weighing the same."""
    between, within = [], []
    for runs in series:
        errors = [math.log1p(run.without) for run in runs]
        median = statistics.median(errors)
        between.append((abs(median), 1.0))
        within += [(abs(error - median), 1 / len(runs)) for error in errors]
    return _weighted(between), _weighted(within)


def coverage(rows: Sequence[Judged]) -> dict[str, dict[str, tuple[int, float]]]:
    """Kind of run -> split -> (runs, share inside the interval)."""
    return {
        what: {
            split: (len(chosen), inside(chosen) or 0.0)
            for split, members in grouped(rows, lambda row: row.split).items()
            if (chosen := [row for row in members if of(row)])
        }
        for what, of in KINDS.items()
    }


def _crosses_nodes(row: Judged) -> bool:
    assert row.plan is not None
    return row.plan.cluster.num_devices > row.plan.cluster.devices_per_node


KINDS: Mapping[str, Callable[[Judged], bool]] = {
    "dense": lambda row: not has_experts(row),
    "mixtures of experts": has_experts,
    "GPU": lambda row: not row.device.startswith("tpu"),
    "TPU": lambda row: row.device.startswith("tpu"),
    "one node": lambda row: not _crosses_nodes(row),
    "several nodes": _crosses_nodes,
}
"""Name -> the runs that it is of."""


if __name__ == "__main__":
    ROWS = [row for name in RUNS for row in judge(name)[0]]
    for one, width in widths(ROWS).items():
        print(f"{one[0]:20} {'experts' if one[1] else 'dense':8} {width:.3f}, shipped {shipped(one):.2f}")
    SERIES = dense_series(ROWS)
    HELD = held(SERIES)
    for split in ("fit", "report"):
        names = [name for name in SERIES if split_of(name) == split]
        print(split, "between, within", spreads(SERIES[name] for name in names))
        print(split, "held, series the same", statistics.mean(statistics.mean(HELD[name]) for name in names))
    for kind, by_split in coverage(ROWS).items():
        print(f"{kind:20}", *(f"{split} {n} {share:.1%}" for split, (n, share) in by_split.items()))

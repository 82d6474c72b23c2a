"""How wide the 80 % intervals of step time have to be for runs of a source that nothing was fitted on.

    python benchmarks/intervals.py    # print widths and coverage

A user's runs are a draw of a source and then of its runs, and sources differ more than runs of one do (`spreads`). A
width is therefore the 80 % quantile of the errors of runs of the fit split, each as if its series had been left out
(`left_out`), every source weighing the same, and one that was not seen as much as any: it may err by anything, so that
the others have to hold its share too (hierarchical conformal prediction, arXiv:2306.06342). Of a stack with
``unexplained`` seconds, the errors are those beyond these. A source is a series; no stack is shown by the four that its
own width would take, so that all stacks have the width of all series, dense models and mixtures of experts apart. On
most series of mixtures (`judging.MOVED_SERIES`) nothing was fitted, so that they are as new sources are: of mixtures no
other is reckoned with.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

from judging import RUNS, Judged, LeftOut, grouped, inside, judge, left_out

from cluster_specs.software import load_software

SHARE = 0.8
"""Of measurements that are to lie inside."""

UNSEEN = {"dense": 1, "mixtures": 0}
"""Kind of models -> sources not seen that may err by anything."""

Stack = tuple[str, bool]
"""Name, and whether models have experts."""


def stack_of(row: Judged) -> Stack:
    """What a run's interval depends on."""
    assert row.plan is not None
    return row.plan.job.stack, row.mixture


def shipped(stack: Stack) -> float:
    """Width that estimates have."""
    software = load_software(stack[0])
    return software.uncertainty_experts if stack[1] else software.uncertainty


def widths(rows: Iterable[Judged]) -> dict[Stack, float]:
    """Width by stack, of the stacks that the fit split shows."""
    found: dict[Stack, float] = {}
    for kind, sources in of_kinds(rows).items():
        fit = list(of_split(sources, "fit").values())
        stacks = sorted({stack_of(run.row) for runs in fit for run in runs})
        found |= dict.fromkeys(stacks, quantile(fit, UNSEEN[kind]))
    return found


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


Series = Mapping[str, Sequence[LeftOut]]
"""Name -> its runs of one kind, each as if the series had been left out."""


def of_kinds(rows: Iterable[Judged]) -> dict[str, Series]:
    """Series of dense models, and of mixtures."""
    found = left_out(rows)
    return {
        kind: {
            n: chosen
            for n, runs in found.items()
            if (chosen := [r for r in runs if r.row.mixture == mixture])
        }
        for kind, mixture in (("dense", False), ("mixtures", True))
    }


def of_split(series: Series, split: str) -> Series:
    """Those of ``series`` that are in ``split``, where a series has all runs of one kind."""
    return {name: runs for name, runs in series.items() if runs[0].row.split == split}


def held(series: Series, unseen: int) -> dict[str, list[bool]]:
    """Series -> of each run whether it is inside the width that all other series of the fit split give."""
    fit = of_split(series, "fit")
    found = {}
    for name, runs in series.items():
        width = quantile([others for other, others in fit.items() if other != name], unseen)
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
    "dense": lambda row: not row.mixture,
    "mixtures of experts": lambda row: row.mixture,
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
    for kind, SERIES in of_kinds(ROWS).items():
        HELD = held(SERIES, UNSEEN[kind])
        for split in ("fit", "report"):
            names = of_split(SERIES, split)
            print(kind, split, "between, within", spreads(names.values()))
            print("held, series the same", statistics.mean(statistics.mean(HELD[name]) for name in names))
    for kind, by_split in coverage(ROWS).items():
        print(f"{kind:20}", *(f"{split} {n} {share:.1%}" for split, (n, share) in by_split.items()))

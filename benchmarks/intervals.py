"""How wide the 80 % intervals of step time have to be for runs of a source that nothing was fitted on.

    python benchmarks/intervals.py    # print widths and coverage

A user's runs are a draw of a source and then of its runs, and sources differ more than runs of one do (`spreads`). The
ends of an interval are therefore 90 % quantiles, on either side, of the errors of runs of the fit split, each as if its
series had been left out (`left_out`), every source weighing the same, and two that were not seen as much as any: they
may err by anything, to either side alike, so that the others have to hold half their share on each (hierarchical
conformal prediction, arXiv:2306.06342). Of a stack with ``unexplained`` seconds, the errors are those beyond these. A
source is a series; all stacks have the widths of all series, dense models and mixtures of experts apart. On most series
of mixtures (`judging.MOVED_SERIES`) nothing was fitted, so that they are as new sources are: of mixtures no other is
reckoned with.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

from judging import RUNS, Judged, LeftOut, grouped, inside, judge, left_out

from cluster_specs.software import load_software
from cost_models.intervals import Spread, spread

SHARE = 0.8
"""Of measurements that are to lie inside."""

UNSEEN = {"dense": 2, "experts": 0}
"""Kind of models -> sources not seen that may err by anything. Of dense ones two: with one, three of four runs of the
report split were inside, every series weighing the same (four of five now), and half of the tenth round's at first."""


def widths(rows: Iterable[Judged]) -> dict[str, Spread]:
    """Spread by kind of models, of the fit split."""
    return {
        kind: spread_over(of_split(sources, "fit").values(), UNSEEN[kind])
        for kind, sources in of_kinds(rows).items()
    }


def shipped() -> dict[str, Spread]:
    """Those that estimates have."""
    return {"dense": spread("dense"), "experts": spread("experts")}


def beyond(run: LeftOut) -> float:
    """Logarithm of what was measured, less the seconds that may stay unexplained, over what was predicted."""
    assert run.row.plan is not None
    measured = run.row.row.predicted.step_time_s / (1 + run.error) if run.row.row.predicted else math.nan
    predicted = measured * (1 + run.without)
    allowed = min(max(0.0, measured - predicted), load_software(run.row.plan.job.stack).unexplained or 0.0)
    return math.log((measured - allowed) / predicted)


def spread_over(series: Iterable[Sequence[LeftOut]], unseen: int = 0) -> Spread:
    """What holds the share of all runs, every series weighing the same, half of the others beyond either end."""
    errors = [(beyond(run), 1 / len(runs)) for runs in series for run in runs]
    level = (1 + SHARE) / 2
    return Spread(
        faster=max(0.0, quantile([(-error, weight) for error, weight in errors], level, unseen / 2)),
        slower=max(0.0, quantile(errors, level, unseen / 2)),
    )


def quantile(errors: Sequence[tuple[float, float]], share: float, unseen: float = 0.0) -> float:
    """Of (logarithm of an error, weight) the least that holds the share of the weight, and of ``unseen`` beside it."""
    least, reached = share * (sum(weight for _, weight in errors) + unseen), 0.0
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
        for kind, mixture in (("dense", False), ("experts", True))
    }


def of_split(series: Series, split: str) -> Series:
    """Those of ``series`` that are in ``split``, where a series has all runs of one kind."""
    return {name: runs for name, runs in series.items() if runs[0].row.split == split}


def held(series: Series, unseen: int) -> dict[str, list[bool]]:
    """Series -> of each run whether it is inside the interval that all other series of the fit split give."""
    fit = of_split(series, "fit")
    found = {}
    for name, runs in series.items():
        off = spread_over([others for other, others in fit.items() if other != name], unseen)
        least, most = -math.log1p(off.faster), math.log1p(off.slower)
        found[name] = [least <= beyond(run) <= most for run in runs]
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
    return quantile(between, SHARE), quantile(within, SHARE)


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
    for kind, derived in widths(ROWS).items():
        print(f"{kind:8} derived {derived}, shipped {shipped()[kind]}")
    for kind, SERIES in of_kinds(ROWS).items():
        HELD = held(SERIES, UNSEEN[kind])
        for split in ("fit", "report"):
            names = of_split(SERIES, split)
            print(kind, split, "between, within", spreads(names.values()))
            print("held, series the same", statistics.mean(statistics.mean(HELD[name]) for name in names))
    for kind, by_split in coverage(ROWS).items():
        print(f"{kind:20}", *(f"{split} {n} {share:.1%}" for split, (n, share) in by_split.items()))

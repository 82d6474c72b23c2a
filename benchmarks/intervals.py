"""How wide the 80 % intervals of step time have to be, by stack, for runs of a source that nothing was fitted on.

    python benchmarks/intervals.py    # print widths and coverage

What matters is how much sources differ, as a user's runs are a draw of a source. A width is the 80 % quantile of the
errors of runs of the fit split, each as if its series had been left out (`left_out`), every source weighing the same;
of a stack with `unexplained` seconds, of what is beyond these. Dense models and mixtures of experts apart:

* Dense: a source is a series. A stack that two show or more has the width of its own runs; of a stack that one shows,
  the series may be lucky: the wider of its own and that of all series.
* Mixtures: three series are too few for that, so a source is what one series has on one device, and the one not seen
  counts as one more (hierarchical conformal prediction, arXiv:2306.06342). It takes four sources then to hold four
  fifths; all stacks have the width of the stacks that have four.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from judging import RUNS, Judged, LeftOut, grouped, inside, judge, left_out

from cluster_specs.software import load_software

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
    own = [[s for runs in mixtures.values() if (s := _of_stack(runs, stack))] for stack in shown]
    widest = max(quantile(found, unseen=1) for found in own if len(found) >= FEWEST)
    return _by_stack(dense) | dict.fromkeys(shown, widest)


def _of_stack(runs: Sequence[LeftOut], stack: Stack) -> list[LeftOut]:
    return [run for run in runs if stack_of(run.row) == stack]


def _by_stack(series: Mapping[str, Sequence[LeftOut]]) -> dict[Stack, float]:
    names: dict[Stack, set[str]] = defaultdict(set)
    for name, runs in series.items():
        for run in runs:
            names[stack_of(run.row)].add(name)
    everything = quantile(list(series.values()))
    found = {}
    for stack, shown_by in sorted(names.items()):
        own = [_of_stack(series[name], stack) for name in shown_by]
        found[stack] = (
            quantile(own) if len(own) > 1 else max(quantile([series[n] for n in shown_by]), everything)
        )
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
    weighed = sorted((beyond(run), 1 / len(runs)) for runs in series for run in runs)
    least, reached = SHARE * (len(series) + unseen), 0.0
    for error, weight in weighed:
        reached += weight
        if reached >= least - 1e-9:
            return math.expm1(error)
    raise ValueError("no runs")


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
    for kind, by_split in coverage(ROWS).items():
        print(f"{kind:20}", *(f"{split} {n} {share:.1%}" for split, (n, share) in by_split.items()))

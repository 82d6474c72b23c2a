"""The tables of docs/accuracy.md, and their place in its text."""

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import collectives
import intervals
import peer_calculon
import peers
import stalls
import versions
from accuracy_history import HISTORY
from accuracy_text import (
    ATTAINABLE,
    CALCULON,
    COLLECTIVES,
    FAR_OFF,
    HELD,
    INTERVALS,
    LEFT_OUT,
    MEMORY,
    ORDER,
    OVER_NODES,
    PEERS,
    PREAMBLE,
    RATES,
    READING,
    USES,
)
from judging import (
    FIT_SERIES,
    INTERVAL_SERIES,
    LIVE,
    MOVED_DENSE,
    MOVED_SERIES,
    ROUNDS,
    RUNS,
    Judged,
    LeftOut,
    grouped,
    inside,
    left_out,
    median_of_series,
    without_fit,
)

from planner.validation import ValidationReport, error_statistics


def percent(value: float | None, signed: bool = False) -> str:
    """``12.3 %``."""
    return "-" if value is None else f"{100 * value:{'+' if signed else ''}.1f} %"


def table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table, numbers to the right."""
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, rule, *lines)) + "\n"


def time_line(name: str, rows: Sequence[Judged]) -> list[str]:
    """Cells of one group of runs."""
    ours = error_statistics([r.row.step_time_error for r in rows if r.row.step_time_error is not None])
    peer = error_statistics([r.baseline_error for r in rows if r.baseline_error is not None])
    return [
        name,
        str(ours.n),
        percent(ours.median_abs_error),
        percent(ours.p90_abs_error),
        percent(ours.bias, signed=True),
        percent(inside(rows)),
        percent(peer.median_abs_error),
        percent(peer.p90_abs_error),
    ]


TIME_HEADER = (
    "runs", "n", "median", "90th percentile", "bias", "inside interval", "constant MFU", "its 90th",
)  # fmt: skip


def time_section(judged: Mapping[str, Sequence[Judged]]) -> str:
    """Step time by file and split, then by series and device."""
    lines = []
    for name, what in RUNS.items():
        lines += [
            time_line(f"{what}: {split}", rows)
            for split, rows in grouped(judged[name], lambda r: r.split).items()
        ]
    everything = [row for rows in judged.values() for row in rows]
    lines += [
        time_line(f"**all: {split}**", rows) for split, rows in grouped(everything, lambda r: r.split).items()
    ]
    unfitted, reported = without_fit(everything), [row for row in everything if row.split == "report"]
    with_moved = [row for row in unfitted if row.row.step_time_error is not None]
    lines.append(time_line("**all: report, and what was moved from it**", with_moved))
    printed = [row for row in everything if row.printed]
    lines += [
        time_line(f"**all: {split}, quality A**", rows)
        for split, rows in grouped(printed, lambda r: r.split).items()
    ]
    for name, series in ROUNDS.items():
        rows_of = grouped(
            (r for r in everything if r.series in series),
            lambda r: "mixtures" if r.mixture else "dense",
        )
        lines += [time_line(f"**{name}: {kind}**", rows) for kind, rows in rows_of.items()]
    by_series = grouped(everything, lambda r: f"{r.series}, {r.device} ({r.split})")
    return (
        table(TIME_HEADER, lines)
        + f"\nMedian over the report split's series of their medians: {percent(median_of_series(reported))}, of runs "
        + f"of quality A {percent(median_of_series(row for row in reported if row.printed))}; with what was moved "
        + f"from it {percent(median_of_series(unfitted))}.\nSources of quality A print all parallel settings; "
        + "of the others some are inferred, mostly the batch or the micro-batch.\n"
        + "\n### By series and device\n\n"
        + table(TIME_HEADER, [time_line(name, rows) for name, rows in by_series.items()])
    )


def rate_section(rows: Sequence[Judged]) -> str:
    """Step time of runs whose sources print a rate of FLOPs alone."""
    errors = defaultdict(list)
    for row in rows:
        if row.rate_error is not None:
            errors[f"{row.series}, {row.device}"].append(row.rate_error)
            errors["**all**"].append(row.rate_error)
    found = {name: error_statistics(each) for name, each in sorted(errors.items())}
    lines = [[name, str(each.n), *_errors(each)] for name, each in found.items()]
    return RATES + table(("runs", "n", "median", "90th percentile", "bias"), lines)


def memory_section(reports: Mapping[str, ValidationReport]) -> str:
    """Live tensors, driver's figure, and whether a run fits."""
    live = []
    for name, what in LIVE.items():
        found = reports[name].summary.tensor_memory
        live.append([what, str(found.n), *_errors(found)])
    driver = [
        [what, str(found.n), *_errors(found)]
        for name, what in RUNS.items()
        if (found := reports[name].summary.memory).n
    ]
    fits = []
    for name, what in RUNS.items():
        found_fits = reports[name].summary.fits
        ran = f"{found_fits.ran_but_said_not_to_fit} of {found_fits.ran}"
        fits.append([what, ran, f"{found_fits.crashed_but_said_to_fit} of {found_fits.crashed}"])
    return (
        table(("live tensors", "n", "median", "90th percentile", "bias"), live)
        + "\n"
        + table(("as printed by the source", "n", "median", "90th percentile", "bias"), driver)
        + "\n"
        + table(("does it fit", "ran, called impossible", "crashed, called fitting"), fits)
    )


def _errors(found: Any) -> list[str]:
    return [percent(found.median_abs_error), percent(found.p90_abs_error), percent(found.bias, signed=True)]


def rank_section(judged: Sequence[Judged]) -> str:
    """Order of alternatives in the sweep."""
    stalled, found = stalls.orders(judged)
    lines = [
        [whose, f"{o.median:.2f}", f"{o.least:.2f}", f"{o.best_among_three} of {o.groups}"]
        for whose, o in found.items()
    ]
    head = (
        "Spearman correlation of step times",
        "median of groups",
        "least",
        "fastest among our first three",
    )
    text = ORDER.format(stalled=stalled, runs=len(stalls.runs_of(judged))) + table(head, lines)
    groups = [
        [f"{model.removeprefix('nanotron-')} on {nodes}", *_places(everything), *_places(steady)]
        for (model, nodes), (everything, steady) in stalls.groups(judged).items()
    ]
    return text + "\n" + table(GROUP_HEADER, groups) + "\n" + attainable_section(judged)


def attainable_section(judged: Sequence[Judged]) -> str:
    """What order an exact model would find, and ours if it were told versions."""
    runs = versions.versions_of(judged)
    ours = stalls.groups(judged)
    unknown = sum(run.slower is not None for run in runs)
    text = ATTAINABLE.format(slower=sum(run.was_slower for run in runs), unknown=unknown)
    lines = [
        [
            f"{model.removeprefix('nanotron-')} on {nodes}",
            f"{ours[model, nodes][0].spearman:.2f}",
            *(f"{value:.2f}" for value in found),
        ]
        for (model, nodes), found in versions.attainable(runs).items()
    ]
    head = ("model and nodes", "ours", "attainable: median of draws", "a tenth below", "ours, told")
    return text + table(head, lines)


GROUP_HEADER = (
    "model and nodes", "runs", "Spearman", "place of the fastest", "did not stall", "Spearman", "place of the fastest",
)  # fmt: skip


def _places(group: stalls.Group) -> list[str]:
    correlation = "-" if group.spearman is None else f"{group.spearman:.2f}"
    return [str(group.runs), correlation, str(group.place)]


def use_section(judged: Mapping[str, Sequence[Judged]]) -> str:
    """Step time by what most devices are for."""
    lines = []
    for name, what in RUNS.items():
        groups = grouped(judged[name], lambda row: f"{row.split}, {use_of(row)}")
        lines += [time_line(f"{what}: {use}", rows) for use, rows in groups.items()]
    return USES + table(TIME_HEADER, lines)


def use_of(row: Judged) -> str:
    """What the devices of a run are used for most."""
    assert row.plan is not None
    plan, node = row.plan.plan, row.plan.cluster.devices_per_node
    degrees = {"data": plan.data * plan.context, "tensor": plan.tensor, "pipeline": plan.pipeline}
    most = max(degrees, key=lambda axis: degrees[axis])
    return "tensor over nodes" if most == "tensor" and plan.tensor > node else most


def interval_section(rows: Sequence[Judged]) -> str:
    """Widths by stack, and how many runs lie inside by kind."""
    derived = intervals.widths(rows)
    alike: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for (stack, experts), width in derived.items():
        kind = "mixtures" if experts else "dense"
        alike[kind, f"{width:.3f}", f"{intervals.shipped((stack, experts)):.2f}"].append(stack)
    widths = [[", ".join(stacks), *key] for key, stacks in alike.items()]
    covered = [
        [kind, *(cell for n, share in by_split.values() for cell in (str(n), percent(share)))]
        for kind, by_split in intervals.coverage(rows).items()
    ]
    return (
        INTERVALS
        + table(("stacks", "models", "derived", "shipped"), widths)
        + "\n"
        + table(("inside the interval", "fit", "", "report", ""), covered)
        + held_section(rows)
    )


def held_section(rows: Iterable[Judged]) -> str:
    """How many runs lie inside the width that is derived without their series, and how series differ."""
    lines = []
    for kind, series in intervals.of_kinds(rows).items():
        held = intervals.held(series, intervals.UNSEEN[kind])
        for split in ("fit", "report"):
            chosen = intervals.of_split(series, split)
            inside = [held[name] for name in chosen]
            shares = [statistics.mean(of) for of in inside]
            cells = [*intervals.spreads(chosen.values()), statistics.mean(shares)]
            runs = [ran for of in inside for ran in of]
            name = f"{kind}: {split}, {len(chosen)} series"
            lines.append([name, *map(percent, cells), percent(statistics.mean(runs))])
    head = ("series left out", "between", "within", "inside: series alike", "inside: runs alike")
    return HELD + table(head, lines)


def left_out_section(rows: Iterable[Judged]) -> str:
    """Errors of every series with the rates of its devices fitted on all others."""
    found = left_out(rows)
    lines = []
    for split in ("fit", "report"):
        series = [of for runs in found.values() if (of := [run for run in runs if run.row.split == split])]
        cells = [
            median_abs([error for runs in series for error in of(runs)]) for of in (_errors_of, _without)
        ]
        cells += [statistics.median(median_abs(of(runs)) for runs in series) for of in (_errors_of, _without)]
        lines.append([f"{split}, {len(series)} series", *map(percent, cells)])
    head = ("", "runs, median", "left out", "median of series' medians", "left out")
    return LEFT_OUT + table(head, lines)


def _errors_of(runs: Sequence[LeftOut]) -> list[float]:
    return [run.error for run in runs]


def _without(runs: Sequence[LeftOut]) -> list[float]:
    return [run.without for run in runs]


def median_abs(errors: Sequence[float]) -> float:
    """Median of absolute values."""
    return statistics.median(map(abs, errors))


def skipped_section(reports: Mapping[str, ValidationReport]) -> str:
    """Rows that cannot be evaluated, with the reason."""
    reasons: dict[str, int] = defaultdict(int)
    for report in reports.values():
        for row in report.rows:
            if row.skipped is not None:
                reasons[row.skipped] += 1
    lines = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    return table(("why", "rows"), [(why, str(count)) for why, count in lines])


def preamble() -> str:
    """What is which split."""
    named = {
        "fit": FIT_SERIES,
        "interval": INTERVAL_SERIES,
        "moved": MOVED_SERIES,
        "moved_dense": MOVED_DENSE,
    }
    return PREAMBLE.format(**{name: ", ".join(sorted(series)) for name, series in named.items()})


def document(judged: Mapping[str, Sequence[Judged]], reports: Mapping[str, ValidationReport]) -> str:
    """The whole of docs/accuracy.md."""
    times = {name: judged[name] for name in RUNS}
    everything = [row for rows in times.values() for row in rows]
    return "\n".join(
        [
            preamble() + HISTORY + READING + time_section(times),
            use_section(times),
            rate_section(everything),
            left_out_section(everything),
            interval_section(everything),
            "### Order of alternatives\n",
            rank_section(judged["sweep_h100"]),
            COLLECTIVES + collectives.section(collectives.judge()),
            OVER_NODES + collectives.section_over_nodes(),
            peer_section(judged),
            MEMORY + memory_section(reports),
            FAR_OFF,
            "## Rows that cannot be evaluated\n",
            skipped_section({name: reports[name] for name in RUNS}),
        ]
    )


def peer_section(judged: Mapping[str, Sequence[Judged]]) -> str:
    """Ours beside theirs."""
    about = json.loads(peers.PREDICTIONS.read_text())
    head = ("runs", "n", "ours", "its 90th", "Calculon", "its 90th")
    return (
        PEERS.format(version=about["version"], command=about["command"])
        + peers.section(judged, RUNS)
        + CALCULON.format(commit=peer_calculon.COMMIT)
        + table(head, peer_calculon.section(judged, RUNS))
    )

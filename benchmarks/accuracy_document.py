"""The tables of docs/accuracy.md, and their place in its text."""

import json
import statistics
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import collectives
import intervals
import peer_calculon
import peers
from accuracy_history import HISTORY
from accuracy_memory import memory_section
from accuracy_order import rank_section
from accuracy_tables import error_cells, percent, table
from accuracy_text import (
    CALCULON,
    COLLECTIVES,
    FAR_OFF,
    HELD,
    INTERVALS,
    LEFT_OUT,
    MEMORY,
    OVER_NODES,
    PEERS,
    PREAMBLE,
    RATES,
    READING,
    SHORT,
    SPLIT,
    USES,
)
from judging import (
    FIT_SERIES,
    INTERVAL_SERIES,
    LIVE,
    MOVED_DENSE,
    MOVED_SERIES,
    RUNS,
    Judged,
    LeftOut,
    grouped,
    inside,
    left_out,
    median_of_series,
    without_fit,
)
from rounds import ROUNDS

from planner.validation import ValidationReport, error_statistics


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
    reported = [row for row in everything if row.split == "report"]
    with_moved = [row for row in without_fit(everything) if row.row.step_time_error is not None]
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
        + "\nMedian over series of their medians: "
        + "; ".join(
            f"{name} {percent(median_of_series(rows))}, its runs of quality A "
            + percent(median_of_series(row for row in rows if row.printed))
            for name, rows in {
                "the report split": reported,
                "with what was moved from it": with_moved,
            }.items()
        )
        + ".\nSources of quality A print all parallel settings; of the others some are inferred, mostly the batch or "
        + "the micro-batch.\n"
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
    lines = [[name, str(each.n), *error_cells(each)] for name, each in found.items()]
    return RATES + table(("runs", "n", "median", "90th percentile", "bias"), lines)


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


KINDS = {"dense": "dense", "experts": "mixtures of experts"}
"""Kind of models of an interval -> what it is called."""


def interval_section(rows: Sequence[Judged]) -> str:
    """Widths by kind of models, and how many runs lie inside."""
    shipped = intervals.shipped()
    widths = [
        [KINDS[kind], *map(percent, derived), *map(percent, shipped[kind])]
        for kind, derived in intervals.widths(rows).items()
    ]
    covered = [
        [kind, *(cell for n, share in by_split.values() for cell in (str(n), percent(share)))]
        for kind, by_split in intervals.coverage(rows).items()
    ]
    return (
        INTERVALS
        + table(("models", "less: derived", "more: derived", "less: shipped", "more: shipped"), widths)
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
            name = f"{KINDS[kind]}: {split}, {len(chosen)} series"
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


def split_section() -> str:
    """What is which split."""
    named = {
        "fit": FIT_SERIES,
        "interval": INTERVAL_SERIES,
        "moved": MOVED_SERIES,
        "moved_dense": MOVED_DENSE,
    }
    text = SPLIT.format(**{name: ", ".join(sorted(series)) for name, series in named.items()})
    head, *items = text.split("\n* ")
    bullets = (
        textwrap.fill(f"* {item}", 120, subsequent_indent="  ", break_on_hyphens=False) for item in items
    )
    return "\n".join((head, *bullets)) + "\n\n"


def document(judged: Mapping[str, Sequence[Judged]], reports: Mapping[str, ValidationReport]) -> str:
    """The whole of docs/accuracy.md."""
    times = {name: judged[name] for name in RUNS}
    everything = [row for rows in times.values() for row in rows]
    return "\n".join(
        [
            PREAMBLE + short_section(everything, reports),
            "## Step time\n",
            time_section(times),
            use_section(times),
            rate_section(everything),
            left_out_section(everything),
            interval_section(everything),
            "### Order of alternatives\n",
            rank_section(judged["sweep_h100"]),
            COLLECTIVES + collectives.section(collectives.judge()),
            OVER_NODES + collectives.section_over_nodes(),
            MEMORY + memory_section(reports),
            FAR_OFF,
            peer_section(judged),
            split_section() + HISTORY + READING,
            "## Rows that cannot be evaluated\n",
            skipped_section({name: reports[name] for name in RUNS}),
        ]
    )


SHORT_LIVE = ("torch_memory", "xla_memory")
"""Of ``LIVE``, the two that were not made here: PyTorch's tracker and XLA's compiler on given cases."""

SHORT_HEADER = ("what", "n", "median", "90th percentile", "bias")


def short_section(rows: Sequence[Judged], reports: Mapping[str, ValidationReport]) -> str:
    """The figures that most readers come for."""
    kinds = {
        "step time, nothing fitted on them": without_fit(rows),
        "the same, all settings printed": [row for row in without_fit(rows) if row.printed],
        "the same, dense models": [row for row in without_fit(rows) if not row.mixture],
        "the same, mixtures of experts": [row for row in without_fit(rows) if row.mixture],
    }
    lines = []
    for name, chosen in kinds.items():
        errors = [row.row.step_time_error for row in chosen if row.row.step_time_error is not None]
        lines.append([name, str(len(errors)), *error_cells(error_statistics(errors))])
    for name in SHORT_LIVE:
        found = reports[name].summary.tensor_memory
        lines.append([f"memory, {LIVE[name]}", str(found.n), *error_cells(found)])
    found = reports["runs_gpu"].summary.memory
    lines.append(["memory, peaks that published GPU runs print", str(found.n), *error_cells(found)])
    return "## In short\n\n" + table(SHORT_HEADER, lines) + _short_text(rows)


CAMPAIGN = "AWS's dispatchers of Megatron-Bridge"
"""The series whose runs alone move the 90th percentile of the report split."""


def _short_text(rows: Iterable[Judged]) -> str:
    report = [row for row in rows if row.split == "report" and row.row.step_time_error is not None]
    others = [row for row in report if row.series != CAMPAIGN and row.printed]
    rest = error_statistics([row.row.step_time_error or 0.0 for row in others])
    count = sum(row.series == CAMPAIGN for row in report)
    return SHORT.format(count=count, median=percent(rest.median_abs_error), p90=percent(rest.p90_abs_error))


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

"""Predicted against measured: prints the tables and writes docs/accuracy.md and tests/published/errors.json.

    python benchmarks/accuracy.py            # write
    python benchmarks/accuracy.py --check    # exit 1 if what is written is stale

A series (the table or tool that runs come from) belongs to the fit split or to the report split as a whole:
constants may be fitted on the first, never on the second. The peer beside our figures is the usual rule of
thumb, a constant MFU and a pipeline bubble, its MFU fitted per device on the same fit split.
"""

import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import collectives
import peers

from planner.evaluation import evaluate
from planner.plans import Estimate, Plan
from planner.validation import Row, ValidationReport, error_statistics, validate

ROOT = Path(__file__).resolve().parent.parent
PUBLISHED = ROOT / "tests" / "published"
DOCUMENT = ROOT / "docs" / "accuracy.md"
ERRORS = PUBLISHED / "errors.json"

FIT_SERIES = frozenset(
    {
        "Alpa OSDI22",
        "BLOOM topology study",
        "DGXC benchmarking",
        "MLPerf Llama3.1-8B",
        "Megatron-Bridge perf summary",
        "Zero-bubble PP",
        "bigscience 1.3B V100",
        "llm-foundry",
        "nanotron-sweep",
        "torchtitan",
        "vTrain single-node",
    }
)
"""Series on which constants were fitted; all others are only reported. Of the jax-xla stack only the interval
was taken from ``INTERVAL_SERIES``."""

INTERVAL_SERIES = frozenset({"maxtext-synthetic"})

RUNS = {
    "runs_gpu": "published GPU runs",
    "runs_tpu": "published TPU runs",
    "sweep_h100": "systematic sweep on H100 (every third point)",
    "grid_a100": "single-node grid on A100 (every fourth point)",
}
"""File of runs in tests/published -> what it is."""

LIVE = {
    "torch_memory": "live tensors by PyTorch's FSDP2 memory tracker",
    "torch_tracked": "the same tracker on cases of our own (`benchmarks/tracking.py`)",
    "xla_memory": "buffers assigned by XLA, compiled for TPU topologies",
}


class Judged(NamedTuple):
    """One run with the verdict on it."""

    row: Row
    series: str
    device: str
    split: str
    baseline_error: float | None = None


def load(name: str) -> list[dict[str, Any]]:
    """Rows of one file of tests/published."""
    return [json.loads(line) for line in (PUBLISHED / f"{name}.jsonl").read_text().splitlines()]


def split_of(series: str) -> str:
    """``fit`` or ``report``."""
    return "fit" if series in FIT_SERIES | INTERVAL_SERIES else "report"


class Bookkeeper:
    """The evaluator, remembering what it was asked and what it said."""

    def __init__(self) -> None:
        self.seen: list[tuple[Plan, Estimate]] = []

    def __call__(self, plan: Plan) -> Estimate:
        estimate = evaluate(plan)
        self.seen.append((plan, estimate))
        return estimate


def judge(name: str) -> tuple[list[Judged], ValidationReport]:
    """Every row of a file, with our error and that of the constant MFU of its device."""
    raw, book = load(name), Bookkeeper()
    report = validate(raw, book)
    # Of a run that leaves something open several plans are priced; the one that was scored has its numbers.
    priced = iter(book.seen)
    known = [
        next(pair for pair in priced if pair[1].step_time_s == row.predicted.step_time_s)
        if row.predicted is not None
        else None
        for row in report.rows
    ]
    judged = []
    for source, row, pair in zip(raw, report.rows, known, strict=True):
        series = str(source.get("series"))
        device = pair[0].cluster.device.name if pair else "?"
        judged.append(Judged(row, series, device, split_of(series)))
    return with_baseline(judged, known), report


def with_baseline(judged: Sequence[Judged], known: Sequence[tuple[Plan, Estimate] | None]) -> list[Judged]:
    """Errors of ``useful FLOPs / (MFU peak devices) (1 + (p - 1) / (m v))`` with the fit split's median MFU."""
    ideal = [_ideal_seconds(pair, row.row) for pair, row in zip(known, judged, strict=True)]
    mfu: dict[str, list[float]] = defaultdict(list)
    for row, times in zip(judged, ideal, strict=True):
        if times is not None and row.split == "fit":
            mfu[row.device].append(times[0] / times[1])
    typical = {device: statistics.median(values) for device, values in mfu.items()}
    usual = statistics.median([v for values in mfu.values() for v in values]) if mfu else None
    result = []
    for row, times in zip(judged, ideal, strict=True):
        share = typical.get(row.device, usual)
        error = None if times is None or share is None else times[0] / share / times[1] - 1
        result.append(row._replace(baseline_error=error))
    return result


def _ideal_seconds(pair: tuple[Plan, Estimate] | None, row: Row) -> tuple[float, float] | None:
    """(seconds at full peak with the bubble, measured seconds)."""
    if pair is None or row.step_time_error is None:
        return None
    plan, estimate = pair
    p, ways = plan.plan, plan.plan.num_microbatches * plan.plan.virtual_stages
    bubble = 1 + (p.pipeline - 1) / ways
    measured = estimate.step_time_s / (1 + row.step_time_error)
    return estimate.mfu * estimate.step_time_s * bubble, measured


# --- tables -------------------------------------------------------------------------------------------


def percent(value: float | None, signed: bool = False) -> str:
    """``12.3 %``."""
    return "-" if value is None else f"{100 * value:{'+' if signed else ''}.1f} %"


def table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table, numbers to the right."""
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, rule, *lines)) + "\n"


def inside(rows: Iterable[Judged]) -> float | None:
    """Share of measured step times inside the 80 % interval."""
    found = [r.row.inside_interval for r in rows if r.row.inside_interval is not None]
    return sum(found) / len(found) if found else None


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


def grouped(rows: Iterable[Judged], key: Callable[[Judged], str]) -> dict[str, list[Judged]]:
    """Runs with a measured time, by ``key``, in order."""
    groups: dict[str, list[Judged]] = defaultdict(list)
    for row in rows:
        if row.row.step_time_error is not None:
            groups[key(row)].append(row)
    return dict(sorted(groups.items()))


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
    by_series = grouped(everything, lambda r: f"{r.series}, {r.device} ({r.split})")
    return (
        table(TIME_HEADER, lines)
        + f"\nMedian over the report split's series of their medians: {percent(median_of_series(everything))}.\n"
        + "\n### By series and device\n\n"
        + table(TIME_HEADER, [time_line(name, rows) for name, rows in by_series.items()])
    )


def median_of_series(rows: Iterable[Judged]) -> float:
    """Median over the series of the report split of the median absolute error of each."""
    groups = grouped((r for r in rows if r.split == "report"), lambda r: r.series)
    return statistics.median(
        statistics.median(abs(r.row.step_time_error or 0.0) for r in rows) for rows in groups.values()
    )


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


def rank_section(report: ValidationReport) -> str:
    """Order of alternatives in the sweep."""
    found = report.summary.rank_correlation
    values = sorted(found.model_on_nodes.values())
    return (
        f"Spearman correlation of predicted and measured throughput among the sweep's runs of one model, batch and "
        f"device count: median {statistics.median(values):.2f}, least {values[0]:.2f}, "
        f"over {len(values)} groups.\n"
    )


def skipped_section(reports: Mapping[str, ValidationReport]) -> str:
    """Rows that cannot be evaluated, with the reason."""
    reasons: dict[str, int] = defaultdict(int)
    for report in reports.values():
        for row in report.rows:
            if row.skipped is not None:
                reasons[row.skipped] += 1
    lines = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    return table(("why", "rows"), [(why, str(count)) for why, count in lines])


PREAMBLE = """\
# Accuracy

Predicted against measured, on runs that others published. Written by `python benchmarks/accuracy.py` from the rows in
`tests/published`, each with its source; do not edit. Errors are of step time, predicted / measured - 1; "median" and
"90th percentile" are of their absolute values, "bias" is the median with its sign: below zero, we predict too little.
A tenth of the runs of one configuration that was published twice differs by 10 % or more.

## Fit and report

Constants were fitted on these series, taken whole: {fit}. All others are the report split. What qualifies that:

* The report split is not blind. No constant was fitted on it, but which effects the model has was decided with all rows
  in view, and its residuals led to these, each of which has a source outside the rows and no number taken from them:
  expert ranks that include tensor ranks and tokens sent once to a node (Megatron-MoE ModelZoo), gradients reduced after
  the backward (Megatron-LM of 2019 to 2022), the type in which InternEvo reduces and the gather that ZeRO-1 does not
  hide there, heads padded to the matrix unit of TPU v6e, logits that stay when activations are offloaded.
* A split by source whose report half nobody has looked at cannot be made any more from these rows.
* InternEvo was in the first fit of the A100's rate; the rate has been fitted twice since without it (0.71, 0.73, now
  0.78, with the passes of element-wise operators of its stacks).
* Memory: `fragmentation` and `communicator` of megatron and nemo were set by hand with MLPerf Llama3.1-405B, a report
  series, in view. Whether its runs fit is therefore no test.
* Live tensors: what is alive at which moment was worked out on the rows of both files, part by part, so that their
  errors are those of a description, not of a prediction. Of the 17 cases of our own five led to a moment or a part
  (the first, `dp2-full-2048`, `dp4-full-512-ends`, `dp2x8-full-1024`, `full-1024-sgd`); the others are a prediction.
  The bytes of collectives (`tests/planner/evaluation`) are
  held to PyTorch's and XLA's own counts without a constant.
* Where a run that ran would not fit, fields that its source leaves open are chosen so that it does, and listed with the
  row; whether such runs fit is no test either.
* Constants said to be "set by hand" or "assumed" in their sources are just that, not the result of a fit.
* The rows of the sweep say that sequence parallelism was off. They are evaluated with it on: nanotron's benchmark
  script sets `tp_mode` REDUCE_SCATTER (huggingface/nanotron@2411b02 scripts/scaling_benchmarks.py), and peak memory at
  tensor degrees of 8 and more fits only so.
* The sweep ran over weeks and versions that its rows do not name. Its pipelines over 64 nodes are evaluated with the
  version of December 2024 (stack nanotron-polling), which sleeps 0.1 s at a time until metadata has arrived: their
  0.8 to 1.2 s per micro-batch say so. A tenth of the smaller runs show the same; nothing in a row tells which.
* {interval} counts as fit: interval, overlap, passes and growth with slices of the jax-xla stack come from it.

Every fitted constant is per device, network or software stack and says "fitted on" in its `sources`. All but
`host_peer` and `host_peer_pipeline`, which are empirical (nanotron only, cause unknown), have a physical meaning:
`sustained` and `fp8` of a device (clocks under its power limit; casts apart), and of a stack `elementwise_passes`,
`routing_passes`, `overlap_tensor`, `host_operator`, `host_collective`, `host_routing` (time in which Python issues
work), `straggler`, `fragmentation` and `uncertainty`; of one network, `contention`.

The column "constant MFU" is the usual rule of thumb: useful FLOPs over the median MFU of the device in the fit split,
times a pipeline bubble of (p - 1) / (m v).

## Step time

"""

COLLECTIVES = """\
## Collectives

Times of collectives against measured tables, over all sizes from 8 bytes and over 4 to 128 MiB. Sources are on one
side as a whole: `launch`, `network_fill` and `switch_fill` of `cost_models/data/protocols.toml` and the latency of
`efa-v1` were fitted on those of aws-samples and stas00/ml-engineering, nothing on the others but the share of
bandwidth that Slingshot reaches. Which effects there are was chosen with all tables in view.

Every call of the tables of stas00 was issued from PyTorch while the clock ran, which is added as `host_collective` of
torch-fsdp2; those of the scaling book (H100, TPU) have about 0.1 ms of JAX in them, which is not. RCCL takes 1.1 ms
for an all-gather whatever its size up to 64 MiB; no term says so. All-gathers and reduce-scatters of 256 MB over 2 to
64 EFA nodes, on which `contention` of efa-v2 was fitted, are still predicted 1.5 to 3 times too fast, all-reduces 1.1
to 1.6 times.

"""

PEERS = """\
## Beside a peer

What [llm-analysis](https://github.com/cli99/llm-analysis) {version} says of the runs that it can take: dense models in
16 bits, without context parallelism, on devices that it knows. It divides FLOPs by peak rate and an efficiency:
"llm-analysis" is as it comes, with none; "with fitted efficiency" has the one per device that brings its median error
on the fit split of the published GPU runs to zero. Its answers are data, tests/published/peers.json, written by
`{command}`. For scale, Calculon's published error on the whole of the measured A100 grid is 39 % on one
node and 15 % on several.

"""

FAR_OFF = """\
## What is far off, and why

* About a tenth of the sweep's runs stalled, up to eightyfold (one in three of the 8B runs without sharded states): the
  90th percentile there is theirs, and no order of alternatives can be right with them in it.
* Tensor degrees of 16 and 32 in the sweep: collectives over nodes reach a third to two thirds of the bandwidth that the
  same cluster printed for them alone.
* Mixtures of experts on Blackwell: the same configuration became up to 1.8 times as fast between releases; kernels and
  captured graphs of the later ones are not told apart from those of the earlier.
* GPT-OSS before release 26.06: a regression of its attention kernel (NVIDIA/cudnn-frontend issue 256).
* torchtitan on eight B200 with a limit of 750 W: half of the gap was attention (FlashAttention-2 there), half is open.
* Small models under JAX on GPUs (GPT3-126M): the launch of a program is not priced.
* Memory of torchtitan since it compiles the loss: 8 bytes per token and vocabulary entry less than predicted, which is
  right for the runs published before.
* Llama-4 Scout of torchtitan, 10 sequences of 8,192 tokens a device and nothing recomputed, as its source says: inputs
  of its products alone would be 270 of 173 GiB. Two runs of DeepSpeed ZeRO-3 (530B on 640, 1T on 1,024
  A100) are called impossible too: it gathers matrix by matrix, we count layers, and nothing says whether checkpoints
  were on the host.
* Unsplit sequences: about half of the sweep's runs without pipeline hold two more arrays of the whole width per layer
  than the others, from a tensor degree of 8; versions that gathered once, and kept what they gathered, would do that.
* Peaks that the sweep prints are taken as those of the fullest device; they may be those of the first stage.
"""


def document(judged: Mapping[str, Sequence[Judged]], reports: Mapping[str, ValidationReport]) -> str:
    """The whole of docs/accuracy.md."""
    times = {name: judged[name] for name in RUNS}
    return "\n".join(
        [
            PREAMBLE.format(fit=", ".join(sorted(FIT_SERIES)), interval=", ".join(sorted(INTERVAL_SERIES)))
            + time_section(times),
            "### Order of alternatives\n",
            rank_section(reports["sweep_h100"]),
            COLLECTIVES + collectives.section(collectives.judge()),
            peer_section(judged),
            "## Memory\n",
            memory_section(reports),
            FAR_OFF,
            "## Rows that cannot be evaluated\n",
            skipped_section({name: reports[name] for name in RUNS}),
        ]
    )


def peer_section(judged: Mapping[str, Sequence[Judged]]) -> str:
    """Ours beside theirs."""
    about = json.loads(peers.PREDICTIONS.read_text())
    return PEERS.format(version=about["version"], command=about["command"]) + peers.section(judged, RUNS)


def recorded(
    judged: Mapping[str, Sequence[Judged]], reports: Mapping[str, ValidationReport]
) -> dict[str, float]:
    """The figures that must not grow."""
    figures: dict[str, float] = {}
    for name in RUNS:
        for split, rows in grouped(judged[name], lambda r: r.split).items():
            errors = [r.row.step_time_error for r in rows if r.row.step_time_error is not None]
            found = error_statistics(errors)
            figures[f"step time, {name}, {split}, median"] = found.median_abs_error or 0.0
    figures["step time, report, median of series"] = median_of_series(
        row for name in RUNS for row in judged[name]
    )
    for name in LIVE:
        figures[f"live tensors, {name}, median"] = reports[name].summary.tensor_memory.median_abs_error or 0.0
    sweep = reports["sweep_h100"].summary
    figures["memory, sweep_h100, median"] = sweep.memory.median_abs_error or 0.0
    figures["memory, sweep_h100, ran but said not to fit"] = (
        sweep.fits.ran_but_said_not_to_fit / sweep.fits.ran
    )
    figures["memory, sweep_h100, crashed but said to fit"] = (
        sweep.fits.crashed_but_said_to_fit / sweep.fits.crashed
    )
    rounded = {name: round(value, 4) for name, value in figures.items()}
    return rounded | collectives.recorded(collectives.judge())


def main(arguments: Sequence[str]) -> int:
    """Measure, then write or check."""
    judged, reports = {}, {}
    for name in (*RUNS, *LIVE):
        judged[name], reports[name] = judge(name)
    text = document(judged, reports)
    figures = json.dumps(recorded(judged, reports), indent=1) + "\n"
    if "--check" in arguments:
        stale = [path.name for path, new in ((DOCUMENT, text), (ERRORS, figures)) if path.read_text() != new]
        print(f"stale: {', '.join(stale)}; run python benchmarks/accuracy.py" if stale else "up to date")
        return int(bool(stale))
    DOCUMENT.write_text(text)
    ERRORS.write_text(figures)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The text and tables of docs/accuracy.md."""

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import collectives
import peers
import stalls
from judging import (
    FIT_SERIES,
    INTERVAL_SERIES,
    LIVE,
    RUNS,
    Judged,
    LeftOut,
    grouped,
    inside,
    left_out,
    median_of_series,
    split_of,
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
    printed = [row for row in everything if row.printed]
    lines += [
        time_line(f"**all: {split}, quality A**", rows)
        for split, rows in grouped(printed, lambda r: r.split).items()
    ]
    by_series = grouped(everything, lambda r: f"{r.series}, {r.device} ({r.split})")
    return (
        table(TIME_HEADER, lines)
        + f"\nMedian over the report split's series of their medians: {percent(median_of_series(everything))}, of runs "
        + f"of quality A {percent(median_of_series(printed))}.\nSources of quality A print all parallel settings; of "
        + "the others some are inferred, mostly the batch or the micro-batch.\n"
        + "\n### By series and device\n\n"
        + table(TIME_HEADER, [time_line(name, rows) for name, rows in by_series.items()])
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
    return ORDER.format(stalled=stalled, runs=len(stalls.runs_of(judged))) + table(head, lines)


def left_out_section(rows: Iterable[Judged]) -> str:
    """Errors of every series with the rates of its devices fitted on all others."""
    found = left_out(rows)
    lines = []
    for split in ("fit", "report"):
        series = [runs for name, runs in found.items() if split_of(name) == split]
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
  hide there, heads padded to the matrix unit of TPU v6e, logits that stay when activations are offloaded, exponentials
  of small attention heads (FlashAttention-3).
* Twelve rows whose embedding and head have a stage each (Zero-bubble, DGXC, MoE ModelZoo) could not be evaluated until
  everything else was in place, and nothing was changed for them after: their median error was 6.7 %, the largest 22 %.
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
`host_peer_pipeline`, which is empirical (nanotron only, cause unknown), have a physical meaning:
`sustained` and `fp8` of a device (clocks under its power limit; casts apart), and of a stack `elementwise_passes`,
`routing_passes`, `overlap_tensor`, `host_operator`, `host_collective`, `host_routing` (time in which Python issues
work), `straggler`, `fragmentation` and `uncertainty`; of one network, `contention` and `ring_step`.

The column "constant MFU" is the usual rule of thumb: useful FLOPs over the median MFU of the device in the fit split,
times a pipeline bubble of (p - 1) / (m v).

## Step time

"""

ORDER = """\
Of {runs} runs of the sweep here {stalled} stalled: a micro-batch took them more than twice as long as it took another
run with the same degrees and as many sequences in it, or more (`benchmarks/stalls.py`; no model is asked). Groups are
runs of one model on one number of nodes. The last line is the ceiling that stalls leave: the order of the times
themselves, but for a stalled run the time of the run that it was compared with.

"""

LEFT_OUT = """\

### With a source left out

What to expect of a source that nothing has been fitted on: every series judged as if the rates of its devices had been
fitted on the other fit series alone (`left_out` in `benchmarks/judging.py`; to first order, by taking away the median
error of the others on that device). Constants of a stack that a single series shows (nanotron, deepspeed,
composer-2023) cannot be left out so.

"""

COLLECTIVES = """\
## Collectives

Times of collectives against measured tables, over all sizes from 8 bytes and over 4 to 128 MiB. Sources are on one
side as a whole: `launch`, `network_fill` and `switch_fill` of `cost_models/data/protocols.toml` and the latency of
`efa-v1` were fitted on those of aws-samples and stas00/ml-engineering, nothing on the others but the share of
bandwidth that Slingshot reaches. Which effects there are was chosen with all tables in view.

Every call of the tables of stas00 was issued from PyTorch while the clock ran, which is added as `host_collective` of
torch-fsdp2; those of the scaling book (H100, TPU) have about 0.1 ms of JAX in them, which is not. RCCL takes 1.1 ms
for an all-gather whatever its size up to 64 MiB; no term says so.

"""

OVER_NODES = """\
256 MiB over nodes of 8 H100 with EFA (vinjn/nanotron-ultrascale-playbook), predicted / measured - 1. `contention` and
`ring_step` of efa-v2 were fitted on them and on the sweep: steps of its rings take some 45 us beside their bytes here,
and as long in the sweep's tensor groups over 2 and 4 nodes, whatever the size.

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

* A fifth of the sweep's runs stalled, up to eightyfold (one in three of the 8B runs without sharded states): the
  90th percentile there is theirs, and no order of alternatives can be right with them in it.
* Tensor degrees of 32 beside a pipeline in the sweep are predicted a third too fast, of 8 a tenth too slow: the host's
  time for each rank (`host_peer_pipeline`) is not proportional to the ranks, and its cause is unknown.
* Gradients of ZeRO-1 in the sweep: measured slower than those of whole states, predicted faster.
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
            left_out_section(row for rows in times.values() for row in rows),
            "### Order of alternatives\n",
            rank_section(judged["sweep_h100"]),
            COLLECTIVES + collectives.section(collectives.judge()),
            OVER_NODES + collectives.section_over_nodes(),
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

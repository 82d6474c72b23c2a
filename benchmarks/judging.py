"""Published runs with the verdict on each: the split by series, our errors, and those of the usual rule of thumb.

A series (the table or tool that runs come from) belongs to the fit split or to the report split as a whole:
constants may be fitted on the first, never on the second. The peer beside our figures is a constant MFU and a pipeline
bubble, its MFU fitted per device on the same series.
"""

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from rounds import FIFTH

from planner.evaluation import evaluate
from planner.plans import Estimate, Plan
from planner.validation import Row, ValidationReport, validate

PUBLISHED = Path(__file__).resolve().parent.parent / "tests" / "published"

FIT_SERIES = frozenset(
    {
        "Alpa OSDI22",
        "BLOOM topology study",
        "DGXC benchmarking",
        "Infinigence's Megatron on 4090",
        "LUMI, Megatron-DeepSpeed",
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

FITTED_SERIES = FIT_SERIES | INTERVAL_SERIES

MIXTURE_SERIES = (
    "AMD Primus",
    "AMD Primus notes",
    "DeepSeek-V3 report, HAI-LLM",
    "FlagPerf",
    "Google gpu-recipes NeMo",
    "MegaScale-MoE",
    "Megatron-Bridge verification cards",
    "Megatron-LM issue 756",
    "Megatron-MoE ModelZoo",
    "NeMo AutoModel",
    "NousResearch torchtitan",
    "ms-swift",
    "prime-rl",
    "torchtitan notes on Qwen3",
    "torchtitan pull request 2107",
    "tpu-recipes-ironwood mixtures",
    "tpu-recipes-trillium",
    "tpu-recipes-trillium mixtures",
    "tpu-recipes-v5p mixtures",
    "xtuner Megatron MoE",
)
"""Series with timed mixtures of the report split in November 2026, by name, when three of the fit split had any."""

MOVED_SERIES = frozenset(MIXTURE_SERIES[1::2])
"""Every second of these, whatever its errors: their mixtures, all of them, moved to the fit split for the interval.

They were in the report split until then; their dense models, where they have some, still are.
"""

MOVED_DENSE = frozenset(FIFTH[1::2])
"""Every second of these, whatever its errors: their dense runs moved to the fit split for the interval of such runs.

Of those that constants were fitted on, that held little more than half of the last three rounds.
"""

RUNS = {
    "runs_gpu": "published GPU runs",
    "runs_tpu": "published TPU runs",
    "runs_mixtures": "published mixtures, transcribed fourth to tenth",
    "runs_memory": "published GPU runs, transcribed twelfth and thirteenth, most for their memory",
    "sweep_h100": "systematic sweep on H100 (every third point)",
    "grid_a100": "single-node grid on A100 (every fourth point)",
}
"""File of runs in tests/published -> what it is."""

WITHOUT_FIT = {"runs_mixtures": ("runs_gpu", "runs_tpu"), "runs_memory": ("runs_gpu",)}
"""File of few series -> files whose fit split the usual rule of thumb is fitted on, too."""

LIVE = {
    "torch_memory": "live tensors by PyTorch's FSDP2 memory tracker",
    "torch_tracked": "the same tracker on cases of our own (`benchmarks/tracking.py`)",
    "torch_transformers": "the same on modules of transformers (`benchmarks/tracking_transformers.py`)",
    "torch_autocast": "the same with fp32 weights under autocast (`benchmarks/tracking_autocast.py`)",
    "torch_experts": "the same with experts on ranks of their own (`benchmarks/tracking_experts.py`)",
    "torch_stages": "the same of stages in PyTorch's pipelines (`benchmarks/tracking_stages.py`)",
    "torch_adapters": "the same with adapters on frozen weights (`benchmarks/tracking_adapters.py`)",
    "torch_eight_bits": "the same of torchao's layers in 8 bits (`benchmarks/tracking_eight_bits.py`)",
    "torch_early_steps": "the same of weights stepped within the backward (`benchmarks/tracking_early_steps.py`)",
    "torch_replicas": "the same of DistributedDataParallel (`benchmarks/tracking_replicas.py`)",
    "adapters": "published peaks of adapters on devices",
    "xla_memory": "buffers assigned by XLA, compiled for TPU topologies",
    "xla_models": "the same compiler on shipped models (`benchmarks/compiling.py`)",
    "xla_compiled": "the same compiler on cases of our own (`benchmarks/compiling.py`)",
}


class Judged(NamedTuple):
    """One run with the verdict on it."""

    row: Row
    series: str
    device: str
    split: str
    source: Mapping[str, Any]
    """As published."""
    baseline_error: float | None = None
    plan: Plan | None = None
    """As it was scored; None where it could not be."""
    rate_error: float | None = None
    """Error of step time where the source prints a rate of FLOPs alone; ``row`` then has none."""

    @property
    def printed(self) -> bool:
        """Its source prints all parallel settings (quality A), rather than some being inferred."""
        return self.source.get("quality") == "A"

    @property
    def mixture(self) -> bool:
        """Its model has experts."""
        return has_experts(self.source)


def load(name: str) -> list[dict[str, Any]]:
    """Rows of one file of tests/published."""
    return [json.loads(line) for line in (PUBLISHED / f"{name}.jsonl").read_text().splitlines()]


def split_of(series: str, mixture: bool) -> str:
    """``fit`` or ``report``, of what a series has of mixtures, or of dense models."""
    moved = MOVED_SERIES if mixture else MOVED_DENSE
    return "fit" if series in FITTED_SERIES | moved else "report"


def has_experts(source: Mapping[str, Any]) -> bool:
    """Whether the model of a run, as published, is a mixture."""
    return (source["model"].get("experts") or 0) > 1


TIMED = frozenset({"step_time_s", "tokens_per_s", "tokens_per_s_per_gpu"})
"""What tells a step's time without a convention of counting."""


def printed_of(source: Mapping[str, Any]) -> set[str]:
    """Names of what was measured of a run."""
    return {name for name, value in (source.get("measured") or {}).items() if value is not None}


class Bookkeeper:
    """The evaluator, remembering what it was asked and what it said."""

    def __init__(self) -> None:
        self.seen: list[tuple[Plan, Estimate]] = []

    def __call__(self, plan: Plan) -> Estimate:
        estimate = evaluate(plan)
        self.seen.append((plan, estimate))
        return estimate


@cache
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
        plan = pair[0] if pair else None
        rate_error = None if TIMED & printed_of(source) else row.step_time_error
        if rate_error is not None:
            row = row.model_copy(update={"step_time_error": None, "inside_interval": None})
        split = split_of(series, has_experts(source))
        judged.append(Judged(row, series, device, split, source, plan=plan, rate_error=rate_error))
    return with_baseline(
        judged, [row for other in WITHOUT_FIT.get(name, ()) for row in judge(other)[0]]
    ), report


def with_baseline(judged: Sequence[Judged], others: Sequence[Judged]) -> list[Judged]:
    """Errors of ``useful FLOPs / (MFU peak devices) (1 + (p - 1) / (m v))`` with the median MFU of `FITTED_SERIES`.

    ``others`` are runs beside those of ``judged``.
    """
    ideal = [_ideal_seconds(row) for row in judged]
    mfu: dict[str, list[float]] = defaultdict(list)
    for row, times in zip((*judged, *others), (*ideal, *map(_ideal_seconds, others)), strict=True):
        if times is not None and row.series in FITTED_SERIES:
            mfu[row.device].append(times[0] / times[1])
    typical = {device: statistics.median(values) for device, values in mfu.items()}
    usual = statistics.median([v for values in mfu.values() for v in values]) if mfu else None
    result = []
    for row, times in zip(judged, ideal, strict=True):
        share = typical.get(row.device, usual)
        error = None if times is None or share is None else times[0] / share / times[1] - 1
        result.append(row._replace(baseline_error=error))
    return result


def _ideal_seconds(judged: Judged) -> tuple[float, float] | None:
    """(seconds at full peak with the bubble, measured seconds)."""
    predicted, error = judged.row.predicted, judged.row.step_time_error
    if judged.plan is None or predicted is None or error is None:
        return None
    p = judged.plan.plan
    bubble = 1 + (p.pipeline - 1) / (p.num_microbatches * p.virtual_stages)
    return predicted.mfu * predicted.step_time_s * bubble, predicted.step_time_s / (1 + error)


def inside(rows: Iterable[Judged]) -> float | None:
    """Share of measured step times inside the 80 % interval."""
    found = [r.row.inside_interval for r in rows if r.row.inside_interval is not None]
    return sum(found) / len(found) if found else None


def grouped(rows: Iterable[Judged], key: Callable[[Judged], str]) -> dict[str, list[Judged]]:
    """Runs with a measured time, by ``key``, in order."""
    groups: dict[str, list[Judged]] = defaultdict(list)
    for row in rows:
        if row.row.step_time_error is not None:
            groups[key(row)].append(row)
    return dict(sorted(groups.items()))


def without_fit(rows: Iterable[Judged]) -> list[Judged]:
    """Those of series that nothing was fitted on: the report split, and what was moved from it."""
    return [row for row in rows if row.series not in FITTED_SERIES]


def median_of_series(rows: Iterable[Judged]) -> float:
    """Median over the series of the median absolute error of each."""
    groups = grouped(rows, lambda r: r.series)
    return statistics.median(
        statistics.median(abs(r.row.step_time_error or 0.0) for r in rows) for rows in groups.values()
    )


class LeftOut(NamedTuple):
    """A run with its error, and with what it would be had nothing been fitted on its series."""

    row: Judged
    error: float
    without: float


def left_out(rows: Iterable[Judged]) -> dict[str, list[LeftOut]]:
    """Series -> its runs, each as if the series had been left out.

    As if the rate of a device had been fitted on the runs of all other fit series on that device: predictions are
    multiplied by what takes away the median error of those. A device on which no other series was fitted stays as is.
    """
    logs: dict[str, dict[str, list[tuple[Judged, float]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.row.step_time_error is not None:
            logs[row.device][row.series].append((row, math.log1p(row.row.step_time_error)))
    found: dict[str, list[LeftOut]] = defaultdict(list)
    for by_series in logs.values():
        for series, runs in by_series.items():
            others = [e for s, es in by_series.items() if s != series and s in FITTED_SERIES for _, e in es]
            shift = statistics.median(others) if others else 0.0
            found[series] += [LeftOut(row, math.expm1(e), math.expm1(e - shift)) for row, e in runs]
    return dict(sorted(found.items()))

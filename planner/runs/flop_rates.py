"""Step times of runs whose source prints a rate of FLOPs, or an MFU, and neither time nor tokens.

Sources count differently, by up to a factor of two, so a rate says nothing without its convention. Of 533 published
runs that print both, the time that follows is within 0.1 % of the printed one in the median, within 4 % for nine in
ten (`tests/planner/runs`).
"""

import math
import re
from typing import NamedTuple

from cost_models.roofline import product_peak
from planner.evaluation.setting import graph_of
from planner.graph import Graph
from planner.operators import Counting, forward_flops, model_flops
from planner.plans import Plan
from planner.runs.record import MeasuredSection, RunFile


class Convention(NamedTuple):
    """What a source counts."""

    causal: bool
    """Pairs of tokens that the mask hides are left out."""
    recomputed: bool
    """Layers that run again count again ("hardware FLOPs")."""

    def __str__(self) -> str:
        attention = "causal" if self.causal else "full"
        return f"{'hardware' if self.recomputed else 'model'} FLOPs, {attention} attention"


def convention_of(text: object) -> Convention | None:
    """What ``flops_convention`` means; None where it leaves open whether attention is halved.

    Hardware FLOPs are those of Narayanan et al., arXiv:2104.04473, equation 3: attention in full. The formula of
    nanotron counts the vocabulary twice, as its rates beside times of the same runs show: it is none of these.
    """
    words = re.sub(r"non[- ]?causal", "full", str(text or "").lower())
    if re.search(r"not stated|unspecified|unknown|nanotron|\?", words):
        return None
    causal, full = "causal" in words, re.search(r"full(?! recompute)", words) is not None
    if re.search(r"hardware|\bhw", words):
        return Convention(causal=causal, recomputed=True)
    return Convention(causal, recomputed=False) if causal != full else None


def step_flops(plan: Plan, convention: Convention) -> float | None:
    """FLOPs of a step as the source counts them; None for hardware FLOPs of layers that are recomputed in part.

    Source: arXiv:2104.04473, equation 3: layers that are recomputed count four times their forward, the head three.
    """
    graph, batch = graph_of(plan.model, plan.job), plan.job.global_batch
    model = model_flops(graph, batch, convention.causal)
    if not convention.recomputed or plan.plan.recompute == "none":
        return model
    if plan.plan.recompute != "full" or plan.plan.recompute_every > 1:
        return None
    return model + forward_flops(_layers_of(graph), batch, Counting(convention.causal, "plain"))


def _layers_of(graph: Graph) -> Graph:
    return graph.model_copy(update={"first": None, "last": None})


def step_time_of_rate(run: RunFile, plan: Plan, gpus: float) -> tuple[float, str] | None:
    """Seconds of one step from the printed rate of each of ``gpus``, and from what; None where it does not follow."""
    rate, convention = _printed_rate(run, plan), convention_of(run.flops_convention)
    flops = step_flops(plan, convention) if rate and convention else None
    if rate is None or flops is None:
        return None
    return flops / (rate * gpus), f"step time from {rate / 1e12:.4g} TFLOP/s per device ({convention})"


def counts_second_forward(run: RunFile, plan: Plan, seconds: float, gpus: float) -> bool:
    """Whether the printed rate over a step of ``seconds`` is nearer to FLOPs with all layers' second forward.

    Attention is counted in full, so that a source that halves it is not mistaken for one that counts less.
    """
    printed = run.measured or MeasuredSection()
    rate = None if is_derived(printed, "tflops_per_gpu") else _positive(printed.tflops_per_gpu)
    again = plan.model_copy(update={"plan": plan.plan.model_copy(update={"recompute": "full"})})
    once = step_flops(plan, Convention(causal=False, recomputed=False))
    twice = step_flops(again, Convention(causal=False, recomputed=True))
    if rate is None or once is None or twice is None:
        return False
    half_way = math.sqrt(twice / once)
    return half_way < rate * 1e12 * gpus * seconds / once < half_way**3


def layers_per_recomputed(run: RunFile) -> int | None:
    """Layers for each that runs again, by a printed utilisation that counts it and one that does not; None without.

    A forward is a third of forward and backward (arXiv:2204.02311, appendix B: "hardware FLOPs utilization").
    """
    printed = run.measured or MeasuredSection()
    hardware, model = _positive((printed.model_extra or {}).get("hfu")), _positive(printed.mfu)
    again = hardware / model - 1 if hardware and model else 0
    return max(1, round(1 / (3 * again))) if again > 0 else None


def _printed_rate(run: RunFile, plan: Plan) -> float | None:
    """FLOP/s of a GPU as printed, or an MFU of a 16-bit job times the source's peak rate."""
    measured = run.measured or MeasuredSection()
    rate = None if is_derived(measured, "tflops_per_gpu") else _positive(measured.tflops_per_gpu)
    share = None if is_derived(measured, "mfu") else _positive(measured.mfu)
    if rate is not None:
        return rate * 1e12
    if share is None or plan.job.precision not in ("bf16", "fp16"):
        return None
    peak = _positive((run.hardware.model_extra or {}).get("peak_tflops_16bit"))
    per_gpu = run.hardware.devices_per_chip or 1
    full_rate = peak * 1e12 if peak else per_gpu * product_peak(plan.cluster.device, plan.job.precision)
    return share * full_rate


def is_derived(measured: MeasuredSection, field: str) -> bool:
    """Whether a field was computed from another one that is printed."""
    return field in ((measured.model_extra or {}).get("derived") or ())


def _positive(value: object) -> float | None:
    """A number above zero; sources print anything."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value < math.inf else None

"""What the rules of the space leave out, or the job, where it would have been faster."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Literal

from cluster_specs.adjusted import device_on, software_on
from cluster_specs.software import load_software
from cluster_specs.units import format_seconds
from planner.errors import InputError
from planner.evaluation.evaluator import Evaluator
from planner.evaluation.setting import graph_of
from planner.plans import Change, Estimate, Faster, Offload, Pins, Plan
from planner.search.best_first import Search
from planner.search.finishing import MOST_MOVED, mixed_plans
from planner.search.pins import check_pins
from planner.search.recommend import answer_of
from planner.search.rounding import rounder_clusters, said
from planner.search.space import offloaded, scale_up_size, searches_pipelines
from planner.search.stack_limits import within_stack

WORTH_NAMING = 0.03
"""Share of a step that must be saved to be named."""

WORTH_A_PIPELINE_NEARBY = 0.1
"""The same inside one scale-up domain, where a pipeline saves little unless memory is short: more than the usual error
of an estimate (docs/accuracy.md)."""


WITHIN = 1 / (1 - MOST_MOVED)
"""Of plans whose alternatives nobody asks for, those are looked at that finishing may make the best."""


def _alone(evaluator: Evaluator, pins: Pins) -> Plan:
    """The best plan, without alternatives that are much slower."""
    check_pins(evaluator, pins)
    return answer_of(Search(evaluator, pins, "time", within=WITHIN), top=1)


def faster_pipeline(answer: Plan, pins: Pins | None = None) -> Plan | None:
    """The best plan with a pipeline, where ``answer`` has none for want of looking and it would be clearly faster.

    Where stages may differ pipelines are always searched. ``answer`` has an estimate; ``pins`` are those that it was
    found under.
    """
    pins = pins or Pins()
    if answer.cluster.others or pins.unequal_stages or answer.job.adapter is not None:
        return None
    evaluator = Evaluator(answer.model, answer.cluster, answer.job)
    pins = within_stack(evaluator, pins)
    devices = answer.plan.num_devices
    if devices == 1 or answer.plan.pipeline > 1 or searches_pipelines(evaluator, pins):
        return None
    assert answer.estimate is not None  # the caller's promise
    near = devices <= scale_up_size(answer.cluster)
    below = answer.estimate.step_time_s * (1 - (WORTH_A_PIPELINE_NEARBY if near else WORTH_NAMING))
    degree = _pipeline_below(Search(evaluator, pins, "time"), below)
    if degree is None:
        return None
    return _alone(evaluator, pins.model_copy(update={"pipeline": degree}))


def _pipeline_below(search: Search, seconds: float) -> int | None:
    """Degree of the pipeline that is fastest, its stages recomputing alike or not; None if no step is that short."""
    found = search.pipelined(seconds)
    degree, least = (found.plan.pipeline, found.estimate.step_time_s) if found else (None, seconds)
    if search.pins.recompute is None:
        mixed = mixed_plans(search, True, least)
        degree = mixed[-1][0].pipeline if mixed else degree
    return degree


def fewer_devices(answer: Plan, pins: Pins | None = None) -> Plan | None:
    """The best plan on fewer nodes than ``answer`` has, which uses all, or on fewer devices of each, where it would be
    clearly faster. So it may be where batch, layers and heads do not divide among all.
    """
    pins, cluster = pins or Pins(), answer.cluster
    if pins.unequal_stages:
        return None
    assert answer.estimate is not None  # the caller's promise
    best, below = None, answer.estimate.step_time_s * (1 - WORTH_NAMING)
    # On fewer devices than that arithmetic alone would take as long.
    least = cluster.num_devices * answer.estimate.mfu
    for part in (part for part in rounder_clusters(cluster) if part.num_devices >= least):
        evaluator = Evaluator(answer.model, part, answer.job)
        with suppress(InputError):  # pins may be of all devices
            check_pins(evaluator, pins)
            pipelines = answer.plan.pipeline > 1 or searches_pipelines(evaluator, pins)
            if found := Search(evaluator, pins, "time").best_below(below, pipelines):
                best, below = evaluator, found.estimate.step_time_s
    return _alone(best, pins) if best is not None else None


OFFLOADS: Sequence[tuple[Offload, ...]] = (
    ("activations",),
    ("optimizer",),
    ("optimizer", "weights"),
    ("activations", "optimizer"),
)
"""What the host may take, the least change first."""


def faster_offload(answer: Plan, pins: Pins | None = None) -> Plan | None:
    """The best plan that leaves something to the hosts, where it would be clearly faster; None where that was pinned.

    The host only ever adds to a step, so that nothing is looked for where a plan without any limit of memory, and
    nothing on the host, would not be clearly faster either.
    """
    pins, cluster = pins or Pins(), answer.cluster
    assert answer.estimate is not None  # the caller's promise
    if (
        cluster.others
        or pins.unequal_stages
        or pins.offload is not None
        or cluster.device.host_bandwidth is None
    ):
        return None
    evaluator = Evaluator(answer.model, cluster, answer.job)
    below = answer.estimate.step_time_s * (1 - WORTH_NAMING)
    pipelines = answer.plan.pipeline > 1 or searches_pipelines(evaluator, pins)
    space = Search(evaluator, pins, "time", limited=False).promising(below, pipelines)
    if not Search(evaluator, pins, "time", limited=False, space=space).may_be_below(below, pipelines):
        return None
    best = None
    for offload in OFFLOADS:
        asked = pins.model_copy(update={"offload": offload})
        with suppress(InputError):  # adapters and some optimizers do not go with all of them
            check_pins(evaluator, asked)
            hosted = [kept for family in space if (kept := offloaded(family, offload))]
            if found := Search(evaluator, asked, "time", space=hosted).best_below(below, pipelines):
                best, below = asked, found.estimate.step_time_s
    return _alone(evaluator, best) if best is not None else None


UNSEARCHED_POLICY = "mlp"
"""Recomputation that the space leaves out, and that was seen to be faster than what it has."""


def faster_recomputation(answer: Plan, pins: Pins | None = None) -> Plan | None:
    """The best plan that recomputes the dense layers alone, where ``answer`` recomputes and it would be clearly faster;
    None where recomputation was pinned.
    """
    pins, plan = pins or Pins(), answer.plan
    recomputes = plan.recompute != "none" or any(
        stage.recompute not in (None, "none") for stage in plan.stages
    )
    if answer.cluster.others or pins.unequal_stages or pins.recompute is not None or not recomputes:
        return None
    evaluator = Evaluator(answer.model, answer.cluster, answer.job)
    asked = pins.model_copy(update={"recompute": UNSEARCHED_POLICY})
    assert answer.estimate is not None  # the caller's promise
    below = answer.estimate.step_time_s * (1 - WORTH_NAMING)
    pipelines = plan.pipeline > 1 or searches_pipelines(evaluator, pins)
    with suppress(InputError):  # adapters and some models do not go with it
        check_pins(evaluator, asked)
        if Search(evaluator, asked, "time").best_below(below, pipelines):
            return _alone(evaluator, asked)
    return None


def naming_unsearched(answer: Plan, pins: Pins | None = None) -> Plan:
    """``answer`` with a warning where `faster_pipeline` or `faster_offload` finds one, or `fewer_devices` suffice."""
    found = answer
    if recomputing := faster_recomputation(answer, pins):
        words = "not all recomputation was searched; by these numbers --recompute {value}"
        found = _naming(found, words, "recompute", UNSEARCHED_POLICY, recomputing.estimate)
    if faster := faster_pipeline(answer, pins):
        words = "pipelines were not searched, as the model is small for a node; by these numbers --pipeline {value}"
        found = _naming(found, words, "pipeline", faster.plan.pipeline, faster.estimate)
    if hosted := faster_offload(answer, pins):
        options = " ".join(f"--offload {what}" for what in hosted.plan.offload)
        words = f"memory is short, and nothing was left to the hosts; by these numbers {options}"
        found = _naming(found, words, "offload", ",".join(hosted.plan.offload), hosted.estimate)
    if fewer := fewer_devices(answer, pins):
        part, whole = fewer.cluster, answer.cluster
        change: Change = "nodes" if part.nodes < whole.nodes else "devices_per_node"
        words = f"batch, layers and heads do not divide well among all {whole.num_devices} devices: {said(part, whole)}"
        found = _naming(found, words, change, getattr(part, change), fewer.estimate)
    return found


def _naming(
    answer: Plan, words: str, change: Change, value: int | str | bool, then: Estimate | None, how: str = ""
) -> Plan:
    """``answer`` with a warning that the step would be shorter with ``value``, and the same as data."""
    assert answer.estimate is not None  # the callers' promise
    assert then is not None  # just planned
    seconds = then.step_time_s
    saving = f"{format_seconds(seconds)} a step, {1 - seconds / answer.estimate.step_time_s:.0%} less"
    warning = f"{words.format(value=value)} would take {saving}{how}"
    faster = Faster(change=change, value=value, step_time_s=seconds)
    named = {"warnings": (*answer.warnings, warning), "faster_with": (*answer.faster_with, faster)}
    return answer.model_copy(update=named)


def naming_kernels(answer: Plan) -> Plan:
    """``answer`` with warnings where its plan would be clearly faster with other kernels, or replayed from graphs."""
    return _naming_graphs(_naming_attention(answer))


def _naming_attention(answer: Plan) -> Plan:
    """The device's own attention kernel instead of the stack's.

    The stack's are those that published runs had: FlashAttention-2, which was not written for Hopper or Blackwell.
    Source of what PyTorch takes: pytorch/pytorch aten/src/ATen/native/transformers/cuda/sdp_utils.cpp,
    ``check_prefer_cudnn_attention``.
    """
    device = answer.cluster.device
    software = software_on(load_software(answer.job.stack), device)
    if answer.job.attention != "flash" or not (
        software.tiles_attention or device_on(device, software) != device
    ):
        return answer
    is_now = f"is priced with the kernel of {software.name} on {device.name}"
    kernels = "FlashAttention-3 or -4, or cuDNN's, which PyTorch takes by itself from cuDNN 9.15.1 on"
    if software.tiles_attention:
        is_now, kernels = f"is a loop over tiles in {software.name}", "Transformer Engine's"
    words = f"attention {is_now}; with a kernel written for the device this plan"
    return _naming_under(answer, words, "attention", "native", f": --attention native ({kernels})")


def _naming_graphs(answer: Plan) -> Plan:
    """Whole steps replayed from CUDA graphs, where the host holds up the device.

    Not of mixtures of experts: how many tokens each has the host reads from the device, which cannot be captured.
    Source: PyTorch 2.13, notes on CUDA semantics, "CUDA Graphs", constraints.
    """
    cluster = answer.cluster
    if (
        answer.job.cuda_graphs
        or cluster.others
        or cluster.device.vendor != "nvidia"
        or "experts" in graph_of(answer.model, answer.job).dims
    ):
        return answer
    words = (
        "the host issues operators more slowly than devices work on them; replayed from CUDA graphs this plan"
    )
    how = ": --cuda-graphs (the whole step captured, which your training script must do)"
    return _naming_under(answer, words, "cuda_graphs", True, how)


def _naming_under(
    answer: Plan, words: str, field: Literal["attention", "cuda_graphs"], value: str | bool, how: str
) -> Plan:
    """``answer`` named with the time that its plan has where ``field`` of the job is ``value``, if clearly less."""
    job = answer.job.model_copy(update={field: value})
    then = Evaluator(answer.model, answer.cluster, job).estimate(answer.plan)
    assert answer.estimate is not None  # just planned
    if 1 - then.step_time_s / answer.estimate.step_time_s < WORTH_NAMING:
        return answer
    return _naming(answer, words, field, value, then, how)

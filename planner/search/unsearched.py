"""What the rules of the space leave out, or the job, where it would have been faster."""

from collections.abc import Sequence
from contextlib import suppress

from cluster_specs.software import device_on, load_software
from cluster_specs.units import format_seconds
from planner.errors import Infeasible, InputError
from planner.evaluation.evaluator import Evaluator
from planner.plans import Change, Estimate, Faster, Offload, Pins, Plan
from planner.search.best_first import Search
from planner.search.finishing import mixed_plans
from planner.search.numbers import rounder
from planner.search.pins import check_pins
from planner.search.recommend import recommended
from planner.search.space import offloaded, scale_up_size, searches_pipelines

WORTH_NAMING = 0.03
"""Share of a step that must be saved to be named."""

WORTH_A_PIPELINE_NEARBY = 0.1
"""The same inside one scale-up domain, where a pipeline saves little unless memory is short: more than the usual error
of an estimate (docs/accuracy.md)."""


def faster_pipeline(answer: Plan, pins: Pins | None = None) -> Plan | None:
    """The best plan with a pipeline, where ``answer`` has none for want of looking and it would be clearly faster.

    Where stages may differ pipelines are always searched. ``answer`` has an estimate; ``pins`` are those that it was
    found under.
    """
    pins = pins or Pins()
    if answer.cluster.others or pins.unequal_stages or answer.job.adapter is not None:
        return None
    evaluator = Evaluator(answer.model, answer.cluster, answer.job)
    devices = answer.plan.num_devices
    if devices == 1 or answer.plan.pipeline > 1 or searches_pipelines(evaluator, pins):
        return None
    assert answer.estimate is not None  # the caller's promise
    near = devices <= scale_up_size(answer.cluster)
    below = answer.estimate.step_time_s * (1 - (WORTH_A_PIPELINE_NEARBY if near else WORTH_NAMING))
    degree = _pipeline_below(Search(evaluator, pins, "time"), below)
    if degree is None:
        return None
    return recommended(evaluator, pins.model_copy(update={"pipeline": degree}), "time", top=1)


def _pipeline_below(search: Search, seconds: float) -> int | None:
    """Degree of the pipeline that is fastest, its stages recomputing alike or not; None if no step is that short."""
    found = search.pipelined(seconds)
    degree, least = (found.plan.pipeline, found.estimate.step_time_s) if found else (None, seconds)
    if search.pins.recompute is None:
        mixed = mixed_plans(search, True, least)
        degree = mixed[-1][0].pipeline if mixed else degree
    return degree


def fewer_nodes(answer: Plan, pins: Pins | None = None) -> Plan | None:
    """The best plan on fewer nodes than ``answer`` has, which uses all, where it would be clearly faster.

    So it may be where batch, layers and heads do not divide among all. Tori are looked at whole.
    """
    pins, cluster = pins or Pins(), answer.cluster
    if cluster.others or pins.unequal_stages or cluster.torus is not None:
        return None
    assert answer.estimate is not None  # the caller's promise
    best, below = None, answer.estimate.step_time_s * (1 - WORTH_NAMING)
    # On fewer nodes than that arithmetic alone would take as long.
    least = cluster.nodes * answer.estimate.mfu
    for nodes in (nodes for nodes in rounder(cluster.nodes) if nodes >= least):
        evaluator = Evaluator(answer.model, cluster.model_copy(update={"nodes": nodes}), answer.job)
        with suppress(Infeasible):
            found = Search(evaluator, pins, "time").run(1).found[0]
            if found.estimate.step_time_s < below:
                best, below = evaluator, found.estimate.step_time_s
    return recommended(best, pins, "time", top=1) if best is not None else None


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
    return recommended(evaluator, best, "time", top=1) if best is not None else None


def naming_unsearched(answer: Plan, pins: Pins | None = None) -> Plan:
    """``answer`` with a warning where `faster_pipeline` or `faster_offload` finds one, or `fewer_nodes` suffice."""
    found = answer
    if faster := faster_pipeline(answer, pins):
        words = "pipelines were not searched, as the model is small for a node; by these numbers --pipeline {value}"
        found = _naming(found, words, "pipeline", faster.plan.pipeline, faster.estimate)
    if hosted := faster_offload(answer, pins):
        options = " ".join(f"--offload {what}" for what in hosted.plan.offload)
        words = f"memory is short, and nothing was left to the hosts; by these numbers {options}"
        found = _naming(found, words, "offload", ",".join(hosted.plan.offload), hosted.estimate)
    if fewer := fewer_nodes(answer, pins):
        nodes = answer.cluster.nodes
        words = f"batch, layers and heads do not divide well among all {nodes} nodes: {{value}} of them"
        found = _naming(found, words, "nodes", fewer.cluster.nodes, fewer.estimate)
    return found


def _naming(
    answer: Plan, words: str, change: Change, value: int | str, then: Estimate | None, how: str = ""
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


def naming_attention(answer: Plan) -> Plan:
    """``answer`` with a warning where the device's own attention kernel would be clearly faster than the stack's.

    The stack's are those that published runs had: FlashAttention-2, which was not written for Hopper or Blackwell.
    Source of what PyTorch takes: pytorch/pytorch aten/src/ATen/native/transformers/cuda/sdp_utils.cpp,
    ``check_prefer_cudnn_attention``.
    """
    software, device = load_software(answer.job.stack), answer.cluster.device
    if answer.job.attention != "flash" or device_on(device, software) == device:
        return answer
    native = answer.job.model_copy(update={"attention": "native"})
    then = Evaluator(answer.model, answer.cluster, native).estimate(answer.plan)
    assert answer.estimate is not None  # just planned
    if 1 - then.step_time_s / answer.estimate.step_time_s < WORTH_NAMING:
        return answer
    words = (
        f"attention has the rate that {software.name} was seen to reach on {device.name}; with a kernel written for "
        "the device this plan"
    )
    kernels = "FlashAttention-3 or -4, or cuDNN's, which PyTorch takes by itself from cuDNN 9.15.1 on"
    how = f": --attention native ({kernels})"
    return _naming(answer, words, "attention", "native", then, how)

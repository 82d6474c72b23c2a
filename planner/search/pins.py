"""Pins that contradict model, cluster, job or each other, refused before the search begins."""

import math
from collections.abc import Mapping

from planner.errors import InputError
from planner.evaluation.evaluator import Evaluator
from planner.graph import has_scans
from planner.operators import RECOMPUTE_POLICIES
from planner.pipeline.asynchronous import ASYNCHRONOUS
from planner.pipeline.generators import SCHEDULES, is_written_out, schedule_entry, schedule_label
from planner.pipeline.questions import AUTOMATIC
from planner.plans import Pins, Sharding
from planner.search.space import SPLIT_DIMS, context_degrees, spreads_experts, stage_policies, tensor_degrees
from planner.search.stack_limits import check_stack

ZERO_STAGES: Mapping[Sharding, tuple[int, ...]] = {
    "NO_SHARD": (0, 1),
    "SHARD_GRAD_OP": (2,),
    "FULL_SHARD": (3,),
    "HYBRID_SHARD": (3,),
}
"""ZeRO stages that PyTorch's names for sharding stand for; stage 1 has none of its own."""

OFFLOADED = ("optimizer", "weights", "activations")
"""What the evaluator can keep on the host."""


def check_pins(evaluator: Evaluator, pins: Pins) -> None:
    """Refuse pins that no plan can satisfy, naming the two things that contradict each other.

    Raises ``InputError``.
    """
    check_choices(evaluator, pins)
    _check_pipeline(pins)
    _check_devices(evaluator, pins)
    _check_model(evaluator, pins)
    _check_batch(evaluator, pins)


def check_choices(evaluator: Evaluator, pins: Pins) -> None:
    """Refuse what the stack cannot do, names that do not exist and choices that contradict each other, whatever the
    degrees.

    Raises ``InputError``.
    """
    _check_names(pins)
    _check_policies(pins)
    _check_sharding(evaluator, pins)
    _check_offload(evaluator, pins)
    _check_adapter(evaluator, pins)
    _check_early_steps(evaluator, pins)
    check_stack(evaluator, pins)


def _check_names(pins: Pins) -> None:
    for policy in stage_policies(pins) or ((pins.recompute,) if pins.recompute is not None else ()):
        if policy not in RECOMPUTE_POLICIES:
            known = ", ".join(RECOMPUTE_POLICIES)
            raise InputError(f"--recompute {pins.recompute!r}: use one of {known}, or one for each stage")
    if pins.schedule is not None and is_written_out(pins.schedule):
        schedule_entry(pins.schedule)
    elif pins.schedule in ASYNCHRONOUS:
        raise InputError(
            f"--schedule {pins.schedule}: it never flushes, so it has no steps to plan; "
            f"`meshwright simulate --schedule {pins.schedule}` says what it gains and its staleness"
        )
    elif pins.schedule not in (None, AUTOMATIC, *SCHEDULES):
        raise InputError(f"--schedule {pins.schedule!r}: use one of {', '.join(SCHEDULES)} or {AUTOMATIC}")


def _check_sharding(evaluator: Evaluator, pins: Pins) -> None:
    if pins.sharding is not None and pins.zero_stage not in (None, *ZERO_STAGES[pins.sharding]):
        stages = " or ".join(map(str, ZERO_STAGES[pins.sharding]))
        raise InputError(
            f"--zero {pins.zero_stage} contradicts --sharding {pins.sharding}, which is ZeRO {stages}: leave out one"
        )


def _check_offload(evaluator: Evaluator, pins: Pins) -> None:
    for name in pins.offload or ():
        if name not in OFFLOADED:
            raise InputError(f"--offload {name!r}: use {', '.join(OFFLOADED)} or none")
    device = evaluator.cluster.device
    if pins.offload and device.host_bandwidth is None:
        raise InputError(f"--offload: the bandwidth between {device.name} and its host is not known")
    if "weights" in (pins.offload or ()) and "optimizer" not in (pins.offload or ()):
        raise InputError("--offload weights: the host steps them, so add --offload optimizer")


def _check_adapter(evaluator: Evaluator, pins: Pins) -> None:
    if evaluator.job.adapter is None:
        return
    for name in ("tensor", "pipeline", "context", "expert", "virtual_stages"):
        if (getattr(pins, name) or 1) > 1:
            option = name.replace("_", "-")
            raise InputError(f"--{option} {getattr(pins, name)}: adapters are planned data-parallel only")
    if evaluator.whole.others:
        raise InputError(
            "adapters are planned data-parallel only, and unlike devices are joined by a pipeline: name one kind"
        )
    if pins.unequal_stages or stage_policies(pins):
        raise InputError("adapters are planned data-parallel only: they have no stages that could differ")
    if "weights" in (pins.offload or ()):
        raise InputError("--offload weights: what it costs of frozen weights is not known")


def _check_early_steps(evaluator: Evaluator, pins: Pins) -> None:
    staged = (pins.pipeline or 1) > 1 or pins.unequal_stages or stage_policies(pins) or evaluator.whole.others
    away = [name for name in pins.offload or () if name != "activations"]
    table = (
        (staged, "stages of a pipeline have several micro-batches, so plan without"),
        (away, f"the host steps what is offloaded, so leave out --offload {' and '.join(away)}"),
        (
            (pins.expert or 1) > 1,
            f"stacks refuse it beside expert ranks, so leave out --expert {pins.expert}",
        ),
    )
    if evaluator.job.step_in_backward and (words := [words for holds, words in table if holds]):
        raise InputError(f"--step-in-backward: {words[0]}")


def _check_pipeline(pins: Pins) -> None:
    stages = pins.virtual_stages or 1
    if pins.pipeline == 1 and stages > 1:
        raise InputError(
            f"--virtual-stages {stages} contradicts a pipeline of 1: stages need devices to alternate on"
        )
    if pins.pipeline == 1 and pins.schedule:
        raise InputError(
            f"--schedule {schedule_label(pins.schedule)} contradicts a pipeline of 1, which has nothing to schedule"
        )
    if not pins.schedule or pins.schedule == AUTOMATIC or pins.virtual_stages is None:
        return
    least, most = schedule_entry(pins.schedule).stages_per_rank
    if stages < least or (most is not None and stages > most):
        legal = f"exactly {least}" if least == most else f"at least {least}"
        raise InputError(
            f"--virtual-stages {stages} contradicts --schedule {schedule_label(pins.schedule)}, which has {legal}"
        )


def _check_policies(pins: Pins) -> None:
    given, p, v = len(stage_policies(pins)), pins.pipeline or 1, pins.virtual_stages or 1
    if given and (given % p or given % v or (pins.pipeline and pins.virtual_stages and given != p * v)):
        raise InputError(
            f"--recompute {pins.recompute} is for {given} stages, which contradicts a pipeline of "
            f"{pins.pipeline or 'any'} x {pins.virtual_stages or 'any'} virtual stages"
        )


def _check_devices(evaluator: Evaluator, pins: Pins) -> None:
    cluster = evaluator.cluster
    degrees = {"tensor": pins.tensor, "pipeline": pins.pipeline, "context": pins.context, "data": pins.data}
    pinned = {name: degree for name, degree in degrees.items() if degree is not None}
    product = math.prod(pinned.values())
    if cluster.num_devices % product:
        names = " x ".join(f"--{name} {degree}" for name, degree in pinned.items())
        together = f" = {product}" if len(pinned) > 1 else ""
        raise InputError(
            f"{names}{together} does not divide the {cluster.num_devices} devices of {cluster.name}"
        )


def _check_model(evaluator: Evaluator, pins: Pins) -> None:
    graph = evaluator.graph
    for dim in SPLIT_DIMS:
        if pins.tensor and dim in graph.dims and graph.dims[dim] % pins.tensor:
            legal = ", ".join(map(str, tensor_degrees(graph, evaluator.cluster)))
            raise InputError(
                f"--tensor {pins.tensor} does not divide {dim} {graph.dims[dim]} of {graph.name}; legal: {legal}"
            )
    if pins.context and pins.context > 1 and has_scans(graph):
        raise InputError(
            f"--context {pins.context} splits sequences, which linear recurrences of {graph.name} are priced on whole"
        )
    stages = (pins.pipeline or 1) * (pins.virtual_stages or 1)
    if stages > graph.num_layers:
        raise InputError(
            f"--pipeline {pins.pipeline or 1} x {pins.virtual_stages or 1} virtual stages is more than the "
            f"{graph.num_layers} layers of {graph.name}"
        )
    experts = graph.dims.get("experts", 1)
    if pins.expert and pins.expert > 1 and experts == 1:
        raise InputError(f"--expert {pins.expert}: {graph.name} has no experts")
    if pins.expert and experts % pins.expert:
        raise InputError(f"--expert {pins.expert} does not divide the {experts} experts of {graph.name}")


def _check_batch(evaluator: Evaluator, pins: Pins) -> None:
    batch = evaluator.job.global_batch
    if pins.micro_batch and batch % pins.micro_batch:
        raise InputError(
            f"--micro-batch {pins.micro_batch} does not divide the global batch of {batch} sequences"
        )
    if not pins.data:
        return
    if batch % pins.data:
        raise InputError(
            f"global batch {batch} is not a multiple of --data {pins.data}: every rank needs its share"
        )
    share = batch // pins.data
    if pins.micro_batch and share % pins.micro_batch:
        raise InputError(f"--micro-batch {pins.micro_batch} does not divide {share} sequences per data rank")
    contexts = [pins.context] if pins.context else context_degrees(evaluator.graph, evaluator.job.seq_len)
    if pins.expert and not any(spreads_experts(evaluator, pins.data, c, pins.expert) for c in contexts):
        reused = f" x --context {max(contexts)}" if evaluator.software.experts_nearest else ""
        raise InputError(
            f"--expert {pins.expert} must divide --data {pins.data}{reused}: experts reuse those ranks"
        )

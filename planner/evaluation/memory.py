"""Memory of one device over a step: what is alive at the moments that can be the peak.

In the ``forward`` weights are copied out of the buffers that they are gathered in; at the ``loss`` all activations in
flight and the logits are alive; in ``backward`` the logits are gone and layers are gathered, recomputed and their
gradients wait to be reduced (`planner.evaluation.moments`); in ``optimizer`` the activations are gone and the
optimizer's temporaries come. The largest is the peak; what the framework, the communicators and the allocator's
fragmentation add comes on top.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from cluster_specs.software import SoftwareSpec
from cost_models.memory import state_bytes
from planner.evaluation.communicators import communicator_bytes, num_communicators
from planner.evaluation.cuts import ranks_of
from planner.evaluation.flat_buffers import flattened, held_by_flat, made_beside_sums, sums_wider
from planner.evaluation.handing_over import backwards, handed_on, receive_buffers, waiting_losses
from planner.evaluation.moments import moments
from planner.evaluation.pools import held_by_pools
from planner.evaluation.rank import Moment, Rank, adds_up_whole, kept_share, reduces, stages_gathered
from planner.evaluation.setting import Setting
from planner.evaluation.stages import StageCost
from planner.evaluation.states import (
    frozen_weights,
    gathers_apart,
    gradient_bytes,
    least_gathered_bytes,
    lie_whole,
    needs_no_room,
    sharded_elements,
    slices_sums,
    stored_weight_bytes,
    summed_bytes,
    update_bytes,
    weight_bytes,
)
from planner.evaluation.weights import WeightGroup, cast_bytes, narrower_bytes
from planner.operators import UNWRAPPED_POLICIES
from planner.pipeline.activations import Held, held
from planner.pipeline.dependencies import peak_bytes, programs, steady
from planner.pipeline.generators import splits_backward
from planner.plans import Job, MemoryMoment, Parallelism
from planner.sharding.mesh import Mesh
from planner.sharding.widths import DTYPE_BYTES

OFFLOAD_BUFFERS = 2
"""Layers whose activations are on the device where the rest is on the host: one computes, one is moved."""


class DeviceMemory(NamedTuple):
    """Bytes on one device."""

    components: Mapping[str, float]
    """Add up to what the driver reports."""
    tensors: float
    """Live tensors at the peak."""
    reserved: float
    """By the allocator: tensors and fragmentation."""
    phase: str
    resident: Mapping[str, float]
    """States that are there throughout."""
    passing: tuple[Moment, ...]
    """What comes and goes, moment by moment; a phase may have several."""

    @property
    def total(self) -> float:
        """As the driver reports it."""
        return sum(self.components.values())


def model_states(
    weights: Iterable[WeightGroup], job: Job, plan: Parallelism, mesh: Mesh, software: SoftwareSpec
) -> dict[str, float]:
    """Weights, master weights, gradients and optimizer states of one device, by component [bytes]."""
    groups = tuple(weights)
    whole = sum(g.elements for g in groups)
    shard = sharded_elements(groups, mesh, plan.state_shards)
    states = states_of(whole, max(1.0, whole / shard) if shard else 1.0, job, plan, software)
    states["optimizer"] *= 1 - sum(g.unstepped for g in groups) / max(1.0, whole)
    states["weights"] -= min(states["weights"], narrower_bytes(groups, job, software, mesh))
    return states


def states_of(
    elements: float, shard_degree: float, job: Job, plan: Parallelism, software: SoftwareSpec
) -> dict[str, float]:
    """The same of ``elements`` weights whose states are sharded over ``shard_degree`` ranks."""
    states = state_bytes(
        elements,
        job.precision,
        job.optimizer,
        job.master_weights,
        job.grad_dtype,
        plan.zero_stage,
        shard_degree,
        software.keeps_copy,
        software.shards_weights_from,
    )
    held = {
        "weights": states.weights,
        "master_weights": states.master,
        "gradients": states.gradients / (shard_degree if slices_sums(plan, software) else 1),
        "optimizer": states.optimizer,
    }
    away = ["optimizer", "master_weights"] if "optimizer" in plan.offload else []
    away += ["weights", "gradients"] if "weights" in plan.offload else []
    away += ["gradients"] if job.step_in_backward else []
    return held | dict.fromkeys(away, 0.0)


def resident_states(
    states: Mapping[str, float], plan: Parallelism, software: SoftwareSpec
) -> dict[str, float]:
    """Those `model_states` that are there throughout the step: gradients only where they have memory of their own.

    With them DDP's buckets, which hold every gradient once more, in the type of the weights that have it.
    """
    kept = dict(states)
    if software.gradient_life != "step":
        del kept["gradients"]
    if software.buckets_all and plan.zero_stage <= 1 and reduces(plan):
        kept["gradient_buckets"] = kept["weights"] or kept["master_weights"]
    return kept


def held_in_backward(
    states: Mapping[str, float],
    elements: float,
    job: Job,
    plan: Parallelism,
    software: SoftwareSpec,
    looked_up: float = 0.0,
) -> float:
    """What a rank with the `model_states` of ``elements`` weights surely holds of them as a backward begins [bytes].

    Beside resident states what stays gathered, and gradients of the micro-batches before. ``looked_up`` elements are
    of the embedding, whose gradients come last.
    """
    held = sum(resident_states(states, plan, software).values())
    late = software.gradient_life == "late"
    keeps_all = plan.zero_stage == 2 and not lie_whole(plan, software)
    gathered = 1.0 if keeps_all else 1 - 1 / stages_gathered(plan, software)
    held += gathered * elements * least_gathered_bytes(job, software, weight_bytes(job))
    if software.gradient_life == "backward":
        missing = looked_up / elements if elements and plan.num_microbatches == 1 else 0.0
        held += (1 - missing) * states["gradients"]
    return held + (earlier_gradients(states["gradients"], elements, job, plan, software) if late else 0.0)


def earlier_gradients(
    sharded: float, elements: float, job: Job, plan: Parallelism, software: SoftwareSpec
) -> float:
    """Gradients of ``elements`` weights from micro-batches before [bytes]: ``sharded``, or added up whole."""
    if plan.num_microbatches == 1:
        return 0.0
    return elements * summed_bytes(job, software) if adds_up_whole(plan, software) else sharded


def passing_gradients(rank: Rank, phase: str) -> dict[str, float]:
    """Gradients in this phase where they are no resident state [bytes].

    Before they come into being, only those of earlier micro-batches are there; a compiled loop over micro-batches adds
    them to its sums once the micro-batch is done. The embedding's come last, after all layers.
    """
    life, plan = rank.software.gradient_life, rank.plan
    if life == "step":
        return {}
    if phase == "optimizer" or life == phase:
        if phase == "optimizer" or not rank.elements:
            return {"gradients": rank.gradients}
        summed = rank.gradients if plan.num_microbatches > 1 else 0.0
        if summed and not rank.loops_over_microbatches:
            return {"gradients": summed}
        return {"gradients": summed + made_in_loop(rank)}
    if plan.num_microbatches == 1 or rank.begins:
        return {}
    whole = rank.head + rank.looked_up + rank.elements - rank.ends
    return {"gradients": earlier_gradients(rank.gradients, whole, rank.job, plan, rank.software)}


def made_in_loop(rank: Rank) -> float:
    """Gradients of a micro-batch once a compiled backward of the layers ends [bytes]; the embedding's come last."""
    looked_up = sum(stage.looked_up for stage in rank.stages)
    if slices_sums(rank.plan, rank.software):
        return (rank.elements - looked_up) * gradient_bytes(rank.job)
    return rank.gradients * (1 - looked_up / rank.elements)


def cast_weights(rank: Rank, shard: float, phase: str) -> float:
    """Copies in the type of products of ``shard`` elements of weights [bytes].

    Of the layers' share; those of a loop over layers last until its backward is done. A compiled loop over
    micro-batches has those of embedding and head before it, too, and each micro-batch without recomputation of whole
    layers keeps the layers' once more, as any other result of the forward. So does a single one where weights are
    stored in that type and nothing is cast.
    """
    whole, plan = rank.elements, rank.plan
    if not (rank.software.casts_ahead and "weights" not in plan.offload and whole):
        return 0.0
    stored = DTYPE_BYTES["fp32"] if rank.job.master_weights else weight_bytes(rank.job)
    policy = (plan.stages[0].recompute if plan.stages else None) or plan.recompute
    copies = layers = 1 - rank.ends / whole
    kept = layers if policy in UNWRAPPED_POLICIES else 0.0
    if rank.weight >= stored:
        copies = kept
    elif rank.loops_over_microbatches:
        copies = 1 + kept
    elif phase == "backward":
        copies *= rank.first_run
    return shard * copies * rank.weight


def copied_weights(rank: Rank) -> float:
    """Copies of whole weights that XLA steps, while it gathers the updated ones into their place [bytes].

    Where only data ranks split the head, it is gathered in a layout of its own, and not copied before; nor are those
    that are gathered by a sum, which has an array of its own. Where masters are apart, weights are there twice only
    once they are stepped: gathered into one array, of which each then gets its own.

    Source: alpa-projects/alpa@0404c72 ``alpa/shard_parallel/auto_sharding.py`` (``combiner::use_continuous_buffer``,
    and no end to what one gather combines); assumed of torch_xla's ZeRO-1.
    """
    if not gathers_apart(rank.plan, rank.software):
        return 0.0
    later = rank.head if rank.plan.tensor == 1 else 0.0
    summed = sum(stage.sync.summed_bytes for stage in rank.stages) / 2
    gathered = sum(stage.sync.gather_bytes for stage in rank.stages)
    share = gathered / (gathered + summed) if gathered else 0.0
    return share * (rank.elements - later) * stored_weight_bytes(rank.job, rank.software)


def device_memory(
    stages: Sequence[StageCost],
    activations: float,
    job: Job,
    plan: Parallelism,
    mesh: Mesh,
    software: SoftwareSpec,
    limit: float = math.inf,
) -> DeviceMemory:
    """Memory of a rank that runs ``stages`` with ``activations`` bytes in flight at its fullest.

    States never move, so that they leave no holes in the allocator's blocks. Near the device's ``limit`` [bytes]
    the allocator gives back some of what it holds without need.
    """
    groups = [g for stage in stages for g in stage.weights]
    every = model_states(groups, job, plan, mesh, software)
    rank = Rank(stages, activations, job, plan, software, every["gradients"], mesh.cluster.device.name)
    every["optimizer"] *= 1 + rank.further_states
    states = resident_states(every, plan, software)
    untrained = [g for s in stages for g in s.frozen]
    further = {
        "made_gradients": made_beside_sums(rank),
        "frozen_weights": frozen_weights(untrained, mesh, plan, software),
        "kept_casts": lie_whole(plan, software) * cast_bytes([*groups, *untrained], job, software, mesh),
        "receive_buffers": receive_buffers(rank),
    }
    states |= {name: size for name, size in further.items() if size}
    if in_rows := rank.tables_in_rows:
        stored = every["weights"] + every["master_weights"] + every["optimizer"]
        states["tables_in_rows"] = in_rows * stored / sharded_elements(groups, mesh, plan.shard_degree)
    passing = passing_moments(rank, mesh, limit - sum(states.values()))
    fullest = max(passing, key=lambda moment: sum(moment.passing.values()))
    live = {**states, **fullest.passing}
    tensors = sum(live.values())
    fragmentation = unused(rank, passing, fullest)
    outside = {
        "communicators": communicator_bytes(software, mesh.cluster.device)
        * num_communicators(plan, software, any(stage.tied_elements for stage in stages)),
        "framework": software.context,
    }
    room = limit - tensors - sum(outside.values())
    fragmentation = max((1 - software.reclaimable) * fragmentation, min(fragmentation, room))
    components = {**live, "fragmentation": fragmentation, **outside}
    held = {name: size for name, size in components.items() if size > 0}
    return DeviceMemory(held, tensors, tensors + fragmentation, fullest.phase, states, passing)


def unused(rank: Rank, moments: Sequence[Moment], fullest: Moment) -> float:
    """What the allocator holds at its fullest beside live tensors [bytes]: by arrays, or a share of what passes."""
    software = rank.software
    if software.unplaced_arrays is not None:
        return held_by_flat(rank, moments) + held_by_pools(rank, moments, software.unplaced_arrays)
    assert software.fragmentation is not None  # a stack has either
    large = 0.0 if software.fragments_logits else fullest.passing.get("logits_and_loss", 0.0)
    return software.fragmentation * (sum(fullest.passing.values()) - large)


def passing_moments(rank: Rank, mesh: Mesh, room: float = math.inf) -> tuple[Moment, ...]:
    """What there is beside resident states, which leave ``room``, at each moment, in turn [bytes]."""
    plan, software = rank.plan, rank.software
    groups = [g for stage in rank.stages for g in stage.weights]
    shard = sharded_elements(groups, mesh, plan.state_shards)
    stored = rank.elements if lie_whole(plan, software) else shard
    elsewhere = needs_no_room(rank.job, plan) or sums_wider(rank.job, software) or rank.job.step_in_backward
    made = 0.0 if elsewhere else update_bytes(rank.job, plan, software) + flattened(rank)
    own = sharded_elements((g.stepped() for g in groups), mesh, plan.state_shards)
    stepping = {**passing_gradients(rank, "optimizer"), "optimizer_temporaries": own * made}
    stepping |= {"copied_weights": copied_weights(rank)} if software.keeps_copy else {}
    during = (moment for turn in backwards(rank) for moment in _least_around_backward(turn, stored, room))
    return (*during, Moment("optimizer", stepping))


def _least_around_backward(rank: Rank, stored: float, room: float) -> Sequence[Moment]:
    """Those of a forward and its backward, in the order that holds least where a compiler has several to choose from.

    A sum waits if there is ``room`` for that: a program that needs more is scheduled anew.

    Source: openxla/xla ``xla/hlo/transforms/simplifiers/hlo_memory_scheduler.cc`` (``DefaultMemoryScheduler``),
    ``xla/service/latency_hiding_scheduler.cc`` (``LatencyHidingScheduler::Run`` lowers its limit of memory).
    """
    turns = (replace(rank, head_gradient=when) if when != "early" else rank for when in rank.head_gradients)
    orders = {turn.head_gradient: tuple(_around_backward(turn, stored)) for turn in turns}
    if len(orders) == 1:
        return orders.popitem()[1]
    most = {when: max(sum(at.passing.values()) for at in order) for when, order in orders.items()}
    fits = "waiting" in most and most["waiting"] <= room
    return orders["waiting" if fits else min(most, key=lambda when: most[when])]


def _around_backward(rank: Rank, stored: float) -> Iterator[Moment]:
    """Those of a forward and its backward; ``stored`` elements of weights are there between steps."""
    kept = {} if rank.software.keeps_copy else {"copied_weights": copied_weights(rank)}
    kept["handed_on"] = handed_on(rank) + waiting_losses(rank)
    if "activations" in rank.plan.offload:
        kept["offload_buffers"] = OFFLOAD_BUFFERS * max(s.largest_saved for s in rank.stages)
    in_phase: dict[str, dict[str, float]] = {}
    for phase, at in moments(rank):
        if phase not in in_phase:
            cast = {"cast_weights": cast_weights(rank, stored, phase)}
            in_phase[phase] = {**passing_gradients(rank, phase), **cast, **kept}
        yield Moment(phase, {**in_phase[phase], **at})


def held_activations(plan: Parallelism, stages: Sequence[StageCost]) -> Held:
    """What a micro-batch keeps on each stage, and until when [bytes]; what is offloaded does not pile up."""
    saved = [kept_share(plan) * stage.saved_bytes for stage in stages]
    split = plan.pipeline > 1 and splits_backward(plan.schedule)
    return held(saved, [stage.until_weight_bytes if split else 0.0 for stage in stages])


def activation_peaks(plan: Parallelism, stages: Sequence[StageCost]) -> Sequence[float]:
    """Most that is in flight on each rank [bytes]."""
    kept = held_activations(plan, stages)
    if plan.pipeline == 1:
        return (sum(kept.until_input),)
    return peak_bytes(
        programs(plan.schedule, plan.pipeline, plan.virtual_stages, steady_microbatches(plan)), *kept
    )


def in_flight(plan: Parallelism, stages: Sequence[StageCost]) -> Iterator[tuple[Sequence[StageCost], float]]:
    """The stages of each rank, with the most that is in flight there, on the device or on its host [bytes]."""
    peaks = activation_peaks(plan.model_copy(update={"offload": ()}), stages)
    for ss, peak in zip(ranks_of(plan), peaks, strict=True):
        yield [stages[s] for s in ss], peak


def memory_by_rank(
    setting: Setting, plan: Parallelism, mesh: Mesh, stages: Sequence[StageCost]
) -> Iterator[tuple[int, DeviceMemory]]:
    """Pipeline ranks with their memory, in turn; of ranks that run equal stages, the one that holds most."""
    peaks = activation_peaks(plan, stages)
    fullest: dict[tuple[int, ...], tuple[int, tuple[int, ...]]] = {}
    for rank, ss in enumerate(ranks_of(plan)):
        same = tuple(id(stages[s]) for s in ss)
        if same not in fullest or peaks[rank] > peaks[fullest[same][0]]:
            fullest[same] = (rank, ss)
    job, software, limit = setting.job, setting.software, setting.cluster.device.memory
    for rank, ss in fullest.values():
        yield rank, device_memory([stages[s] for s in ss], peaks[rank], job, plan, mesh, software, limit)


def most_held(
    setting: Setting, plan: Parallelism, mesh: Mesh, stages: Sequence[StageCost], limit: float
) -> float:
    """Bytes of the fullest rank, or of the first that holds more than ``limit``."""
    most = 0.0
    for _, rank in memory_by_rank(setting, plan, mesh, stages):
        most = max(most, rank.total)
        if most > limit:
            break
    return most


def steady_microbatches(plan: Parallelism) -> int:
    """So many micro-batches that more would not raise the activations in flight."""
    return steady(plan.schedule, plan.pipeline, plan.num_microbatches)


def over_step(memory: DeviceMemory) -> tuple[MemoryMoment, ...]:
    """Live tensors by moment; the step starts with its states."""
    found = []
    for phase, passing in (Moment("start", {}), *memory.passing):
        tensors = {name: size for name, size in {**memory.resident, **passing}.items() if size > 0}
        found.append(MemoryMoment(phase=phase, tensor_bytes=sum(tensors.values()), tensors=tensors))
    return tuple(found)

"""What comes after the last backward of a step: gradients are reduced, weights stepped and gathered."""

from collections.abc import Sequence
from typing import NamedTuple

from cluster_specs.topology import CommGroup, comm_group, route
from cost_models.collectives import all_reduce, broadcast
from cost_models.compute import optimizer_seconds, stream_seconds
from planner.evaluation.cuts import copies_of, places_of, ranks_of
from planner.evaluation.host import host_step_seconds
from planner.evaluation.overlap import left_over
from planner.evaluation.setting import Setting
from planner.evaluation.stages import StageCost
from planner.evaluation.states import (
    Sync,
    gathers_stepped,
    gradient_bytes,
    reduced_bytes,
    reduces_after,
    sharded_elements,
    shards_of,
    weight_bytes,
)
from planner.evaluation.syncing import sync_of, wire_widths
from planner.evaluation.units import reduces_every_microbatch, sums_every_microbatch
from planner.evaluation.weights import WeightGroup
from planner.pipeline.generators import schedule_entry
from planner.plans import Parallelism
from planner.sharding.mesh import Mesh


class Tail(NamedTuple):
    """After the last backward on one rank [s]."""

    data: float
    """Reduction of gradients and gathering of weights that nothing hides."""
    optimizer: float

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.data + self.optimizer


Tails = dict[tuple[int, ...], Tail]
"""Tails of ranks by the identities of their stages, and how far the rank is that has the same."""


def tails_of(
    setting: Setting,
    plan: Parallelism,
    mesh: Mesh,
    stages: Sequence[StageCost],
    known: Tails | None = None,
) -> tuple[Tail, ...]:
    """The tail of every rank; ranks that run the same stages have the same. New ones are added to ``known``."""
    known = {} if known is None else known
    found, ids, several = [], [id(stage) for stage in stages], copies_of(plan) > 1
    for rank, ss in enumerate(ranks_of(plan)):
        same = (*[ids[s] for s in ss], abs(plan.pipeline - 1 - 2 * rank) if several else 0)
        if same not in known:
            beside = shared_seconds(setting, plan, mesh, [stages[s] for s in ss], rank)
            known[same] = tail_of(setting, plan, mesh, [stages[s] for s in ss], beside)
        found.append(known[same])
    return tuple(found)


def last_tail(ends: Sequence[float], tails: Sequence[Tail]) -> Tail:
    """What the step waits for after the pipeline's end; ``ends`` is when each rank is done with it [s].

    A rank that is done early reduces its gradients while the others drain. The update waits for all, as it needs
    the norm of all gradients.
    """
    reduced = max(end + tail.data for end, tail in zip(ends, tails, strict=True))
    return Tail(reduced - max(ends), max(tail.optimizer for tail in tails))


def tail_of(
    setting: Setting, plan: Parallelism, mesh: Mesh, stages: Sequence[StageCost], shared: float = 0.0
) -> Tail:
    """Of a rank with these stages; ``shared`` as in `_exposed`."""
    sync = _rank_sync(setting, plan, mesh, stages)
    forward = [s.forward for s in stages]
    backward = [s.backward_input + s.backward_weight for s in stages]
    elements = sum(_stepped(s, plan, mesh) for s in stages)
    return Tail(
        _exposed(setting, plan, sync, forward, backward, shared), _optimizer_seconds(setting, plan, elements)
    )


def least_tail(
    setting: Setting,
    plan: Parallelism,
    sync: Sync,
    forward: float,
    backward: float,
) -> float:
    """Least that shows of a rank's ``sync`` or more [s]; its stages take ``forward`` and ``backward`` [s] at most.

    Nothing is said where all gradients are reduced at once, which is not what they take block by block.
    """
    if reduces_after(plan, setting.software):
        return 0.0
    sync = sync._replace(gather=0.0) if setting.software.broadcasts_weights else sync
    v = plan.virtual_stages
    return _exposed(setting, plan, sync, [forward / v] * v, [backward / v] * v, 0.0)


def least_update(setting: Setting, plan: Parallelism, mesh: Mesh, whole: StageCost) -> float:
    """Least that the rank takes which steps most of the weights of ``whole``, the model as one stage [s]."""
    return _optimizer_seconds(setting, plan, _stepped(whole, plan, mesh) / plan.pipeline)


def _stepped(stage: StageCost, plan: Parallelism, mesh: Mesh) -> float:
    """Weights of a stage that one device steps."""
    return sharded_elements((group.stepped() for group in stage.weights), mesh, plan.state_shards)


def _exposed(
    setting: Setting,
    plan: Parallelism,
    sync: Sync,
    forward: Sequence[float],
    backward: Sequence[float],
    shared: float,
) -> float:
    """Reduction hides behind the last backwards, gathering behind the next step's first forwards (`left_over`) [s].

    Where copies are summed with every micro-batch, as much shows of each; all does of what nothing runs beside.
    Gradients that are summed whole though states are sharded wait for the end of the backward.
    ``shared`` [s] is what other pipeline ranks that hold the same weights add to the reduction, once a step
    (alpa-projects/alpa alpa/pipeline_parallel/apply_grad.py sums them between meshes before it applies gradients).
    """
    overlap = 0.0 if reduces_after(plan, setting.software) else setting.software.overlap_data
    own, alone = sync.copy + sync.replicate - sync.replicate_alone, sync.replicate_alone
    if not reduces_every_microbatch(plan, setting.software):
        own, alone = own + sync.reduce - sync.reduce_alone, alone + sync.reduce_alone + sync.pack
    # Where every micro-batch is reduced, block by block, those reductions slow the same passes already; over one rank
    # there are none.
    slows = reduces_every_microbatch(plan, setting.software) and sync.reduce > 0
    slowdown = 0.0 if slows else setting.software.overlap_slowdown
    turn = schedule_entry(plan.schedule).turn(plan.pipeline, plan.num_microbatches)
    if sums_every_microbatch(plan, setting.software):
        exposed = plan.num_microbatches * (alone + left_over(own, backward, 1, overlap, slowdown)) + shared
    else:
        exposed = alone + left_over(own + shared, backward, turn, overlap, slowdown)
    if gathers_stepped(plan, setting.software):
        exposed += (
            left_over(sync.gather, forward, turn, setting.software.overlap_gather, slowdown) + sync.unpack
        )
    return exposed


def shared_seconds(
    setting: Setting, plan: Parallelism, mesh: Mesh, stages: Sequence[StageCost], rank: int
) -> float:
    """All-reduce of gradients with the other pipeline rank that holds the same weights [s].

    Schedules with two copies of every stage share all weights with the rank opposite; otherwise first and last
    stage share the tied embedding.
    """
    if copies_of(plan) > 1:
        elements = sum(gradient_elements(s.weights, plan, mesh) for s in stages)
        opposite = abs(plan.pipeline - 1 - 2 * rank) * (plan.num_devices // plan.pipeline)
        group = comm_group(setting.cluster, ((2, opposite),))
    else:
        elements = sum(s.tied_elements for s in stages) / (plan.shard_degree if plan.zero_stage >= 2 else 1)
        if not elements or plan.pipeline == 1:
            return 0.0
        first, *_, last = places_of(plan)
        if first == last:
            return 0.0
        # They send past the stages between, which need not be a row of ranks that a torus holds.
        group = route(setting.cluster, first, last)
    return all_reduce(elements * reduced_bytes(setting.job, setting.software), group).seconds


def gradient_elements(weights: Sequence[WeightGroup], plan: Parallelism, mesh: Mesh) -> float:
    """Gradients that one device holds once they are reduced over its data ranks."""
    if plan.zero_stage >= 2:
        return sharded_elements(weights, mesh, plan.shard_degree)
    return sum(group.elements for group in weights)


def _rank_sync(setting: Setting, plan: Parallelism, mesh: Mesh, stages: Sequence[StageCost]) -> Sync:
    """Communication that keeps a rank's weights in step: block by block, of all at once, or broadcast in turns."""
    if reduces_after(plan, setting.software):
        return _at_once(setting, plan, mesh, stages)
    sync = sync_over(stages)
    if setting.software.broadcasts_weights and gathers_stepped(plan, setting.software):
        return sync._replace(gather=_broadcasts(setting, plan, mesh, stages))
    return sync


def _at_once(setting: Setting, plan: Parallelism, mesh: Mesh, stages: Sequence[StageCost]) -> Sync:
    """Of all weights at once: the host cuts each into the parts of all ranks, and copies them back once gathered."""
    job, software = setting.job, setting.software
    groups = [group for stage in stages for group in stage.weights]
    sync = sync_of(groups, mesh, plan, wire_widths(job, software, plan), whole=True)
    parts = plan.shard_degree * sum(stage.tensors for stage in stages)
    return sync._replace(gather=sync.gather + parts * software.host_part)


def _broadcasts(setting: Setting, plan: Parallelism, mesh: Mesh, stages: Sequence[StageCost]) -> float:
    """Broadcasts by the ranks that step whole weights, one after the other [s]; more ranks than weights have none."""
    turns = min(plan.shard_degree, sum(stage.tensors for stage in stages))
    sizes: dict[CommGroup, float] = {}
    for group in (group for stage in stages for group in stage.weights):
        ranks = shards_of(group, mesh, plan.shard_degree).inner
        sizes[ranks] = sizes.get(ranks, 0.0) + group.elements * weight_bytes(setting.job)
    return sum(turns * broadcast(size / turns, ranks).seconds for ranks, size in sizes.items())


def sync_over(stages: Sequence[StageCost]) -> Sync:
    """What keeps the weights of several stages in step."""
    total = Sync()
    for stage in stages:
        total = total.plus(stage.sync)
    return total


def _optimizer_seconds(setting: Setting, plan: Parallelism, elements: float) -> float:
    """Gradient norm and clip (one read, one read and write), and the update; by the host what is offloaded.

    What is stepped within the backward has no norm of all gradients: none is left when the last is there.
    """
    device, job = setting.cluster.device, setting.job
    if "weights" in plan.offload:
        return host_step_seconds(setting, plan, elements)
    clipped = 0.0 if job.step_in_backward else elements
    clip = stream_seconds(3 * clipped * gradient_bytes(job), device).seconds
    if "optimizer" in plan.offload:
        return clip + host_step_seconds(setting, plan, elements)
    share = elements / setting.parameters
    update = optimizer_seconds(
        elements,
        job.optimizer,
        device,
        weight_bytes=weight_bytes(job),
        grad_bytes=gradient_bytes(job),
        master_weights=job.master_weights,
        fused=setting.software.fused_optimizer,
        matrix_flops=share * setting.matrix_flops,
    )
    return clip + update.seconds

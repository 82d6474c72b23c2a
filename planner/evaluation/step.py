"""Time of one optimizer step: the simulated pipeline, then what comes after its last backward."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cluster_specs.cluster import ClusterSpec
from cluster_specs.topology import CommGroup, comm_group, has_own_wires, route
from cost_models.collectives import all_reduce, broadcast, send
from cost_models.compute import optimizer_seconds, stream_seconds
from planner.evaluation.host import host_step_seconds
from planner.evaluation.overlap import left_over
from planner.evaluation.setting import Setting, copies_of, places_of, ranks_of
from planner.evaluation.stages import (
    PARTS,
    StageCost,
    reduces_every_microbatch,
    split_stages,
    sums_every_microbatch,
)
from planner.evaluation.states import (
    Sync,
    gradient_bytes,
    reduced_bytes,
    reduces_after,
    sharded_elements,
    shards_of,
    sync_of,
    weight_bytes,
    wire_widths,
)
from planner.evaluation.weights import WeightGroup
from planner.pipeline.generators import schedule_entry, splits_backward
from planner.pipeline.ports import Ports
from planner.pipeline.simulator import StageTimes, makespan
from planner.plans import Parallelism
from planner.sharding.mesh import Mesh

Devices = tuple[int, int]
"""Half-open range of ranks."""


class StepTime(NamedTuple):
    """One optimizer step on the busiest rank [s]."""

    parts: Mapping[str, float]
    bubble_fraction: float
    sent_bytes: Mapping[str, float]

    @property
    def total(self) -> float:
        """Seconds of the step."""
        return sum(self.parts.values())


class Tail(NamedTuple):
    """After the last backward on one rank [s]."""

    data: float
    """Reduction of gradients and gathering of weights that nothing hides."""
    optimizer: float

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.data + self.optimizer


def step_time(setting: Setting, plan: Parallelism, mesh: Mesh, stages: Sequence[StageCost]) -> StepTime:
    """Simulate the pipeline and add what comes after it, overheads and stragglers."""
    sends = send_seconds(setting, plan, stages) if plan.pipeline > 1 else ()
    tails = tails_of(setting, plan, mesh, stages)
    return assembled(setting, plan, stages, sends, tails, ports_of(setting.cluster))


def assembled(
    setting: Setting,
    plan: Parallelism,
    stages: Sequence[StageCost],
    sends: Sequence[float],
    tails: Sequence[Tail],
    ports: Ports,
) -> StepTime:
    """The step of stages that pass their results on in ``sends`` [s] over ``ports``, each rank followed by its tail."""
    stages = split_stages(stages, plan, setting.software)
    m, p = plan.num_microbatches // copies_of(plan), plan.pipeline
    on_rank = ranks_of(plan)
    work = [sum(stages[s].seconds for s in ss) for ss in on_rank]
    busiest = max(range(p), key=lambda r: work[r])
    span = m * work[0]
    ends: Sequence[float] = (span,)
    if p > 1:
        ran = makespan(
            plan.schedule,
            p,
            plan.virtual_stages,
            plan.num_microbatches,
            stage_times(stages),
            sends,
            ports=ports,
        )
        span, ends = ran.makespan, ran.last_end
    parts = dict.fromkeys(PARTS, 0.0)
    for s in on_rank[busiest]:
        for name, seconds in stages[s].parts.items():
            parts[name] += m * seconds
    parts["bubble"] = max(0.0, span - m * work[busiest])
    parts["stage_wait"] = stage_wait(setting, plan.pipeline, plan.virtual_stages, plan.num_microbatches)
    tail = last_tail(ends, tails)
    parts["data"] += tail.data
    parts["optimizer"] = tail.optimizer
    parts["overhead"] = setting.software.step_overhead
    parts["stragglers"] = sum(parts.values()) * straggling(setting, plan.num_devices)
    sent = sent_bytes(setting, plan, [stages[s] for s in on_rank[busiest]])
    return StepTime(parts, parts["bubble"] / span if span else 0.0, sent)


def step_floor(setting: Setting, plan: Parallelism, mesh: Mesh, stages: Sequence[StageCost]) -> float:
    """Less than `step_time` will say, without a simulation [s]: for the search to prune by.

    Rank r cannot start before the first micro-batch has passed the ranks before it, nor end before the last
    one has gone back through them; the step cannot be shorter than rank r's work between the two, and what it waits,
    nor than one micro-batch takes through all stages beside the others (`through_all`).
    """
    sends = send_seconds(setting, plan, stages) if plan.pipeline > 1 else ()
    copies = copies_of(plan)
    split = plan.pipeline > 1 and splits_backward(plan.schedule)
    span = before = 0.0
    on_rank = ranks_of(plan)
    work = [sum(stages[s].seconds for s in ss) for ss in on_rank]
    for ss, own, waits in zip(on_rank, work, _waits_behind(plan, work, sends), strict=True):
        span = max(span, plan.num_microbatches / copies * own + waits + before)
        stage = stages[ss[0]]
        hop = sends[ss[0]] if ss[0] < len(sends) else 0.0
        if copies == 1:
            before += (
                stage.forward + hop + (0.0 if split else stage.backward_input + stage.backward_weight + hop)
            )
    if copies == 1 and not split:
        longest = max(max(stage.forward, stage.seconds - stage.forward) for stage in stages)
        span = max(span, through_all(sum(work) + 2 * sum(sends), longest, plan.num_microbatches))
    tails = tails_of(setting, plan, mesh, stages)
    # Where backwards are not split, everything comes before the first rank's last one: it ends last.
    data = min(tail.data for tail in tails) if split or copies > 1 else tails[0].data
    tail_seconds = data + max(tail.optimizer for tail in tails)
    span += stage_wait(setting, plan.pipeline, plan.virtual_stages, plan.num_microbatches)
    return (span + tail_seconds + setting.software.step_overhead) * (
        1 + straggling(setting, plan.num_devices)
    )


def through_all(work: float, longest: float, num_microbatches: int) -> float:
    """Least makespan of a pipeline that has every stage once and does whole backwards [s].

    ``work`` is that of all stages for one micro-batch, forth and back, one after the other. A stage does m forwards,
    the last of which goes on to all stages behind, and m backwards, the first of which has come from there: either adds
    m - 1 of them, ``longest`` being the longest of these passes, or any shorter.
    """
    return work + (num_microbatches - 1) * longest


def _waits_behind(plan: Parallelism, work: Sequence[float], sends: Sequence[float]) -> list[float]:
    """Of every rank, for its first and its last micro-batch to come back from the ranks behind it, at least [s].

    Rank r of p may hold p - r micro-batches under 1F1B: meanwhile it works on p - r - 1 others at most. Where there are
    more than p, first and last are at different times. ``work`` is each rank's for one micro-batch [s].
    """
    p, waits, behind = plan.pipeline, list[float](), 0.0
    if plan.schedule != "1f1b" or plan.num_microbatches <= p:
        return [0.0] * p
    for after, (own, hop) in enumerate(zip(reversed(work), (0.0, *reversed(sends)), strict=True)):
        behind += 2 * hop
        waits.append(max(0.0, 2 * behind - after * own))
        behind += own
    return waits[::-1]


def stage_times(stages: Sequence[StageCost]) -> StageTimes:
    """What the simulator needs of the stages."""
    return StageTimes(
        [s.forward for s in stages], [s.backward_input for s in stages], [s.backward_weight for s in stages]
    )


def ports_of(cluster: ClusterSpec) -> Ports:
    """What the results of a pipeline on the cluster have to share."""
    return "wire" if has_own_wires(cluster) else "rank"


def stage_wait(setting: Setting, pipeline: int, virtual_stages: int, num_microbatches: int) -> float:
    """Polling of a pipeline's busiest rank for what it hands on or receives, both ways [s].

    While the pipeline fills or drains, a rank has only one way to wait for, at the same time as its neighbour:
    each of these ``p - 1`` steps costs half a micro-batch's waiting.
    """
    neighbours = min(pipeline - 1, 2)
    each = setting.software.handover_wait * 2 * neighbours * virtual_stages
    return each * (num_microbatches + (pipeline - 1) / 2)


def straggling(setting: Setting, num_devices: int) -> float:
    """Relative slow-down by waiting for the slowest node."""
    nodes = max(1, num_devices / setting.cluster.devices_per_node)
    return setting.software.straggler * math.log2(nodes)


def send_seconds(setting: Setting, plan: Parallelism, stages: Sequence[StageCost]) -> tuple[float, ...]:
    """Passing one micro-batch's boundary activations on, per boundary between stages."""
    return handed_on(setting.cluster, [stage.boundary_bytes for stage in stages[:-1]], places_of(plan))


def handed_on(cluster: ClusterSpec, sizes: Sequence[float], places: Sequence[Devices]) -> tuple[float, ...]:
    """Seconds of ``sizes`` [bytes] of a device, one for each boundary between the ``places`` of stages.

    Nothing is sent between stages of one rank.
    """
    known: dict[tuple[float, Devices, Devices], float] = {}
    found = []
    for key in zip(sizes, places, places[1:], strict=False):
        if key not in known:
            size, sender, receiver = key
            apart = sender != receiver
            known[key] = send(size, route(cluster, sender, receiver)).seconds if apart else 0.0
        found.append(known[key])
    return tuple(found)


def tails_of(
    setting: Setting, plan: Parallelism, mesh: Mesh, stages: Sequence[StageCost]
) -> tuple[Tail, ...]:
    """The tail of every rank; ranks that run the same stages have the same."""
    known: dict[tuple[int, ...], Tail] = {}
    found = []
    for rank, ss in enumerate(ranks_of(plan)):
        same = (*(id(stages[s]) for s in ss), abs(plan.pipeline - 1 - 2 * rank) * (copies_of(plan) > 1))
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
    """Reduction hides behind the last backwards, gathering behind the next step's first forwards (`left_over`).

    Where copies are summed with every micro-batch, as much shows of each. Gradients that are summed whole though states
    are sharded wait for the end of the backward.
    ``shared`` [s] is what other pipeline ranks that hold the same weights add to the reduction, once a step
    (alpa-projects/alpa alpa/pipeline_parallel/apply_grad.py sums them between meshes before it applies gradients).
    """
    overlap = 0.0 if reduces_after(plan, setting.software) else setting.software.overlap_data
    sync = _rank_sync(setting, plan, mesh, stages)
    own = sync.copy + sync.replicate
    own += 0.0 if reduces_every_microbatch(plan, setting.software) else sync.reduce
    backward = [s.backward_input + s.backward_weight for s in stages]
    # Where every micro-batch is reduced, block by block, those reductions slow the same passes already.
    slowdown = 0.0 if reduces_every_microbatch(plan, setting.software) else setting.software.overlap_slowdown
    turn = schedule_entry(plan.schedule).turn(plan.pipeline, plan.num_microbatches)
    if sums_every_microbatch(plan, setting.software):
        exposed = plan.num_microbatches * left_over(own, backward, 1, overlap, slowdown) + shared
    else:
        exposed = left_over(own + shared, backward, turn, overlap, slowdown)
    if gathers_once(plan):
        forward, overlap = [s.forward for s in stages], setting.software.overlap_gather
        exposed += left_over(sync.gather, forward, turn, overlap, slowdown)
    elements = sum(
        sharded_elements(s.weights, mesh, plan.shard_degree if plan.zero_stage else 1) for s in stages
    )
    return Tail(exposed, _optimizer_seconds(setting, plan, elements))


def shared_seconds(
    setting: Setting, plan: Parallelism, mesh: Mesh, stages: Sequence[StageCost], rank: int
) -> float:
    """All-reduce of gradients with the other pipeline rank that holds the same weights [s].

    Schedules with two copies of every stage share all weights with the rank opposite; otherwise first and last
    stage share the tied embedding.
    """
    p, per_stage = plan.pipeline, plan.num_devices // plan.pipeline
    if copies_of(plan) > 1:
        distance = abs(p - 1 - 2 * rank)
        elements = sum(gradient_elements(s.weights, plan, mesh) for s in stages)
    else:
        last = p * plan.virtual_stages - 1
        distance = next(r for r, ss in enumerate(ranks_of(plan)) if last in ss) - rank
        elements = sum(s.tied_elements for s in stages) / (plan.shard_degree if plan.zero_stage >= 2 else 1)
    if not elements or not distance:
        return 0.0
    group = comm_group(setting.cluster, ((2, distance * per_stage),))
    return all_reduce(elements * reduced_bytes(setting.job, setting.software), group).seconds


def gradient_elements(weights: Sequence[WeightGroup], plan: Parallelism, mesh: Mesh) -> float:
    """Gradients that one device holds once they are reduced over its data ranks."""
    if plan.zero_stage >= 2:
        return sharded_elements(weights, mesh, plan.shard_degree)
    return sum(group.elements for group in weights)


def gathers_once(plan: Parallelism) -> bool:
    """Whether updated weights are gathered once a step: ZeRO-1, and ZeRO-2 that keeps them over a pipeline."""
    return plan.zero_stage == 1 or (plan.zero_stage == 2 and plan.pipeline > 1)


def _rank_sync(setting: Setting, plan: Parallelism, mesh: Mesh, stages: Sequence[StageCost]) -> Sync:
    """Communication that keeps a rank's weights in step: block by block, of all at once, or broadcast in turns."""
    if reduces_after(plan, setting.software):
        return _at_once(setting, plan, mesh, stages)
    sync = _sync(stages)
    if setting.software.broadcasts_weights and gathers_once(plan):
        return sync._replace(gather=_broadcasts(setting, plan, mesh, stages))
    return sync


def _at_once(setting: Setting, plan: Parallelism, mesh: Mesh, stages: Sequence[StageCost]) -> Sync:
    """Of all weights at once: the host cuts each into the parts of all ranks, and copies them back once gathered."""
    job, software = setting.job, setting.software
    groups = [group for stage in stages for group in stage.weights]
    sync = sync_of(groups, mesh, plan, wire_widths(job, software, last=False), whole=True)
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


def _sync(stages: Sequence[StageCost]) -> Sync:
    total = Sync()
    for stage in stages:
        total = total.plus(stage.sync)
    return total


def _optimizer_seconds(setting: Setting, plan: Parallelism, elements: float) -> float:
    """Gradient norm and clip (one read, one read and write), and the update; by the host what is offloaded."""
    device, job = setting.cluster.device, setting.job
    if "weights" in plan.offload:
        return host_step_seconds(setting, plan, elements)
    clip = stream_seconds(3 * elements * gradient_bytes(job), device).seconds
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


def sent_bytes(setting: Setting, plan: Parallelism, stages: Sequence[StageCost]) -> Mapping[str, float]:
    """Bytes that one device of the rank sends in a step, by collective."""
    m = plan.num_microbatches / copies_of(plan)
    sync = _sync(stages)
    sent: dict[str, float] = {}

    def add(name: str, num_bytes: float) -> None:
        if num_bytes:
            sent[name] = sent.get(name, 0.0) + num_bytes

    for stage in stages:
        for name, num_bytes in stage.sent_bytes.items():
            add(name, m * num_bytes)
    software = setting.software
    summed = m if sums_every_microbatch(plan, software) else 1
    scattered = m if reduces_every_microbatch(plan, software) else summed
    add("reduce_scatter", scattered * sync.reduce_bytes)
    add("send", scattered * sync.reduce_ring_bytes)
    add("all_reduce", summed * (sync.whole_bytes + sync.replicate_bytes))
    add("all_reduce", sync.copy_bytes * (1 if software.gradient_life == "step" else m))
    each = m * sum(stage.gathered_bytes for stage in stages)
    add("all_gather", sync.gather_bytes if gathers_once(plan) else each)
    add("all_reduce", sync.summed_bytes if gathers_once(plan) else 0.0)
    if plan.pipeline > 1:
        add("send", 2 * m * sum(stage.boundary_bytes for stage in stages))
    return sent

"""Time of one optimizer step: the simulated pipeline, then what comes after its last backward."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cluster_specs.topology import comm_group
from cost_models.collectives import send
from cost_models.compute import optimizer_seconds, stream_seconds
from planner.evaluation.setting import Setting, ranks_of
from planner.evaluation.stages import PARTS, StageCost, reduces_every_microbatch
from planner.evaluation.states import Sync, gradient_bytes, sharded_elements, weight_bytes
from planner.pipeline.generators import SCHEDULES
from planner.pipeline.simulator import StageTimes, makespan
from planner.plans import Parallelism
from planner.sharding.mesh import Mesh


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
    """Simulate the pipeline and add the slowest rank's tail, overheads and stragglers."""
    m, p = plan.num_microbatches, plan.pipeline
    on_rank = ranks_of(plan)
    work = [sum(stages[s].seconds for s in ss) for ss in on_rank]
    busiest = max(range(p), key=lambda r: work[r])
    span = m * work[0]
    if p > 1:
        times = StageTimes(
            [s.forward for s in stages],
            [s.backward_input for s in stages],
            [s.backward_weight for s in stages],
        )
        sends = send_seconds(setting, plan, stages)
        span = makespan(plan.schedule, p, plan.virtual_stages, m, times, sends).makespan
    parts = dict.fromkeys(PARTS, 0.0)
    for s in on_rank[busiest]:
        for name, seconds in stages[s].parts.items():
            parts[name] += m * seconds
    parts["bubble"] = max(0.0, span - m * work[busiest])
    parts["stage_wait"] = (m + p - 1) * stage_wait(setting, plan)
    tail = slowest_tail(setting, plan, mesh, stages)
    parts["data"] += tail.data
    parts["optimizer"] = tail.optimizer
    parts["overhead"] = setting.software.step_overhead
    parts["stragglers"] = sum(parts.values()) * straggling(setting, plan)
    sent = sent_bytes(setting, plan, [stages[s] for s in on_rank[busiest]])
    return StepTime(parts, parts["bubble"] / span if span else 0.0, sent)


def step_floor(setting: Setting, plan: Parallelism, mesh: Mesh, stages: Sequence[StageCost]) -> float:
    """Less than `step_time` will say, without a simulation [s]: for the search to prune by.

    Rank r cannot start before the first micro-batch has passed the ranks before it, nor end before the last
    one has gone back through them; the step cannot be shorter than rank r's work between the two.
    """
    sends = send_seconds(setting, plan, stages) if plan.pipeline > 1 else ()
    split = plan.pipeline > 1 and SCHEDULES[plan.schedule].splits_backward
    span = before = 0.0
    for ss in ranks_of(plan):
        work = sum(stages[s].seconds for s in ss)
        span = max(span, plan.num_microbatches * work + before)
        stage = stages[ss[0]]
        hop = sends[ss[0]] if ss[0] < len(sends) else 0.0
        before += stage.forward + hop + (0.0 if split else stage.backward_input + stage.backward_weight + hop)
    tail = slowest_tail(setting, plan, mesh, stages).seconds
    span += (plan.num_microbatches + plan.pipeline - 1) * stage_wait(setting, plan)
    return (span + tail + setting.software.step_overhead) * (1 + straggling(setting, plan))


def stage_wait(setting: Setting, plan: Parallelism) -> float:
    """Waiting of pipeline stages for one another in each micro-batch, beside bubble and sends [s]."""
    if plan.pipeline == 1:
        return 0.0
    return setting.software.stage_wait * math.ceil(plan.num_devices / setting.cluster.devices_per_node) ** 2


def straggling(setting: Setting, plan: Parallelism) -> float:
    """Relative slow-down by waiting for the slowest node."""
    nodes = max(1, plan.num_devices / setting.cluster.devices_per_node)
    return setting.software.straggler * math.log2(nodes)


def send_seconds(setting: Setting, plan: Parallelism, stages: Sequence[StageCost]) -> tuple[float, ...]:
    """Passing one micro-batch's boundary activations on, per boundary between stages."""
    per_stage = plan.num_devices // plan.pipeline
    group = comm_group(setting.cluster, ((plan.pipeline, per_stage),))
    seconds = {b: send(b, group).seconds for b in {stage.boundary_bytes for stage in stages}}
    return tuple(seconds[stage.boundary_bytes] for stage in stages[:-1])


def slowest_tail(setting: Setting, plan: Parallelism, mesh: Mesh, stages: Sequence[StageCost]) -> Tail:
    """The longest tail over ranks; ranks that run the same stages have the same."""
    different = {tuple(id(stages[s]) for s in ss): ss for ss in ranks_of(plan)}
    tails = (_tail(setting, plan, mesh, [stages[s] for s in ss]) for ss in different.values())
    return max(tails, key=lambda tail: tail.seconds)


def _tail(setting: Setting, plan: Parallelism, mesh: Mesh, stages: Sequence[StageCost]) -> Tail:
    """Reduction hides behind the last micro-batch's backward, gathering behind the next step's first forward."""
    overlap = setting.software.overlap_data
    sync = _sync(stages)
    last_reduce = sync.copy + sync.replicate
    last_reduce += 0.0 if reduces_every_microbatch(plan, setting.software) else sync.reduce
    exposed = max(0.0, last_reduce - overlap * sum(s.backward_input + s.backward_weight for s in stages))
    if gathers_once(plan):
        exposed += max(0.0, sync.gather - overlap * sum(s.forward for s in stages))
    elements = sum(
        sharded_elements(s.weights, mesh, plan.shard_degree if plan.zero_stage else 1) for s in stages
    )
    return Tail(exposed, _optimizer_seconds(setting, plan, elements))


def gathers_once(plan: Parallelism) -> bool:
    """Whether updated weights are gathered once a step: ZeRO-1, and ZeRO-2 that keeps them over a pipeline."""
    return plan.zero_stage == 1 or (plan.zero_stage == 2 and plan.pipeline > 1)


def _sync(stages: Sequence[StageCost]) -> Sync:
    total = Sync()
    for stage in stages:
        total = total.plus(stage.sync)
    return total


def _optimizer_seconds(setting: Setting, plan: Parallelism, elements: float) -> float:
    """Gradient norm and clip (one read, one read and write), and the update; over the host link if offloaded."""
    device, job = setting.cluster.device, setting.job
    clip = stream_seconds(3 * elements * gradient_bytes(job), device).seconds
    if "optimizer" in plan.offload and device.host_bandwidth:
        return clip + elements * (gradient_bytes(job) + weight_bytes(job)) / device.host_bandwidth
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
    m = plan.num_microbatches
    sync = _sync(stages)
    sent: dict[str, float] = {}

    def add(name: str, num_bytes: float) -> None:
        if num_bytes:
            sent[name] = sent.get(name, 0.0) + num_bytes

    for stage in stages:
        for name, num_bytes in stage.sent_bytes.items():
            add(name, m * num_bytes)
    software = setting.software
    times = m if reduces_every_microbatch(plan, software) else 1
    add("reduce_scatter" if plan.zero_stage else "all_reduce", times * sync.reduce_bytes)
    add("all_reduce", sync.replicate_bytes)
    add("all_reduce", sync.copy_bytes * (m if software.gradient_life == "late" else 1))
    each = m * sum(stage.gathered_bytes for stage in stages)
    add("all_gather", sync.gather_bytes if gathers_once(plan) else each)
    if plan.pipeline > 1:
        add("send", 2 * m * sum(stage.boundary_bytes for stage in stages))
    return sent

"""Time of one optimizer step: the simulated pipeline, then what comes after its last backward."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from operator import attrgetter
from typing import NamedTuple

from cluster_specs.cluster import ClusterSpec
from cluster_specs.topology import has_own_wires, route
from cost_models.collectives import send
from planner.evaluation.cuts import copies_of, places_of, ranks_of
from planner.evaluation.setting import Setting
from planner.evaluation.stages import PARTS, StageCost, split_stages
from planner.evaluation.states import gathers_stepped
from planner.evaluation.tails import Tail, Tails, last_tail, sync_over, tails_of
from planner.evaluation.units import reduces_every_microbatch, sums_every_microbatch
from planner.pipeline.dependencies import arranged
from planner.pipeline.generators import splits_backward
from planner.pipeline.ports import Ports
from planner.pipeline.simulator import Path, StageTimes, longest_path, makespan
from planner.plans import Parallelism
from planner.sharding.mesh import Mesh

ROUNDING = 1e-9
"""The same passes added up in another order take less than this fraction more or less."""

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


_DEGREES = attrgetter(*(name for name in Parallelism.model_fields if name not in ("recompute", "stages")))
"""All of a plan but what its stages are."""


class Around:
    """What steps have around their stages' passes, on one cluster: most of it is the same however layers are cut.

    Stages are told apart by identity, so they have to outlive it.
    """

    def __init__(self) -> None:
        """Nothing is priced yet."""
        self._known: dict[tuple[object, ...], tuple[dict[tuple[float, ...], tuple[float, ...]], Tails]] = {}

    def of(
        self, setting: Setting, plan: Parallelism, mesh: Mesh, stages: Sequence[StageCost]
    ) -> tuple[tuple[float, ...], tuple[Tail, ...]]:
        """Seconds at each boundary between stages, and the tail of each rank."""
        return self.with_plan(setting, plan, mesh)(stages)

    def with_plan(
        self, setting: Setting, plan: Parallelism, mesh: Mesh
    ) -> Callable[[Sequence[StageCost]], tuple[tuple[float, ...], tuple[Tail, ...]]]:
        """The same of one plan, by its stages."""
        sends, tails = self._known.setdefault(_DEGREES(plan), ({}, {}))

        def of(stages: Sequence[StageCost]) -> tuple[tuple[float, ...], tuple[Tail, ...]]:
            found = tails_of(setting, plan, mesh, stages, tails)
            if plan.pipeline == 1:
                return (), found
            sizes = tuple([stage.boundary_bytes for stage in stages[:-1]])
            if sizes not in sends:
                sends[sizes] = send_seconds(setting, plan, stages)
            return sends[sizes], found

        return of


def step_time(
    setting: Setting,
    plan: Parallelism,
    mesh: Mesh,
    stages: Sequence[StageCost],
    around: Around | None = None,
) -> StepTime:
    """Simulate the pipeline and add what comes after it, overheads and stragglers."""
    sends, tails = (around or Around()).of(setting, plan, mesh, stages)
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


def step_floor(
    setting: Setting,
    plan: Parallelism,
    mesh: Mesh,
    stages: Sequence[StageCost],
    around: Around | None = None,
    paths: Sequence[Path] = (),
) -> float:
    """`StepFloor` of one cut."""
    return StepFloor(setting, plan, mesh, around or Around())(stages, paths)


class StepFloor:
    """Less than `step_time` will say of a plan, without a simulation [s]: for the search to prune by.

    Rank r cannot start before the first micro-batch has passed the ranks before it, nor end before the last
    one has gone back through them; the step cannot be shorter than rank r's work between the two, and what it waits,
    nor than one micro-batch takes through all stages beside the others (`through_all`), nor than links take to carry
    everything (`carried`), nor than any path through the schedule takes that is given.
    """

    def __init__(self, setting: Setting, plan: Parallelism, mesh: Mesh, around: Around) -> None:
        """All that is the same however layers are cut."""
        self._setting, self._plan, self._around = setting, plan, around.with_plan(setting, plan, mesh)
        self._copies, self._ranks = copies_of(plan), ranks_of(plan)
        self._splits = plan.pipeline > 1 and splits_backward(plan.schedule)
        self._wait = stage_wait(setting, plan.pipeline, plan.virtual_stages, plan.num_microbatches)
        self._slower = 1 + straggling(setting, plan.num_devices)
        self._carried = cache(partial(carried, plan, ports_of(setting.cluster)))

    def __call__(self, stages: Sequence[StageCost], paths: Sequence[Path] = ()) -> float:
        """With these stages."""
        sends, tails = self._around(stages)
        split, one = self._splits, self._copies == 1
        span = self._around_ranks(stages, sends)
        if paths:
            times = stage_times(split_stages(stages, self._plan, self._setting.software))
            span = max(span, (1 - ROUNDING) * max(path.under(times, sends) for path in paths))
        # Where backwards are not split, everything comes before the first rank's last one: it ends last.
        data = tails[0].data if one and not split else min([tail.data for tail in tails])
        tail_seconds = data + max([tail.optimizer for tail in tails])
        return (span + self._wait + tail_seconds + self._setting.software.step_overhead) * self._slower

    def _around_ranks(self, stages: Sequence[StageCost], sends: Sequence[float]) -> float:
        """The pipeline by what each rank does, and what comes before and after [s]."""
        plan, one, whole = self._plan, self._copies == 1, not self._splits
        seconds, each = [stage.seconds for stage in stages], plan.num_microbatches / self._copies
        work = [sum([seconds[s] for s in ss]) for ss in self._ranks]
        span = before = 0.0
        for ss, own, waits in zip(self._ranks, work, _waits_behind(plan, work, sends), strict=True):
            span = max(span, each * own + waits + before)
            if one:
                stage, hop = stages[ss[0]], sends[ss[0]] if ss[0] < len(sends) else 0.0
                back = stage.backward_input + stage.backward_weight + hop if whole else 0.0
                before += stage.forward + hop + back
        if one and whole:
            passes = [max(s.forward, own - s.forward) for s, own in zip(stages, seconds, strict=True)]
            longest = max([*passes, *sends])  # a boundary is passed by one at a time as well
            span = max(span, through_all(sum(work) + 2 * sum(sends), longest, plan.num_microbatches))
        return max(span, self._carried(tuple(sends))) if one and sends else span


def critical_path(
    setting: Setting, plan: Parallelism, mesh: Mesh, stages: Sequence[StageCost], around: Around
) -> Path:
    """Of the pipeline, without queues at ports; it takes no longer than the step however layers are cut."""
    sends, _ = around.of(setting, plan, mesh, stages)
    order = arranged(plan.schedule, plan.pipeline, plan.virtual_stages, plan.num_microbatches)
    return longest_path(order, stage_times(split_stages(stages, plan, setting.software)), sends)


def carried(plan: Parallelism, ports: Ports, sends: Sequence[float], work: float = 0.0) -> float:
    """Least makespan of a pipeline that has every stage once, by what its links carry one at a time [s].

    A boundary is passed m times each way, by the last micro-batch that goes forth before it has gone on to the end and
    all the way back, as in `through_all`; ``work`` is as there. A rank's port carries all that its stages hand on,
    either way, between what the first micro-batch takes to come to the rank and the last to go on from its neighbour.
    """
    m, hops = plan.num_microbatches, (0.0, *sends, 0.0)
    least = through_all(work + 2 * sum(sends), max(sends), m)
    for own in ranks_of(plan) if ports == "rank" else ():
        each = sum(hops[s] + hops[s + 1] for s in own)
        least = max(least, m * each + sum(hops[: own[0] + 1]) + sum(hops[: own[0]]))
    return (1 - ROUNDING) * least


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


def sent_bytes(setting: Setting, plan: Parallelism, stages: Sequence[StageCost]) -> Mapping[str, float]:
    """Bytes that one device of the rank sends in a step, by collective."""
    m = plan.num_microbatches / copies_of(plan)
    sync = sync_over(stages)
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
    add("send", scattered * (sync.reduce_ring_bytes + sync.returned_bytes))
    add("all_reduce", summed * (sync.whole_bytes + sync.replicate_bytes))
    add("all_reduce", sync.copy_bytes * (1 if software.gradient_life == "step" else m))
    each = m * sum(stage.gathered_bytes for stage in stages)
    once = gathers_stepped(plan, software)
    add("all_gather", sync.gather_bytes if once else each)
    add("all_reduce", sync.summed_bytes if once else 0.0)
    if plan.pipeline > 1:
        add("send", 2 * m * sum(stage.boundary_bytes for stage in stages))
    return sent
